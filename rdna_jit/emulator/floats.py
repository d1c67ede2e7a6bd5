"""Floating-point rules of the machine that LLVM has no instruction for.

Everything works on any float type and any number of lanes; the comparisons that decide about NaN
and signed zero are made on the bit patterns.
"""

from __future__ import annotations

from typing import Literal

from rdna_jit.emulator import integers
from rdna_jit.emulator.ir import F16, F32, F64, I32, I64, Builder, Constant, Type, Value

# Explicit mantissa bits and exponent bias by width.
_FRACTION = {16: 10, 32: 23, 64: 52}
_BIAS = {16: 15, 32: 127, 64: 1023}

Bound = Literal["min", "max"]


def _magnitude(bits: Value) -> Value:
    return bits & ((1 << (bits.type.bits - 1)) - 1)


def _infinity(width: int) -> int:
    return (2 * _BIAS[width] + 1) << _FRACTION[width]


def _quiet_bit(width: int) -> int:
    return 1 << (_FRACTION[width] - 1)


def _is_nan(bits: Value) -> Value:
    return _magnitude(bits).sgt(_infinity(bits.type.bits))


def _is_signalling(bits: Value) -> Value:
    quiet = _quiet_bit(bits.type.bits)
    return _magnitude(bits ^ quiet).sgt(_infinity(bits.type.bits) | quiet)


def _total_order(bits: Value) -> Value:
    """Signed integers in the order of the floats, -0 before +0; its own inverse."""
    return bits ^ (bits.ashr(bits.type.bits - 1) >> 1)


def bound(b: Builder, kind: Bound, x: Value, y: Value) -> Value:
    """v_min / v_max.

    With MODE.IEEE a signalling NaN (first in x, then in y) comes out quieted. A NaN otherwise loses
    to a number, and of two of them x wins. -0 is less than +0.
    """
    p, q = x.bits, y.bits
    if p.type.bits == 16:
        r = _total_order(b.minmax(f"s{kind}", _total_order(p), _total_order(q)))
        r = b.select(_is_nan(p), q, r)
    else:
        # One native instruction, which gives y for NaN in either and for equal zeros.
        r = b.select(x.flt(y) if kind == "min" else x.fgt(y), x, y).bits
        r = b.select(x.eq(y), p | q if kind == "min" else p & q, r)
    r = b.select(_is_nan(q), p, r)
    if not b.ieee():
        return r.bitcast(x.type)
    quiet = _quiet_bit(p.type.bits)
    r = b.select(_is_signalling(q), q | quiet, r)
    r = b.select(_is_signalling(p), p | quiet, r)
    return r.bitcast(x.type)


def bound3(b: Builder, kind: Bound, x: Value, y: Value, z: Value) -> Value:
    return bound(b, kind, bound(b, kind, x, y), z)


