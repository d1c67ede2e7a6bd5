import os
import time

from rdna_jit.cache import BlobStore, KernelCache, eviction, usage
from rdna_jit.cache.store import Store
from tests.cache.fakes import compiler, make_key, must_not_compile
from tests.cache.processes import finish, start

HOUR = 3600.0


def fill(store, count, size=4096):
    """Entries 0..count-1, used count-1..0 days ago: the lowest numbers are the oldest."""
    kernels, now = KernelCache(store), time.time()
    for n in range(count):
        key = make_key(n)
        kernels.get_or_compile(key, compiler(key, size=size))
        age = (count - n) * 24 * HOUR
        os.utime(store.path("kernels", key.digest), (now - age, now - age))


def present(store, count):
    return [n for n in range(count) if os.path.exists(store.path("kernels", make_key(n).digest))]


def test_least_recently_used_go_first(store):
    fill(store, 10)
    size = os.path.getsize(store.path("kernels", make_key(0).digest))
    pruned = eviction.shrink(store, max_bytes=size * 10 - 1)
    assert present(store, 10) == [2, 3, 4, 5, 6, 7, 8, 9]  # to 90 % of the cap
    assert (pruned.removed, pruned.freed) == (2, 2 * size)
    assert (pruned.kept, pruned.kept_bytes) == (8, 8 * size)


def test_loading_makes_an_entry_recent(store):
    fill(store, 4)
    KernelCache(store).get_or_compile(make_key(0), must_not_compile)
    eviction.shrink(store, older_than=25 * HOUR)
    assert present(store, 4) == [0, 3]


def test_nothing_is_removed_below_the_cap(store):
    fill(store, 3)
    assert eviction.shrink(store, max_bytes=1 << 20).removed == 0


def test_process_keeps_under_its_cap_and_holds_on_to_its_own(store):
    fill(store, 20)
    size = os.path.getsize(store.path("kernels", make_key(0).digest))
    limited = Store(store.root, max_bytes=10 * size)
    kernels = KernelCache(limited)
    for n in (0, 100, 101):
        kernels.get_or_compile(make_key(n), compiler(make_key(n)))
    left = list(limited.entries())
    assert sum(entry.size for entry in left) <= 10 * size
    names = {entry.key for entry in left}
    assert {make_key(n).digest for n in (0, 100, 101)} <= names
    tiny = Store(store.root, max_bytes=1)
    tiny_cache = KernelCache(tiny)
    tiny_cache.get_or_compile(make_key(7), compiler(make_key(7)))
    tiny_cache.get_or_compile(make_key(8), compiler(make_key(8)))
    assert {e.key for e in tiny.entries()} == {make_key(7).digest, make_key(8).digest}


def test_blobs_count_towards_the_cap(store):
    fill(store, 2)
    limited = Store(store.root, max_bytes=20_000)
    blobs = BlobStore("emulator", limited)
    blobs.put(make_key(50).digest, bytes(18_000))
    assert present(store, 2) == []
    assert blobs.get(make_key(50).digest) == bytes(18_000)


def test_load_writes_at_most_once_an_hour(store, monkeypatch):
    fill(store, 1)
    path = store.path("kernels", make_key(0).digest)
    now, real, writes = time.time(), os.utime, []

    def utime(*arguments, **options):
        writes.append(arguments)
        real(*arguments, **options)

    for age, expected in ((59 * 60, 0), (61 * 60, 1), (-2 * HOUR, 1)):
        os.utime(path, (now - age, now - 99 * HOUR))
        monkeypatch.setattr(os, "utime", utime)
        KernelCache(store).get_or_compile(make_key(0), must_not_compile)
        monkeypatch.undo()
        assert len(writes) == expected
        writes.clear()
        # The modification time, an entry's birth, stays.
        assert abs(os.stat(path).st_mtime - (now - 99 * HOUR)) < 1


def test_evicting_while_another_process_evicts(store):
    fill(store, 3)
    files = list(store.entries())
    os.unlink(files[0].path)
    assert not store.remove("kernels", files[0].key)
    assert eviction.shrink(store, max_bytes=0).kept == 0


def test_loads_are_counted_once_per_process(store):
    finish(start(store.root, 3))
    for _ in range(2):
        finish(start(store.root, 2))
    hits = usage.read(f"{store.root}/usage")
    assert [hits[make_key(n).digest] for n in range(3)] == [2, 2, 0]


def test_long_usage_file_is_summed_up(store, monkeypatch):
    fill(store, 2)
    path = f"{store.root}/usage"
    kept, gone = make_key(0).digest, "0" * 64
    with open(path, "w") as file:
        file.write(f"{kept} 2\n{gone} 5\nnonsense\n{kept} 3\n{kept} x\n\n" * 10)
    monkeypatch.setattr(usage, "MAX_BYTES", 100)
    eviction.shrink(store, older_than=HOUR * 1000)
    assert usage.read(path) == {kept: 50}
    assert os.path.getsize(path) < 100
