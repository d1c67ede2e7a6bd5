"""Archives: what goes in comes out, and nothing else does."""

import contextlib
import gzip
import io
import json
import os
import tarfile

import pytest

from rdna_jit.cache import KernelCache, bundle
from rdna_jit.cache.store import Store
from rdna_jit.errors import ContractError
from tests.cache.commands import command
from tests.cache.fakes import compiler, make_key, must_not_compile

SECRET = b"0123456789abcdef" * 2


def fill(store, count=3):
    kernels = KernelCache(store)
    for n in range(count):
        kernels.get_or_compile(make_key(n), compiler(make_key(n)))
    return store


def export(store, path):
    return bundle.export_bundle(str(path), [(store, e.kind, e.key) for e in store.entries()])


def rewrite(path, change):
    """Unpack to a list of (TarInfo, bytes), let `change` alter it, pack again."""
    with tarfile.open(path) as archive:
        members = [(m, archive.extractfile(m).read()) for m in archive]
    change(members)
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_imported_kernels_need_no_compile(store, tmp_path):
    fill(store)
    path = tmp_path / "b.tar.gz"
    made = export(store, path)
    assert (made.entries, made.refused) == (3, [])
    other = Store(str(tmp_path / "other"))
    assert bundle.import_bundle(str(path), other).entries == 3
    for n in range(3):
        entry = KernelCache(other).get_or_compile(make_key(n), must_not_compile)
        assert entry.origin == "disk"


def test_equal_contents_make_equal_bundles(store, tmp_path):
    fill(store)
    export(store, tmp_path / "a.tar.gz")
    for entry in store.entries():
        os.utime(entry.path, (1e9, 1e9))
    export(store, tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_damaged_entry_is_left_out_of_an_export(store, tmp_path):
    fill(store)
    os.truncate(store.path("kernels", make_key(1).digest), 200)
    made = export(store, tmp_path / "b.tar.gz")
    assert made.entries == 2 and make_key(1).digest in made.refused[0][0]


def test_failed_export_leaves_the_old_file(store, tmp_path, monkeypatch):
    fill(store)
    path = tmp_path / "b.tar.gz"
    path.write_bytes(b"old")

    def fail(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        export(store, path)
    assert path.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["b.tar.gz", "cache"]


def test_changed_entry_is_refused_and_the_rest_taken(store, tmp_path):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)

    def change(members):
        member, data = members[1]
        members[1] = member, data[:-1] + b"!"

    rewrite(path, change)
    taken = bundle.import_bundle(str(path), Store(str(tmp_path / "other")))
    assert taken.entries == 2 and "digest" in taken.refused[0][1]


def test_changed_entry_with_a_matching_manifest_is_still_refused(store, tmp_path):
    """The entry's own digest stands behind the manifest's."""
    import hashlib

    fill(store, 1)
    path = tmp_path / "b.tar.gz"
    export(store, path)

    def change(members):
        member, data = members[1]
        data = data[:-1] + b"!"
        members[1] = member, data
        manifest = json.loads(members[0][1])
        manifest["entries"][0]["sha256"] = hashlib.sha256(data).hexdigest()
        members[0] = members[0][0], json.dumps(manifest).encode()

    rewrite(path, change)
    taken = bundle.import_bundle(str(path), Store(str(tmp_path / "other")))
    assert taken.entries == 0 and "digest does not match its bytes" in taken.refused[0][1]


def test_missing_entry_is_reported(store, tmp_path):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)
    rewrite(path, lambda members: members.pop())
    taken = bundle.import_bundle(str(path), Store(str(tmp_path / "other")))
    assert taken.entries == 2 and "missing" in taken.refused[0][1]


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "kernels/../evil", "kernels/x"])
def test_member_that_the_manifest_does_not_list_is_an_error(store, tmp_path, name):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)
    rewrite(path, lambda members: members.append((tarfile.TarInfo(name), b"evil")))
    with pytest.raises(ContractError):
        bundle.import_bundle(str(path), Store(str(tmp_path / "other")))
    assert sorted(os.listdir(tmp_path)) == ["b.tar.gz", "cache", "other"]


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "../x", "key": "a"},
        {"kind": "locks", "key": "0" * 64},
        {"kind": 1, "key": "0" * 64},
        {"kind": "kernels", "key": 5},
    ],
)
def test_manifest_with_an_impossible_name_is_an_error(store, tmp_path, row):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)

    def change(members):
        text = json.dumps({"format": bundle.FORMAT, "entries": [row]}).encode()
        members[0] = members[0][0], text

    rewrite(path, change)
    with pytest.raises(ContractError, match="impossible"):
        bundle.import_bundle(str(path), Store(str(tmp_path / "other")))


