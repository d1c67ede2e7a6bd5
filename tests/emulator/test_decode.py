"""Instruction text -> operands and modifiers."""

from __future__ import annotations

import pytest

from rdna_jit.disassembler import Instruction
from rdna_jit.emulator.decode import EXEC, M0, NULL, VCC, Decoded, decode_line, parse_operand


def decoded(text: str, *words: int) -> Decoded:
    return decode_line(Instruction(0x100, 4 * max(len(words), 1), words or (0,), text))


def test_encoding_suffixes_leave_the_mnemonic() -> None:
    for suffix in ("e32", "e64", "sdwa", "dpp", "dpp8"):
        i = decoded(f"v_add_f32_{suffix} v0, v1, v2")
        assert (i.mnemonic, i.encoding) == ("v_add_f32", suffix)
    assert decoded("s_endpgm").mnemonic == "s_endpgm"
    assert decoded("s_endpgm").operands == ()


def test_registers_and_ranges() -> None:
    i = decoded("global_load_dwordx4 v[4:7], v2, s[10:11] offset:-16 glc")
    data, address, base = i.operands
    assert (data.kind, data.index, data.count) == ("v", 4, 4)
    assert (address.index, address.count) == (2, 1)
    assert (base.kind, base.index, base.count) == ("s", 10, 2)
    assert i.modifiers == {"offset": -16, "glc": True}
    assert i.integer("offset") == -16 and i.integer("offset1") == 0


@pytest.mark.parametrize(
    ("text", "index", "count"),
    [("vcc_lo", VCC, 1), ("vcc", VCC, 2), ("exec_lo", EXEC, 1), ("m0", M0, 1), ("null", NULL, 1)],
)
def test_named_scalar_registers(text: str, index: int, count: int) -> None:
    operand = parse_operand(text)
    assert (operand.kind, operand.index, operand.count) == ("s", index, count)
    assert operand.is_null == (text == "null")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("64", "imm", 64), ("-16", "imm", -16), ("-17", "literal", -17), ("65", "literal", 65),
        ("0x3f800000", "literal", 0x3F800000), ("-1.0", "imm", -1.0),
        ("0.15915494", "imm", 0.15915494), ("1.0e+10", "imm", 1e10),
    ],
)  # fmt: skip
def test_constants(text: str, kind: str, value: float) -> None:
    operand = parse_operand(text)
    assert (operand.kind, operand.value) == (kind, value)
    assert not operand.neg, "the sign belongs to the constant"


def test_source_modifiers_nest() -> None:
    operand = parse_operand("-|v3|")
    assert (operand.index, operand.neg, operand.abs) == (3, True, True)
    assert parse_operand("sext(v1)").sext
    constant = parse_operand("neg(1.0)")
    assert constant.neg and constant.value == 1.0


def test_modifier_values() -> None:
    i = decoded("v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0x3 bound_ctrl:0")
    assert i.modifiers == {
        "quad_perm": (1, 0, 3, 2), "row_mask": 15, "bank_mask": 3, "bound_ctrl": True,
    }  # fmt: skip
    i = decoded("v_add_nc_u32_sdwa v0, v1, v2 dst_sel:DWORD src0_sel:BYTE_0 src1_sel:WORD_1")
    assert i.modifiers["src1_sel"] == "WORD_1"
    assert decoded("v_mul_f32_e64 v0, v1, v2 clamp mul:2").modifiers == {"clamp": True, "mul": 2}


def test_swizzle_pattern_and_branches_come_from_the_encoding() -> None:
    i = decoded("ds_swizzle_b32 v0, v1 offset:swizzle(BROADCAST,32,0)", 0xD8D4801F, 0)
    assert i.integer("offset") == 0x801F
    branch = decoded("s_cbranch_vccnz 65535", 0xBF87FFFF)
    assert branch.simm16 == -1 and branch.branch_target == 0x100


def test_counters_and_hardware_registers_are_operands() -> None:
    i = decoded("s_waitcnt vmcnt(0) lgkmcnt(0)")
    assert [o.text for o in i.operands] == ["vmcnt(0)", "lgkmcnt(0)"] and not i.modifiers
    i = decoded("s_getreg_b32 s0, hwreg(HW_REG_SH_MEM_BASES, 16, 16)")
    assert i.operands[1].kind == "special"
