"""Floating point in exact integers: the arithmetic of the oracle.

A number is `sign, magnitude * 2**exponent`, an infinity or a NaN. Sums and products are exact; the
one rounding of an instruction happens when its result is packed into a `Format`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

NEAREST, UP, DOWN, TOWARD_ZERO = range(4)


@dataclass(frozen=True)
class Format:
    """An IEEE interchange format of `width` bits with `fraction` stored significand bits."""

    name: str
    width: int
    fraction: int

    @cached_property
    def bias(self) -> int:
        return (1 << (self.width - self.fraction - 2)) - 1

    @cached_property
    def min_exponent(self) -> int:
        """Exponent of the unit in the last place of subnormal numbers."""
        return 1 - self.bias - self.fraction

    @cached_property
    def infinity(self) -> int:
        return ((2 * self.bias + 1) << self.fraction) & self.mask

    @cached_property
    def mask(self) -> int:
        return (1 << self.width) - 1

    @cached_property
    def sign_bit(self) -> int:
        return 1 << (self.width - 1)

    @cached_property
    def quiet_bit(self) -> int:
        return 1 << (self.fraction - 1)

    @cached_property
    def largest(self) -> int:
        return self.infinity - 1

    def is_nan(self, bits: int) -> bool:
        return (bits & ~self.sign_bit & self.mask) > self.infinity

    def is_subnormal(self, bits: int) -> bool:
        return 0 < (bits & ~self.sign_bit & self.mask) < (1 << self.fraction)


HALF = Format("f16", 16, 10)
SINGLE = Format("f32", 32, 23)
DOUBLE = Format("f64", 64, 52)


@dataclass(slots=True)
class Number:
    """A number, an infinity or a NaN; `bits` is the pattern of a NaN that keeps its payload."""

    sign: int
    magnitude: int = 0
    exponent: int = 0
    infinite: bool = False
    nan: bool = False
    bits: int | None = None
    format: Format | None = None
    cancelled: bool = False  # a zero that is the difference of equal numbers: -0 when rounding down

    @property
    def finite(self) -> bool:
        return not (self.infinite or self.nan)

    @property
    def zero(self) -> bool:
        return self.finite and self.magnitude == 0

    @property
    def signalling(self) -> bool:
        return self.nan and self.format is not None and not self.bits & self.format.quiet_bit

    def quieted(self) -> Number:
        bits = self.bits | self.format.quiet_bit
        return Number(self.sign, nan=True, bits=bits, format=self.format)

    def fraction(self) -> Fraction:
        value = Fraction(self.magnitude) * Fraction(2) ** self.exponent
        return -value if self.sign else value

    def __neg__(self) -> Number:
        bits = None if self.bits is None else self.bits ^ self.format.sign_bit
        return Number(
            1 - self.sign, self.magnitude, self.exponent, self.infinite, self.nan, bits, self.format
        )

    def __abs__(self) -> Number:
        return -self if self.sign else self

    def __add__(self, other: Number) -> Number:
        if self.nan or other.nan:
            return NAN
        if self.infinite or other.infinite:
            if self.infinite and other.infinite and self.sign != other.sign:
                return NAN
            return self if self.infinite else other
        exponent = min(self.exponent, other.exponent)
        total = sum(
            (-x.magnitude if x.sign else x.magnitude) << (x.exponent - exponent)
            for x in (self, other)
        )
        if total == 0:
            return Number(self.sign & other.sign, cancelled=self.sign != other.sign)
        return Number(int(total < 0), abs(total), exponent)

    def __sub__(self, other: Number) -> Number:
        return self + (-other)

    def __mul__(self, other: Number) -> Number:
        sign = self.sign ^ other.sign
        if self.nan or other.nan:
            return NAN
        if self.infinite or other.infinite:
            return NAN if self.zero or other.zero else Number(sign, infinite=True)
        return Number(sign, self.magnitude * other.magnitude, self.exponent + other.exponent)

    def key(self) -> Fraction | float:
        """A value that orders numbers (zeros of both signs are equal); not for NaN."""
        if self.infinite:
            return -math.inf if self.sign else math.inf
        return self.fraction()


NAN = Number(0, nan=True)


def number(value: int | Fraction | float) -> Number:
    """The exact Number of a finite dyadic value."""
    if isinstance(value, float) and not math.isfinite(value):
        return NAN if value != value else Number(int(value < 0), infinite=True)
    ratio = Fraction(value)
    exponent = ratio.denominator.bit_length() - 1
    if ratio.denominator != 1 << exponent:
        raise ValueError(f"{value} is not a dyadic number")
    sign = int(ratio < 0 or (isinstance(value, float) and math.copysign(1.0, value) < 0))
    return Number(sign, abs(ratio.numerator), -exponent)


def unpack(form: Format, bits: int) -> Number:
    """The Number that the low bits hold in a format."""
    bits &= form.mask
    sign = bits >> (form.width - 1)
    biased = (bits & ~form.sign_bit) >> form.fraction
    stored = bits & ((1 << form.fraction) - 1)
    if biased == 2 * form.bias + 1:
        if stored:
            return Number(sign, nan=True, bits=bits, format=form)
        return Number(sign, infinite=True)
    if biased == 0:
        return Number(sign, stored, form.min_exponent)
    return Number(sign, stored | 1 << form.fraction, form.min_exponent + biased - 1)


def _round_integer(value: int, shift: int, mode: int, sign: int) -> int:
    """`value / 2**shift` rounded to an integer."""
    if shift <= 0:
        return value << -shift
    kept, lost = value >> shift, value & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    if mode == NEAREST:
        up = lost > half or (lost == half and kept & 1)
    else:
        up = lost and mode == (DOWN if sign else UP)
    return kept + int(bool(up))


def pack(form: Format, x: Number, mode: int = NEAREST) -> int:
    """The pattern of a number in a format after one rounding. NaN becomes the default quiet NaN."""
    sign = x.sign << (form.width - 1)
    if x.nan:
        if x.bits is not None and x.format is form:
            return x.bits
        return form.infinity | form.quiet_bit
    if x.infinite:
        return sign | form.infinity
    if x.magnitude == 0:
        return form.sign_bit if x.cancelled and mode == DOWN else sign
    exponent = x.exponent + x.magnitude.bit_length() - 1 - form.fraction
    unit = max(exponent, form.min_exponent)
    rounded = _round_integer(x.magnitude, unit - x.exponent, mode, x.sign)
    # The stored exponent is one less than the biased one while the hidden bit is present, so
    # that adding the significand carries into it, at subnormal results and at overflow alike.
    bits = ((unit - form.min_exponent) << form.fraction) + rounded
    if bits >= form.infinity:
        away = mode == NEAREST or mode == (DOWN if x.sign else UP)
        bits = form.infinity if away else form.largest
    return sign | bits


def round_to(form: Format, x: Number, mode: int = NEAREST) -> Number:
    """The Number after rounding to a format; a NaN stays as it is."""
    return x if x.nan else unpack(form, pack(form, x, mode))


def round_integral(x: Number, mode: int) -> Number:
    """`x` rounded to an integral number, keeping the sign of zero."""
    if not x.finite or x.exponent >= 0:
        return x
    return Number(x.sign, _round_integer(x.magnitude, -x.exponent, mode, x.sign))


def ulp(form: Format, value: Fraction) -> Fraction:
    """The unit in the last place of a format at a finite value."""
    magnitude = abs(value)
    exponent = form.min_exponent
    if magnitude:
        lead = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if Fraction(2) ** lead > magnitude:
            lead -= 1
        exponent = max(exponent, lead - form.fraction)
    return Fraction(2) ** exponent
