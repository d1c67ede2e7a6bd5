"""Who may have written what is loaded. Tests that need another user's files run as root."""

import os
import shutil
import subprocess
import sys

import pytest

from rdna_jit.cache import KernelCache, configured, trust
from rdna_jit.cache.store import Store
from rdna_jit.config import config
from tests.cache.fakes import compiler, make_key, must_not_compile
from tests.cache.processes import finish, origins, start

SECRET, OTHER_SECRET = b"0123456789abcdef" * 2, b"fedcba9876543210" * 2
STRANGER = 12345

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")


def filled(root, secret=None, numbers=(0,)):
    kernels = KernelCache(Store(root, signing_key=secret))
    for number in numbers:
        key = make_key(number)
        kernels.get_or_compile(key, compiler(key))
    return Store(root)


def load(root, secret=None):
    """Where a fresh look-up of key 0 finds it."""
    key = make_key(0)
    return KernelCache(Store(root, signing_key=secret)).get_or_compile(key, compiler(key)).origin


def test_new_folders_are_private(root):
    os.umask(old := os.umask(0))
    os.umask(0)
    try:
        store = filled(root)
    finally:
        os.umask(old)
    for folder, _, files in os.walk(root):
        assert os.stat(folder).st_mode & 0o777 == 0o700
        for name in files:
            if "locks" not in folder:
                assert os.stat(f"{folder}/{name}").st_mode & 0o777 == 0o600
    assert load(store.root) == "disk"


def test_root_that_its_owner_opened_for_reading_stays_readable(root):
    os.mkdir(root)
    os.chmod(root, 0o755)
    store = filled(root)
    assert os.stat(f"{root}/kernels").st_mode & 0o777 == 0o755
    assert os.stat(store.path("kernels", make_key(0).digest)).st_mode & 0o777 == 0o644


@pytest.mark.parametrize("what", ["entry", "kernels", "root", "parent"])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_place_that_others_can_write_is_not_loaded_from(tmp_path, warnings_of, what, mode):
    root = str(tmp_path / "parent" / "cache")
    store = filled(root)
    entry = store.path("kernels", make_key(0).digest)
    path = {
        "entry": entry,
        "kernels": f"{root}/kernels",
        "root": root,
        "parent": str(tmp_path / "parent"),
    }[what]
    if mode & 0o007 == 0:
        if os.geteuid() != 0:
            pytest.skip("changing groups needs root")
        os.chown(path, -1, STRANGER)
    os.chmod(path, mode)
    assert load(root) == "compiled"
    assert os.path.basename(path) in warnings_of()[0] and "can be written" in warnings_of()[0]
    assert 1 <= len(warnings_of()) <= 2


@needs_root
@pytest.mark.parametrize("what", ["entry", "kernels", "root", "parent"])
def test_place_of_another_user_is_not_loaded_from(tmp_path, warnings_of, what):
    root = str(tmp_path / "parent" / "cache")
    store = filled(root)
    entry = store.path("kernels", make_key(0).digest)
    path = {
        "entry": entry,
        "kernels": f"{root}/kernels",
        "root": root,
        "parent": str(tmp_path / "parent"),
    }[what]
    os.chown(path, STRANGER, -1)
    assert load(root) == "compiled"
    assert f"belongs to user {STRANGER}" in warnings_of()[0]


def test_sticky_folder_above_is_safe(tmp_path):
    (tmp_path / "shared").mkdir()
    os.chmod(tmp_path / "shared", 0o1777)
    root = str(tmp_path / "shared" / "cache")
    filled(root)
    assert load(root) == "disk"


def test_sticky_cache_folder_is_not(tmp_path):
    root = str(tmp_path / "cache")
    filled(root)
    os.chmod(f"{root}/kernels", 0o1777)
    assert load(root) == "compiled"


@needs_root
def test_link_of_another_user_is_not_followed(tmp_path, warnings_of):
    filled(str(tmp_path / "real"))
    os.symlink(tmp_path / "real", tmp_path / "mine")
    os.symlink("mine", tmp_path / "theirs")
    assert load(str(tmp_path / "mine")) == "disk"
    os.chown(tmp_path / "theirs", STRANGER, -1, follow_symlinks=False)
    assert load(str(tmp_path / "theirs")) == "compiled"
    assert f"belongs to user {STRANGER}" in warnings_of()[0]


def test_loop_of_links_ends(tmp_path):
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    assert "symbolic links" in trust.untrusted_reason(str(tmp_path / "a"))
    assert load(str(tmp_path / "a")) == "compiled"


