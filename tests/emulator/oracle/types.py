"""Operand types of the oracle, and what a result may be.

A type turns register bits into the value that a model function computes with (an integer or an
exact `Number`) and turns its result into an expectation: bits, or a set of acceptable bits where
the architecture leaves a choice (`QuietNan`, `Near`, `OneOf`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from tests.emulator.oracle.floats import (
    DOUBLE,
    HALF,
    NEAREST,
    SINGLE,
    Format,
    Number,
    number,
    pack,
    ulp,
    unpack,
)


@dataclass(frozen=True)
class Mode:
    """The MODE register's float fields: rounding, and whether subnormals are flushed."""

    round_f32: int = NEAREST
    round_f16_f64: int = NEAREST
    flush_in_f32: bool = False
    flush_out_f32: bool = False
    flush_in_f16_f64: bool = False
    flush_out_f16_f64: bool = False

    def rounding(self, form: Format) -> int:
        return self.round_f32 if form is SINGLE else self.round_f16_f64

    def flushes_input(self, form: Format) -> bool:
        return self.flush_in_f32 if form is SINGLE else self.flush_in_f16_f64

    def flushes_output(self, form: Format) -> bool:
        return self.flush_out_f32 if form is SINGLE else self.flush_out_f16_f64

    @property
    def bits(self) -> int:
        """MODE[7:0]: two round fields, two denormal fields (1 allows inputs, 2 allows outputs)."""
        single = (not self.flush_in_f32) | (not self.flush_out_f32) << 1
        other = (not self.flush_in_f16_f64) | (not self.flush_out_f16_f64) << 1
        return self.round_f32 | self.round_f16_f64 << 2 | single << 4 | other << 6


DEFAULT_MODE = Mode()


@dataclass(frozen=True)
class QuietNan:
    """Any quiet NaN of a format: its payload and sign are not fixed by the architecture."""

    format: Format

    def accepts(self, bits: int) -> bool:
        return self.format.is_nan(bits) and bool(bits & self.format.quiet_bit)


@dataclass(frozen=True)
class OneOf:
    """Any of a few patterns."""

    choices: tuple[int, ...]

    def accepts(self, bits: int) -> bool:
        return bits in self.choices


@dataclass(frozen=True)
class Near:
    """A finite value within `ulps` units in the last place, or within `absolute`, of the true one.

    With `may_flush` a subnormal result may also be the zero of its sign.
    """

    value: Fraction
    ulps: float = 1.0
    absolute: float = 0.0
    may_flush: bool = False
    format: Format = SINGLE
    clamp: bool = False

    def accepts(self, bits: int) -> bool:
        value = min(max(self.value, Fraction(0)), Fraction(1)) if self.clamp else self.value
        got = unpack(self.format, bits)
        unit = ulp(self.format, value)
        if self.may_flush and got.zero and abs(value) <= unit * 2**self.format.fraction:
            return True
        slack = max(Fraction(self.ulps) * unit, Fraction(self.absolute))
        if got.infinite:
            limit = unpack(self.format, self.format.largest).fraction() + unit
            return abs(value) + slack >= limit and got.sign == int(value < 0)
        return got.finite and abs(got.fraction() - value) <= slack


@dataclass(frozen=True)
class Flushable:
    """A float result with its subnormal operand kept, and with the zero of its sign instead."""

    kept: object
    flushed: object


@dataclass(frozen=True)
class Anything:
    """Bits that no rule fixes."""

    def accepts(self, bits: int) -> bool:
        return True


@dataclass(frozen=True)
class Either:
    """What any of several expectations accepts."""

    choices: tuple[Expected, ...]

    def accepts(self, bits: int) -> bool:
        return any(accepts(choice, bits) for choice in self.choices)


Expected = int | QuietNan | OneOf | Near | Anything | Either


def accepts(expected: Expected, bits: int) -> bool:
    return bits == expected if isinstance(expected, int) else expected.accepts(bits)


