"""f16 arithmetic, packed 16-bit arithmetic, mixed-precision fma and the dot products."""

from __future__ import annotations

from rdna_jit.emulator import division, dot, floats, integers, transcendental
from rdna_jit.emulator.context import Context, apply_sign, constant_bits
from rdna_jit.emulator.decode import Decoded
from rdna_jit.emulator.ir import F16, F32, I16, I32, I64, Value
from rdna_jit.emulator.ops_valu_float import unary_rows
from rdna_jit.emulator.registry import op, packed, valu
from rdna_jit.emulator.rounding import directed
from rdna_jit.emulator.vector import (
    DPP,
    OP_SEL,
    OUTPUT,
    PACKED,
    SOURCE_SIGN,
    VectorAccess,
    bit,
)

_HALF2 = (F16, F16)
_HALF3 = (F16, F16, F16)

# f16: computing in f32 and rounding once is exact for add and multiply, but not for fma.
valu("v_add_f16", F16, _HALF2, lambda b, x, y: x + y)
valu("v_sub_f16", F16, _HALF2, lambda b, x, y: x - y)
valu("v_subrev_f16", F16, _HALF2, lambda b, x, y: y - x)
valu("v_mul_f16", F16, _HALF2, lambda b, x, y: x * y)
valu("v_ldexp_f16", F16, (F16, I16), floats.ldexp)
valu("v_fma_f16", F16, _HALF3, floats.fma_half)
valu(
    "v_fmac_f16", F16, _HALF2, floats.fma_half, accumulate=True,
    modifiers=SOURCE_SIGN | OUTPUT | DPP,
)  # fmt: skip
valu("v_fmaak_f16", F16, _HALF3, floats.fma_half)
valu("v_fmamk_f16", F16, _HALF3, floats.fma_half)
for _kind in ("min", "max"):
    valu(f"v_{_kind}_f16", F16, _HALF2, lambda b, x, y, k=_kind: floats.bound(b, k, x, y))
    valu(f"v_{_kind}3_f16", F16, _HALF3, lambda b, x, y, z, k=_kind: floats.bound3(b, k, x, y, z))
valu("v_med3_f16", F16, _HALF3, floats.median)
valu("v_div_fixup_f16", F16, _HALF3, division.fixup)
unary_rows("f16", F16, I16)

for _name in ("exp", "log", "sin", "cos", "rcp", "rsq", "sqrt"):
    _function = {"exp": "exp2", "log": "log2"}.get(_name, _name)
    valu(f"v_{_name}_f16", F16, (F16,), transcendental.half(getattr(transcendental, _function)))


def _pack(low: Value, high: Value) -> Value:
    return low.bits.zext(I32) | (high.bits.zext(I32) << 16)


valu(
    "v_pack_b32_f16", I32, _HALF2, lambda b, x, y: _pack(x, y),
    moves=True, modifiers=SOURCE_SIGN | OP_SEL,
)  # fmt: skip

# Packed f16
packed("v_pk_add_f16", F16, 2, lambda b, x, y: x + y)
packed("v_pk_mul_f16", F16, 2, lambda b, x, y: x * y)
packed("v_pk_fma_f16", F16, 3, floats.fma_half)
packed("v_pk_fmac_f16", F16, 2, floats.fma_half, accumulate=True)
packed("v_pk_min_f16", F16, 2, lambda b, x, y: floats.bound(b, "min", x, y))
packed("v_pk_max_f16", F16, 2, lambda b, x, y: floats.bound(b, "max", x, y))

# Packed integers
for _sign in ("u", "i"):
    _llvm = "u" if _sign == "u" else "s"
    for _stem in ("add", "sub"):
        packed(
            f"v_pk_{_stem}_{_sign}16", I16, 2,
            (lambda b, x, y: x + y) if _stem == "add" else (lambda b, x, y: x - y),
            saturate=lambda b, x, y, name=f"{_llvm}{_stem}.sat": b.minmax(name, x, y),
        )  # fmt: skip
    for _kind in ("min", "max"):
        packed(
            f"v_pk_{_kind}_{_sign}16", I16, 2,
            lambda b, x, y, name=_llvm + _kind: b.minmax(name, x, y),
        )  # fmt: skip
    packed(
        f"v_pk_mad_{_sign}16", I16, 3, lambda b, x, y, z: x * y + z,
        saturate=lambda b, x, y, z, s=_sign == "i": integers.mad_limited(b, x, y, z, s),
    )  # fmt: skip
