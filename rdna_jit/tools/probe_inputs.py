"""What a probe feeds an instruction: named groups of operand bit patterns.

A group is three arrays of uint32, one per operand; operands that an instruction does not have
stay zero.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Triple = tuple[Words, Words, Words]
Groups = dict[str, Triple]

_CASES = 512
_MANTISSAS = 1 << 14
QUIET, SIGNALLING = 0x7FC00001, 0x7F800001
_QUIET16, _SIGNALLING16 = 0x7E01, 0x7C01


def words(values: object) -> Words:
    """uint32 patterns of f32 values, or the values themselves if they are integers."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        array = array.astype(np.float32).view(np.uint32)
    return np.ascontiguousarray(array, np.uint32).reshape(-1)


def triple(a: object, b: object = 0, c: object = 0) -> Triple:
    """Three operands of equal length; single values are repeated."""
    x, y, z = map(np.ascontiguousarray, np.broadcast_arrays(words(a), words(b), words(c)))
    return x, y, z


def packed(low: Any, high: Any) -> Words:
    """f16 pairs as words."""
    pair = np.stack(np.broadcast_arrays(low, high), axis=-1).astype(np.float16)
    return np.ascontiguousarray(pair).view(np.uint32).reshape(-1)


def dot2() -> Groups:
    """Operands of v_dot2_f32_f16 by what they ask of the adder."""
    random = np.random.default_rng(2)
    halves = random.standard_normal((4, _CASES)).astype(np.float16)
    a, b = packed(halves[0], halves[1]), packed(halves[2], halves[3])
    like = random.standard_normal(_CASES)
    exact = halves[0].astype(np.float64) * halves[2] + halves[1].astype(np.float64) * halves[3]
    near = np.float32(-exact) * np.float32(1 + 2.0**-20)
    small = random.integers(1, 0x400, (2, _CASES)).astype(np.uint16).view(np.float16)
    weights = random.integers(-8, 8, (2, _CASES))
    activations = random.integers(-64, 64, (2, _CASES))
    zeros = np.array(list(product((0.0, -0.0), repeat=5)), np.float16).T
    odd = [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    special = np.array(list(product(odd, (1.0, 0.0, np.inf), odd)), np.float32).T
    subnormal = words(random.integers(1, 1 << 23, _CASES)) | words(
        random.integers(0, 2, _CASES) << 31
    )
    return {
        "integers": triple(
            packed(*weights), packed(*activations), random.integers(-5000, 5000, _CASES) * 1.0
        ),
        "accumulator alike": triple(a, b, like),
        "accumulator 256 times": triple(a, b, like * 256),
        "accumulator 1/256": triple(a, b, like / 256),
        "sums that cancel": triple(a, b, near),
        "1*1 + 0*0 - 1": triple(packed(1.0, 0.0), packed(1.0, 0.0), [-1.0]),
        "subnormal halves": triple(packed(small[0], halves[1]), b, like / 4096),
        "subnormal accumulator": triple(packed(halves[0], 0.0), packed(0.0, 0.0), subnormal),
        "signed zeros": triple(packed(zeros[0], zeros[1]), packed(zeros[2], zeros[3]),
                               zeros[4].astype(np.float32)),
        "infinities and NaN": triple(packed(special[0], 1.0), packed(special[1], 1.0), special[2]),
    }  # fmt: skip


def clamped(half: bool) -> Groups:
    """Values around 0 and 1; for f16 in both halves."""
    values = {
        "-0": [-0.0],
        "NaN": [np.nan, -np.nan],
        "others": [0.0, 0.5, 1.0, 1.5, -0.5, -1e-7, 1e-7, np.inf, -np.inf, 1.0005],
    }
    read = (lambda v: packed(v, v)) if half else words
    return {name: triple(read(v)) for name, v in values.items()}


def ordered(operands: int, half: bool = False) -> Groups:
    """Two or three operands for min, max and med3."""
    if half:
        zero, other = [0x0000, 0x8000], [0x3C00, 0xBC00]
        quiet, signalling = _QUIET16, _SIGNALLING16
    else:
        zero, other = [0, 0x80000000], [0x3F800000, 0xBF800000]
        quiet, signalling = QUIET, SIGNALLING

    def every(values: list[int], need: list[int]) -> Triple:
        rows = [r for r in product(values, repeat=operands) if set(r) & set(need)]
        columns = np.array(rows, np.uint32).T
        return triple(*columns)

    return {
        "signed zeros": every(zero + other, zero),
        "quiet NaN": every([*other, zero[0], quiet, quiet + 2], [quiet]),
        "signalling NaN": every([*other, quiet, signalling], [signalling]),
    }


def bytes_of_floats() -> Groups:
    """v_cvt_pk_u8_f32: every tie, its neighbours, and what saturates."""
    ties = np.arange(0, 255, dtype=np.float32) + np.float32(0.5)
    below, above = np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))
    outside = [-0.0, -0.4, -0.6, -1.0, -300.0, 255.4, 255.5, 256.0, 1e9, np.inf, -np.inf, np.nan]
    place = np.arange(len(ties)) % 4
    return {
        "ties": triple(ties, place, 0xA5A5A5A5),
        "beside ties": triple([*below, *above], 0, 0xA5A5A5A5),
        "outside 0..255": triple(np.array(outside), 1, 0xA5A5A5A5),
    }


def normalised(half: bool) -> Groups:
    """v_cvt_pknorm: values over [-1, 1] and beyond, in both operands."""
    random = np.random.default_rng(3)
    spread = random.uniform(-1, 1, (2, _CASES)).astype(np.float32)
    # k + 1/2 steps of 1/32767, as near as f32 gets
    steps = ((random.integers(-32767, 32767, (2, _CASES)) + 0.5) / 32767).astype(np.float32)
    edge = np.array([1.0, -1.0, 1.5, -1.5, 0.5, -0.0, np.inf, np.nan], np.float32)
    pairs = {"spread": spread, "near ties": steps, "edges": np.stack([edge, edge[::-1]])}
    if half:
        return {n: triple(packed(v[0], 0), packed(v[1], 0)) for n, v in pairs.items()}
    return {n: triple(v[0], v[1]) for n, v in pairs.items()}


def special_values(half: bool) -> Words:
    """Zeros, infinities, NaN, subnormals and the ends of the range."""
    if half:
        return words([0, 0x8000, 0x7C00, 0xFC00, 0x7E01, 0x7C01, 1, 0x8001, 0x3FF, 0x400, 0x7BFF,
                      0xBC00])  # fmt: skip
    return words([0, 0x80000000, 0x7F800000, 0xFF800000, QUIET, SIGNALLING, 1, 0x80000001,
                  0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x00400000, 0xBF800000])  # fmt: skip


def swept(function: str, mantissas: int = _MANTISSAS) -> Words:
    """Normal f32 inputs of a transcendental, evenly over its mantissas and main exponents."""
    step = (1 << 23) // mantissas
    mantissa = (np.arange(mantissas, dtype=np.uint32) * step) & 0x7FFFFF
    if function == "exp":
        return words(np.linspace(-125.9, 127.9, 2 * mantissas))
    if function in ("sin", "cos"):
        return words(np.linspace(-1.0, 1.0, 2 * mantissas))
    if function == "log":
        exponents = np.random.default_rng(4).integers(1, 255, mantissas).astype(np.uint32)
        near_one = mantissa | np.uint32(127 << 23)
        return np.concatenate([near_one, mantissa | exponents << np.uint32(23)])
    return np.concatenate([mantissa | np.uint32(e << 23) for e in (127, 128)])
