"""The oracle's own arithmetic against numpy and the struct module, and a few rules by hand."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.oracle.convert import to_integer
from tests.emulator.oracle.division import quotient
from tests.emulator.oracle.dpp import SKIP, ZERO, Dpp
from tests.emulator.oracle.floating import maximum, med3, minimum
from tests.emulator.oracle.floats import (
    DOUBLE,
    DOWN,
    HALF,
    NAN,
    SINGLE,
    TOWARD_ZERO,
    UP,
    Format,
    number,
    pack,
    round_to,
    ulp,
    unpack,
)
from tests.emulator.oracle.inputs import float_edges
from tests.emulator.oracle.rows import VECTOR
from tests.emulator.oracle.types import I32, Anything, Near, OneOf, accepts

NUMPY = {
    HALF: (np.float16, np.uint16),
    SINGLE: (np.float32, np.uint32),
    DOUBLE: (np.float64, np.uint64),
}


def patterns(form: Format, count: int, seed: int) -> np.ndarray:
    source = random.Random(seed)
    edges = float_edges(form)
    values = [
        source.choice(edges) if source.random() < 0.5 else source.getrandbits(form.width)
        for _ in range(count)
    ]
    return np.array(values, NUMPY[form][1])


def same(form: Format, a: int, b: int) -> bool:
    return a == b or (form.is_nan(a) and form.is_nan(b))


@pytest.mark.parametrize("form", NUMPY, ids=lambda form: form.name)
@pytest.mark.parametrize("operator", ["add", "subtract", "multiply"])
def test_sums_and_products_round_as_the_processor_does(form: Format, operator: str) -> None:
    floating, bits = NUMPY[form]
    a, b = patterns(form, 1500, 1), patterns(form, 1500, 2)
    b[::3] = a[::3] ^ 1
    with np.errstate(all="ignore"):
        want = getattr(np, operator)(a.view(floating), b.view(floating)).view(bits)
    for x, y, z in zip(a.tolist(), b.tolist(), want.tolist(), strict=True):
        left, right = unpack(form, x), unpack(form, y)
        exact = {"add": left + right, "subtract": left - right, "multiply": left * right}[operator]
        assert same(form, pack(form, exact), z), (hex(x), hex(y))


@pytest.mark.parametrize(
    "wide,narrow", [(SINGLE, HALF), (DOUBLE, SINGLE), (DOUBLE, HALF)], ids=lambda form: form.name
)
def test_narrowing_rounds_to_nearest_even(wide: Format, narrow: Format) -> None:
    values = patterns(wide, 2000, 3)
    with np.errstate(all="ignore"):
        want = values.view(NUMPY[wide][0]).astype(NUMPY[narrow][0]).view(NUMPY[narrow][1])
    for x, z in zip(values.tolist(), want.tolist(), strict=True):
        assert same(narrow, pack(narrow, unpack(wide, x)), z), hex(x)


def test_directed_rounding_brackets_the_value() -> None:
    for bits in patterns(SINGLE, 2000, 4).tolist():
        x = unpack(SINGLE, bits)
        if not x.finite:
            continue
        down, up, cut = (round_to(HALF, x, mode).key() for mode in (DOWN, UP, TOWARD_ZERO))
        assert down <= x.key() <= up
        assert cut == (up if x.sign else down)
        if math.isfinite(down) and math.isfinite(up):
            assert up - down in (0, ulp(HALF, x.fraction())) or down == -up


def test_an_exact_zero_sum_is_negative_only_when_rounding_down() -> None:
    one = number(1)
    assert pack(SINGLE, one - one) == 0
    assert pack(SINGLE, one - one, DOWN) == SINGLE.sign_bit
    assert (
        pack(SINGLE, unpack(SINGLE, SINGLE.sign_bit) + unpack(SINGLE, SINGLE.sign_bit))
        == SINGLE.sign_bit
    )


def test_fused_multiply_add_rounds_once() -> None:
    # 1 + 2**-24 is a tie in f32; the product's own low bit decides it.
    a = number(1 + Fraction(1, 2**12))
    total = a * a + number(Fraction(-1, 2**11))
    assert total.fraction() == 1 + Fraction(1, 2**24)
    assert pack(SINGLE, total + number(Fraction(1, 2**40))) == 0x3F800001


def test_signalling_nan_wins_and_quiet_nan_loses() -> None:
    quiet, signalling, one = (unpack(SINGLE, b) for b in (0x7FC00001, 0x7F800002, 0x3F800000))
    assert pack(SINGLE, minimum(quiet, one)) == 0x3F800000
    assert pack(SINGLE, maximum(one, signalling)) == 0x7FC00002
    assert pack(SINGLE, minimum(quiet, unpack(SINGLE, 0xFFC00005))) == 0x7FC00001
    zero, minus = unpack(SINGLE, 0), unpack(SINGLE, SINGLE.sign_bit)
    assert pack(SINGLE, minimum(zero, minus)) == SINGLE.sign_bit
    assert pack(SINGLE, maximum(minus, zero)) == 0


def test_median_of_nan_is_the_minimum() -> None:
    middle = med3(SINGLE)
    one, two, quiet = number(1), number(2), unpack(SINGLE, 0x7FC00000)
    assert middle(two, quiet, one).fraction() == 1
    assert middle(two, number(3), one).fraction() == 2
    assert isinstance(middle(number(-1), number(0), one), OneOf)


def test_conversion_to_integer_saturates() -> None:
    convert = to_integer(I32)
    assert convert(NAN) == 0
    assert convert(number(2.0**40)) == 2**31 - 1
    assert convert(number(-(2.0**40))) == -(2**31)
    assert convert(number(-1.75)) == -1


def test_near_accepts_the_rounded_value_and_refuses_two_places_off() -> None:
    third = Near(Fraction(1, 3), 1.0)
    bits = struct.unpack("<I", struct.pack("<f", 1 / 3))[0]
    assert third.accepts(bits) and third.accepts(bits - 1)
    assert not third.accepts(bits + 2) and not third.accepts(bits - 2)
    assert not third.accepts(bits | SINGLE.sign_bit)
    assert Near(Fraction(1, 2**148), 1.0, may_flush=True).accepts(0)


def test_dpp_sources() -> None:
    everywhere = 0xFFFFFFFF
    assert Dpp("row_shl:1").sources(everywhere)[0] == 1
    assert Dpp("row_shl:1").sources(everywhere)[15] == SKIP
    assert Dpp("row_shr:1", bound_ctrl=True).sources(everywhere)[16] == ZERO
    assert Dpp("row_ror:1").sources(everywhere)[16] == 31
    assert Dpp("row_mirror").sources(everywhere)[3] == 12
    assert Dpp("row_half_mirror").sources(everywhere)[9] == 14
    assert Dpp("quad_perm:[3,2,1,0]").sources(everywhere)[4] == 7
    assert Dpp("row_share:5").sources(~(1 << 5))[3] == SKIP
    assert Dpp("row_share:5", fetch_inactive=True).sources(0)[3] == 5
    assert Dpp("row_xmask:3", row_mask=2).sources(everywhere)[:2] == [SKIP, SKIP]
    assert Dpp("dpp8:[7,6,5,4,3,2,1,0]").sources(1)[:2] == [ZERO, ZERO]


@pytest.mark.parametrize(
    "name,operands,want",
    [
        ("v_perm_b32", (0x44332291, 0x00FF8811, 0x0D0C0908), 0xFF0000FF),
        ("v_perm_b32", (0xAABBCCDD, 0x11223344, 0x07060100), 0xAABB3344),
        ("v_bfe_i32", (-(2**31), 28, 8), -8),
        ("v_alignbit_b32", (1, 0x80000000, 31), 0b11),
        ("v_ffbh_i32", (0xFFFF0000,), 16),
        ("v_mul_hi_i32_i24", (-1, 1), -1),
        ("v_msad_u8", (0x01020304, 0x00000A00, 5), 12),
        ("v_sat_pk_u8_i16", (0x0101FFFF,), (0xFF00, Anything())),
        ("v_dot4_i32_i8", (0xFF01FF01, 0x02020202, 10), 10),
        ("v_dot8_u32_u4", (0xFFFFFFFF, 0x11111111, 1), 121),
    ],
)
def test_integer_meanings_by_hand(name: str, operands: tuple[int, ...], want: int) -> None:
    assert VECTOR[name].meaning(*operands) == want


def test_quotients_round_as_the_processor_does() -> None:
    for form in (SINGLE, DOUBLE):
        floating, bits = NUMPY[form]
        a, b = patterns(form, 1500, 5), patterns(form, 1500, 6)
        with np.errstate(all="ignore"):
            want = (a.view(floating) / b.view(floating)).view(bits)
        for x, y, z in zip(a.tolist(), b.tolist(), want.tolist(), strict=True):
            got = quotient(form, unpack(form, x), unpack(form, y))
            assert accepts(got, z | form.quiet_bit if form.is_nan(z) else z), (hex(x), hex(y))