def median(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """v_med3: the middle one; with any NaN, min3."""
    p, q, r = x.bits, y.bits, z.bits
    middle = integers.median(b, "s", *(_total_order(v) for v in (p, q, r)))
    any_nan = _is_nan(p) | _is_nan(q) | _is_nan(r)
    return b.select(any_nan, bound3(b, "min", x, y, z), _total_order(middle).bitcast(x.type))


def fma_half(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x*y + z of f16 with one rounding.

    The product is exact in f32. The sum is made odd where it is not (the last bit set, after
    cutting towards zero), so that rounding it once more, to f16, is as good as rounding once.
    """
    if b.directed and (rounded := b.directed("fma", x.type, (x, y, z))):
        return rounded
    x, y, z = x.fpext(F32), y.fpext(F32), z.fpext(F32)
    total = b.fma(x, y, z)
    # The error of the sum, as in `sum_error`, with the product inside the fma.
    part = total - z
    error = (z - (total - part)) + b.fma(x, y, -part)
    return round_to_odd(b, total, error).fptrunc(F16)


def sum_error(x: Value, y: Value, total: Value) -> Value:
    """What rounding lost in total = x + y, exactly."""
    part = total - x
    return (x - (total - part)) + (y - part)


def round_to_odd(b: Builder, total: Value, error: Value) -> Value:
    """total + error cut towards zero, with the last bit set if anything was lost."""
    bits = total.bits
    # -1 where the error points towards zero: the magnitude is one too large.
    step = (bits ^ error.bits).ashr(bits.type.bits - 1)
    odd = (bits + step) | 1
    return b.select(error.compare("one", 0.0), odd, bits).bitcast(total.type)


def ldexp(b: Builder, x: Value, exponent: Value) -> Value:
    """x * 2**exponent with one rounding; `exponent` is a signed integer of any size."""
    if x.type.bits == 64:
        return _ldexp_f64(b, x, exponent)
    # Every f32 and f16 result is exact in f64, including the subnormal ones.
    limited = b.minmax("smax", b.minmax("smin", exponent, 400), -400).sext(I64)
    scale = ((limited + _BIAS[64]) << 52).bitcast(F64)
    return narrow(b, x.fpext(F64) * scale, x.type)


def narrow(b: Builder, x: Value, type: Type) -> Value:
    """f64 to f32, or to f16 with one rounding in effect."""
    if b.directed and (rounded := b.directed("fptrunc", type.over(x.type.lanes), (x,))):
        return rounded
    if type.bits == 32:
        return x.fptrunc(F32)
    single = x.fptrunc(F32)
    error = x - single.fpext(F64)
    step = (single.bits ^ (error.bits >> 32).trunc(I32)).ashr(31)
    odd = ((single.bits + step) | 1).bitcast(F32)
    # Past the range of f32 the cut value is infinite either way.
    finite = b.unary("fabs", single).flt(float("inf"))
    return b.select(error.compare("one", 0.0) & finite, odd, single).fptrunc(F16)


def _ldexp_f64(b: Builder, x: Value, exponent: Value) -> Value:
    """In steps: only the last may round, since the first are exact or already saturated."""
    n = b.minmax("smax", b.minmax("smin", exponent, 2200), -2200)
    mantissa, own = frexp_mantissa(b, x), frexp_exponent(b, x)
    total = n + own
    # mantissa * 2**(total - rest) is normal and exact, then one rounding step of 2**rest.
    high = b.minmax("smin", b.minmax("smax", total, -1000), 1000)
    rest = b.minmax("smax", b.minmax("smin", total - high, 1000), -1000)
    return mantissa * power_of_two(high) * power_of_two(rest)


def power_of_two(exponent: Value) -> Value:
    """2**exponent as f64 for exponents of normal numbers."""
    return ((exponent.sext(I64) + _BIAS[64]) << 52).bitcast(F64)


def _normalised(b: Builder, x: Value) -> tuple[Value, Value]:
    """The bits of x with subnormals scaled to normals, and the exponent that this added."""
    width = x.type.bits
    shift = _FRACTION[width] + 2
    bits = x.bits
    subnormal = _magnitude(bits).ult(1 << _FRACTION[width])
    scaled = (x * float(1 << shift)).bits
    added = b.select(subnormal, shift, b.const(bits.type, 0))
    return b.select(subnormal, scaled, bits), added


def _exponent_field(bits: Value) -> Value:
    return _magnitude(bits) >> _FRACTION[bits.type.bits]


def frexp_mantissa(b: Builder, x: Value) -> Value:
    """The significand in [0.5, 1) with x's sign; zeros, infinities and NaN as they are."""
    width = x.type.bits
    bits, _ = _normalised(b, x)
    keep = ~(((1 << (width - 1)) - 1) ^ ((1 << _FRACTION[width]) - 1))
    mantissa = (bits & keep) | ((_BIAS[width] - 1) << _FRACTION[width])
    return b.select(_special(x), b.quiet(x).bits, mantissa).bitcast(x.type)


def frexp_exponent(b: Builder, x: Value) -> Value:
    """n with x = mantissa * 2**n, as i32 (i16 for f16); 0 for zeros, infinities and NaN."""
    bits, added = _normalised(b, x)
    exponent = _exponent_field(bits) - (_BIAS[x.type.bits] - 1) - added
    exponent = b.select(_special(x), 0, exponent)
    return exponent.trunc(I32) if x.type.bits == 64 else exponent


def _special(x: Value) -> Value:
    """Zero, infinite or NaN."""
    magnitude = _magnitude(x.bits)
    return magnitude.eq(0) | magnitude.compare("sge", _infinity(x.type.bits))


def classify(b: Builder, x: Value) -> Value:
    """The class of x as one bit, in the order of v_cmp_class: signalling NaN, quiet NaN, -infinity,
    -normal, -subnormal, -0, +0, +subnormal, +normal, +infinity. In x's integer type."""
    bits = x.bits
    magnitude = _magnitude(bits)
    zero, one = b.const(bits.type, 0), b.const(bits.type, 1)
    infinity, normal = _infinity(bits.type.bits), 1 << _FRACTION[bits.type.bits]
    kind = b.select(magnitude.compare("sge", infinity), zero, one)
    kind = b.select(magnitude.slt(normal), 2, kind)
    kind = b.select(magnitude.eq(0), 3, kind)
    index = b.select(bits.slt(0), kind + 2, 9 - kind)
    index = b.select(_is_nan(bits), b.select(_is_signalling(bits), zero, one), index)
    return one << index


def flush_subnormal(b: Builder, x: Value) -> Value:
    """A subnormal becomes the zero of its sign."""
    bits = x.bits
    top, least_normal = 1 << (bits.type.bits - 1), 1 << _FRACTION[bits.type.bits]
    if isinstance(bits, Constant) and bits.pattern & (top - 1) >= least_normal:
        return x
    small = _magnitude(bits).ult(least_normal)
    sign = bits & top
    return b.select(small, sign, bits).bitcast(x.type)
