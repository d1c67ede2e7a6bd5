"""Integer vector arithmetic, shifts, logic and bit fields."""

from __future__ import annotations

from collections.abc import Callable

from rdna_jit.emulator.context import Context, Unsupported
from rdna_jit.emulator.decode import Decoded
from rdna_jit.emulator.integers import (
    field_mask,
    find_bit,
    mad_limited,
    median,
    mul_high,
    sign_run,
    widen,
)
from rdna_jit.emulator.ir import I1, I8, I16, I32, I64, Builder, Constant, Type, Value
from rdna_jit.emulator.registry import op, valu
from rdna_jit.emulator.vector import DPP, SDWA, VectorAccess

_INT2 = (I32, I32)
_INT3 = (I32, I32, I32)


def _saturating(name: str) -> Callable[[Builder, Value, Value], Value]:
    return lambda b, x, y: b.minmax(f"{name}.sat", x, y)


# Add, subtract, multiply
for _suffix, _type, _sign in (
    ("nc_u32", I32, "u"), ("nc_i32", I32, "s"), ("nc_u16", I16, "u"), ("nc_i16", I16, "s"),
):  # fmt: skip
    valu(
        f"v_add_{_suffix}", _type, (_type, _type), lambda b, x, y: x + y,
        saturate=_saturating(f"{_sign}add"),
    )  # fmt: skip
    valu(
        f"v_sub_{_suffix}", _type, (_type, _type), lambda b, x, y: x - y,
        saturate=_saturating(f"{_sign}sub"),
    )  # fmt: skip
valu(
    "v_subrev_nc_u32", I32, _INT2, lambda b, x, y: y - x,
    saturate=lambda b, x, y: b.minmax("usub.sat", y, x),
)  # fmt: skip
valu("v_mul_lo_u32", I32, _INT2, lambda b, x, y: x * y)
valu("v_mul_lo_u16", I16, (I16, I16), lambda b, x, y: x * y)


def _low24(x: Value, signed: bool) -> Value:
    return (x << 8).ashr(8) if signed else x & 0xFFFFFF


for _sign, _signed in (("u", False), ("i", True)):
    _name24, _name16 = f"{_sign}32_{_sign}24", f"{_sign}32_{_sign}16"
    valu(f"v_mul_hi_{_sign}32", I32, _INT2, lambda b, x, y, s=_signed: mul_high(x, y, s))
    valu(
        f"v_mul_{_name24}", I32, _INT2,
        lambda b, x, y, s=_signed: _low24(x, s) * _low24(y, s),
    )  # fmt: skip
    valu(
        f"v_mul_hi_{_name24}", I32, _INT2,
        lambda b, x, y, s=_signed: mul_high(_low24(x, s), _low24(y, s), s),
    )  # fmt: skip
    valu(
        f"v_mad_{_name24}", I32, _INT3,
        lambda b, x, y, z, s=_signed: _low24(x, s) * _low24(y, s) + z,
        saturate=lambda b, x, y, z, s=_signed: mad_limited(b, _low24(x, s), _low24(y, s), z, s),
    )  # fmt: skip
    valu(
        f"v_mad_{_name16}", I32, (I16, I16, I32),
        lambda b, x, y, z, s=_signed: widen(x, I32, s) * widen(y, I32, s) + z,
        saturate=lambda b, x, y, z, s=_signed: mad_limited(b, x, y, z, s),
    )  # fmt: skip
    valu(
        f"v_mad_{_sign}16", I16, (I16, I16, I16), lambda b, x, y, z: x * y + z,
        saturate=lambda b, x, y, z, s=_signed: mad_limited(b, x, y, z, s),
    )  # fmt: skip


