"""Inputs: edge values of each type, random bits, and pairs that nearly cancel."""

from __future__ import annotations

import random

from tests.emulator.oracle.floats import Format
from tests.emulator.oracle.forms import Wave
from tests.emulator.oracle.types import Pair, Type

MASKS = (
    0xFFFFFFFF,
    0xFFFFFFFF,
    0x00000000,
    0xA5C3_0FF1,
    0x0000FFFF,
    0xFFFFFFFF,
    0x80000001,
    0x5A5A5A5A,
)
COUNTS = (0, 1, 2, 4, 5, 7, 8, 11, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 255, 256)


def float_edges(form: Format) -> list[int]:
    """Zeros, subnormals, one and its neighbours, large and small powers, infinities, NaN."""
    one = form.bias << form.fraction
    powers = [form.bias + p << form.fraction for p in (-2, -1, 1, 2, 4, 8)]
    unsigned = [
        0,
        1,
        2,
        (1 << form.fraction) - 1,
        1 << form.fraction,
        (1 << form.fraction) + 1,
        one,
        one - 1,
        one + 1,
        one | form.quiet_bit,
        *powers,
        form.largest,
        form.largest - 1,
        form.bias + form.fraction << form.fraction,
        form.bias + form.fraction + 1 << form.fraction,
        form.infinity,
        form.infinity | form.quiet_bit,
        form.infinity | form.quiet_bit | 0x155,
        form.infinity | 1,
        form.infinity | 0x2A,
    ]
    if form.width > 16:  # the limits of 32-bit conversions
        unsigned += [form.bias + p << form.fraction for p in (15, 16, 30, 31, 32, 40)]
    return unsigned + [bits | form.sign_bit for bits in unsigned]


def integer_edges(width: int) -> list[int]:
    top = 1 << (width - 1)
    values = [
        0,
        1,
        2,
        3,
        top - 1,
        top,
        top + 1,
        2 * top - 1,
        2 * top - 2,
        0x5555555555555555,
        0xAAAAAAAAAAAAAAAA,
        0x0123456789ABCDEF,
        0x80808080,
        0x7F7F7F7F,
        0xFF00FF00,
        0x8000,
        0x7FFF,
        0xFFFF,
        0x10000,
        0xFF,
        0x80,
        0x800000,
        0x7FFFFF,
        0xFFFFFF,
        0x1000000,
    ]
    return [value & (1 << width) - 1 for value in values]


class Inputs:
    """Random inputs of a signature: one type per source, and the old destination's type."""

    def __init__(self, signature: tuple[Type | Pair, ...], old: Type | Pair, seed: int) -> None:
        self._random = random.Random(f"{signature} {old} {seed}")
        self._types = (*signature, *(Type("b", 64),) * (3 - len(signature)))
        self._old = old

    def value(self, of: Type | Pair) -> int:
        """64 bits whose low part is a value of the type; the rest is noise."""
        noise = self._random.getrandbits(64)
        if isinstance(of, Pair):
            return noise >> 32 << 32 | self._element(of.element) << 16 | self._element(of.element)
        if of.width >= 64:
            return self._element(of)
        bits = noise & ~of.mask | self._element(of)
        if of.width == 16:  # the other half is a value too, for op_sel and SDWA
            bits = bits & ~0xFFFF0000 | self._element(of) << 16
        return bits

    def _element(self, of: Type) -> int:
        pick = self._random.random()
        if of.is_float:
            form = of.format
            if pick < 0.55:
                return self._random.choice(float_edges(form))
            if pick < 0.75:  # exponents near one, where sums and products round
                exponent = form.bias + self._random.randint(-4, 4)
                sign = self._random.getrandbits(1) << (form.width - 1)
                return sign | exponent << form.fraction | self._random.getrandbits(form.fraction)
            return self._random.getrandbits(form.width)
        if pick < 0.3:
            return self._random.choice(integer_edges(of.width))
        if pick < 0.6:
            count = self._random.choice(COUNTS)
            return (count if pick < 0.5 else -count) & of.mask
        return self._random.getrandbits(of.width)

    def _old_value(self) -> int:
        noise = self._random.getrandbits(128)
        return noise >> 64 << 64 | self.value(self._old)

    def _neighbour(self, of: Type | Pair, bits: int) -> int:
        """The same value with another sign or last place, so that sums cancel and orders tie."""
        change = self._random.choice((0, 0, 1, 2, of.mask + 1 >> 1 if isinstance(of, Type) else 1))
        return bits ^ change

    def wave(self, index: int) -> Wave:
        """The inputs of one wave; every eighth has the same EXEC pattern."""
        columns: list[list[int]] = [[], [], []]
        for _ in range(32):
            values = [self.value(of) for of in self._types]
            if self._random.random() < 0.2 and self._types[0] == self._types[1]:
                values[1] = self._neighbour(self._types[0], values[0])
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        return Wave(
            tuple(map(tuple, columns)),
            tuple(self._old_value() for _ in range(32)),
            tuple(self.value(of) & 0xFFFFFFFFFFFFFFFF for of in self._types),
            MASKS[index % len(MASKS)],
            self._random.getrandbits(32),
        )
