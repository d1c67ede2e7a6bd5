"""Directed rounding.

Within `directed`, operators on `Value`s that produce the given type round as MODE says. For f16
and f32 the exact result is formed in f64, as a sum and what that sum lost, rounded to nearest, and
moved to the neighbour on the wanted side where it is not exact. f64 is computed by the host in its
own directed mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rdna_jit.emulator.context import Context
from rdna_jit.emulator.float_mode import Rounding
from rdna_jit.emulator.floats import narrow, sum_error
from rdna_jit.emulator.ir import F64, Type, Value


@contextmanager
def directed(c: Context, type: Type) -> Iterator[None]:
    """Arithmetic with results of `type` rounds as the current mode says."""
    rounding = c.float_mode().rounding(type) if type.is_float else "nearest"
    if rounding == "nearest":
        yield
        return

    def round_result(opcode: str, to: Type, operands: tuple[Value, ...]) -> Value | None:
        if to.name != type.name:
            return None
        with nearest(c):
            if to.bits == 64:
                return _by_host(c, opcode, to, operands, rounding)
            return _rounded(c, opcode, to, operands, rounding)

    c.directed = round_result
    try:
        yield
    finally:
        c.directed = None


@contextmanager
def nearest(c: Context) -> Iterator[None]:
    """Arithmetic rounds to nearest even, whatever the mode."""
    c.directed, outer = None, c.directed
    try:
        yield
    finally:
        c.directed = outer


# How the runtime's round_f64 numbers operations, and the host roundings.
_OPERATIONS = {"fadd": 0, "fsub": 0, "fmul": 1, "fma": 2}
_HOST_ROUNDING: dict[Rounding, int] = {"nearest": 0, "down": 1, "up": 2, "zero": 3}


def _by_host(
    c: Context, opcode: str, to: Type, operands: tuple[Value, ...], rounding: Rounding
) -> Value | None:
    if opcode not in _OPERATIONS:
        return None  # conversions to f64 are exact
    if opcode == "fsub":
        operands = (operands[0], -operands[1])
    slots = [f"%f64.{n}" for n in range(4)]
    for slot in slots:
        c.allocas[slot] = to.text
    for slot, operand in zip(slots, operands, strict=False):
        c.do(f"store {operand!r}, ptr {slot}")
    pointers = ", ".join(f"ptr {slot}" for slot in slots)
    numbers = f"i32 {_OPERATIONS[opcode]}, i32 {_HOST_ROUNDING[rounding]}"
    c.do(f"call void @round_f64({pointers}, {numbers})")
    return c.emit(to, f"load {to.text}, ptr {slots[3]}")


def _rounded(
    c: Context, opcode: str, to: Type, operands: tuple[Value, ...], rounding: Rounding
) -> Value | None:
    if opcode in ("sitofp", "uitofp"):
        wide = operands[0].sitofp(F64) if opcode == "sitofp" else operands[0].uitofp(F64)
        return narrowed(c, wide, c.const(wide.type, 0.0), to, rounding)
    values = [v if v.type.bits == 64 else v.fpext(F64) for v in operands]
    if opcode == "fptrunc":
        return narrowed(c, values[0], c.const(values[0].type, 0.0), to, rounding)
    if opcode == "fmul":
        product = values[0] * values[1]  # exact
        return narrowed(c, product, c.const(product.type, 0.0), to, rounding)
    if opcode == "fma":
        values = [values[0] * values[1], values[2]]
    elif opcode == "fsub":
        values = [values[0], -values[1]]
    elif opcode != "fadd":
        return None
    x, y = values
    total = x + y
    if rounding == "down":
        # An exact zero is negative unless both terms are +0.
        negative = (x.bits | y.bits).bitcast(F64)
        total = c.select(total.eq(0.0), c.select(x.eq(-y), _signed_zero(c, negative), total), total)
    return narrowed(c, total, sum_error(x, y, total), to, rounding)


def _signed_zero(c: Context, sign: Value) -> Value:
    return c.intrinsic("copysign", sign.type, c.const(sign.type, 0.0), sign)


def narrowed(c: Context, total: Value, lost: Value, to: Type, rounding: Rounding) -> Value:
    """total + lost in the narrower type `to`."""
    # LLVM may see that this undoes the extension of a source, and keep a signalling NaN.
    result = c.quiet(narrow(c, total, to))
    back = result.fpext(F64)
    above = back.fgt(total) | (back.eq(total) & lost.flt(0.0))
    below = back.flt(total) | (back.eq(total) & lost.fgt(0.0))
    bits = result.bits
    if rounding == "zero":
        return c.select(total.fgt(0.0) & above | total.flt(0.0) & below, bits - 1, bits).bitcast(to)
    negative = bits.slt(0)
    if rounding == "up":
        return c.select(below, c.select(negative, bits - 1, bits + 1), bits).bitcast(to)
    return c.select(above, c.select(negative, bits + 1, bits - 1), bits).bitcast(to)
