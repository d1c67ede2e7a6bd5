"""Divergence, loops, barriers, calls, ids, threads and the step limit."""

from __future__ import annotations

import numpy as np
import pytest

from rdna_jit import emulator
from rdna_jit.errors import ContractError, EmulationError, StepLimit, UnsupportedInstruction
from tests.emulator import harness

COLLATZ = """KERNEL(64) k(const u32* in, u32* out, int n) {
  int i = group_x() * 64 + lane_x(); if (i >= n) return;
  u32 x = in[i], steps = 0;
  while (x != 1) { x = x & 1 ? 3 * x + 1 : x >> 1; steps++; }
  out[i] = steps; }"""


def collatz(x: int) -> int:
    steps = 0
    while x != 1:
        x = 3 * x + 1 if x & 1 else x >> 1
        steps += 1
    return steps


@pytest.mark.parametrize("tier", ["quick", "optimised"])
def test_divergent_loops(tier: str) -> None:
    data = np.arange(1, 151, dtype=np.uint32)
    out = np.zeros(150, np.uint32)
    with emulator.modes(tier=tier):
        harness.run(COLLATZ, data, out, 150, grid=3, block=64)
    assert list(out) == [collatz(int(x)) for x in data]


def test_endless_loops_end_in_an_error() -> None:
    data, out = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    with emulator.checks(steps=100_000), pytest.raises(StepLimit) as caught:
        harness.run(COLLATZ, data, out, 64, block=64)
    assert caught.value.workgroup == (0, 0, 0) and "branch" in caught.value.instruction
    with emulator.checks(steps=100_000):
        harness.run(COLLATZ, np.ones(64, np.uint32), out, 64, block=64)


SCAN = """KERNEL(256) k(const u32* in, u32* out, int rounds) {
  __shared__ u32 s[256]; u32 t = lane_x(); s[t] = in[group_x() * 256 + t]; barrier();
  for (int d = 1; d < rounds; d *= 2) {
    u32 add = t >= d ? s[t - d] : 0; barrier(); s[t] += add; barrier(); }
  out[group_x() * 256 + t] = s[t]; }"""


@pytest.mark.parametrize("descending", [False, True])
def test_barriers_in_a_loop(descending: bool) -> None:
    data = np.random.default_rng(0).integers(0, 1 << 20, 512, dtype=np.uint32)
    out = np.zeros_like(data)
    with emulator.modes(descending=descending):
        harness.run(SCAN, data, out, 256, grid=2, block=256)
    assert (out.reshape(2, 256) == data.reshape(2, 256).cumsum(axis=1, dtype=np.uint32)).all()


IDS = """KERNEL(256) k(u32* out, int bx, int by, int bz) {
  u32 x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y(),
      z = __builtin_amdgcn_workitem_id_z();
  u32 gx = __builtin_amdgcn_workgroup_id_x(), gy = __builtin_amdgcn_workgroup_id_y(),
      gz = __builtin_amdgcn_workgroup_id_z();
  u32 n = ((gz * 3 + gy) * 2 + gx) * (bx * by * bz) + (z * by + y) * bx + x;
  out[n] = x | y << 4 | z << 8 | gx << 12 | gy << 16 | gz << 20; }"""


def test_ids_in_three_dimensions() -> None:
    bx, by, bz = 5, 3, 7
    out = np.zeros(2 * 3 * 4 * bx * by * bz, np.uint32)
    harness.run(IDS, out, bx, by, bz, grid=(2, 3, 4), block=(bx, by, bz))
    gz, gy, gx, z, y, x = np.indices((4, 3, 2, bz, by, bx))
    want = x | y << 4 | z << 8 | gx << 12 | gy << 16 | gz << 20
    assert (out == want.ravel()).all()


def test_block_and_grid_sizes_as_the_kernel_sees_them() -> None:
    source = """KERNEL(256) k(u32* out) { if (lane_x() == 0 && group_x() == 1) {
      out[0] = blockDim.x; out[1] = blockDim.y; out[2] = gridDim.x; out[3] = gridDim.y; } }"""
    out = np.zeros(4, np.uint32)
    harness.run(source, out, grid=(3, 2, 1), block=(24, 4, 1))
    assert list(out) == [24, 4, 3, 2]


CALLS = """
__device__ __attribute__((noinline)) int twice(int x) { return x * 2 + 1; }
__device__ __attribute__((noinline)) int chain(int x) { return twice(x) * 3 + twice(x + 1); }
KERNEL(32) k(const int* in, int* out) { int t = lane_x(); out[t] = chain(in[t]) - twice(t); }"""


def test_calls_of_device_functions() -> None:
    assert "s_swappc_b64" in harness.mnemonics(CALLS)
    data, out = np.arange(32, dtype=np.int32) * 7 - 50, np.zeros(32, np.int32)
    harness.run(CALLS, data, out)

    def twice(x: np.ndarray) -> np.ndarray:
        return x * 2 + 1

    assert (out == twice(data) * 3 + twice(data + 1) - twice(np.arange(32))).all()


