"""Speed of the kernel cache: python -m benchmarks.cache [--json]

    memory_hit_us       look-up of a kernel that this process holds
    disk_hit_ms         look-up in a new process, per kernel, 1,000 entries in the cache
    disk_hit_worst_ms   the slowest of them (the first one)
    publish_ms          one entry written, fsync included
    evict_ms            adding up 10,000 entries for the size cap
    list_s              `rdna-jit-cache list --json` of 10,000 entries, process start included
    list_scan_s         the scan inside it

Entries have the size of a large GEMM kernel: 32 KiB of code and 32 KiB of source.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from rdna_jit.cache import KernelCache, Key, eviction
from rdna_jit.cache.format import Record, encode
from rdna_jit.cache.store import KERNELS, Store

CODE_BYTES = 32 << 10
LIMITS = {"disk_hit_ms": 3.0, "list_s": 1.0}
LINES = [
    f"    float acc{n} = x[{n * 17} * stride + lane] * scale + bias; // {n}\n" for n in range(99)
]


def make_key(number: int) -> Key:
    rng = random.Random(number)
    source = f"// {number}\n" + "".join(rng.choices(LINES, k=480))
    return Key.make(source, ("-mno-cumode",), "gfx1030", "benchmark")


def fill(store: Store, first: int, last: int) -> None:
    """Entries as a publish writes them, without its fsync."""
    store.prepare(KERNELS)
    resources = {"k": {"vgprs": 64, "sgprs": 32, "lds_bytes": 4096, "wavefront_size": 32}}
    metadata = {"kernel": "gemm", "values": {"K": 4096, "N": 4096}, "resources": resources}
    payload = random.Random(1).randbytes(CODE_BYTES)
    for number in range(first, last):
        key = make_key(number)
        record = Record(key.digest, KERNELS, {**metadata, "arch": key.arch}, payload, key.source)
        with open(store.path(KERNELS, key.digest), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(encode(record))


def memory_hit_us(store: Store) -> float:
    kernels, key = KernelCache(store), make_key(0)
    kernels.get_or_compile(key, _never)
    count = 200_000
    start = time.perf_counter()
    for _ in range(count):
        kernels.get_or_compile(key, _never)
    return (time.perf_counter() - start) / count * 1e6


def disk_hits(root: str) -> list[float]:
    """Milliseconds of each of 50 look-ups in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.cache", "--load", root]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def load(root: str) -> None:
    keys = [make_key(number) for number in range(50)]
    kernels, times = KernelCache(Store(root)), []
    for key in keys:
        start = time.perf_counter()
        again = Key.make(key.source, key.options, key.arch, key.compiler)
        kernels.get_or_compile(again, _never)
        times.append((time.perf_counter() - start) * 1e3)
    heavy = {"filelock", "platformdirs", "hip", "torch", "rdna_jit.compiler"} & set(sys.modules)
    if heavy:
        raise SystemExit(f"a disk hit imported {heavy}")
    print(json.dumps(times))


def publish_ms(store: Store) -> float:
    times = []
    for number in range(20_000, 20_020):
        key = make_key(number)
        record = Record(key.digest, KERNELS, {}, bytes(CODE_BYTES), key.source)
        start = time.perf_counter()
        store.publish(record)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def list_seconds(root: str) -> float:
    command = [sys.executable, "-m", "cache_tools", "list", "--json", "--dir", root]
    start = time.perf_counter()
    out = subprocess.run(command, check=True, capture_output=True).stdout
    seconds = time.perf_counter() - start
    if len(json.loads(out)) < 10_000:
        raise SystemExit("the listing is not whole")
    return seconds


def scan_seconds(store: Store) -> float:
    from cache_tools.listing import _rows

    start = time.perf_counter()
    _rows(store, KERNELS)
    return time.perf_counter() - start


def measure() -> dict[str, float]:
    folder = tempfile.mkdtemp(prefix="rdna_jit_cache_")
    try:
        store = Store(folder)
        fill(store, 0, 1000)
        hits = [disk_hits(folder) for _ in range(3)]
        figures = {
            "memory_hit_us": memory_hit_us(store),
            "disk_hit_ms": statistics.median(t for run in hits for t in run),
            "disk_hit_worst_ms": statistics.median(max(run) for run in hits),
            "publish_ms": publish_ms(store),
        }
        fill(store, 1000, 10_000)
        figures["list_s"] = min(list_seconds(folder) for _ in range(3))
        figures["list_scan_s"] = scan_seconds(store)
        start = time.perf_counter()
        eviction.shrink(store, 2 << 30)
        figures["evict_ms"] = (time.perf_counter() - start) * 1e3
        return figures
    finally:
        shutil.rmtree(folder)


def _never() -> None:
    raise AssertionError("compiled what the cache should have held")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load)
        return
    figures = measure()
    if arguments.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        limit = f"  (limit {LIMITS[name]:g})" if name in LIMITS else ""
        print(f"{name:<18} {value:9.3f}{limit}")


if __name__ == "__main__":
    main()
