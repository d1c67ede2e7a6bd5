"""Vector conversions between integers and floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from tests.emulator.oracle.floats import HALF, NAN, SINGLE, TOWARD_ZERO, Number, number, round_to
from tests.emulator.oracle.table import vector
from tests.emulator.oracle.types import (
    B32,
    F16,
    F32,
    F64,
    I4,
    I16,
    I32,
    U16,
    U32,
    OneOf,
    Pair,
    Type,
)


def to_integer(of: Type, rounding: Callable[[Fraction], int] = math.trunc) -> Callable:
    """Round, then saturate to an integer type; NaN is 0."""
    low = -(1 << (of.width - 1)) if of.kind == "i" else 0
    high = low + of.mask

    def convert(a: Number) -> int:
        if a.nan:
            return 0
        if a.infinite:
            return low if a.sign else high
        return min(max(rounding(a.fraction()), low), high)

    return convert


def _half_up(a: Number) -> int | OneOf:
    """floor(a + 0.5). The sum is rounded in the published text, which shows next to one half."""
    convert = to_integer(I32, math.floor)
    total = a + number(0.5)
    return OneOf(tuple(convert(x) & 0xFFFFFFFF for x in (total, round_to(SINGLE, total))))


def to_half(a: Number, mode: int) -> Number:
    return NAN if a.nan else round_to(HALF, a, mode)


def _normalised(of: Type) -> Callable:
    """[-1, 1] or [0, 1] to the whole range. Rounding of the product is open: to nearest or cut."""
    top = 32767 if of.kind == "i" else 65535
    low = Fraction(-1 if of.kind == "i" else 0)

    def convert(a: Number) -> OneOf:
        if a.nan:
            return OneOf((0,))
        value = Fraction(-1 if a.sign else 1) if a.infinite else a.fraction()
        product = min(max(value, low), Fraction(1)) * top
        choices = (round(product), math.floor(product + Fraction(1, 2)), math.trunc(product))
        return OneOf(tuple(c & 0xFFFF for c in choices))

    return convert


def _pack_byte(a: Number, position: int, base: int) -> OneOf:
    """The byte `position` of `base` is replaced; the rounding (cut or nearest) is open."""
    shift = 8 * (position & 3)
    cut = to_integer(Type("u", 8))
    nearest = to_integer(Type("u", 8), round)
    kept = base & ~(0xFF << shift)
    return OneOf(tuple(kept | of(a) << shift for of in (cut, nearest)))


def exact(a: Number) -> Number:
    return NAN if a.nan else a


vector("v_cvt_f32_i32", F32, (I32,), number)
vector("v_cvt_f32_u32", F32, (U32,), number)
vector("v_cvt_f64_i32", F64, (I32,), number)
vector("v_cvt_f64_u32", F64, (U32,), number)
vector("v_cvt_f16_u16", F16, (U16,), number)
vector("v_cvt_f16_i16", F16, (I16,), number)
for _byte in range(4):
    vector(f"v_cvt_f32_ubyte{_byte}", F32, (U32,), lambda a, k=_byte: number(a >> 8 * k & 255))
vector("v_cvt_off_f32_i4", F32, (I4,), lambda a: number(Fraction(a, 16)))

vector("v_cvt_i32_f32", I32, (F32,), to_integer(I32))
vector("v_cvt_u32_f32", U32, (F32,), to_integer(U32))
vector("v_cvt_i32_f64", I32, (F64,), to_integer(I32))
vector("v_cvt_u32_f64", U32, (F64,), to_integer(U32))
vector("v_cvt_i16_f16", I16, (F16,), to_integer(I16))
vector("v_cvt_u16_f16", U16, (F16,), to_integer(U16))
vector("v_cvt_flr_i32_f32", I32, (F32,), to_integer(I32, math.floor))
vector("v_cvt_rpi_i32_f32", I32, (F32,), _half_up)

vector("v_cvt_f16_f32", F16, (F32,), exact)
vector("v_cvt_f32_f16", F32, (F16,), exact)
vector("v_cvt_f64_f32", F64, (F32,), exact)
vector("v_cvt_f32_f64", F32, (F64,), exact)
vector(
    "v_cvt_pkrtz_f16_f32",
    Pair(F16),
    (F32, F32),
    lambda a, b: (to_half(a, TOWARD_ZERO), to_half(b, TOWARD_ZERO)),
)

vector(
    "v_cvt_pk_i16_i32",
    Pair(I16),
    (I32, I32),
    lambda a, b: tuple(min(max(x, -32768), 32767) for x in (a, b)),
)
vector("v_cvt_pk_u16_u32", Pair(U16), (U32, U32), lambda a, b: (min(a, 65535), min(b, 65535)))
vector("v_cvt_pk_u8_f32", B32, (F32, U32, U32), _pack_byte)
for _kind, _type in (("i16", I16), ("u16", U16)):
    _to = _normalised(_type)
    vector(
        f"v_cvt_pknorm_{_kind}_f32", Pair(_type), (F32, F32), lambda a, b, to=_to: (to(a), to(b))
    )
    vector(
        f"v_cvt_pknorm_{_kind}_f16", Pair(_type), (F16, F16), lambda a, b, to=_to: (to(a), to(b))
    )
    vector(f"v_cvt_norm_{_kind}_f16", _type, (F16,), _to)
