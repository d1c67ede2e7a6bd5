"""Values: what their operators compute, and that none of LLVM's undefined cases gets through."""

from __future__ import annotations

import numpy as np
import pytest

from rdna_jit.emulator import floats
from rdna_jit.emulator.context import Context
from rdna_jit.emulator.ir import (
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Type,
    Value,
    float_bits,
)
from tests.emulator.wave_function import evaluate

RNG = np.random.default_rng(0)
WORDS = RNG.integers(0, 2**32, 32, dtype=np.uint32)
SINGLES = np.array(
    [0.0, -0.0, 1.5, -2.5, 3e9, -3e9, np.inf, -np.inf, np.nan, 0.5, 2.5, 3.5, -0.5, 1e-40, 65519.0,
     65520.0, *RNG.standard_normal(16)],
    np.float32,
)  # fmt: skip


def test_types_are_interned_and_know_their_relatives() -> None:
    assert Type("i32") is I32 and I32.over(64) is Type("i32", 64)
    assert F16.over(64).integer is I16.over(64)
    assert F64.scalar.text == "double" and F32.text == "<32 x float>"
    assert (I32.suffix, F16.over(64).suffix, I64.scalar.suffix) == ("v32i32", "v64f16", "i64")


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64 + 5])
def test_shift_counts_are_taken_modulo_the_width(count: int) -> None:
    constant = evaluate(lambda b, x: x << count, WORDS)
    variable = evaluate(lambda b, x: x << (x - x + count), WORDS)
    np.testing.assert_array_equal(constant, WORDS << np.uint32(count % 32))
    np.testing.assert_array_equal(variable, constant)
    arithmetic = evaluate(lambda b, x: x.ashr(b.const(I32, count)), WORDS)
    np.testing.assert_array_equal(arithmetic.view(np.int32), WORDS.view(np.int32) >> (count % 32))


def test_float_to_integer_saturates_and_nan_is_zero() -> None:
    got = evaluate(lambda b, x: x.bitcast(F32).fptosi(I32), SINGLES).view(np.int32)
    assert got[4:9].tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0]
    got = evaluate(lambda b, x: x.bitcast(F32).fptoui(I32), SINGLES)
    assert got[3:9].tolist() == [0, 3_000_000_000, 0, 2**32 - 1, 0, 0]


def test_bitcast_to_a_narrower_type_multiplies_the_lanes() -> None:
    b = Builder()
    x = b.lane_const(I32, range(32))
    assert x.bitcast(I8).type.lanes == 128
    assert b.const(I32.scalar, 5).bitcast(I1).type.lanes == 32
    swapped = evaluate(
        lambda b, x: b.shuffle(x.bitcast(I16), [n ^ 1 for n in range(64)]).bitcast(I32), WORDS
    )
    np.testing.assert_array_equal(swapped, (WORDS >> 16) | (WORDS << 16))


def test_scalars_and_numbers_take_the_type_of_the_other_operand() -> None:
    got = evaluate(lambda b, x: b.lane(x, 3) + x * 2 - 1, WORDS)
    np.testing.assert_array_equal(got, WORDS[3] + WORDS * np.uint32(2) - np.uint32(1))
    b = Builder()
    with pytest.raises(TypeError, match="differ in type"):
        b.const(I32, 1) + b.const(I64, 1)
    with pytest.raises(TypeError, match="must be a Value"):
        b.select(b.const(I1, 1), 1, 2)


def test_constants_keep_their_pattern_through_casts() -> None:
    b = Builder()
    signalling = b.const(I32.scalar, 0x7F800001).bitcast(F32)
    assert signalling.type is F32.scalar and signalling.bits.pattern == 0x7F800001
    assert b.splat(signalling).pattern == 0x7F800001
    assert not b.lines, "constants need no instruction"
    got = evaluate(lambda b, x: b.const(I32.scalar, 0x7F800001).bitcast(F32), WORDS)
    assert set(got.tolist()) == {0x7F800001}


NEUTRAL = {"x * 1": lambda x: x * 1.0, "x - 0": lambda x: x - 0.0, "x + -0": lambda x: x + -0.0}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_constants_quiet_nan(name: str) -> None:
    signalling = np.full(32, 0x7F800001, np.uint32)
    got = evaluate(lambda b, x: NEUTRAL[name](x.bitcast(F32)), signalling)
    assert set(got.tolist()) == {0x7FC00001}


@pytest.mark.parametrize(("value", "bits", "pattern"), [
    (1.0, 16, 0x3C00), (65520.0, 32, 0x477FF000), (0.15915494, 32, 0x3E22F983),
    (0.15915494309189532, 64, 0x3FC45F306DC9C882), (0.15915494, 16, 0x3118),
])  # fmt: skip
def test_float_patterns(value: float, bits: int, pattern: int) -> None:
    assert float_bits(value, bits) == pattern


def test_half_fma_rounds_once() -> None:
    """1 + 2**-10 + (2**-11 - 2**-31) is just below a tie of f16; rounded to f32 first it is one,
    and would go to the even neighbour above."""

    def compute(b: Context, _: Value) -> Value:
        x = b.const(F16, 2.0**-11 * (1 + 2.0**-10))
        return floats.fma_half(b, x, b.const(F16, 1 - 2.0**-10), b.const(F16, 1 + 2.0**-10))

    got = evaluate(lambda b, x: compute(b, x).fpext(F32), WORDS)
    assert set(got.view(np.float32).tolist()) == {1 + 2.0**-10}