def test_generic_pointers_to_private_memory() -> None:
    source = """
__device__ __attribute__((noinline)) u64 sum(u64* p, int n) {
  u64 a = 0; for (int i = 0; i < n; i++) a = a * 3 + p[i]; p[0] = a; return a; }
KERNEL(64) k(const u64* in, u64* out) { u64 a[10]; int t = lane_x();
  for (int i = 0; i < 10; i++) a[i] = in[t * 10 + i];
  u64 s = sum(a, 10 - (t & 3)); out[t] = s + a[0] + sum((u64*)in + t, 2 - 2 * (t & 1)); }"""
    assert any(m.startswith("flat_load_dwordx2") for m in harness.mnemonics(source))
    data = np.random.default_rng(5).integers(0, 1 << 40, 640).astype(np.uint64)
    before, out = data.copy(), np.zeros(64, np.uint64)
    harness.run(source, data, out, block=64)
    for t in range(0, 64, 7):
        s = 0
        for x in before[t * 10 : t * 10 + 10 - (t & 3)]:
            s = s * 3 + int(x)
        other = int(data[t])  # what the second call left there
        assert int(out[t]) == (2 * s + (0 if t & 1 else other)) % 2**64


def test_recursion_with_divergent_depth() -> None:
    source = """
__device__ __attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
KERNEL(32) k(int* out) { out[lane_x()] = fib(lane_x() & 7); }"""
    out = np.zeros(32, np.int32)
    harness.run(source, out)
    assert list(out) == [0, 1, 1, 2, 3, 5, 8, 13] * 4


def test_pc_relative_constants() -> None:
    source = """__constant__ u32 table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
KERNEL(32) k(u32* out) { out[lane_x()] = table[(lane_x() * 5) & 7]; }"""
    out = np.zeros(32, np.uint32)
    harness.run(source, out)
    assert list(out) == [[3, 1, 4, 1, 5, 9, 2, 6][(n * 5) & 7] for n in range(32)]


WORK = """KERNEL(64) k(const u32* in, u32* out, int n) {
  u32 i = group_x() * 64 + lane_x(); u32 x = in[i];
  for (int j = 0; j < n; j++) x = x * 1664525u + 1013904223u;
  out[i] = x; }"""


def test_results_and_counters_do_not_depend_on_threads_or_tier() -> None:
    data = np.arange(64 * 400, dtype=np.uint32)
    seen = []
    for threads, tier in ((1, "quick"), (3, "quick"), (2, "optimised")):
        out = np.zeros_like(data)
        with emulator.modes(threads=threads, tier=tier):
            stats = harness.run(WORK, data, out, 200, grid=400, block=64)
        seen.append((out.tobytes(), stats.counts))
    assert seen[0] == seen[1] == seen[2]


def test_the_first_faulting_workgroup_is_reported_whatever_the_threads() -> None:
    source = """KERNEL(64) k(u32* out, int n, int bad) { u32 x = 1;
      for (int j = 0; j < n; j++) x = x * 1664525u + 1013904223u;
      if (group_x() >= bad) out[1 << 20] = x; out[lane_x()] = x; }"""
    out = np.zeros(64, np.uint32)
    for threads in (1, 2, 4):
        with emulator.modes(threads=threads), pytest.raises(EmulationError) as caught:
            harness.run(source, out, 500, 217, grid=600, block=64)
        assert caught.value.workgroup == (217, 0, 0)


def test_unsupported_instructions_fault_only_when_executed() -> None:
    source = """KERNEL(32) k(u32* out, int n) { out[lane_x()] = 1;
      if (n) asm volatile("s_setreg_imm32_b32 hwreg(2, 0, 4), 3"); out[lane_x()] += 1; }"""
    out = np.zeros(32, np.uint32)
    harness.run(source, out, 0)
    assert (out == 2).all()
    with pytest.raises(UnsupportedInstruction) as caught:
        harness.run(source, out, 1)
    assert caught.value.mnemonic == "s_setreg_imm32_b32"
    assert caught.value.address is not None and (out == 1).all()


def test_traps_are_reported() -> None:
    source = """KERNEL(32) k(u32* out, int n) { out[lane_x()] = 1;
      if (n) __builtin_trap(); }"""
    out = np.zeros(32, np.uint32)
    harness.run(source, out, 0)
    with pytest.raises(EmulationError, match="trap"):
        harness.run(source, out, 1)


def test_geometry_is_checked() -> None:
    out = np.zeros(64, np.uint32)
    for grid, block in ((0, 64), (1, 0), (1, 65)):
        with pytest.raises(ContractError):
            harness.run(WORK, out, out, 1, grid=grid, block=block)
