"""Disks that are full, read-only, damaged or not there."""

import errno
import os
import resource
import subprocess
import time

import pytest

from rdna_jit.cache import KernelCache, eviction
from rdna_jit.cache.store import Store
from tests.cache.fakes import code_of, compiler, make_key, must_not_compile
from tests.cache.mounts import tmpfs


def use(kernels, key, size=4096):
    """One look-up that may compile; checks the bytes and returns where they came from."""
    entry = kernels.get_or_compile(key, compiler(key, size=size))
    assert entry.code_object == code_of(key, size)
    return entry.origin


def test_disk_that_fills_up(tmp_path, warnings_of):
    with tmpfs(tmp_path / "small", "size=128k,mode=0700") as mount:
        store = Store(str(mount / "cache"))
        kernels = KernelCache(store)
        keys = [make_key(n) for n in range(12)]
        for key in keys:
            assert use(kernels, key, 20_000) == "compiled"
        assert len(warnings_of()) == 1 and "No space left" in warnings_of()[0]
        assert os.listdir(mount / "cache" / "tmp") == []
        fresh = KernelCache(store)
        found = [use(fresh, key, 20_000) for key in keys]
        assert set(found) == {"disk", "compiled"} and found[0] == "disk"
        assert not os.path.exists(mount / "cache" / "quarantine")


def test_disk_without_inodes(tmp_path, warnings_of):
    with tmpfs(tmp_path / "few", "size=1m,nr_inodes=7,mode=0700") as mount:
        kernels = KernelCache(Store(str(mount / "cache")))
        for n in range(4):
            assert use(kernels, make_key(n)) == "compiled"
        assert len(warnings_of()) == 1 and "No space left" in warnings_of()[0]


def test_mount_that_became_readonly(tmp_path, warnings_of):
    with tmpfs(tmp_path / "ro", "size=1m,mode=0700") as mount:
        store = Store(str(mount / "cache"))
        old, new = make_key(1), make_key(2)
        KernelCache(store).get_or_compile(old, compiler(old))
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        kernels = KernelCache(store)
        assert kernels.get_or_compile(old, must_not_compile).origin == "disk"
        for n in range(2, 5):
            assert use(kernels, make_key(n)) == "compiled"
        assert kernels.get_or_compile(new, must_not_compile).origin == "memory"
        assert len(warnings_of()) == 1 and "Read-only" in warnings_of()[0]


def test_bad_entry_on_a_readonly_mount_is_rebuilt_in_memory(tmp_path, warnings_of):
    with tmpfs(tmp_path / "ro", "size=1m,mode=0700") as mount:
        store = Store(str(mount / "cache"))
        key = make_key()
        KernelCache(store).get_or_compile(key, compiler(key))
        os.truncate(store.path("kernels", key.digest), 100)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        assert use(KernelCache(store), key) == "compiled"
        bad, readonly = warnings_of()
        assert "ignored" in bad and "Read-only" in readonly


@pytest.mark.parametrize("place", ["root", "parent"])
def test_root_that_is_a_file(tmp_path, warnings_of, place):
    (tmp_path / "file").write_text("not a directory")
    root = tmp_path / "file" if place == "root" else tmp_path / "file" / "cache"
    kernels = KernelCache(Store(str(root)))
    for n in range(3):
        assert use(kernels, make_key(n)) == "compiled"
    assert (tmp_path / "file").read_text() == "not a directory"
    assert len(warnings_of()) == 1 and "memory only" in warnings_of()[0]


