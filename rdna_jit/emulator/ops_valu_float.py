"""f32 and f64 vector arithmetic."""

from __future__ import annotations

from rdna_jit.emulator import division, floats, transcendental
from rdna_jit.emulator.context import Context
from rdna_jit.emulator.decode import Decoded
from rdna_jit.emulator.ir import F32, F64, I1, I32, Builder, Type, Value
from rdna_jit.emulator.registry import op, valu
from rdna_jit.emulator.rounding import directed, nearest
from rdna_jit.emulator.vector import DPP, OUTPUT, SDWA, SOURCE_SIGN, VectorAccess


def _legacy_mul(b: Builder, x: Value, y: Value) -> Value:
    """Zero times anything is +0, infinity and NaN included."""
    return b.select(x.eq(0.0) | y.eq(0.0), 0.0, x * y)


def _legacy_fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return b.select(x.eq(0.0) | y.eq(0.0), z + 0.0, b.fma(x, y, z))


def _fract(c: Context, x: Value) -> Value:
    """x - floor(x), kept below 1."""
    below_one = {16: 1 - 2.0**-11, 32: 1 - 2.0**-24, 64: 1 - 2.0**-53}[x.type.bits]
    with nearest(c):
        part = x - c.unary("floor", x)
    return c.select(part.fgt(below_one), below_one, part)


# f32, two sources
valu("v_add_f32", F32, (F32, F32), lambda b, x, y: x + y)
valu("v_sub_f32", F32, (F32, F32), lambda b, x, y: x - y)
valu("v_subrev_f32", F32, (F32, F32), lambda b, x, y: y - x)
valu("v_mul_f32", F32, (F32, F32), lambda b, x, y: x * y)
valu("v_mul_legacy_f32", F32, (F32, F32), _legacy_mul)
valu("v_min_f32", F32, (F32, F32), lambda b, x, y: floats.bound(b, "min", x, y))
valu("v_max_f32", F32, (F32, F32), lambda b, x, y: floats.bound(b, "max", x, y))
valu("v_ldexp_f32", F32, (F32, I32), floats.ldexp)
valu(
    "v_cndmask_b32", F32, (F32, F32, I1), lambda b, x, y, mask: b.select(mask, y, x),
    moves=True, modifiers=SOURCE_SIGN | SDWA | DPP,
)  # fmt: skip

# Fused multiply-add. fmac reads its destination; fmaak and fmamk print all three sources.
valu("v_fma_f32", F32, (F32, F32, F32), lambda b, x, y, z: b.fma(x, y, z))
valu("v_fmac_f32", F32, (F32, F32), lambda b, x, y, acc: b.fma(x, y, acc), accumulate=True)
valu("v_fmaak_f32", F32, (F32, F32, F32), lambda b, x, y, k: b.fma(x, y, k))
valu("v_fmamk_f32", F32, (F32, F32, F32), lambda b, x, k, y: b.fma(x, k, y))
valu("v_fma_legacy_f32", F32, (F32, F32, F32), _legacy_fma)
valu("v_fmac_legacy_f32", F32, (F32, F32), _legacy_fma, accumulate=True)


# gfx10.1 only: two roundings, and subnormals are zero whatever the mode
def _mad(b: Builder, x: Value, y: Value, z: Value) -> Value:
    x, y, z = (floats.flush_subnormal(b, v) for v in (x, y, z))
    return floats.flush_subnormal(b, floats.flush_subnormal(b, x * y) + z)


def _legacy_mad(b: Builder, x: Value, y: Value, z: Value) -> Value:
    x, y, z = (floats.flush_subnormal(b, v) for v in (x, y, z))
    return floats.flush_subnormal(b, floats.flush_subnormal(b, _legacy_mul(b, x, y)) + z)


valu("v_mad_f32", F32, (F32, F32, F32), _mad)
valu("v_mac_f32", F32, (F32, F32), _mad, accumulate=True)
valu("v_madak_f32", F32, (F32, F32, F32), _mad)
valu("v_madmk_f32", F32, (F32, F32, F32), _mad)
valu("v_mad_legacy_f32", F32, (F32, F32, F32), _legacy_mad)
valu("v_mac_legacy_f32", F32, (F32, F32), _legacy_mad, accumulate=True)