@op("v_mad_u64_u32", "v_mad_i64_i32")
def _mad_64(c: Context, i: Decoded) -> None:
    """64-bit sum of a 32 x 32 product and a 64-bit addend, and its carry as a lane mask."""
    signed = "i64" in i.mnemonic
    access = VectorAccess(c, i, i.operands[2:])
    addend = access.source(2, I64)
    product = widen(access.source(0, I32), I64, signed) * widen(access.source(1, I32), I64, signed)
    total = product + addend
    if not i.operands[1].is_null:
        # Bit 64 of the sum: the carry, or the sign that an overflow did not reach.
        wrapped = (product ^ total) & (addend ^ total)
        carry = (wrapped ^ total).slt(0) if signed else total.ult(product)
        access.write(i.operands[1], carry)
    access.write(i.operands[0], total)


def _carry(c: Context, i: Decoded) -> None:
    """v_{add,sub,subrev}_co[_ci]_u32: the result and the carry or borrow of each lane."""
    access = VectorAccess(c, i, i.operands[2:])
    x, y = access.source(0, I32), access.source(1, I32)
    subtract = "sub" in i.mnemonic
    if "subrev" in i.mnemonic:
        x, y = y, x
    total = x - y if subtract else x + y
    carry = x.ult(y) if subtract else total.ult(x)
    if "_ci_" in i.mnemonic:
        taken = access.source(2, I1).zext(I32)
        first, total = total, (total - taken if subtract else total + taken)
        carry = carry | (first.ult(taken) if subtract else total.ult(first))
    if "clamp" in i.modifiers:
        total = c.select(carry, 0 if subtract else -1, total)
    # The sources are read before the carry, which may name one of them, is written.
    access.write(i.operands[0], total)
    access.write(i.operands[1], carry)


for _stem in ("add", "sub", "subrev"):
    op(f"v_{_stem}_co_u32", modifiers={"clamp"})(_carry)
    op(f"v_{_stem}_co_ci_u32", modifiers=SDWA | DPP | {"clamp"})(_carry)

# Minimum, maximum, median
for _suffix, _type, _sign in (
    ("i32", I32, "s"), ("u32", I32, "u"), ("i16", I16, "s"), ("u16", I16, "u"),
):  # fmt: skip
    for _kind in ("min", "max"):
        valu(
            f"v_{_kind}_{_suffix}", _type, (_type, _type),
            lambda b, x, y, k=_sign + _kind: b.minmax(k, x, y),
        )  # fmt: skip
        valu(
            f"v_{_kind}3_{_suffix}", _type, (_type, _type, _type),
            lambda b, x, y, z, k=_sign + _kind: b.minmax(k, b.minmax(k, x, y), z),
        )  # fmt: skip
    valu(
        f"v_med3_{_suffix}", _type, (_type, _type, _type),
        lambda b, x, y, z, s=_sign: median(b, s, x, y, z),
    )  # fmt: skip

# Shifts: the count comes first in the reversed forms
valu("v_lshlrev_b32", I32, _INT2, lambda b, n, x: x << n)
valu("v_lshrrev_b32", I32, _INT2, lambda b, n, x: x >> n)
valu("v_ashrrev_i32", I32, _INT2, lambda b, n, x: x.ashr(n))
valu("v_lshlrev_b16", I16, (I16, I16), lambda b, n, x: x << n)
valu("v_lshrrev_b16", I16, (I16, I16), lambda b, n, x: x >> n)
valu("v_ashrrev_i16", I16, (I16, I16), lambda b, n, x: x.ashr(n))
valu("v_lshlrev_b64", I64, (I32, I64), lambda b, n, x: x << n.zext(I64))
valu("v_lshrrev_b64", I64, (I32, I64), lambda b, n, x: x >> n.zext(I64))
valu("v_ashrrev_i64", I64, (I32, I64), lambda b, n, x: x.ashr(n.zext(I64)))

# Logic
valu("v_not_b32", I32, (I32,), lambda b, x: ~x)
valu("v_and_b32", I32, _INT2, lambda b, x, y: x & y)
valu("v_or_b32", I32, _INT2, lambda b, x, y: x | y)
valu("v_xor_b32", I32, _INT2, lambda b, x, y: x ^ y)
valu("v_xnor_b32", I32, _INT2, lambda b, x, y: ~(x ^ y))
valu("v_or3_b32", I32, _INT3, lambda b, x, y, z: x | y | z)
valu("v_xor3_b32", I32, _INT3, lambda b, x, y, z: x ^ y ^ z)
valu("v_and_or_b32", I32, _INT3, lambda b, x, y, z: (x & y) | z)
valu("v_bfi_b32", I32, _INT3, lambda b, k, x, y: (k & x) | (~k & y))