def test_manifest_that_nests_without_end_is_an_error(store, tmp_path):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)

    def change(members):
        members[0] = members[0][0], b"[" * 200_000

    rewrite(path, change)
    with pytest.raises(ContractError, match="manifest"):
        bundle.import_bundle(str(path), Store(str(tmp_path / "other")))


def test_a_key_file_that_cannot_be_used_stops_an_import(store, tmp_path, capsys, monkeypatch):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)
    monkeypatch.setenv("RDNA_JIT_CACHE_KEY_FILE", str(tmp_path / "no key"))
    words = ["import", path, "--dir", tmp_path / "other"]
    status, _, err = command(capsys, *words)
    assert status == 2 and "RDNA_JIT_CACHE_KEY_FILE" in err
    assert not list((tmp_path / "other").glob("kernels/*"))
    assert command(capsys, *words, "--allow-unsigned")[0] == 0


def test_links_in_a_bundle_are_refused(store, tmp_path):
    fill(store, 1)
    path = tmp_path / "b.tar.gz"
    export(store, path)

    def change(members):
        link = tarfile.TarInfo(members[1][0].name)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        members[1] = link, b""

    rewrite(path, change)
    taken = bundle.import_bundle(str(path), Store(str(tmp_path / "other")))
    assert taken.entries == 0 and "manifest" in taken.refused[0][1]


def test_every_kind_of_broken_archive_is_one_error(store, tmp_path):
    fill(store)
    path = tmp_path / "b.tar.gz"
    export(store, path)
    whole = path.read_bytes()
    plain = gzip.decompress(whole)
    broken = [whole[: len(whole) // 2], whole[:30], b"", b"hello", gzip.compress(plain[:700])]
    for data in broken:
        path.write_bytes(data)
        with pytest.raises(ContractError, match="bundle"):
            bundle.import_bundle(str(path), Store(str(tmp_path / "other")))


def test_flipped_bits_never_get_an_entry_through(store, tmp_path):
    fill(store, 2)
    path = tmp_path / "b.tar.gz"
    export(store, path)
    whole = path.read_bytes()
    other = Store(str(tmp_path / "other"))
    for position in range(0, len(whole), 37):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        with contextlib.suppress(ContractError):
            bundle.import_bundle(str(path), other)
    for entry in other.entries():
        assert other.check(entry.kind, entry.key) == store.check(entry.kind, entry.key)


def test_signed_caches_take_signed_bundles(store, tmp_path):
    fill(store)
    unsigned, signed = tmp_path / "u.tar.gz", tmp_path / "s.tar.gz"
    export(store, unsigned)
    export(Store(store.root, signing_key=SECRET), signed)
    target = Store(str(tmp_path / "other"), signing_key=SECRET)
    refused = bundle.import_bundle(str(unsigned), target)
    assert refused.entries == 0 and len(refused.refused) == 3
    assert "not signed" in refused.refused[0][1]
    assert bundle.import_bundle(str(signed), target).entries == 3
    third = Store(str(tmp_path / "third"), signing_key=SECRET)
    assert bundle.import_bundle(str(unsigned), third, allow_unsigned=True).entries == 3
    # What was taken is signed by us now.
    os.chmod(third.root, 0o777)
    assert KernelCache(third).get_or_compile(make_key(0), must_not_compile).origin == "disk"
