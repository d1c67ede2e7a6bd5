"""exp2, log2, sine, cosine and the reciprocal family, as vector expressions.

f32 results are computed in f64 and rounded once, so they are within 0.51 ulp of the true value on
every CPU. Like the machine's, v_exp_f32 and v_log_f32 see and give zero for subnormals. f16 forms
go through f32. The machine promises 1 ulp: `Options.transcendental` rounds up or down instead, to
show which kernels lean on more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

from rdna_jit.emulator.context import Context
from rdna_jit.emulator.floats import (
    flush_subnormal,
    frexp_exponent,
    frexp_mantissa,
    ldexp,
    power_of_two,
)
from rdna_jit.emulator.ir import F16, F32, F64, I32, I64, WAVE, Value
from rdna_jit.emulator.rounding import narrowed, nearest

_LN2 = math.log(2.0)
_EXP2 = [_LN2**n / math.factorial(n) for n in range(9)]
# log2((1 + s) / (1 - s)) = s * P(s*s)
_LOG2 = [2.0 / (_LN2 * (2 * n + 1)) for n in range(9)]
_TAU = 2.0 * math.pi
# sin(tau f) = f * P(f*f) and cos(tau f) = P(f*f), for |f| <= 1/8
_SIN = [(-1) ** n * _TAU ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(7)]
_COS = [(-1) ** n * _TAU ** (2 * n) / math.factorial(2 * n) for n in range(8)]


def _polynomial(c: Context, coefficients: Sequence[float], x: Value) -> Value:
    total = c.const(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = c.fma(total, x, coefficient)
    return total


def _exp2(c: Context, x: Value) -> Value:
    wide = x.fpext(F64)
    # Beyond these every result is 0 or infinity; NaN is put back below.
    wide = c.select(wide.fgt(200.0), 200.0, wide)
    wide = c.select(wide.compare("ult", -200.0), -200.0, wide)
    whole = c.unary("roundeven", wide)
    result = _polynomial(c, _EXP2, wide - whole) * power_of_two(whole.fptosi(I32))
    return c.select(x.isnan(), x + x, flush_subnormal(c, _single(c, x, result)))


def _log2(c: Context, x: Value) -> Value:
    x = flush_subnormal(c, x)
    wide = x.fpext(F64)
    mantissa, exponent = frexp_mantissa(c, wide), frexp_exponent(c, wide)
    # Centre the significand on 1: [sqrt(1/2), sqrt(2)).
    low = mantissa.flt(math.sqrt(0.5))
    mantissa = c.select(low, mantissa + mantissa, mantissa)
    exponent = exponent - low.zext(I32)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    result = _single(c, x, c.fma(s, _polynomial(c, _LOG2, s * s), exponent.sitofp(F64)))
    result = c.select(x.eq(math.inf), x, result)
    result = c.select(x.eq(0.0), -math.inf, result)
    invalid = c.const(F32, math.nan)
    return c.select(x.compare("ult", 0.0), c.select(x.isnan(), x + x, invalid), result)


def _turns(c: Context, x: Value, quarter: int) -> Value:
    """sin(tau * (x + quarter/4)); the machine takes angles within +-256 turns."""
    wide = x.fpext(F64)
    turn = wide - c.unary("roundeven", wide)
    quarters = c.unary("roundeven", turn * 4.0)
    f = c.fma(quarters, -0.25, turn)
    square = f * f
    sine, cosine = f * _polynomial(c, _SIN, square), _polynomial(c, _COS, square)
    phase = quarters.fptosi(I32) + quarter
    result = c.select((phase & 1).ne(0), cosine, sine)
    result = _single(c, x, c.select((phase & 2).ne(0), -result, result))
    beyond = c.unary("fabs", x).fgt(256.0)
    result = c.select(beyond, float(quarter), result)
    if not quarter:
        # -0 keeps its sign, which the reduction loses.
        result = c.select(x.eq(0.0), x, result)
    infinite = c.unary("fabs", x).eq(math.inf)
    return c.select(infinite, math.nan, c.select(x.isnan(), x + x, result))


def _reciprocal(c: Context, x: Value) -> Value:
    if c.options.transcendental == "exact":
        return 1.0 / x
    return _single(c, x, 1.0 / x.fpext(F64))


def _root(c: Context, x: Value) -> Value:
    if c.options.transcendental == "exact":
        return c.unary("sqrt", x)
    return _single(c, x, c.unary("sqrt", x.fpext(F64)))


def _reciprocal_root(c: Context, x: Value) -> Value:
    return _single(c, x, 1.0 / c.unary("sqrt", x.fpext(F64)))


def _single(c: Context, x: Value, wide: Value) -> Value:
    """f(x) as f32 from f64: to nearest, or as the options ask where that is normal."""
    result, mode = wide.fptrunc(F32), c.options.transcendental
    if mode == "exact":
        return result
    exact = c.const(F64, 0.0)
    up, down = (narrowed(c, wide, exact, F32, direction) for direction in ("up", "down"))
    if mode == "hash":
        moved = c.select((x.bits * 0x9E3779B1).slt(0), up, down)
    else:
        moved = up if mode == "+1ulp" else down
    magnitude = c.unary("fabs", result)
    return c.select(magnitude.fgt(1.2e-38) & magnitude.flt(3.4e38), moved, result)


def _always_nearest(f: Callable[[Context, Value], Value]) -> Callable[[Context, Value], Value]:
    """MODE does not change how the function is computed."""

    def g(c: Context, x: Value) -> Value:
        with nearest(c):
            return f(c, x)

    return g


exp2 = _always_nearest(_exp2)
log2 = _always_nearest(_log2)
sin = _always_nearest(lambda c, x: _turns(c, x, 0))
cos = _always_nearest(lambda c, x: _turns(c, x, 1))
rcp = _always_nearest(_reciprocal)
rsq = _always_nearest(_reciprocal_root)
sqrt = _always_nearest(_root)


def half(f: Callable[[Context, Value], Value]) -> Callable[[Context, Value], Value]:
    """The f16 form of an f32 function."""
    return _always_nearest(lambda c, x: f(c, x.fpext(F32)).fptrunc(F16))


# 2/pi to 1201 bits after the point, in words from the top; what follows is zero.
_TWO_OVER_PI_BITS = 1201
_WORDS = 2 * WAVE


@cache
def _two_over_pi() -> tuple[int, ...]:
    precision = _TWO_OVER_PI_BITS + 64
    value = (2 << 2 * precision) // _pi(precision) >> (precision - _TWO_OVER_PI_BITS)
    value <<= 32 * _WORDS - _TWO_OVER_PI_BITS
    return tuple(value >> (32 * (_WORDS - 1 - n)) & 0xFFFFFFFF for n in range(_WORDS))


def _pi(bits: int) -> int:
    """pi * 2**bits, by Machin's formula."""

    def arctan_of_inverse(n: int) -> int:
        term = total = (1 << bits + 16) // n
        for k in itertools.count(3, 2):
            term //= -n * n
            if term in (0, -1):
                return total
            total += term // k
        raise AssertionError

    return (16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) >> 16


