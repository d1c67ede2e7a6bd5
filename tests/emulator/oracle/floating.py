"""Vector float instructions of 16, 32 and 64 bits, and the transcendental ones.

Results are exact numbers, rounded once when packed. Transcendental results are `Near` the true
value within the documented error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from tests.emulator.oracle.floats import (
    DOWN,
    NAN,
    NEAREST,
    SINGLE,
    TOWARD_ZERO,
    UP,
    Format,
    Number,
    number,
    pack,
    round_integral,
    round_to,
    unpack,
)
from tests.emulator.oracle.table import vector
from tests.emulator.oracle.types import (
    F16,
    F32,
    F64,
    I16,
    I32,
    Anything,
    Flushable,
    Near,
    OneOf,
    Type,
)

TYPES = {"f16": F16, "f32": F32, "f64": F64}
ZERO, ONE = Number(0), number(1)


# Minimum, maximum, median: a signalling NaN wins and is quieted, a quiet NaN loses to a number.
def _ordered(a: Number) -> tuple:
    return a.key(), -a.sign  # -0 is below +0


def _extreme(choose: Callable) -> Callable[[Number, Number], Number]:
    def of_two(a: Number, b: Number) -> Number:
        if a.signalling or b.signalling:
            return (a if a.signalling else b).quieted()
        if a.nan or b.nan:
            return b if a.nan and not b.nan else a
        return choose(a, b, key=_ordered)

    return of_two


minimum, maximum = _extreme(min), _extreme(max)


def min3(a: Number, b: Number, c: Number) -> Number:
    return minimum(minimum(a, b), c)


def max3(a: Number, b: Number, c: Number) -> Number:
    return maximum(maximum(a, b), c)


def med3(form: Format) -> Callable:
    """The middle operand; with any NaN, the least. The sign of a zero result is not settled."""

    def middle(a: Number, b: Number, c: Number) -> Number | OneOf:
        if a.nan or b.nan or c.nan:
            return min3(a, b, c)
        result = sorted((a, b, c), key=_ordered)[1]
        return OneOf((0, form.sign_bit)) if result.zero else result

    return middle


def legacy_product(a: Number, b: Number) -> Number:
    """A product in which zero times anything, NaN included, is +0."""
    return ZERO if a.zero or b.zero else a * b


def fract(form: Format) -> Callable:
    """`x - floor(x)`, at most the largest number below one."""

    def of(a: Number) -> Number:
        if not a.finite:
            return NAN
        rest = round_to(form, a - round_integral(a, DOWN))
        if rest.fraction() == 1:
            return unpack(form, pack(form, ONE) - 1)
        return Number(0, rest.magnitude, rest.exponent)

    return of


def scaled(a: Number, power: int) -> Number:
    """`a * 2**power`. Powers beyond 5000 are past the range of every format."""
    power = min(max(power, -5000), 5000)
    return Number(a.sign, a.magnitude, a.exponent + power) if a.finite else _plain(a)


def _plain(a: Number) -> Number:
    """NaN results of arithmetic promise no payload."""
    return NAN if a.nan else a


def mantissa(a: Number) -> Number:
    """The significand in [0.5, 1) with the sign; zero, infinity and NaN are themselves."""
    if not a.finite or a.zero:
        return _plain(a)
    return Number(a.sign, a.magnitude, -a.magnitude.bit_length())


def exponent(a: Number) -> int:
    """The power of two that goes with `mantissa`; 0 for zero, infinity and NaN."""
    return a.exponent + a.magnitude.bit_length() if a.finite and not a.zero else 0


for _suffix, _type in TYPES.items():
    vector(f"v_add_{_suffix}", _type, (_type, _type), lambda a, b: a + b)
    vector(f"v_mul_{_suffix}", _type, (_type, _type), lambda a, b: a * b)
    vector(f"v_fma_{_suffix}", _type, (_type, _type, _type), lambda a, b, c: a * b + c)
    vector(f"v_min_{_suffix}", _type, (_type, _type), minimum)
    vector(f"v_max_{_suffix}", _type, (_type, _type), maximum)
    vector(f"v_floor_{_suffix}", _type, (_type,), lambda a: round_integral(_plain(a), DOWN))
    vector(f"v_ceil_{_suffix}", _type, (_type,), lambda a: round_integral(_plain(a), UP))
    vector(f"v_trunc_{_suffix}", _type, (_type,), lambda a: round_integral(_plain(a), TOWARD_ZERO))
    vector(f"v_rndne_{_suffix}", _type, (_type,), lambda a: round_integral(_plain(a), NEAREST))
    vector(f"v_fract_{_suffix}", _type, (_type,), fract(_type.format))
    vector(f"v_frexp_mant_{_suffix}", _type, (_type,), mantissa)
    vector(f"v_ldexp_{_suffix}", _type, (_type, I16 if _suffix == "f16" else I32), scaled)
vector("v_frexp_exp_i16_f16", I16, (F16,), exponent)
vector("v_frexp_exp_i32_f32", I32, (F32,), exponent)
vector("v_frexp_exp_i32_f64", I32, (F64,), exponent)

for _suffix in ("f16", "f32"):
    _type = TYPES[_suffix]
    vector(f"v_sub_{_suffix}", _type, (_type, _type), lambda a, b: a - b)
    vector(f"v_subrev_{_suffix}", _type, (_type, _type), lambda a, b: b - a)
    vector(f"v_fmac_{_suffix}", _type, (_type, _type), lambda a, b, d: a * b + d, accumulates=True)
    vector(f"v_fmamk_{_suffix}", _type, (_type, _type, _type), lambda a, k, c: a * k + c, literal=1)
    vector(f"v_fmaak_{_suffix}", _type, (_type, _type, _type), lambda a, b, k: a * b + k, literal=2)
    vector(f"v_min3_{_suffix}", _type, (_type, _type, _type), min3)
    vector(f"v_max3_{_suffix}", _type, (_type, _type, _type), max3)
    vector(f"v_med3_{_suffix}", _type, (_type, _type, _type), med3(_type.format))
vector("v_mul_legacy_f32", F32, (F32, F32), legacy_product)
vector("v_fma_legacy_f32", F32, (F32, F32, F32), lambda a, b, c: legacy_product(a, b) + c)
vector(
    "v_fmac_legacy_f32", F32, (F32, F32), lambda a, b, d: legacy_product(a, b) + d, accumulates=True
)


# gfx10.1's multiply-add: a rounded product, then a rounded sum. It may take subnormals for zero.
def _flushed(a: Number) -> Number:
    small = not a.nan and SINGLE.is_subnormal(pack(SINGLE, a))
    return Number(a.sign) if small else a


def _multiply_add(product: Callable) -> Callable[[Number, Number, Number], Flushable]:
    def meaning(a: Number, b: Number, c: Number) -> Flushable:
        kept = round_to(SINGLE, product(a, b)) + c
        a, b, c = _flushed(a), _flushed(b), _flushed(c)
        return Flushable(kept, _flushed(_flushed(round_to(SINGLE, product(a, b))) + c))

    return meaning


for _suffix, _product in (("f32", lambda a, b: a * b), ("legacy_f32", legacy_product)):
    _meaning = _multiply_add(_product)
    vector(f"v_mad_{_suffix}", F32, (F32, F32, F32), _meaning, arch="gfx1010")
    vector(f"v_mac_{_suffix}", F32, (F32, F32), _meaning, accumulates=True, arch="gfx1010")
_meaning = _multiply_add(lambda a, b: a * b)
vector(
    "v_madmk_f32",
    F32,
    (F32, F32, F32),
    lambda a, k, c: _meaning(a, k, c),
    literal=1,
    arch="gfx1010",
)
vector(
    "v_madak_f32",
    F32,
    (F32, F32, F32),
    lambda a, b, k: _meaning(a, b, k),
    literal=2,
    arch="gfx1010",
)


# Transcendentals. `math` computes in double precision, whose own error is far below the tolerance
# of the 16 and 32-bit forms; the 64-bit forms use exact fractions.
def _root(value: Fraction) -> Fraction:
    """The square root to 80 significant bits."""
    shift = 2 * max(0, 160 - value.numerator.bit_length() + value.denominator.bit_length())
    scaled_up = value * 2**shift
    return Fraction(math.isqrt(scaled_up.numerator // scaled_up.denominator), 2 ** (shift // 2))


def _reciprocal(a: Number) -> Number | Fraction:
    if a.nan:
        return NAN
    if a.infinite:
        return Number(a.sign)
    if a.zero:
        return Number(a.sign, infinite=True)
    return 1 / a.fraction()


def _square_root(a: Number) -> Number | Fraction:
    if a.nan or (a.sign and not a.zero):
        return NAN
    return a if a.infinite or a.zero else _root(a.fraction())


def _reciprocal_root(a: Number) -> Number | Fraction:
    root = _square_root(a)
    return 1 / root if isinstance(root, Fraction) else _reciprocal(root)


def _exp2(a: Number) -> Number | Fraction:
    if a.nan:
        return NAN
    if a.infinite:
        return ZERO if a.sign else a
    power = min(max(a.fraction(), Fraction(-400)), Fraction(400))
    whole = math.floor(power)
    return Fraction(math.exp2(float(power - whole))) * Fraction(2) ** whole


def _log2(a: Number) -> Number | Fraction:
    if a.nan or (a.sign and not a.zero):
        return NAN
    if a.zero:
        return Number(1, infinite=True)
    if a.infinite:
        return a
    return Fraction(math.log2(a.magnitude) + a.exponent) if a.fraction() != 1 else ZERO


def _near(form: Format, ulps: float, of: Callable) -> Callable:
    """A transcendental of one operand. The 32-bit ones may take subnormals for zero."""
    flushes = form is SINGLE

    def result(a: Number) -> Number | Near:
        value = of(a)
        return Near(value, ulps, may_flush=flushes) if isinstance(value, Fraction) else value

    def meaning(a: Number) -> Number | Near | Flushable:
        if flushes and form.is_subnormal(pack(form, a)):
            return Flushable(result(a), result(Number(a.sign)))
        return result(a)

    return meaning


for _suffix, _ulps in (("f16", 0.51), ("f32", 1.0), ("f64", 1.0)):
    _type = TYPES[_suffix]
    for _name, _of in (("rcp", _reciprocal), ("sqrt", _square_root), ("rsq", _reciprocal_root)):
        # The hardware's f64 has a few bits fewer; ours rounds the root and its reciprocal.
        _most = 1.5 if (_name, _suffix) == ("rsq", "f64") else _ulps
        vector(f"v_{_name}_{_suffix}", _type, (_type,), _near(_type.format, _most, _of))
    if _suffix != "f64":
        vector(f"v_exp_{_suffix}", _type, (_type,), _near(_type.format, _ulps, _exp2))
        vector(f"v_log_{_suffix}", _type, (_type,), _near(_type.format, _ulps, _log2))
vector("v_rcp_iflag_f32", F32, (F32,), _near(SINGLE, 1.0, _reciprocal))

TURN_LIMIT = 256  # v_sin and v_cos reduce arguments up to this many revolutions


def _wave(form: Format, of: Callable[[float], float]) -> Callable:
    """A sine or cosine of an angle in revolutions; beyond the documented domain anything goes."""

    def meaning(a: Number) -> Number | Near | Anything:
        if not a.finite:
            return NAN
        turns = a.fraction()
        if abs(turns) > TURN_LIMIT:
            return Anything()
        if a.zero:
            return a if of is math.sin else ONE
        rest = turns - round(turns)
        return Near(Fraction(of(2 * math.pi * float(rest))), 1.0, 2.0**-22, True)

    return meaning


for _suffix in ("f16", "f32"):
    _type = TYPES[_suffix]
    vector(f"v_sin_{_suffix}", _type, (_type,), _wave(_type.format, math.sin))
    vector(f"v_cos_{_suffix}", _type, (_type,), _wave(_type.format, math.cos))


# Argument reduction of the double sine and cosine: 53 bits of 2 / pi from a given place on.
def _arc_cotangent(n: int, bits: int) -> int:
    """atan(1 / n) * 2**bits."""
    total, term, k = 0, (1 << bits) // n, 0
    while term:
        total += (-term if k & 1 else term) // (2 * k + 1)
        term //= n * n
        k += 1
    return total


_PLACES = 1201
_PI = 4 * (4 * _arc_cotangent(5, 1400) - _arc_cotangent(239, 1400))
_TWO_OVER_PI = (2 << 1400 + _PLACES) // _PI


def _two_over_pi(a: Number, segment: int) -> Number:
    """`a` counts by its biased exponent alone."""
    biased = 0x7FF if not a.finite else 0 if a.magnitude >> 52 == 0 else a.exponent + 1075
    shift = segment * 53 + max(biased - 1077, 0)
    result = (_TWO_OVER_PI << shift >> _PLACES - 53) & (1 << 53) - 1
    return Number(0, result, -53 - shift + (128 if biased >= 1968 else 0))


vector("v_trig_preop_f64", F64, (F64, Type("u", 5)), _two_over_pi)


# Cube map coordinates: the axis of the largest magnitude, z before y before x on ties.
def _cube_face(x: Number, y: Number, z: Number) -> int:
    ax, ay, az = (abs(v).key() for v in (x, y, z))
    if az >= ax and az >= ay:
        return 4 + int(z.sign and not z.zero)
    if ay >= ax:
        return 2 + int(y.sign and not y.zero)
    return int(x.sign and not x.zero)


def _finite(of: Callable) -> Callable:
    """No rule is stated for infinities and NaN."""
    return lambda *x: of(*x) if all(v.finite for v in x) else Anything()


vector("v_cubeid_f32", F32, (F32, F32, F32), _finite(lambda x, y, z: number(_cube_face(x, y, z))))
vector(
    "v_cubema_f32",
    F32,
    (F32, F32, F32),
    _finite(lambda x, y, z: number(2) * (x, y, z)[_cube_face(x, y, z) // 2]),
)
vector(
    "v_cubesc_f32",
    F32,
    (F32, F32, F32),
    _finite(lambda x, y, z: (-z, z, x, x, x, -x)[_cube_face(x, y, z)]),
)
vector(
    "v_cubetc_f32",
    F32,
    (F32, F32, F32),
    _finite(lambda x, y, z: (-y, -y, z, -z, -y, -y)[_cube_face(x, y, z)]),
)
