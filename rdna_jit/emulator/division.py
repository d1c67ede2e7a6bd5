"""The three helper instructions of IEEE division: v_div_scale, v_div_fmas and v_div_fixup.

A compiled a / b scales both operands out of the ranges where the Newton iteration would lose
bits, iterates with fma, undoes the scaling inside the last fma, and fixes up the special cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rdna_jit.emulator.context import Context
from rdna_jit.emulator.decode import VCC
from rdna_jit.emulator.floats import ldexp, sum_error
from rdna_jit.emulator.ir import I32, Value


@dataclass(frozen=True)
class _Format:
    fraction: int  # explicit bits of the significand
    bias: int
    wide: int  # exponent difference from which the quotient is near overflow
    tiny: int  # biased exponent up to which a numerator is scaled up
    step: int  # power of two of the scaling
    least: int  # exponent difference below which the quotient underflows


_FORMATS = {
    16: _Format(10, 15, 0, 0, 0, -24),
    32: _Format(23, 127, 96, 23, 64, -150),
    64: _Format(52, 1023, 768, 53, 128, -1075),
}


def _exponent(x: Value) -> Value:
    f = _FORMATS[x.type.bits]
    return (x.bits >> f.fraction) & (2 * f.bias + 1)


def _is_subnormal(x: Value) -> Value:
    return _exponent(x).eq(0) & _nonzero(x)


def _nonzero(x: Value) -> Value:
    return (x.bits << 1).ne(0)


def scale(c: Context, x: Value, denominator: Value, numerator: Value) -> tuple[Value, Value]:
    """v_div_scale: x (the denominator or the numerator, whichever is being scaled) times a power
    of two where that is needed, and the lanes in which v_div_fmas has to scale the quotient."""
    f = _FORMATS[x.type.bits]
    difference = _exponent(numerator) - _exponent(denominator)
    tiny_reciprocal = _is_subnormal(1.0 / denominator)
    tiny_quotient = _is_subnormal(numerator / denominator)
    same_denominator = x.bits.eq(denominator.bits)
    same_numerator = x.bits.eq(numerator.bits)
    steps = c.const(I32, 0)
    up, down = c.const(I32, f.step), c.const(I32, -f.step)
    undo = c.const(same_numerator.type, 0)
    # The rules in order of precedence, last first.
    steps = c.select(_exponent(numerator).compare("ule", f.tiny), up, steps)
    cases = (
        (tiny_quotient, c.select(same_numerator, up, 0), True),
        (tiny_reciprocal, down, False),
        (tiny_reciprocal & tiny_quotient, c.select(same_denominator, down, 0), True),
        (_is_subnormal(denominator), up, False),
        (difference.compare("sge", f.wide), c.select(same_denominator, up, 0), True),
    )
    for condition, amount, undone in cases:
        steps = c.select(condition, amount, steps)
        undo = c.select(condition, c.const(undo.type, undone), undo)
    result = ldexp(c, x, steps)
    invalid = ~(_nonzero(denominator) & _nonzero(numerator))
    return c.select(invalid, math.nan, result), undo & ~invalid


def fmas(c: Context, x: Value, y: Value, z: Value) -> Value:
    """v_div_fmas: fma, and where VCC is set the scaling of v_div_scale undone: upwards for
    quotients (z) above 1, else downwards, with one rounding."""
    f = _FORMATS[x.type.bits]
    plain = c.fma(x, y, z)
    factor = c.select(
        _exponent(z).ugt(f.bias), 2.0**f.step, c.const(z.type, 2.0**-f.step)
    )  # fmt: skip
    undone = plain * factor
    if c.directed:  # rounding twice in one direction is rounding once
        return c.select(c.lane_mask(VCC), undone, plain)
    # A result that becomes subnormal is rounded there, from a sum that kept what it lost.
    product = x * y
    rest = c.fma(x, y, -product)
    total = product + z
    lost = sum_error(product, z, total) + rest
    nearer = total + lost
    subnormal = _rounded_down(c, nearer, sum_error(total, lost, nearer), f)
    # A zero is exact, and keeps its sign.
    small = c.unary("fabs", undone).flt(2.0 ** (2 - f.bias)) & plain.ne(0.0)
    return c.select(c.lane_mask(VCC), c.select(small, subnormal, undone), plain)


def _rounded_down(c: Context, x: Value, error: Value, f: _Format) -> Value:
    """(x + error) * 2**-step, for a subnormal result, rounded once."""
    result = x * 2.0**-f.step
    rounded = result * 2.0**f.step
    # Only a tie can go the other way; the error says which.
    left = x - rounded
    half_unit = 2.0 ** (f.step - f.bias - f.fraction)
    same_sign = ((left.bits ^ error.bits) >> (x.type.bits - 1)).eq(0)
    onward = c.unary("fabs", left).eq(half_unit) & error.ne(0.0) & same_sign
    return c.select(onward, (rounded + left * 2.0) * 2.0**-f.step, result)


def fixup(c: Context, quotient: Value, denominator: Value, numerator: Value) -> Value:
    """v_div_fixup: the quotient with the sign, the zeros, infinities and NaN of the division."""
    f = _FORMATS[quotient.type.bits]
    top = 2 * f.bias + 1
    width = quotient.type.bits
    sign = (denominator.bits ^ numerator.bits) & (1 << (width - 1))
    infinity = top << f.fraction
    difference = _exponent(numerator) - _exponent(denominator)
    special_d, special_n = _exponent(denominator).eq(top), _exponent(numerator).eq(top)
    infinite_d = special_d & ~denominator.isnan()
    infinite_n = special_n & ~numerator.isnan()
    zero_d, zero_n = ~_nonzero(denominator), ~_nonzero(numerator)

    # The iteration overflows to NaN where the quotient does.
    result = c.select(quotient.isnan(), infinity, c.unary("fabs", quotient).bits)
    if width != 16:
        result = c.select(difference.slt(f.least), 0, result)
    result = c.select(infinite_d | zero_n, 0, result)
    result = c.select(zero_d | infinite_n, infinity, result) | sign
    invalid = (zero_d & zero_n) | (infinite_d & infinite_n)
    result = c.select(invalid, (1 << (width - 1)) | infinity | 1 << (f.fraction - 1), result)
    result = c.select(denominator.isnan(), c.quiet(denominator).bits, result)
    result = c.select(numerator.isnan(), c.quiet(numerator).bits, result)
    return result.bitcast(quotient.type)