def _truncate(path):
    os.truncate(path, os.path.getsize(path) // 2)


def _empty(path):
    os.truncate(path, 0)


def _flip(path):
    with open(path, "r+b") as file:
        file.seek(-100, 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def _flip_metadata(path):
    with open(path, "r+b") as file:
        data = file.read().replace(b'"seconds":0.0', b'"seconds":9.0')
        file.seek(0)
        file.write(data)


def _append(path):
    with open(path, "ab") as file:
        file.write(b"more")


def _directory(path):
    os.unlink(path)
    os.mkdir(path)
    open(f"{path}/file", "w").close()


def _link(path):
    os.rename(path, f"{path}.real")
    os.symlink(f"{path}.real", path)


def _fifo(path):
    os.unlink(path)
    os.mkfifo(path)


def _other_entry(path):
    other = make_key(99)
    KernelCache(Store(os.path.dirname(os.path.dirname(path)))).get_or_compile(
        other, compiler(other)
    )
    os.replace(os.path.join(os.path.dirname(path), other.digest), path)


@pytest.mark.parametrize(
    "damage",
    [_truncate, _empty, _flip, _flip_metadata, _append, _directory, _link, _fifo, _other_entry],
)
def test_damaged_entry_is_set_aside_and_rebuilt(store, warnings_of, damage):
    key = make_key()
    KernelCache(store).get_or_compile(key, compiler(key))
    damage(store.path("kernels", key.digest))
    assert use(KernelCache(store), key) == "compiled"
    assert len(warnings_of()) == 1 and "set aside" in warnings_of()[0]
    assert len(os.listdir(f"{store.root}/quarantine")) == 1
    assert KernelCache(store).get_or_compile(key, must_not_compile).origin == "disk"
    assert len(warnings_of()) == 1


def test_good_entry_survives_a_process_out_of_files(store, warnings_of):
    key, other = make_key(1), make_key(2)
    KernelCache(store).get_or_compile(key, compiler(key))
    fresh = KernelCache(store)
    use(KernelCache(None), other)  # what is imported late is imported now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert use(fresh, key) == "compiled"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all("Too many open files" in text for text in warnings_of())
    assert not os.path.exists(f"{store.root}/quarantine")
    assert KernelCache(store).get_or_compile(key, must_not_compile).origin == "disk"


def test_file_system_without_locks_is_said_once(store, warnings_of, monkeypatch):
    import fcntl

    def flock(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(fcntl, "lockf", flock)
    for n in range(2):
        assert use(KernelCache(store), make_key(n)) == "compiled"
    assert len(warnings_of()) == 1 and "no lock between processes" in warnings_of()[0]
    assert use(KernelCache(store), make_key(0)) == "disk"


def test_many_damaged_entries_warn_once_per_cause(store, warnings_of):
    keys = [make_key(n) for n in range(6)]
    kernels = KernelCache(store)
    for key in keys:
        kernels.get_or_compile(key, compiler(key))
        _flip(store.path("kernels", key.digest))
    fresh = KernelCache(store)
    assert [use(fresh, key) for key in keys] == ["compiled"] * 6
    assert len(warnings_of()) == 1


def test_stale_temporaries_are_swept_and_fresh_ones_left(store):
    store.prepare("kernels")
    now = time.time()
    for name, age in {"week": 7 * 86400, "future": -7 * 86400, "fresh": 5}.items():
        path = f"{store.root}/tmp/{name}"
        open(path, "w").close()
        os.utime(path, (now - age, now - age))
    key = make_key()
    limited = Store(store.root, max_bytes=1 << 20)
    KernelCache(limited).get_or_compile(key, compiler(key))
    assert os.listdir(f"{store.root}/tmp") == ["fresh"]


def test_old_bad_entries_are_swept(store):
    store.prepare("quarantine")
    for n in range(eviction.QUARANTINE_COUNT + 3):
        path = f"{store.root}/quarantine/kernels-{n}"
        os.mkdir(path) if n % 2 else open(path, "w").close()
    assert eviction.sweep(store) == 3
    assert len(os.listdir(f"{store.root}/quarantine")) == eviction.QUARANTINE_COUNT


@pytest.mark.parametrize("jump", [-10 * 365 * 86400, 10 * 365 * 86400])
def test_clock_that_jumps(store, monkeypatch, jump):
    """Entries stay valid; a last use in the future is put right at the next load."""
    key, real = make_key(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    KernelCache(store).get_or_compile(key, compiler(key))
    path = store.path("kernels", key.digest)
    os.utime(path, (time.time(), time.time()))
    monkeypatch.undo()
    assert KernelCache(store).get_or_compile(key, must_not_compile).origin == "disk"
    assert abs(os.stat(path).st_atime - real()) < 60
    assert eviction.shrink(store, older_than=3600).removed == 0


def test_a_folder_below_nowhere_keeps_kernels_in_memory(tmp_path, warnings_of):
    (tmp_path / "link").symlink_to("/gone/away")
    for root in (str(tmp_path / "link" / "cache"), "/proc/nope"):
        kernels = KernelCache(Store(root))
        assert use(kernels, make_key(1)) == "compiled" and use(kernels, make_key(1)) == "memory"
