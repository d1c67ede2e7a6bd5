"""Conversions between number formats."""

from __future__ import annotations

from rdna_jit.emulator import integers
from rdna_jit.emulator.ir import F16, F32, F64, I8, I16, I32, Builder, Type, Value
from rdna_jit.emulator.registry import Compute, valu
from rdna_jit.emulator.vector import DPP, OP_SEL, SDWA, SOURCE_SIGN

# Integers to floats: nearest even
valu("v_cvt_f32_i32", F32, (I32,), lambda b, x: x.sitofp(F32))
valu("v_cvt_f32_u32", F32, (I32,), lambda b, x: x.uitofp(F32))
valu("v_cvt_f64_i32", F64, (I32,), lambda b, x: x.sitofp(F64))
valu("v_cvt_f64_u32", F64, (I32,), lambda b, x: x.uitofp(F64))
valu("v_cvt_f16_i16", F16, (I16,), lambda b, x: x.sitofp(F32).fptrunc(F16))
valu("v_cvt_f16_u16", F16, (I16,), lambda b, x: x.uitofp(F32).fptrunc(F16))
for _byte in range(4):
    valu(
        f"v_cvt_f32_ubyte{_byte}", F32, (I32,),
        lambda b, x, n=_byte: ((x >> (8 * n)) & 0xFF).uitofp(F32),
    )  # fmt: skip
# A signed nibble in sixteenths.
valu(
    "v_cvt_off_f32_i4", F32, (I32,), lambda b, x: (x << 28).ashr(28).sitofp(F32) * 0.0625
)  # fmt: skip


# Floats to integers: toward zero, saturating with or without clamp, NaN -> 0
def _to_integer(mnemonic: str, result: Type, source: Type, compute: Compute) -> None:
    valu(mnemonic, result, (source,), compute, saturate=compute)


_to_integer("v_cvt_i32_f32", I32, F32, lambda b, x: x.fptosi(I32))
_to_integer("v_cvt_u32_f32", I32, F32, lambda b, x: x.fptoui(I32))
_to_integer("v_cvt_i32_f64", I32, F64, lambda b, x: x.fptosi(I32))
_to_integer("v_cvt_u32_f64", I32, F64, lambda b, x: x.fptoui(I32))
_to_integer("v_cvt_i16_f16", I16, F16, lambda b, x: x.fpext(F32).fptosi(I16))
_to_integer("v_cvt_u16_f16", I16, F16, lambda b, x: x.fpext(F32).fptoui(I16))
_to_integer("v_cvt_flr_i32_f32", I32, F32, lambda b, x: b.unary("floor", x).fptosi(I32))
_to_integer("v_cvt_rpi_i32_f32", I32, F32, lambda b, x: b.unary("floor", x + 0.5).fptosi(I32))

# Between float widths
valu("v_cvt_f16_f32", F16, (F32,), lambda b, x: x.fptrunc(F16))
valu("v_cvt_f32_f16", F32, (F16,), lambda b, x: x.fpext(F32))
valu("v_cvt_f32_f64", F32, (F64,), lambda b, x: x.fptrunc(F32))
valu("v_cvt_f64_f32", F64, (F32,), lambda b, x: x.fpext(F64))


# Two results packed into one register
def _packed(mnemonic: str, source: Type, convert: Compute) -> None:
    """Both sources through `convert`, to 16 bits each."""

    def compute(b: Builder, x: Value, y: Value) -> Value:
        low, high = convert(b, x), convert(b, y)
        return (low.bits.zext(I32) | (high.bits.zext(I32) << 16)).bitcast(low.type)

    valu(
        mnemonic, I32, (source, source), compute,
        modifiers=(SOURCE_SIGN if source.is_float else {"sext"})
        | SDWA | DPP | (OP_SEL if source.bits == 16 else set()),
    )  # fmt: skip


def half_toward_zero(b: Builder, x: Value) -> Value:
    """f32 to f16 cut toward zero: finite values never become infinite, subnormals are kept."""
    nearest = x.fptrunc(F16)
    above = b.unary("fabs", nearest.fpext(F32)).fgt(b.unary("fabs", x))
    # One less in magnitude is the next value toward zero, also from infinity.
    return b.select(above, nearest.bits - 1, nearest.bits).bitcast(F16)


def _normalised(limit: float, least: float) -> Compute:
    """[least, 1] to the integers up to `limit`, to nearest even."""

    def convert(b: Builder, x: Value) -> Value:
        x = x.fpext(F32) if x.type.bits == 16 else x
        x = b.select(x.flt(least), least, x)
        x = b.select(x.fgt(1.0), 1.0, x)
        return b.unary("roundeven", x * limit).fptosi(I32).trunc(I16)

    return convert


_signed_norm, _unsigned_norm = _normalised(32767.0, -1.0), _normalised(65535.0, 0.0)
_packed("v_cvt_pkrtz_f16_f32", F32, half_toward_zero)
for _suffix, _type in (("f32", F32), ("f16", F16)):
    _packed(f"v_cvt_pknorm_i16_{_suffix}", _type, _signed_norm)
    _packed(f"v_cvt_pknorm_u16_{_suffix}", _type, _unsigned_norm)
valu("v_cvt_norm_i16_f16", I16, (F16,), _signed_norm)
valu("v_cvt_norm_u16_f16", I16, (F16,), _unsigned_norm)
_packed("v_cvt_pk_i16_i32", I32, lambda b, x: integers.limited(b, x, I16, True))
_packed("v_cvt_pk_u16_u32", I32, lambda b, x: b.minmax("umin", x, 0xFFFF).trunc(I16))


def _byte_into(b: Builder, x: Value, place: Value, word: Value) -> Value:
    """x as an unsigned byte, at byte place[1:0] of word."""
    shift = (place & 3) << 3
    byte = x.fptoui(I8).zext(I32)
    return (word & ~(b.const(I32, 0xFF) << shift)) | (byte << shift)


valu("v_cvt_pk_u8_f32", I32, (F32, I32, I32), _byte_into)


def _saturate_bytes(b: Builder, x: Value) -> Value:
    """Two signed halves to unsigned bytes."""
    limited = b.minmax("smin", b.minmax("smax", x.bitcast(I16), 0), 255)
    return limited.trunc(I8).bitcast(I16)


valu("v_sat_pk_u8_i16", I16, (I32,), _saturate_bytes, modifiers=SDWA | DPP)
