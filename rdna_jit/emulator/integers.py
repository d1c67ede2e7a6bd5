"""Integer operations shared by vector, scalar and packed instructions."""

from __future__ import annotations

from rdna_jit.emulator.ir import I64, Builder, Type, Value


def widen(x: Value, to: Type, signed: bool) -> Value:
    return x.sext(to) if signed else x.zext(to)


def limited(b: Builder, x: Value, to: Type, signed: bool) -> Value:
    """A signed wide integer cut to the range of a narrow type."""
    low = -(1 << (to.bits - 1)) if signed else 0
    high = (1 << (to.bits - signed)) - 1
    return b.minmax("smin", b.minmax("smax", x, low), high).trunc(to)


def mad_limited(b: Builder, x: Value, y: Value, z: Value, signed: bool) -> Value:
    """x*y + z within the range of z's type; x and y may be narrower."""
    total = widen(x, I64, signed) * widen(y, I64, signed) + widen(z, I64, signed)
    return limited(b, total, z.type, signed)


def mul_high(x: Value, y: Value, signed: bool) -> Value:
    """The upper half of the double-width product of 32-bit values."""
    product = widen(x, I64, signed) * widen(y, I64, signed)
    return (product >> 32).trunc(x.type)


def median(b: Builder, sign: str, x: Value, y: Value, z: Value) -> Value:
    """The middle of three; `sign` is "s" or "u"."""
    low, high = b.minmax(f"{sign}min", x, y), b.minmax(f"{sign}max", x, y)
    return b.minmax(f"{sign}max", low, b.minmax(f"{sign}min", high, z))


def field_mask(b: Builder, width: Value) -> Value:
    """The low `width` bits set, of a width taken modulo the type's."""
    return (b.const(width.type, 1) << width) - 1


def find_bit(b: Builder, name: str, x: Value) -> Value:
    """The count of leading ("ctlz") or trailing ("cttz") zeros; -1 where no bit is set."""
    return b.select(x.eq(0), -1, b.count_zeros(name, x))


def sign_run(x: Value) -> Value:
    """x with the bits that equal its sign cleared: its leading zeros are the run of the sign."""
    return x ^ x.ashr(x.type.bits - 1)
