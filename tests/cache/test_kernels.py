import dataclasses
import os
import threading

import pytest

from rdna_jit import cache
from rdna_jit.cache import KernelCache, Key
from rdna_jit.cache.store import Store
from rdna_jit.config import config
from rdna_jit.errors import CompileError
from tests.cache.fakes import code_of, compiler, compiles, make_key, must_not_compile


def test_found_in_memory_then_on_disk(store, tmp_path):
    key, count = make_key(), tmp_path / "count"
    first = KernelCache(store)
    made = first.get_or_compile(key, compiler(key, count, log="note"), {"kernel": "k"})
    assert (made.origin, made.code_object) == ("compiled", code_of(key))
    again = first.get_or_compile(key, must_not_compile)
    assert again == dataclasses.replace(made, origin="memory")
    loaded = KernelCache(store).get_or_compile(key, must_not_compile)
    assert loaded == dataclasses.replace(made, origin="disk")
    assert loaded.metadata["kernel"] == "k" and loaded.metadata["arch"] == "gfx1030"
    assert compiles(count) == [key.digest]


def test_memory_alone(tmp_path):
    key = make_key()
    memory = KernelCache(None)
    assert memory.get_or_compile(key, compiler(key)).origin == "compiled"
    assert memory.get_or_compile(key, must_not_compile).origin == "memory"
    memory.forget()
    assert memory.get(key) is None


def test_readonly_layer_is_used_and_never_written(root, tmp_path):
    key, other = make_key(1), make_key(2)
    KernelCache(Store(root)).get_or_compile(key, compiler(key))
    before = sorted(os.listdir(f"{root}/kernels"))
    layered = KernelCache(Store(str(tmp_path / "own")), [Store(root, readonly=True)])
    assert layered.get_or_compile(key, must_not_compile).origin == "readonly"
    layered.get_or_compile(other, compiler(other))
    assert sorted(os.listdir(f"{root}/kernels")) == before
    assert os.listdir(tmp_path / "own" / "kernels") == [other.digest]


def test_bad_entry_in_a_readonly_layer_is_left_and_recompiled(root, tmp_path, warnings_of):
    key = make_key()
    base = Store(root)
    KernelCache(base).get_or_compile(key, compiler(key))
    with open(base.path("kernels", key.digest), "r+b") as file:
        file.truncate(50)
    layered = KernelCache(Store(str(tmp_path / "own")), [Store(root, readonly=True)])
    assert layered.get_or_compile(key, compiler(key)).origin == "compiled"
    assert os.path.getsize(base.path("kernels", key.digest)) == 50
    assert len(warnings_of()) == 1 and "ignored" in warnings_of()[0]


def test_hit_in_memory_touches_no_disk(store, monkeypatch):
    key = make_key()
    kernels = KernelCache(store)
    kernels.get_or_compile(key, compiler(key))
    for name in ("open", "stat", "lstat", "utime"):
        monkeypatch.setattr(os, name, lambda *a, **k: pytest.fail("disk was touched"))
    entry = kernels.get_or_compile(key, must_not_compile)
    monkeypatch.undo()
    assert entry.origin == "memory"


def test_error_of_the_compiler_passes_and_nothing_is_stored(store):
    key = make_key()
    kernels = KernelCache(store)

    def fail():
        raise CompileError("no", kernel="k")

    for _ in range(2):
        with pytest.raises(CompileError):
            kernels.get_or_compile(key, fail)
    assert not list(store.entries())
    assert kernels.get_or_compile(key, compiler(key)).origin == "compiled"


