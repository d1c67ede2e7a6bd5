"""16-bit integers, packed pairs, mixed precision and dot products."""

from __future__ import annotations

from collections.abc import Callable

from tests.emulator.oracle.floating import maximum, minimum
from tests.emulator.oracle.floats import SINGLE, Number, round_to
from tests.emulator.oracle.table import vector
from tests.emulator.oracle.types import (
    B16,
    F16,
    F32,
    FB16,
    I16,
    I32,
    U16,
    U32,
    Pair,
    Type,
)

# 16-bit integers. On gfx10 the other half of the destination stays.
vector("v_add_nc_u16", U16, (U16, U16), lambda a, b: a + b)
vector("v_sub_nc_u16", U16, (U16, U16), lambda a, b: a - b)
vector("v_add_nc_i16", I16, (I16, I16), lambda a, b: a + b)
vector("v_sub_nc_i16", I16, (I16, I16), lambda a, b: a - b)
vector("v_mul_lo_u16", B16, (U16, U16), lambda a, b: a * b)
vector("v_mad_u16", U16, (U16, U16, U16), lambda a, b, c: a * b + c)
vector("v_mad_i16", I16, (I16, I16, I16), lambda a, b, c: a * b + c)
vector("v_lshlrev_b16", B16, (U16, U16), lambda n, a: a << (n & 15))
vector("v_lshrrev_b16", B16, (U16, U16), lambda n, a: a >> (n & 15))
vector("v_ashrrev_i16", B16, (U16, I16), lambda n, a: a >> (n & 15))
for _type, _suffix in ((U16, "u16"), (I16, "i16")):
    vector(f"v_min_{_suffix}", _type, (_type, _type), min)
    vector(f"v_max_{_suffix}", _type, (_type, _type), max)
    vector(f"v_min3_{_suffix}", _type, (_type, _type, _type), min)
    vector(f"v_max3_{_suffix}", _type, (_type, _type, _type), max)
    vector(f"v_med3_{_suffix}", _type, (_type, _type, _type), lambda *x: sorted(x)[1])
vector("v_pack_b32_f16", Pair(FB16), (FB16, FB16), lambda a, b: (a, b))


# Packed pairs: the meaning is that of one half.
def packed(names: str, of: Type, count: int, meaning: Callable, **properties: object) -> None:
    vector(names, Pair(of), (of,) * count, meaning, packed=True, **properties)


packed("v_pk_add_f16", F16, 2, lambda a, b: a + b)
packed("v_pk_mul_f16", F16, 2, lambda a, b: a * b)
packed("v_pk_fma_f16", F16, 3, lambda a, b, c: a * b + c)
packed("v_pk_fmac_f16", F16, 2, lambda a, b, d: a * b + d, accumulates=True)
packed("v_pk_min_f16", F16, 2, minimum)
packed("v_pk_max_f16", F16, 2, maximum)
for _type, _suffix in ((U16, "u16"), (I16, "i16")):
    packed(f"v_pk_add_{_suffix}", _type, 2, lambda a, b: a + b)
    packed(f"v_pk_sub_{_suffix}", _type, 2, lambda a, b: a - b)
    packed(f"v_pk_mad_{_suffix}", _type, 3, lambda a, b, c: a * b + c)
    packed(f"v_pk_min_{_suffix}", _type, 2, min)
    packed(f"v_pk_max_{_suffix}", _type, 2, max)
packed("v_pk_mul_lo_u16", B16, 2, lambda a, b: a * b)
packed("v_pk_lshlrev_b16", B16, 2, lambda n, a: a << (n & 15))
packed("v_pk_lshrrev_b16", B16, 2, lambda n, a: a >> (n & 15))
vector("v_pk_ashrrev_i16", Pair(B16), (U16, I16), lambda n, a: a >> (n & 15), packed=True)


# Mixed precision: each operand is an f32 or one half of a register.
def _mix(a: Number, b: Number, c: Number) -> Number:
    return a * b + c


vector("v_fma_mix_f32", F32, (F32, F32, F32), _mix, mix=True)
# Two roundings: the sum to f32, then the conversion to f16.
vector("v_fma_mixlo_f16", F16, (F32, F32, F32), _mix, mix=True, through=SINGLE)
vector("v_fma_mixhi_f16", F16, (F32, F32, F32), _mix, mix=True, through=SINGLE, high_half=True)


# Dot products. Integer ones are exact sums.
def _dot2_f32(a: tuple, b: tuple, c: Number) -> Number:
    """Accumulator plus the low product, then plus the high one, each sum rounded to f32."""
    return round_to(SINGLE, a[0] * b[0] + c) + a[1] * b[1]


def _lanes(of: Type) -> Callable[[int], list[int]]:
    return lambda a: [of.decode(a >> k) for k in range(0, 32, of.width)]


def _dot(of: Type) -> Callable[[int, int, int], int]:
    split = _lanes(of)
    return lambda a, b, c: sum(x * y for x, y in zip(split(a), split(b), strict=True)) + c


vector("v_dot2_f32_f16", F32, (Pair(F16), Pair(F16), F32), _dot2_f32)
vector("v_dot2c_f32_f16", F32, (Pair(F16), Pair(F16)), _dot2_f32, accumulates=True)
vector("v_dot2_i32_i16", I32, (U32, U32, I32), _dot(I16))
vector("v_dot2_u32_u16", U32, (U32, U32, U32), _dot(U16))
vector("v_dot4_i32_i8", I32, (U32, U32, I32), _dot(Type("i", 8)))
vector("v_dot4c_i32_i8", I32, (U32, U32), _dot(Type("i", 8)), accumulates=True)
vector("v_dot4_u32_u8", U32, (U32, U32, U32), _dot(Type("u", 8)))
vector("v_dot8_i32_i4", I32, (U32, U32, I32), _dot(Type("i", 4)))
vector("v_dot8_u32_u4", U32, (U32, U32, U32), _dot(Type("u", 4)))
