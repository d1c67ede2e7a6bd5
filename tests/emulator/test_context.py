"""Wave state during translation: registers, masks, operands."""

from __future__ import annotations

import numpy as np
import pytest

from rdna_jit.emulator.context import (
    SHARED_APERTURE,
    Context,
    Unsupported,
    constant_bits,
    packed_constant_bits,
)
from rdna_jit.emulator.decode import EXEC, NULL, VCC, parse_operand
from rdna_jit.emulator.ir import F16, F32, F64, I16, I32, I64
from tests.emulator.wave_function import WaveState, execute


def loads(c: Context, slot: str) -> int:
    return sum(f"load {c.allocas[slot]}, ptr {slot}" in line for line in c.lines)


def test_a_register_is_read_once_per_block() -> None:
    c = Context()
    assert c.vgpr(3) is c.vgpr(3)
    assert loads(c, "%v3") == 1
    c.label("next")
    c.vgpr(3)
    assert loads(c, "%v3") == 2
    assert c.used_vgprs == {3} and c.allocas == {"%v3": I32.text}


def test_a_written_register_is_known_without_reading_it() -> None:
    c = Context()
    value = c.const(I32.scalar, 7)
    c.set_sgpr(5, value)
    assert c.sgpr(5).ref == value.ref and loads(c, "%s5") == 0


def test_null_reads_zero_and_swallows_writes() -> None:
    c = Context()
    c.set_sgpr(NULL, c.const(I32.scalar, 7))
    c.set_sgpr64(NULL, c.const(I64.scalar, 7))
    c.set_lane_mask(NULL, c.exec_mask())
    assert c.sgpr(NULL).ref == "0" and c.used_sgprs == {EXEC}


def test_masks_follow_their_register() -> None:
    c = Context()
    before = c.exec_mask()
    assert c.exec_mask() is before
    c.set_sgpr(EXEC, c.sgpr(VCC))
    assert c.exec_mask() is not before
    c.set_lane_mask(EXEC, before)
    assert c.exec_mask() is before


def test_inactive_lanes_keep_their_registers() -> None:
    state = WaveState()
    state.sgprs[EXEC] = 0x0000FF01
    state.vgprs[0] = 1
    execute("v_mov_b32_e32 v0, 9", state)
    active = np.array([0x0000FF01 >> lane & 1 for lane in range(32)])
    np.testing.assert_array_equal(state.vgprs[0], np.where(active, 9, 1))


@pytest.mark.parametrize(("text", "type", "bits"), [
    ("1.0", F32, 0x3F800000), ("1.0", F16, 0x3C00), ("1.0", F64, 0x3FF0000000000000),
    ("1.0", I32, 0x3F800000), ("-1", I16, 0xFFFF), ("-1", I64, 0xFFFFFFFFFFFFFFFF),
    ("64", F64, 64), ("0x40490fdb", F64, 0x40490FDB00000000), ("0x89abcdef", I64, 0x89ABCDEF),
])  # fmt: skip
def test_a_constant_is_a_pattern_of_the_operand_type(text: str, type: object, bits: int) -> None:
    assert constant_bits(parse_operand(text), type) == bits


def test_signed_64_bit_operands_extend_their_literal() -> None:
    operand = parse_operand("0x89abcdef")
    assert constant_bits(operand, I64, signed=True) == 0xFFFFFFFF89ABCDEF


def test_packed_float_constants_fill_the_low_half_only() -> None:
    assert packed_constant_bits(parse_operand("2.0")) == 0x4000
    assert packed_constant_bits(parse_operand("-1")) == 0xFFFFFFFF


def test_special_operands() -> None:
    state = WaveState()
    state.scc[0] = 1
    execute("s_mov_b64 s[2:3], src_shared_base", state)
    assert state.sgprs[2:4].tolist() == [0, SHARED_APERTURE << 16]
    execute("s_mov_b32 s4, src_vccz", state)
    assert state.sgprs[4] == 1
    with pytest.raises(Unsupported, match="src_pops_exiting_wave_id"):
        execute("s_mov_b32 s4, src_pops_exiting_wave_id", state)