# Two operations in one
valu("v_add3_u32", I32, _INT3, lambda b, x, y, z: x + y + z)
valu("v_lshl_add_u32", I32, _INT3, lambda b, x, n, y: (x << n) + y)
valu("v_add_lshl_u32", I32, _INT3, lambda b, x, y, n: (x + y) << n)
valu("v_lshl_or_b32", I32, _INT3, lambda b, x, n, y: (x << n) | y)
valu("v_xad_u32", I32, _INT3, lambda b, x, y, z: (x ^ y) + z)

# Bit fields and counts
valu("v_bfe_u32", I32, _INT3, lambda b, x, at, n: (x >> at) & field_mask(b, n))
valu("v_bfe_i32", I32, _INT3, lambda b, x, at, n: _signed_field(b, x.ashr(at), n & 31))
valu("v_bfm_b32", I32, _INT2, lambda b, n, at: field_mask(b, n) << at)
valu("v_bfrev_b32", I32, (I32,), lambda b, x: b.unary("bitreverse", x))
valu("v_bcnt_u32_b32", I32, _INT2, lambda b, x, y: b.unary("ctpop", x) + y)
valu("v_ffbh_u32", I32, (I32,), lambda b, x: find_bit(b, "ctlz", x))
valu("v_ffbl_b32", I32, (I32,), lambda b, x: find_bit(b, "cttz", x))
valu("v_ffbh_i32", I32, (I32,), lambda b, x: find_bit(b, "ctlz", sign_run(x)))


def _signed_field(b: Builder, shifted: Value, width: Value) -> Value:
    unused = b.const(I32, 32) - width
    return b.select(width.eq(0), 0, (shifted << unused).ashr(unused))


# Bytes
def _align(b: Builder, high: Value, low: Value, bits: Value) -> Value:
    """{high, low} >> bits for bits in 0..31."""
    return b.intrinsic("fshr", I32, high, low, bits)


valu("v_alignbit_b32", I32, _INT3, lambda b, x, y, n: _align(b, x, y, n & 31))
valu("v_alignbyte_b32", I32, _INT3, lambda b, x, y, n: _align(b, x, y, (n & 3) << 3))


def _permute_bytes(b: Builder, high: Value, low: Value, selector: Value) -> Value:
    """Each selector byte picks a byte of {high, low} (0-7), a sign (8-11), 00 (12) or FF."""
    if isinstance(selector, Constant):
        picks = selector.pattern.to_bytes(4, "little")
        if all(pick < 8 or pick == 12 for pick in picks):
            return _shuffle_bytes(b, high, low, picks)
    # The signs of selectors 8-11 as the bytes of one more register.
    signs = ((low >> 15) & 1) | ((low >> 31) << 8) | ((high >> 15 & 1) << 16) | (high >> 31 << 24)
    signs = signs * 0xFF
    result = b.const(I32, 0)
    for n in range(4):
        which = (selector >> (8 * n)) & 0xFF
        source = b.select(which.ugt(7), signs, b.select((which & 4).ne(0), high, low))
        byte = (source >> ((which & 3) << 3)) & 0xFF
        byte = b.select(which.ugt(11), b.select(which.eq(12), 0, b.const(I32, 0xFF)), byte)
        result = result | (byte << (8 * n))
    return result


