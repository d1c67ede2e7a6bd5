"""MODE: rounding and denormals, from the kernel's descriptor and from the code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rdna_jit import emulator
from rdna_jit.disassembler import Instruction
from rdna_jit.emulator.decode import Decoded, decode_line
from rdna_jit.emulator.float_mode import DEFAULT, FloatMode, float_modes
from rdna_jit.emulator.ir import F16, F32, F64
from rdna_jit.emulator.trace import trace
from tests.emulator import harness

FLUSH = "-fgpu-flush-denormals-to-zero"


def code(*lines: tuple[str, int]) -> list[Decoded]:
    """Instructions of one word, from their text and 16-bit immediate, at 0, 4, 8 ..."""
    return [
        decode_line(Instruction(4 * n, 4, (immediate & 0xFFFF,), text))
        for n, (text, immediate) in enumerate(lines)
    ]


def modes(lines: list[Decoded], initial: FloatMode = DEFAULT) -> list[int | None]:
    found = float_modes(lines, (0,), initial)
    return [None if (mode := found[i.address]) is None else mode.bits for i in lines]


NOP, END = ("s_nop 0", 0), ("s_endpgm", 0)


def test_fields() -> None:
    mode = FloatMode(0b01_10_10_11)
    assert (mode.rounding(F32), mode.rounding(F16), mode.rounding(F64)) == ("zero", "down", "down")
    assert mode.flushes_inputs(F32) and not mode.flushes_results(F32)
    assert not mode.flushes_inputs(F64) and mode.flushes_results(F16)
    assert DEFAULT.rounding(F32) == "nearest" and not DEFAULT.flushes_inputs(F16)


def test_straight_code() -> None:
    lines = code(("s_denorm_mode 3", 3), NOP, ("s_round_mode 0x1", 1), NOP, END)
    assert modes(lines) == [0xF0, 0x30, 0x30, 0x31, 0x31]
    assert modes(code(NOP, END), FloatMode(0xC0)) == [0xC0, 0xC0]


def test_a_branch_around_a_balanced_change_agrees() -> None:
    lines = code(
        ("s_cbranch_scc1 3", 3), ("s_denorm_mode 3", 3), NOP, ("s_denorm_mode 15", 15), NOP, END
    )
    assert modes(lines) == [0xF0, 0xF0, 0x30, 0x30, 0xF0, 0xF0]


def test_paths_that_disagree_leave_the_mode_unknown() -> None:
    lines = code(("s_cbranch_scc1 1", 1), ("s_round_mode 0x3", 3), NOP, END)
    assert modes(lines) == [0xF0, 0xF0, None, None]
    # A loop that changes the mode at its end reaches its head with two modes.
    lines = code(NOP, ("s_round_mode 0x3", 3), ("s_cbranch_scc1 -3", -3), END)
    assert modes(lines)[0] is None


def test_the_descriptor_of_a_kernel_sets_the_mode() -> None:
    source = "KERNEL(32) k(float* x, float y) { x[lane_x()] = x[lane_x()] * y; }"
    x = np.full(32, 2e-38, np.float32)
    kept, flushed = x.copy(), x.copy()
    harness.run(source, kept, 0.25)
    harness.run(source, flushed, 0.25, options=(FLUSH,))
    np.testing.assert_array_equal(kept, x * np.float32(0.25))
    assert kept.all() and not flushed.any()


def test_a_division_that_toggles_the_mode_is_exact() -> None:
    """With flushing on, compiled divisions allow denormals around their fma steps."""
    source = "KERNEL(32) k(float* x, float y) { x[lane_x()] = x[lane_x()] / y; }"
    x = np.random.default_rng(0).uniform(0.1, 10, 32).astype(np.float32)
    assert "s_denorm_mode" in harness.mnemonics(source, options=(FLUSH,))
    for y in (3.0, 1e30, 7e-20):
        got = x.copy()
        harness.run(source, got, y, options=(FLUSH,))
        np.testing.assert_array_equal(got, x / np.float32(y))


ROUNDED = """KERNEL(32) k(float* x, float y) {
  float a = x[lane_x()];
  asm volatile("s_round_mode %1\\n v_add_f32 %0, %0, %2\\n s_round_mode 0x0"
               : "+v"(a) : "n"(MODE), "v"(y));
  x[lane_x()] = a; }"""


@pytest.mark.parametrize(("mode", "expected"), [(0, 1.0), (1, 1 + 2.0**-23), (2, 1.0), (3, 1.0)])
def test_a_kernel_rounds_as_it_says(mode: int, expected: float) -> None:
    x = np.ones(32, np.float32)
    harness.run(ROUNDED.replace("MODE", str(mode)), x, 2.0**-30)
    assert set(x.tolist()) == {expected}


def test_directed_rounding_of_f64() -> None:
    source = """KERNEL(32) k(double* x) { double a = x[lane_x()];
      asm volatile("s_round_mode 0x4\\n v_add_f64 %0, %0, 1.0\\n s_round_mode 0x0" : "+v"(a));
      x[lane_x()] = a * 3.0; }"""
    x = np.full(32, 2.0**-80)
    harness.run(source, x)
    assert set(x.tolist()) == {3 * (1 + 2.0**-52)}  # up, and to nearest again after it


@pytest.fixture
def flushing() -> Iterator[None]:
    """Denormals are zero for the arithmetic of this process."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("tier", ["quick", "optimised"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_mode_of_the_process_does_not_matter(flushing: None, tier: str, threads: int) -> None:
    source = """KERNEL(32) k(float* x, double* y, float a) {
      u32 i = group_x() * 32 + lane_x(); x[i] = x[i] * a; y[i] = y[i] * a; }"""
    x, y = np.empty(32 * 4000, np.float32), np.empty(32 * 4000)
    x.view(np.uint32)[:], y.view(np.uint64)[:] = 0x00400000, 1 << 50
    assert not (x * np.float32(0.25)).any()  # NumPy flushes
    with emulator.modes(tier=tier, threads=threads):
        harness.run(source, x, y, 0.25, grid=4000)
    assert set(x.view(np.uint32).tolist()) == {0x00100000}
    assert set(y.view(np.uint64).tolist()) == {1 << 48}
    assert not (x * np.float32(0.5)).any()  # and does so again


def test_a_trace_keeps_denormals_too(flushing: None) -> None:
    p = harness.program("KERNEL(32) k(float* x, float a) { x[lane_x()] = x[lane_x()] * a; }")
    x = np.empty(32, np.float32)
    x.view(np.uint32)[:] = 0x00400000
    kernarg, buffers = harness.pack(p, (x, 0.25))
    [stop] = trace(p, (1, 1, 1), (32, 1, 1), kernarg, buffers, at="global_store")
    assert 0x00100000 in stop.vgprs