@dataclass(frozen=True)
class Type:
    """An operand type: `width` bits of a register, read as `kind`.

    kind: "u" unsigned, "i" signed, "b" bare bits (no saturation), "f" float, "fb" float bits that
    are moved and not computed with (neg and abs apply, denormals and NaN payloads stay).
    """

    kind: str
    width: int
    storage: int = field(default=0)  # register bits, where they are more than `width`

    @property
    def format(self) -> Format:
        return {16: HALF, 32: SINGLE, 64: DOUBLE}[self.width]

    @property
    def is_float(self) -> bool:
        return self.kind in ("f", "fb")

    @property
    def bits(self) -> int:
        return self.storage or self.width

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1

    def decode(self, bits: int, mode: Mode = DEFAULT_MODE) -> int | Number:
        bits &= self.mask
        if self.kind == "f":
            form = self.format
            if mode.flushes_input(form) and form.is_subnormal(bits):
                bits &= form.sign_bit
            return unpack(form, bits)
        if self.kind == "i" and bits >> (self.width - 1):
            return bits - (1 << self.width)
        return bits

    def encode(self, value: object, clamp: bool = False, mode: Mode = DEFAULT_MODE) -> Expected:
        if isinstance(value, QuietNan | OneOf | Anything | Either):
            return value
        if self.kind == "f":
            return self._encode_float(value, clamp, mode)
        if not isinstance(value, int):
            raise TypeError(f"{self} cannot hold {value!r}")
        if clamp and self.kind in "ui":
            low = -(1 << (self.width - 1)) if self.kind == "i" else 0
            value = min(max(value, low), low + self.mask)
        return value & ((1 << self.bits) - 1)

    def _encode_float(self, value: object, clamp: bool, mode: Mode) -> Expected:
        form = self.format
        if isinstance(value, Near):
            return Near(value.value, value.ulps, value.absolute, value.may_flush, form, clamp)
        if isinstance(value, Flushable):
            ways = (value.kept, value.flushed)
            return Either(tuple(self._encode_float(way, clamp, mode) for way in ways))
        if not isinstance(value, Number):
            raise TypeError(f"{self} cannot hold {value!r}")
        if clamp:
            if value.nan or (value.sign and pack(form, value) != form.sign_bit):
                return 0
            if value.sign:  # whether -0 keeps its sign is not settled
                return OneOf((0, form.sign_bit))
            if value.infinite or value.fraction() > 1:
                return pack(form, number(1))
        if value.nan and (value.bits is None or value.format is not form):
            return QuietNan(form)
        bits = pack(form, value, mode.rounding(form))
        if mode.flushes_output(form) and form.is_subnormal(bits):
            bits &= form.sign_bit
        return bits


@dataclass(frozen=True)
class Pair:
    """Two 16-bit elements in one register: (low, high)."""

    element: Type
    width: int = 32
    bits: int = 32

    @property
    def is_float(self) -> bool:
        return self.element.is_float

    def decode(self, bits: int, mode: Mode = DEFAULT_MODE) -> tuple:
        return self.element.decode(bits, mode), self.element.decode(bits >> 16, mode)


Part = tuple[int, int, Expected]  # offset, width and expectation of a field of a register


def parts(of: Type | Pair, value: object, clamp: bool, mode: Mode) -> list[Part]:
    """The fields that a result writes."""
    if isinstance(of, Pair):
        low, high = (of.element.encode(half, clamp, mode) for half in value)
        return [(0, 16, low), (16, 16, high)]
    return [(0, of.bits, of.encode(value, clamp, mode))]


def unsigned(width: int) -> Type:
    return Type("u", width)


def signed(width: int) -> Type:
    return Type("i", width)


U8, U16, U24, U32, U64 = (unsigned(w) for w in (8, 16, 24, 32, 64))
I4, I8, I16, I24, I32, I64 = (signed(w) for w in (4, 8, 16, 24, 32, 64))
B16, B32, B64, B128 = (Type("b", w) for w in (16, 32, 64, 128))
F16, F32, F64 = (Type("f", w) for w in (16, 32, 64))
FB16, FB32 = Type("fb", 16), Type("fb", 32)
