"""MODE: rounding and denormals, from the kernel's descriptor and from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from rdna_jit import emulator
from rdna_jit.code_object import CodeObject
from rdna_jit.disassembler import Instruction
from rdna_jit.emulator import Program
from rdna_jit.emulator.decode import Decoded, decode_line
from rdna_jit.emulator.float_mode import DEFAULT, FloatMode, float_modes
from rdna_jit.emulator.ir import F16, F32, F64
from rdna_jit.emulator.trace import trace
from rdna_jit.errors import ContractError, UnsupportedInstruction
from tests.emulator import harness
from tests.emulator.oracle import types as oracle
from tests.emulator.oracle.floats import Number, number

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
    assert modes(lines) == [0x3F0, 0x330, 0x330, 0x331, 0x331]
    assert modes(code(NOP, END), FloatMode(0xC0)) == [0xC0, 0xC0]


def test_a_branch_around_a_balanced_change_agrees() -> None:
    lines = code(
        ("s_cbranch_scc1 3", 3), ("s_denorm_mode 3", 3), NOP, ("s_denorm_mode 15", 15), NOP, END
    )
    assert modes(lines) == [0x3F0, 0x3F0, 0x330, 0x330, 0x3F0, 0x3F0]


def test_paths_that_disagree_leave_the_mode_unknown() -> None:
    lines = code(("s_cbranch_scc1 1", 1), ("s_round_mode 0x3", 3), NOP, END)
    assert modes(lines) == [0x3F0, 0x3F0, None, None]
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


# MODE from a register: four kinds of arithmetic under it, a barrier between them, then MODE as it
# was before.
FROM_REGISTER = """KERNEL(64) k(float* x, double* y, u32* h, u32* modes, u32 bits) {
  u32 i = group_x() * 64 + lane_x(); float a = x[i]; double b = y[i]; u32 c = h[i]; u32 old, now;
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_MODE)\\n"
               "s_setreg_b32 hwreg(HW_REG_MODE, 0, 8), %2\\n v_mul_f32 %1, %1, %1"
               : "=&s"(old), "+v"(a) : "s"(bits));
  barrier();
  asm volatile("s_getreg_b32 %2, hwreg(HW_REG_MODE)\\n v_add_f64 %0, %0, 1.0\\n"
               "v_pk_mul_f16 %1, %1, %1\\n s_setreg_b32 hwreg(HW_REG_MODE), %3"
               : "+v"(b), "+v"(c), "=&s"(now) : "s"(old));
  x[i] = a; y[i] = b; h[i] = c; modes[lane_x()] = now;
  asm volatile("v_mul_f32 %0, %0, %0" : "+v"(a)); x[i + 64] = a; }"""


@pytest.mark.parametrize("tier", ["quick", "optimised"])
@pytest.mark.parametrize("bits", [0xF0, 0xF5, 0xFA, 0xFF, 0xF9, 0x00, 0xC3, 0x3D, 0x50])
def test_the_mode_may_come_from_a_register(bits: int, tier: str) -> None:
    mode = oracle.Mode(
        bits & 3, bits >> 2 & 3, *(not bits >> n & 1 for n in (4, 5)),
        *(not bits >> n & 1 for n in (6, 7)),
    )  # fmt: skip
    assert mode.bits == bits
    rng = np.random.default_rng(bits)
    x = np.concatenate([rng.uniform(-2, 2, 48), rng.uniform(1e-20, 2e-19, 16), np.zeros(64)])
    x = x.astype(np.float32)
    y = np.concatenate([rng.uniform(-2, 2, 60), [2.0**-60, -(2.0**-60), 5e-324, -1.0]])
    h = rng.integers(0, 1 << 32, 64, dtype=np.uint32) & 0x3FFF3FFF
    modes = np.zeros(64, np.uint32)
    want_x = [_expected(oracle.F32, lambda a: a * a, int(v), mode) for v in x[:64].view(np.uint32)]
    want_y = [_expected(oracle.F64, lambda a: a + number(1), int(v), mode)
              for v in y.view(np.uint64)]  # fmt: skip
    want_h = [
        sum(_expected(oracle.F16, lambda a: a * a, int(v) >> n, mode) << n for n in (0, 16))
        for v in h
    ]
    again = [_expected(oracle.F32, lambda a: a * a, v, oracle.DEFAULT_MODE) for v in want_x]
    with emulator.modes(tier=tier):
        harness.run(FROM_REGISTER, x, y, h, modes, bits, block=64)
    assert set(modes.tolist()) == {0x300 | bits}
    assert x.view(np.uint32).tolist() == want_x + again
    assert y.view(np.uint64).tolist() == want_y and h.tolist() == want_h


def _expected(of: oracle.Type, compute: Callable[..., Number], bits: int, mode: oracle.Mode) -> int:
    result = of.encode(compute(of.decode(bits, mode)), mode=mode)
    assert isinstance(result, int)
    return result


def test_bits_of_the_mode_that_are_not_emulated_are_refused() -> None:
    source = """KERNEL(32) k(float* x, u32 bits) { float a = x[lane_x()];
      asm volatile("s_setreg_b32 hwreg(HW_REG_MODE), %1\\n v_add_f32 %0, %0, 1.0"
                   : "+v"(a) : "s"(bits));
      x[lane_x()] = a; }"""
    x = np.full(32, 2.0**-30, np.float32)
    harness.run(source, x, 0x3F1)
    assert set(x.tolist()) == {1 + 2.0**-23}
    with pytest.raises(UnsupportedInstruction, match="MODE with bits set above"):
        harness.run(source, x, 0x8003F0)
    constant = source.replace("%1\\n", "0x1000\\n").replace("setreg_b32", "setreg_imm32_b32")
    with pytest.raises(UnsupportedInstruction, match="MODE with bits set above"):
        harness.run(constant, x, 0)


QUIET, SIGNALLING = 0x7FC00001, 0x7F800001
IEEE_AND_CLAMP = """KERNEL(32) k(u32* x, double* y, u32 bits) {
  u32 a = x[lane_x()], b = a, c = a; double d = y[lane_x()];
  asm volatile("SET\\n v_min_f32 %0, %0, 1.0\\n v_max_f32 %1, 1.0, %1\\n"
               "v_add_f32_e64 %2, %2, 0.5 clamp\\n v_max_f64 %3, %3, 1.0"
               : "+&v"(a), "+&v"(b), "+&v"(c), "+&v"(d) : "s"(bits));
  x[lane_x()] = a; x[32 + lane_x()] = b; x[64 + lane_x()] = c; y[lane_x()] = d; }"""


@pytest.mark.parametrize("how", ["register", "constant"])
@pytest.mark.parametrize(("ieee", "dx10"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_signalling_nan_and_clamp(ieee: int, dx10: int, how: str) -> None:
    bits, one = 0xF0 | dx10 << 8 | ieee << 9, 0x3F800000
    register = "s_setreg_b32 hwreg(HW_REG_MODE, 0, 10), %4"
    constant = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 10), {bits}"
    source = IEEE_AND_CLAMP.replace("SET", register if how == "register" else constant)
    x, y = np.zeros(96, np.uint32), np.zeros(32, np.uint64)
    x[0:4] = SIGNALLING, QUIET, 0x40000000, 0xBF800000
    y[0], y[1] = 0x7FF0000000000001, 0x7FF8000000000001
    harness.run(source, x, y, bits)
    quieted = SIGNALLING | 0x00400000
    assert x[0:4].tolist() == [quieted if ieee else one, one, one, 0xBF800000]
    assert x[32:36].tolist() == [quieted if ieee else one, one, 0x40000000, one]
    if dx10:
        assert x[64:68].tolist() == [0, 0, one, 0]
    else:
        assert np.isnan(x[64:66].view(np.float32)).all() and x[66:68].tolist() == [one, 0]
    assert y[0] == (0x7FF8000000000001 if ieee else 0x3FF0000000000000)
    assert y[1] == 0x3FF0000000000000


@pytest.mark.parametrize(
    ("bits", "applies"), [(0x3F0, False), (0x1F0, False), (0x3C0, False), (0x1C0, True)]
)
def test_output_modifiers_need_flushing_without_ieee(bits: int, applies: bool) -> None:
    source = """KERNEL(32) k(float* x, u32 bits) { float a = x[lane_x()], b = a, c = a;
      asm volatile("s_setreg_b32 hwreg(HW_REG_MODE, 0, 10), %3\\n v_add_f32 %0, %0, 1.0 mul:2\\n"
                   "v_add_f32 %1, %1, 1.0 mul:4\\n v_add_f32 %2, %2, 1.0 clamp div:2"
                   : "+&v"(a), "+&v"(b), "+&v"(c) : "s"(bits));
      x[lane_x()] = a; x[32 + lane_x()] = b; x[64 + lane_x()] = c; }"""
    x = np.zeros(96, np.float32)
    x[:32] = np.linspace(-2, 2, 32)
    sums = x[:32] + np.float32(1)
    factors = (2, 4, 0.5) if applies else (1, 1, 1)
    harness.run(source, x, bits)
    for n, factor in enumerate(factors):
        want = sums * np.float32(factor)
        assert (x[32 * n :][:32] == (np.clip(want, 0, 1) if n == 2 else want)).all()


def test_a_kernel_may_start_without_ieee() -> None:
    source = """KERNEL(32) k(u32* x) { u32 a = x[lane_x()];
      asm volatile("v_max_f32 %0, %0, 1.0" : "+v"(a)); x[lane_x()] = a; }"""
    compiled = harness.program(source)
    co, descriptor = CodeObject(compiled.code_object.data), compiled.info.descriptor
    descriptor = descriptor._replace(rsrc1=descriptor.rsrc1 & ~(1 << 23))
    co.kernels["k"] = compiled.info._replace(descriptor=descriptor)
    for p, want in ((compiled, SIGNALLING | 0x00400000), (Program(co, "k"), 0x3F800000)):
        x = np.full(32, SIGNALLING, np.uint32)
        kernarg, buffers = harness.pack(p, (x,))
        p.launch((1, 1, 1), (32, 1, 1), kernarg, buffers)
        assert set(x.tolist()) == {want}
    overflow = descriptor._replace(rsrc1=descriptor.rsrc1 | 1 << 26)
    co.kernels["k"] = compiled.info._replace(descriptor=overflow)
    with pytest.raises(ContractError, match="FP16_OVFL"):
        Program(co, "k")


def test_paths_that_disagree_meet() -> None:
    source = """KERNEL(32) k(float* x, u32 up) { float a = x[lane_x()];
      asm volatile("s_cmp_eq_u32 %1, 0\\n s_cbranch_scc1 .Lend%=\\n s_round_mode 0x1\\n"
                   ".Lend%=: v_add_f32 %0, %0, 1.0\\n s_round_mode 0x0"
                   : "+v"(a) : "s"(up) : "scc");
      x[lane_x()] = a; }"""
    for up, want in ((0, 1.0), (1, 1 + 2.0**-23)):
        x = np.full(32, 2.0**-30, np.float32)
        harness.run(source, x, up)
        assert set(x.tolist()) == {want}


def test_other_hardware_registers() -> None:
    source = """KERNEL(32) k(u32* out) { u32 a, b; int n = 40;
      asm volatile("s_setreg_imm32_b32 hwreg(HW_REG_TRAPSTS), 0\\n"
                   "s_getreg_b32 %0, hwreg(HW_REG_SHADER_CYCLES, 0, 20)" : "=s"(a));
      do { asm volatile("s_sub_i32 %0, %0, 1" : "+s"(n) : : "scc"); } while (n);
      asm volatile("s_getreg_b32 %0, hwreg(HW_REG_SHADER_CYCLES, 0, 20)" : "=s"(b));
      out[lane_x()] = b - a; }"""
    out = np.zeros(32, np.uint32)
    harness.run(source, out)
    assert set(out.tolist()) == {int(out[0])} and out[0] >= 40