def trig_preop(c: Context, x: Value, segment: Value) -> Value:
    """v_trig_preop_f64: 53 bits of 2/pi, from bit 53 * segment on and further for large x, scaled
    to their place (and by 2**128 for the largest x)."""
    exponent = ((x.bits >> 52) & 0x7FF).trunc(I32)
    beyond = c.minmax("smax", exponent - 1077, 0)
    shift = (segment & 31) * 53 + beyond
    word = c.minmax("umin", shift >> 5, _WORDS - 3)
    high = (_table_word(c, word).zext(I64) << 32) | _table_word(c, word + 1).zext(I64)
    low = _table_word(c, word + 2).zext(I64) << 32
    offset = (shift & 31).zext(I64)
    bits = c.intrinsic("fshl", I64, high, low, offset) >> 11
    scale = 75 - shift
    scale = c.select(exponent.compare("uge", 1968), scale, scale - 128)
    return ldexp(c, bits.uitofp(F64), scale)


def _table_word(c: Context, index: Value) -> Value:
    table = _two_over_pi()
    first, second = (c.lane_const(I32, table[n : n + WAVE]) for n in (0, WAVE))
    within = index & (WAVE - 1)
    return c.select(index.ugt(WAVE - 1), c.permute(second, within), c.permute(first, within))