for _kind in ("min", "max"):
    valu(
        f"v_{_kind}3_f32", F32, (F32, F32, F32),
        lambda b, x, y, z, kind=_kind: floats.bound3(b, kind, x, y, z),
    )  # fmt: skip
valu("v_med3_f32", F32, (F32, F32, F32), floats.median)


# f32 and f64, one source
def unary_rows(suffix: str, type: Type, exponent: Type) -> None:
    """Rounding and frexp of one float type; `exponent` is the type of the exponent."""
    for name, intrinsic in (
        ("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("rndne", "roundeven"),
    ):  # fmt: skip
        valu(
            f"v_{name}_{suffix}", type, (type,),
            lambda b, x, intrinsic=intrinsic: b.unary(intrinsic, x),
        )  # fmt: skip
    valu(f"v_fract_{suffix}", type, (type,), _fract)
    valu(f"v_frexp_mant_{suffix}", type, (type,), floats.frexp_mantissa)
    valu(f"v_frexp_exp_{exponent.name}_{suffix}", exponent, (type,), floats.frexp_exponent)


unary_rows("f32", F32, I32)
unary_rows("f64", F64, I32)

valu("v_exp_f32", F32, (F32,), transcendental.exp2)
valu("v_log_f32", F32, (F32,), transcendental.log2)
valu("v_sin_f32", F32, (F32,), transcendental.sin)
valu("v_cos_f32", F32, (F32,), transcendental.cos)
valu("v_rcp_f32", F32, (F32,), transcendental.rcp)
valu("v_rcp_iflag_f32", F32, (F32,), transcendental.rcp)
valu("v_rsq_f32", F32, (F32,), transcendental.rsq)
valu("v_sqrt_f32", F32, (F32,), transcendental.sqrt)

# f64
valu("v_add_f64", F64, (F64, F64), lambda b, x, y: x + y)
valu("v_mul_f64", F64, (F64, F64), lambda b, x, y: x * y)
valu("v_fma_f64", F64, (F64, F64, F64), lambda b, x, y, z: b.fma(x, y, z))
valu("v_min_f64", F64, (F64, F64), lambda b, x, y: floats.bound(b, "min", x, y))
valu("v_max_f64", F64, (F64, F64), lambda b, x, y: floats.bound(b, "max", x, y))
valu("v_ldexp_f64", F64, (F64, I32), floats.ldexp)
valu("v_rcp_f64", F64, (F64,), lambda b, x: 1.0 / x)  # to nearest in any mode
valu("v_rsq_f64", F64, (F64,), lambda b, x: 1.0 / b.unary("sqrt", x))
valu("v_sqrt_f64", F64, (F64,), lambda b, x: b.unary("sqrt", x))

valu("v_trig_preop_f64", F64, (F64, I32), transcendental.trig_preop)


# Division: scale, then Newton steps by the compiler, then fix up.
def _div_scale(c: Context, i: Decoded) -> None:
    """D and a lane mask: operand 0 scaled, and whether fmas must undo it."""
    type = F64 if i.mnemonic.endswith("f64") else F32
    access = VectorAccess(c, i, i.operands[2:])
    x, denominator, numerator = (access.source(k, type) for k in range(3))
    scaled, undo = division.scale(c, x, denominator, numerator)
    access.write(i.operands[0], scaled)
    access.write(i.operands[1], undo)


op("v_div_scale_f32", "v_div_scale_f64", modifiers=SOURCE_SIGN)(_div_scale)


def _div_fmas(c: Context, i: Decoded) -> None:
    type = F64 if i.mnemonic.endswith("f64") else F32
    access = VectorAccess(c, i, i.operands[1:4])
    values = [access.source(k, type) for k in range(3)]
    with directed(c, type):
        result = division.fmas(c, *values)
    access.write(i.operands[0], result)


op("v_div_fmas_f32", "v_div_fmas_f64", modifiers=SOURCE_SIGN | OUTPUT)(_div_fmas)

valu("v_div_fixup_f32", F32, (F32, F32, F32), division.fixup)
valu("v_div_fixup_f64", F64, (F64, F64, F64), division.fixup)
