"""The rules that only hardware can settle: every mode of them does what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from rdna_jit import emulator
from tests.emulator.oracle import harness, variants
from tests.emulator.oracle.floats import HALF, SINGLE, Number, number, pack, round_to
from tests.emulator.oracle.forms import Form
from tests.emulator.oracle.rows import VECTOR
from tests.emulator.oracle.support import split
from tests.emulator.oracle.test_vector import report
from tests.emulator.oracle.types import Anything, Flushable

Pair = tuple[Number, Number]
TRANSCENDENTAL = tuple(
    f"v_{name}_{of}" for of in ("f16", "f32") for name in ("exp", "log", "rcp", "rsq", "sqrt")
)


def exact(a: Pair, b: Pair, c: Number) -> Number:
    """One rounding of the whole sum."""
    return a[0] * b[0] + a[1] * b[1] + c


def _subnormal(x: Number) -> bool:
    return x.finite and SINGLE.is_subnormal(pack(SINGLE, x))


def flushed(a: Pair, b: Pair, c: Number) -> Flushable:
    """The chain with subnormal accumulators and results as zeros, with or without the middle."""

    def settle(x: Number) -> Number:
        return Number(x.sign) if _subnormal(x) else x

    first = round_to(SINGLE, a[0] * b[0] + settle(c))
    ways = [settle(round_to(SINGLE, middle + a[1] * b[1])) for middle in (first, settle(first))]
    return Flushable(*ways)


def _leading(x: Number) -> int:
    """The exponent of the highest set bit."""
    return x.exponent + x.magnitude.bit_length() - 1


def aligned(a: Pair, b: Pair, c: Number) -> Number | Anything:
    """gfx11: three terms on one grid, cut to it, unlike signs added as one's complements."""
    products = (a[0] * b[0], a[1] * b[1])
    if any(not x.finite for x in (*products, c)):
        return products[0] + products[1] + c
    if any(HALF.is_subnormal(pack(HALF, x)) for x in (*a, *b)):
        return Anything()  # the exponent that a subnormal operand counts with is not stated
    if _subnormal(c):
        c = Number(c.sign)
    terms = (*products, c)
    if all(x.zero for x in terms):
        return Anything()
    sums = [
        _leading(x) + _leading(y) for x, y in zip(a, b, strict=True) if not x.zero and not y.zero
    ]
    unit = max(_leading(x) for x in terms if not x.zero) - 26
    unit = max([unit, *(s - 24 for s in sums)])
    total = 0
    for term in terms:
        cut = int(abs(term.fraction()) / Fraction(2) ** unit)
        total += cut if term.sign == c.sign else ~cut
    value = number(Fraction(total) * Fraction(2) ** unit)
    result = round_to(SINGLE, -value if c.sign else value)
    if result.zero:
        return Anything()
    return Number(0) if _subnormal(result) else result


def forms(meaning: Callable) -> list[Form]:
    """The forms of both dot2 instructions with another meaning."""
    taken, _ = split(
        form
        for name in ("v_dot2_f32_f16", "v_dot2c_f32_f16")
        for form in variants.forms(VECTOR[name])
        if not form.clamp
    )
    return [replace(form, row=replace(form.row, meaning=meaning)) for form in taken]


@pytest.mark.parametrize(
    "options,meaning",
    [
        ({"dot2": "exact"}, exact),
        ({"dot2_flush": True}, flushed),
        ({"dot2": "gfx11"}, aligned),
    ],
    ids=["exact", "flush", "gfx11"],
)
def test_dot2(options: dict, meaning: Callable) -> None:
    with emulator.modes(**options):
        report(harness.check(forms(meaning), 8))


def test_aligned_sum_by_hand() -> None:
    one, zero = number(1), number(0)
    assert aligned((one, zero), (one, zero), number(-1)).fraction() == Fraction(1, 2**23)
    assert aligned((one, one), (one, one), number(2)).fraction() == 4


@pytest.mark.parametrize("error", ["+1ulp", "-1ulp", "hash"])
def test_transcendentals_keep_their_promise_at_its_limit(error: str) -> None:
    plain = [variants.forms(VECTOR[name])[0] for name in TRANSCENDENTAL]
    with emulator.modes(transcendental=error):
        report(harness.check(plain, 8))