def test_no_compile_names_what_to_add(store):
    key = make_key()
    metadata = {"kernel": "axpy", "spec": "axpy", "values": {"K": 4096}}
    with config.scope(no_compile=True):
        with pytest.raises(CompileError) as caught:
            KernelCache(store).get_or_compile(key, must_not_compile, metadata)
        text = str(caught.value)
        assert '{"arch": "gfx1030", "spec": "axpy", "values": {"K": 4096}}' in text
        assert "rdna-jit-cache warm" in text and "RDNA_JIT_NO_COMPILE" in text
        own = {"kernel": "mine", "values": {"K": 4096}}
        with pytest.raises(CompileError, match=r"\[K=4096\] once with RDNA_JIT_RECORD"):
            KernelCache(store).get_or_compile(key, must_not_compile, own)
    KernelCache(store).get_or_compile(key, compiler(key), metadata)
    with config.scope(no_compile=True):
        assert KernelCache(store).get_or_compile(key, must_not_compile).origin == "disk"


def test_threads_share_one_compile_per_key(store, tmp_path):
    keys, count = [make_key(n) for n in range(4)], tmp_path / "count"
    kernels = KernelCache(store)
    start = threading.Barrier(16)
    wrong = []

    def work():
        start.wait()
        for key in keys:
            entry = kernels.get_or_compile(key, compiler(key, count, seconds=0.02))
            if entry.code_object != code_of(key):
                wrong.append(key)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(compiles(count)) == sorted(key.digest for key in keys)


def test_two_caches_in_one_process_share_one_compile(store, tmp_path):
    """Two KernelCache objects meet only at the lock on disk."""
    key, count = make_key(), tmp_path / "count"
    caches = [KernelCache(store), KernelCache(Store(store.root))]
    threads = [
        threading.Thread(target=c.get_or_compile, args=(key, compiler(key, count, seconds=0.1)))
        for c in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiles(count) == [key.digest]


def test_settings_choose_the_cache(tmp_path):
    with config.scope(cache_dir=tmp_path / "a"):
        first = cache.default()
        assert first.store.root == str(tmp_path / "a")
        assert cache.default() is first
        with config.scope(cache_dir=tmp_path / "b", cache_max_bytes=1000):
            assert cache.default().store.root == str(tmp_path / "b")
            assert cache.default().store.max_bytes == 1000
        assert cache.default() is first
        with config.scope(cache=False):
            assert cache.default().store is None
            assert cache.blobs("emulator").put("0" * 64, b"x") is False
        with config.scope(cache_readonly=f"{tmp_path}/c{os.pathsep}{tmp_path}/d"):
            assert [layer.root for layer in cache.default().layers] == [
                str(tmp_path / "c"),
                str(tmp_path / "d"),
            ]
    assert not list(tmp_path.iterdir())


def test_user_without_a_home_keeps_kernels_in_memory(monkeypatch, warnings_of):
    monkeypatch.delenv("RDNA_JIT_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    with config.scope(cache_readonly="/nonexistent"):
        kernels = cache.default()
    assert kernels.store is None
    key = make_key()
    assert kernels.get_or_compile(key, compiler(key)).origin == "compiled"
    assert len(warnings_of()) == 1 and "RDNA_JIT_CACHE_DIR" in warnings_of()[0]


def test_blobs_share_root_checks_and_names(store):
    blobs = cache.BlobStore("emulator", store)
    digest = make_key().digest
    assert blobs.get(digest) is None
    assert blobs.put(digest, b"object") and blobs.get(digest) == b"object"
    with open(store.path("emulator", digest), "r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    assert blobs.get(digest) is None
    assert store.read("kernels", digest) is None


@pytest.mark.parametrize("name", ["../x", "a/b", "", "AB" * 32, "ab" * 31, "ab" * 32 + "\n"])
def test_only_digests_become_file_names(store, name):
    with pytest.raises(ValueError):
        store.path("kernels", name)
    with pytest.raises(ValueError):
        store.read("locks", "ab" * 32)


def test_key_of_another_cache_layout_is_not_confused(store):
    """The same digest may name a kernel and a blob: each stays what it is."""
    key = make_key()
    KernelCache(store).get_or_compile(key, compiler(key))
    cache.BlobStore("emulator", store).put(key.digest, b"blob")
    assert store.read("kernels", key.digest).payload == code_of(key)
    os.replace(store.path("emulator", key.digest), store.path("kernels", key.digest))
    assert store.read("kernels", key.digest) is None
    assert isinstance(key, Key)