def _shuffle_bytes(b: Builder, high: Value, low: Value, picks: bytes) -> Value:
    """Constant picks of bytes of {high, low}; 12 is zero."""
    low, high = low.bitcast(I8), high.bitcast(I8)
    lanes = low.type.lanes
    order = [
        4 * lane + (pick & 3) + (lanes if pick & 4 else 0)
        for lane in range(lanes // 4)
        for pick in picks
    ]
    keep = sum(0xFF << (8 * n) for n, pick in enumerate(picks) if pick != 12)
    return b.shuffle(low, order, high).bitcast(I32) & keep


valu("v_perm_b32", I32, _INT3, _permute_bytes)


# Sums of absolute differences
def _difference(b: Builder, x: Value, y: Value) -> Value:
    return b.minmax("umax", x, y) - b.minmax("umin", x, y)


def _sad(width: Type, shift: int = 0, masked: bool = False) -> Callable[..., Value]:
    lanes = 32 // width.bits

    def compute(b: Builder, x: Value, y: Value, z: Value) -> Value:
        x, y = x.bitcast(width), y.bitcast(width)
        parts = _difference(b, x, y)
        if masked:
            # Bytes of the reference that are zero do not count.
            parts = b.select(y.eq(0), 0, parts)
        parts = parts.zext(I32)
        for n in range(lanes):
            part = b.shuffle(parts, range(n, parts.type.lanes, lanes))
            z = z + (part << shift)
        return z

    return compute


valu("v_sad_u8", I32, _INT3, _sad(I8), modifiers=())
valu("v_sad_hi_u8", I32, _INT3, _sad(I8, shift=16), modifiers=())
valu("v_sad_u16", I32, _INT3, _sad(I16), modifiers=())
valu("v_sad_u32", I32, _INT3, lambda b, x, y, z: _difference(b, x, y) + z, modifiers=())
valu("v_msad_u8", I32, _INT3, _sad(I8, masked=True), modifiers=())


def _windows(c: Context, access: VectorAccess, old: list[Value], masked: bool) -> list[Value]:
    """Sums of bytes 0-3, 1-4, 2-5 and 3-6 of S0 against those of S1, added to `old`."""
    window, reference = access.source(0, I64), access.source(1, I32)
    add = _sad(I8, masked=masked)
    return [add(c, (window >> (8 * n)).trunc(I32), reference, part) for n, part in enumerate(old)]


@op("v_qsad_pk_u16_u8", "v_mqsad_pk_u16_u8")
def _quad_sad_packed(c: Context, i: Decoded) -> None:
    access = VectorAccess(c, i, i.operands[1:])
    addend = access.source(2, I64)
    old = [(addend >> (16 * n)).trunc(I32) & 0xFFFF for n in range(4)]
    total = c.const(I64, 0)
    for n, part in enumerate(_windows(c, access, old, masked="mqsad" in i.mnemonic)):
        total = total | ((part & 0xFFFF).zext(I64) << (16 * n))
    access.write(i.operands[0], total)


@op("v_mqsad_u32_u8")
def _quad_sad(c: Context, i: Decoded) -> None:
    first, addend = i.operands[0].index, i.operands[3]
    if not addend.is_vgpr:
        raise Unsupported("v_mqsad_u32_u8 with a constant addend")
    access = VectorAccess(c, i, i.operands[1:])
    old = [c.vgpr(addend.index + n) for n in range(4)]
    for n, part in enumerate(_windows(c, access, old, masked=True)):
        c.set_vgpr(first + n, part)


# Lerp: the rounded-up or rounded-down mean of four byte pairs, by the low bit of each byte of z
valu("v_lerp_u8", I32, _INT3, lambda b, x, y, z: _lerp(x, y, z))


def _lerp(x: Value, y: Value, z: Value) -> Value:
    x, y, z = (v.bitcast(I8).zext(I16) for v in (x, y, z))
    return ((x + y + (z & 1)) >> 1).trunc(I8).bitcast(I32)


# Moves
valu("v_mov_b32", I32, (I32,), lambda b, x: x)


@op("v_nop", "v_clrexcp", "v_pipeflush")
def _nop(c: Context, i: Decoded) -> None:
    pass


@op("v_swap_b32")
def _swap(c: Context, i: Decoded) -> None:
    x, y = (operand.index for operand in i.operands)
    first, second = c.vgpr(x), c.vgpr(y)
    c.set_vgpr(x, second)
    c.set_vgpr(y, first)
