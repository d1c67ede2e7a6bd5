"""Candidate rules for what hardware may do, on bit patterns: the answers that a probe can give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rdna_jit.tools.probe_inputs import Words, words

Model = Callable[[Words, Words, Words], Words]


def _floats(x: Words) -> np.ndarray:  # type: ignore[type-arg]
    return x.view(np.float32)


def clamp_f32(negative_zero: int) -> Model:
    """[0, 1], NaN to 0, and -0 to `negative_zero`."""

    def model(a: Words, b: Words, c: Words) -> Words:
        return _clamped(a.view(np.float32), negative_zero).view(np.uint32)

    return model


def clamp_f16(negative_zero: int, packed: bool) -> Model:
    """The same per half; the unpacked form leaves the destination's high half, 0 here."""

    def model(a: Words, b: Words, c: Words) -> Words:
        halves = _clamped(a.view(np.float16), negative_zero >> 16).view(np.uint32)
        return halves if packed else halves & np.uint32(0xFFFF)

    return model


def _clamped(x: np.ndarray, negative_zero: int) -> np.ndarray:  # type: ignore[type-arg]
    with np.errstate(invalid="ignore"):
        result = np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))
    zero = np.array(negative_zero, f"u{x.itemsize}").view(x.dtype)
    return np.where((x == 0) & np.signbit(x), zero, result)


def omod_ignored(a: Words, b: Words, c: Words) -> Words:
    return a


def omod_applied(a: Words, b: Words, c: Words) -> Words:
    with np.errstate(over="ignore"):
        return words(_floats(a) * np.float32(2))


class Order:
    """Minimum, maximum and median of one float width."""

    def __init__(self, bits: int) -> None:
        self.sign = np.uint32(1 << (bits - 1))
        self.infinity = np.uint32(0x7F800000 if bits == 32 else 0x7C00)
        self.quiet = np.uint32(1 << (22 if bits == 32 else 9))

    def is_nan(self, x: Words) -> np.ndarray:  # type: ignore[type-arg]
        return (x & ~self.sign & self._mask) > self.infinity

    @property
    def _mask(self) -> np.uint32:
        return np.uint32((int(self.sign) << 1) - 1)

    def key(self, x: Words) -> np.ndarray:  # type: ignore[type-arg]
        """Integers in the order of the floats, -0 before +0."""
        magnitude = (x & ~self.sign & self._mask).astype(np.int64)
        return np.where(x & self.sign, -1 - magnitude, magnitude)

    def bound(self, least: bool, signalling_wins: bool = True) -> Model:
        """v_min or v_max: quiet NaN loses; a signalling one comes out quieted, or loses too."""

        def model(a: Words, b: Words, c: Words) -> Words:
            first = (self.key(a) <= self.key(b)) == least
            result = np.where(first, a, b)
            result = np.where(self.is_nan(a), b, np.where(self.is_nan(b), a, result))
            both = self.is_nan(a) & self.is_nan(b)
            result = np.where(both, a | self.quiet, result)
            for x in (b, a) if signalling_wins else ():
                signalling = self.is_nan(x) & ((x & self.quiet) == 0)
                result = np.where(signalling, x | self.quiet, result)
            return result.astype(np.uint32)

        return model

    def median(self, zeros_equal: bool) -> Model:
        """v_med3 with -0 below +0, or with zeros equal as the published pseudo-code compares
        them: the largest is found with ==, and the result is the larger of the other two."""
        largest, smallest = self.bound(False), self.bound(True)

        def key(x: Words) -> np.ndarray:  # type: ignore[type-arg]
            order = self.key(x)
            return np.where(order == -1, 0, order) if zeros_equal else order

        def model(a: Words, b: Words, c: Words) -> Words:
            top = key(largest(largest(a, b, c), c, c))
            others = np.where(key(b) == top, largest(a, c, c), largest(a, b, b))
            middle = np.where(key(a) == top, largest(b, c, c), others)
            nan = self.is_nan(a) | self.is_nan(b) | self.is_nan(c)
            return np.where(nan, smallest(smallest(a, b, c), c, c), middle).astype(np.uint32)

        return model


ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # type: ignore[type-arg]
    "to nearest even": np.rint,
    "toward zero": np.trunc,
    "down": np.floor,
    "halves away from zero": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def byte_of_float(rounding: str) -> Model:
    """v_cvt_pk_u8_f32: byte b of c becomes a, rounded and saturated; NaN gives 0."""

    def model(a: Words, b: Words, c: Words) -> Words:
        value = np.nan_to_num(_floats(a).astype(np.float64), nan=0.0, posinf=1e9, neginf=-1e9)
        byte = np.clip(ROUNDINGS[rounding](value), 0, 255).astype(np.uint32)
        shift = (b & 3) * np.uint32(8)
        return (c & ~(np.uint32(255) << shift)) | (byte << shift)

    return model


def norm(rounding: str, signed: bool, half: bool, exact: bool) -> Model:
    """v_cvt_pknorm: each operand times 32767 or 65535, rounded; NaN gives 0. `exact`: the product
    is rounded once, else to f32 first."""
    limit, least = (32767, -1.0) if signed else (65535, 0.0)

    def one(x: Words) -> Words:
        value = x.view(np.float16)[::2] if half else _floats(x)
        wide = np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=1.0, neginf=-1.0)
        scaled = np.clip(wide, least, 1.0) * limit
        scaled = scaled if exact else np.float32(scaled).astype(np.float64)
        return ROUNDINGS[rounding](scaled).astype(np.int64).astype(np.uint32) & np.uint32(0xFFFF)

    return lambda a, b, c: one(a) | one(b) << np.uint32(16)


TRANSCENDENTAL: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # type: ignore[type-arg]
    "rcp": lambda x: 1.0 / x,
    "rsq": lambda x: 1.0 / np.sqrt(x),
    "sqrt": np.sqrt,
    "exp": np.exp2,
    "log": np.log2,
    "sin": lambda x: np.sin(2 * np.pi * x),
    "cos": lambda x: np.cos(2 * np.pi * x),
}


def distance(function: str, half: bool, x: Words, got: Words) -> np.ndarray:  # type: ignore[type-arg]
    """Signed distance in ulps of each result from the correctly rounded one."""
    kind, bits = (np.float16, np.uint16) if half else (np.float32, np.uint32)
    with np.errstate(all="ignore"):
        exact = TRANSCENDENTAL[function](x.astype(bits).view(kind).astype(np.float64))
        nearest = exact.astype(kind).view(bits).astype(np.uint32)
    order = Order(16 if half else 32)
    return order.key(got & order._mask) - order.key(nearest)