packed("v_pk_mul_lo_u16", I16, 2, lambda b, x, y: x * y)
packed("v_pk_lshlrev_b16", I16, 2, lambda b, n, x: x << n)
packed("v_pk_lshrrev_b16", I16, 2, lambda b, n, x: x >> n)
packed("v_pk_ashrrev_i16", I16, 2, lambda b, n, x: x.ashr(n))


# Mixed precision: op_sel_hi says which sources are f16, op_sel which half of those.
def _mixed(c: Context, i: Decoded) -> None:
    access = VectorAccess(c, i, i.operands[1:])
    values = [_mixed_source(c, access, i, k) for k in range(3)]
    if i.mnemonic == "v_fma_mix_f32":
        with directed(c, F32):
            total = c.fma(*values)
        access.write(i.operands[0], total)
        return
    # Two roundings: to f32, then to f16.
    with directed(c, F32):
        total = c.fma(*values)
    with directed(c, F16):
        half = total.fptrunc(F16)
    access.write_half(i.operands[0], half, i.mnemonic == "v_fma_mixhi_f16")


def _mixed_source(c: Context, access: VectorAccess, i: Decoded, k: int) -> Value:
    operand = i.operands[1 + k]
    narrow, high = bit(i, "op_sel_hi", k), bit(i, "op_sel", k)
    if not narrow:
        return access.let_in(c.source(operand, F32))
    if operand.is_constant:
        bits = c.const(I32, constant_bits(operand, F16 if not high else I32))
    else:
        bits = c.raw(operand, I32)
    half = access.let_in(((bits >> 16) if high else bits).trunc(I16).bitcast(F16))
    return apply_sign(half.fpext(F32), operand)


op(
    "v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16",
    modifiers=SOURCE_SIGN | {"op_sel", "op_sel_hi", "clamp"},
)(_mixed)  # fmt: skip


# Dot products. The c forms add to their destination, the others to a third source.
def _dot_f16(c: Context, i: Decoded) -> None:
    access = VectorAccess(c, i, i.operands[1:])
    x, y = access.packed(0, F16), access.packed(1, F16)
    accumulator = access.accumulator(2, F32)
    access.write(i.operands[0], c.apply(dot.dot2_f32, (x, y, accumulator)))


op("v_dot2_f32_f16", modifiers=PACKED | SOURCE_SIGN)(_dot_f16)
op("v_dot2c_f32_f16", modifiers=DPP | SOURCE_SIGN)(_dot_f16)


def _dot_rows(bits: int, signed: bool, *mnemonics: str) -> None:
    def handler(c: Context, i: Decoded) -> None:
        access = VectorAccess(c, i, i.operands[1:])
        if bits == 16:
            x, y = access.packed(0, I16), access.packed(1, I16)
        else:
            x, y = access.source(0, I32), access.source(1, I32)
        total = access.accumulator(2, I32)
        product = dot.integer(c, x, y, bits, signed, wide="clamp" in i.modifiers)
        if "clamp" in i.modifiers:
            total = integers.limited(c, product + integers.widen(total, I64, signed), I32, signed)
        else:
            total = total + product
        access.write(i.operands[0], total)

    selects = {"op_sel", "op_sel_hi"} if bits == 16 else set()
    for mnemonic in mnemonics:
        op(mnemonic, modifiers=DPP if "dot4c" in mnemonic else {"clamp"} | selects)(handler)


_dot_rows(16, True, "v_dot2_i32_i16")
_dot_rows(16, False, "v_dot2_u32_u16")
_dot_rows(8, True, "v_dot4_i32_i8", "v_dot4c_i32_i8")
_dot_rows(8, False, "v_dot4_u32_u8")
_dot_rows(4, True, "v_dot8_i32_i4")
_dot_rows(4, False, "v_dot8_u32_u4")
