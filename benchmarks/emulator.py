"""Speed of the emulator: python -m benchmarks.emulator [--json]

hot_loop_lane_instructions_per_s   one thread; two 16-byte loads, four dot2 and two packed FMAs
                                   an iteration, bounds checks, block counters, exact fp16 FMA
profiled_lane_instructions_per_s   the same with lines, lanes and waits counted
numpy_lane_instructions_per_s      the vector part of the loop in NumPy, 16,384 lanes at once
thread_speedup                     the loop on all threads against one
gather_lane_instructions_per_s     the loop with loads that no two lanes have in common lines
translate_quick_s, translate_optimised_s, translate_cached_s
                                   CPU seconds for a kernel of about 3,000 instructions, from the
                                   code object to a loaded function; the first one includes the
                                   operations that kernels share
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from rdna_jit import compiler, config, emulator
from rdna_jit.code_object import CodeObject
from rdna_jit.emulator import jit
from rdna_jit.emulator.executable import Variant, build, cached
from rdna_jit.emulator.library import library

TARGETS = {
    "hot_loop_lane_instructions_per_s": ">= 7e9 (AVX-512)",
    "profiled_lane_instructions_per_s": ">= 3e9 (AVX-512)",
    "thread_speedup": ">= 1.7 on two cores",
    "translate_quick_s": "<= 1.2",
    "translate_optimised_s": "<= 4",
    "translate_cached_s": "<= 0.1",
}

LOOP = """
typedef _Float16 half2 __attribute__((ext_vector_type(2)));
typedef unsigned u4 __attribute__((ext_vector_type(4)));
typedef const char __attribute__((address_space(1)))* global_bytes;
typedef const u4 __attribute__((address_space(1)))* global_vector;
// LLVM 15 has no elementwise FMA; this is its instruction.
__attribute__((device)) inline half2 packed_fma(half2 x, half2 y, half2 z) {
  half2 r; asm("v_pk_fma_f16 %0, %1, %2, %3" : "=v"(r) : "v"(x), "v"(y), "v"(z)); return r;
}
extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 256))) void loop(
    const u4* __restrict w, const u4* __restrict x, float* __restrict out, int n, int stride) {
  int t = __builtin_amdgcn_workitem_id_x();
  // scalar bases and one 32-bit offset per lane, kept apart
  global_bytes a = (global_bytes)(unsigned long long)w, b = (global_bytes)(unsigned long long)x;
  unsigned at = t * stride * 16, step = 256 * stride * 16;
  float sum = 0; half2 p = {(_Float16)0.5, (_Float16)0.25}, q = p;
  #pragma unroll 1
  for (int i = 0; i < n; i++) {
    unsigned lane = at; asm("" : "+v"(lane)); asm("" : "+s"(a)); asm("" : "+s"(b));
    u4 u = *(global_vector)(a + lane), v = *(global_vector)(b + lane);
    a += step; b += step;
    for (int k = 0; k < 4; k++) {
      unsigned m = u[k], o = v[k];
      sum = __builtin_amdgcn_fdot2(
          __builtin_bit_cast(half2, m), __builtin_bit_cast(half2, o), sum, false);
    }
    unsigned c = u[0], d = v[1];
    p = packed_fma(p, __builtin_bit_cast(half2, c), q);
    q = packed_fma(q, __builtin_bit_cast(half2, d), p);
  }
  out[__builtin_amdgcn_workgroup_id_x() * 256 + t] = sum + (float)(p[0] + p[1] + q[0] + q[1]);
}
"""

LARGE = """
typedef _Float16 half2 __attribute__((ext_vector_type(2)));
typedef unsigned u4 __attribute__((ext_vector_type(4)));
extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void large(
    const u4* __restrict w, const u4* __restrict x, float* __restrict out) {
  static __attribute__((shared)) u4 s[256];
  int t = __builtin_amdgcn_workitem_id_x(); float sum[4] = {0, 0, 0, 0};
  #pragma unroll
  for (int i = 0; i < 40; i++) {
    u4 u = w[i * 256 + t]; s[t] = x[i * 256 + t];
    __builtin_amdgcn_s_barrier();
    u4 v = s[255 - t];
    #pragma unroll
    for (int k = 0; k < 4; k++) {
      unsigned m = u[k], o = v[k];
      for (int j = 0; j < 4; j++) {
        unsigned q = ((m >> (4 * j)) & 0xF000Fu) | 0x64006400u;
        half2 h = __builtin_bit_cast(half2, q) - (half2)(_Float16)1032;
        sum[j] = __builtin_amdgcn_fdot2(h, __builtin_bit_cast(half2, o), sum[j], false);
      }
    }
    __builtin_amdgcn_s_barrier();
  }
  out[t] = sum[0] + sum[1] + sum[2] + sum[3];
}
"""


def program(source: str, entry: str) -> emulator.Program:
    result = compiler.compile_source(source, arch="gfx1030", options=("-nogpuinc",))
    return emulator.Program(CodeObject(result.code_object), entry)


def best(call: Callable[[], float], seconds: float = 2.0) -> float:
    """The largest of the rates that repeated calls give."""
    rate, end = call(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        rate = max(rate, call())
    return rate


def loop_rate(
    p: emulator.Program,
    groups: int,
    iterations: int,
    *,
    stride: int = 1,
    profile: bool = False,
    clock: Callable[[], float] = time.thread_time,
) -> float:
    """Lane instructions per second of the hot loop, by the calling thread's CPU time unless
    another clock is given."""
    rows = iterations * 256 * stride * 4
    rng = np.random.default_rng(0)
    w, x = ((rng.standard_normal(2 * rows) / 8).astype(np.float16).view(np.uint32) for _ in "wx")
    out = np.zeros(groups * 256, np.float32)
    arrays = (w, x, out)
    kernarg = struct.pack("<3Qii", *(a.ctypes.data for a in arrays), iterations, stride)
    buffers = [emulator.Buffer(a.ctypes.data, a.nbytes) for a in arrays]

    def run() -> float:
        start = clock()
        stats = p.launch((groups, 1, 1), (256, 1, 1), kernarg, buffers, profile=profile)
        return stats.wave_instructions * 32 / (clock() - start)

    return best(run)


def numpy_rate(lanes: int = 16384) -> float:
    """Vector instructions of the loop, one NumPy call or a few each, no masks and no loads."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 1 << 32, lanes, dtype=np.uint32) for _ in range(10)]
    sums = np.zeros(lanes, np.float32)

    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pair = (x & 0x3BFF3BFF).view(np.float16).astype(np.float32)
        return pair[::2], pair[1::2]

    def iteration() -> None:
        total = sums
        for k in range(4):
            (a, b), (c, d) = halves(words[k]), halves(words[4 + k])
            total = total + a * c + b * d
        for k in range(2):
            (a, b), (c, d), (e, f) = (halves(words[k + n]) for n in (0, 3, 6))
            low, high = (a * c + e).astype(np.float16), (b * d + f).astype(np.float16)
            np.stack([low, high], axis=1)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(10):
            iteration()
        return 10 * 6 * lanes / (time.perf_counter() - start)

    return best(run)