def test_relative_links_and_dots_are_resolved(tmp_path):
    (tmp_path / "x" / "y").mkdir(parents=True)
    os.symlink("../x/./y/..", tmp_path / "x" / "link")
    assert trust.untrusted_reason(f"{tmp_path}/x/link/y") is None
    os.chmod(tmp_path / "x" / "y", 0o777)
    assert "can be written" in trust.untrusted_reason(f"{tmp_path}/x/link/y")


def test_signed_entry_is_loaded_from_anywhere(root, warnings_of):
    filled(root, SECRET)
    os.chmod(root, 0o777)
    assert load(root, SECRET) == "disk"
    assert warnings_of() == []
    assert load(root, OTHER_SECRET) == "compiled"  # and published, signed with the other key
    assert load(root, OTHER_SECRET) == "disk"
    assert load(root, None) == "compiled"
    assert len(warnings_of()) == 1


def test_unsigned_entry_in_a_private_place_needs_no_signature(root):
    filled(root)
    assert load(root, SECRET) == "disk"


def test_signature_does_not_cover_changed_bytes(root, warnings_of):
    store = filled(root, SECRET)
    os.chmod(root, 0o777)
    with open(store.path("kernels", make_key(0).digest), "r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    assert load(root, SECRET) == "compiled"
    assert "digest" in warnings_of()[0]


def test_untrusted_root_without_key_is_not_written(root):
    os.mkdir(root)
    os.chmod(root, 0o777)
    assert load(root) == "compiled"
    assert not os.path.exists(f"{root}/kernels/{make_key(0).digest}")


def test_group_of_our_own_may_write():
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        pytest.skip("this user is not in the user database")
    if group.gr_name != user.pw_name or set(group.gr_mem) - {user.pw_name, "root"}:
        pytest.skip("this user has no private group")
    assert trust._group_is_only_us(user.pw_gid)
    assert not trust._group_is_only_us(STRANGER)


@pytest.mark.parametrize(
    "content, mode, problem",
    [
        (SECRET, 0o644, "read by every user"),
        (SECRET, 0o622, "can be written"),
        (b"short", 0o600, "at least 16"),
        (None, 0, "No such file"),
    ],
)
def test_unfit_key_file_means_no_key(tmp_path, warnings_of, content, mode, problem):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with config.scope(cache_key_file=path):
        assert configured.signing_key() is None
        assert configured.signing_key() is None
    assert len(warnings_of()) == 1 and problem in warnings_of()[0]


def test_key_file_is_read(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    with config.scope(cache_key_file=path, cache_dir=tmp_path / "cache"):
        assert configured.default().store.signing_key == SECRET


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
class TestAnotherUser:
    """A cache baked by root, used by user 12345."""

    @staticmethod
    def use(tmp_path, *options):
        for folder in (tmp_path, *tmp_path.parents):
            if not os.stat(folder).st_mode & 0o001:
                os.chmod(folder, os.stat(folder).st_mode | 0o055)
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        os.chown(home, STRANGER, STRANGER)
        prefix = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
        if subprocess.run([*prefix, sys.executable, "-c", "import json"]).returncode:
            pytest.skip("other users cannot run this Python")
        process = start(home / "cache", 1, *options, prefix=prefix)
        return finish(process)

    def test_readable_layer_of_root_is_trusted(self, tmp_path):
        baked = str(tmp_path / "baked")
        os.mkdir(baked)
        os.chmod(baked, 0o755)
        filled(baked)
        report = self.use(tmp_path, "--readonly", baked)
        assert origins(report) == ["readonly"] and report["warnings"] == []

    def test_private_layer_of_root_cannot_be_read(self, tmp_path):
        baked = str(tmp_path / "baked")
        filled(baked)
        report = self.use(tmp_path, "--readonly", baked)
        assert origins(report) == ["compiled"]
        assert len(report["warnings"]) == 1 and "Permission denied" in report["warnings"][0]

    def test_layer_of_a_third_user_needs_a_signature(self, tmp_path):
        key_file = tmp_path / "key"
        key_file.write_bytes(SECRET)
        key_file.chmod(0o600)
        os.chown(key_file, STRANGER, STRANGER)
        baked = str(tmp_path / "baked")
        os.mkdir(baked)
        os.chmod(baked, 0o755)
        filled(baked, SECRET)
        os.chown(baked, STRANGER + 1, -1)
        report = self.use(tmp_path, "--readonly", baked)
        assert origins(report) == ["compiled"]
        assert "belongs to user" in report["warnings"][0]
        shutil.rmtree(tmp_path / "home" / "cache")
        report = self.use(tmp_path, "--readonly", baked, "--key-file", key_file)
        assert origins(report) == ["readonly"] and report["warnings"] == []


def test_load_of_what_we_made_never_compiles(root):
    filled(root)
    assert KernelCache(Store(root)).get_or_compile(make_key(0), must_not_compile).origin == "disk"