def translation(p: emulator.Program) -> dict[str, float]:
    """CPU seconds of each way to a loaded function, in a cache of its own."""
    variant = Variant(emulator.Options(), False)
    jit.runtime_image()
    _ = p.code
    figures = {"large_kernel_instructions": float(len(p.code))}
    for tier in ("quick", "optimised"):
        start = time.process_time()
        build(p, variant, tier)
        figures[f"translate_{tier}_s"] = time.process_time() - start
    library.cache_clear()
    start = time.process_time()
    assert cached(p, variant, "quick") is not None
    figures["translate_cached_s"] = time.process_time() - start
    return figures


def measure() -> dict[str, float]:
    p = program(LOOP, "loop")
    figures = {}
    with emulator.modes(tier="optimised", threads=1):
        figures["hot_loop_lane_instructions_per_s"] = loop_rate(p, 64, 64)
        figures["profiled_lane_instructions_per_s"] = loop_rate(p, 64, 64, profile=True)
        figures["gather_lane_instructions_per_s"] = loop_rate(p, 16, 16, stride=9)
    with emulator.modes(tier="quick", threads=1):
        figures["quick_tier_lane_instructions_per_s"] = loop_rate(p, 64, 64)
    figures["numpy_lane_instructions_per_s"] = numpy_rate()
    threads = len(os.sched_getaffinity(0))
    rates = {}
    for count in (1, threads):
        with emulator.modes(tier="optimised", threads=count):
            rates[count] = loop_rate(p, 128 * threads, 128, clock=time.perf_counter)
    figures["threads"] = float(threads)
    figures["thread_speedup"] = rates[threads] / rates[1]
    figures.update(translation(program(LARGE, "large")))
    return figures


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    as_json = parser.parse_args(arguments).json
    with tempfile.TemporaryDirectory() as folder, config.scope(cache_dir=folder):
        figures = measure()
    if as_json:
        print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
        return
    print(f"avx512: {'yes' if jit.has_avx512() else 'no'}")
    for name, value in figures.items():
        shown = f"{value:.3g}" if value > 1e6 else f"{value:.3f}".rstrip("0").rstrip(".")
        print(f"{name:<36}{shown:>12}  {TARGETS.get(name, '')}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
