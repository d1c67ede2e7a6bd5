"""Dot products over packed halves, bytes and nibbles.

What silicon does inside v_dot2_f32_f16 is not public; `Options.dot2` chooses the model.
"""

from __future__ import annotations

from math import inf

from rdna_jit.emulator.context import Context
from rdna_jit.emulator.floats import flush_subnormal, power_of_two, round_to_odd, sum_error
from rdna_jit.emulator.integers import widen
from rdna_jit.emulator.ir import F32, F64, I8, I16, I32, I64, WAVE, Type, Value


def _halves(c: Context, x: Value) -> tuple[Value, Value]:
    """Low and high element of each lane, from 64 interleaved ones."""
    lanes = x.type.lanes
    return c.shuffle(x, range(0, lanes, 2)), c.shuffle(x, range(1, lanes, 2))


def dot2_f32(c: Context, x: Value, y: Value, accumulator: Value) -> Value:
    """accumulator + x.low * y.low + x.high * y.high; x and y are 64 f16, the rest f32."""
    mode = c.options.dot2
    flush = c.options.dot2_flush or mode == "gfx11"
    products = x.fpext(F32) * y.fpext(F32)  # exact: 22 bits
    low, high = _halves(c, products)
    if flush:
        accumulator = flush_subnormal(c, accumulator)
    result = accumulator + low + high
    if mode != "chain":
        # Infinities and NaN follow the rules of addition in every mode.
        finite = c.unary("fabs", accumulator).flt(inf) & c.unary("fabs", low + high).flt(inf)
        if mode == "exact":
            modelled = _rounded_once(c, accumulator, low, high)
        else:
            exponents = _halves(c, _exponent(x.fpext(F32)) + _exponent(y.fpext(F32)))
            modelled = _aligned(c, accumulator, (low, high), exponents)
        result = c.select(finite, modelled, result)
    # + 0 makes the zero that is left of a subnormal positive.
    return flush_subnormal(c, result) + 0.0 if flush else result


def _rounded_once(c: Context, accumulator: Value, low: Value, high: Value) -> Value:
    """The sum carried with its rounding errors in f64, and rounded to f32 once."""
    a, p, q = (v.fpext(F64) for v in (accumulator, low, high))
    products = p + q
    total = a + products
    lost = sum_error(a, products, total) + sum_error(p, q, products)
    nearer = total + lost
    return round_to_odd(c, nearer, sum_error(total, lost, nearer)).fptrunc(F32)


def _exponent(x: Value) -> Value:
    """The exponent of the leading bit of a normal f32 (f16 subnormals are normal in f32)."""
    return ((x.bits >> 23) & 0xFF) - 127


def _aligned(
    c: Context, accumulator: Value, products: tuple[Value, ...], exponents: tuple[Value, ...]
) -> Value:
    """All terms as integers of one unit, cut; those that differ in sign from the accumulator are
    added as one's complements."""
    terms = (accumulator, *products)
    unit = c.const(I32, -(1 << 20))
    for product, exponent in zip(products, exponents, strict=True):
        unit = c.select(product.ne(0.0), c.minmax("smax", unit, exponent - 24), unit)
    for term in terms:
        unit = c.select(term.ne(0.0), c.minmax("smax", unit, _exponent(term) - 26), unit)
    unit = c.minmax("smax", unit, -400)  # all terms zero
    total = c.const(I64, 0)
    negative = accumulator.bits.slt(0)
    for term in terms:
        grid = power_of_two(0 - unit)
        magnitude = (c.unary("fabs", term).fpext(F64) * grid).fptosi(I64)
        differs = term.bits.slt(0) ^ negative
        total = total + c.select(differs, ~magnitude, magnitude)
    result = (total.sitofp(F64) * power_of_two(unit)).fptrunc(F32)
    return c.select(negative, -result, result)


def integer(c: Context, x: Value, y: Value, bits: int, signed: bool, wide: bool) -> Value:
    """The dot product of 32/bits integers per lane, as I32 (wrapping) or I64 (`wide`)."""
    to = I64 if wide else I32
    if bits == 4:
        x, y = x.bitcast(I8), y.bitcast(I8)
        low = _products(_nibble(x, 0, signed), _nibble(y, 0, signed), to, signed)
        product = low + _products(_nibble(x, 4, signed), _nibble(y, 4, signed), to, signed)
    else:
        lane = {8: I8, 16: I16}[bits]
        product = _products(x.bitcast(lane), y.bitcast(lane), to, signed)
    while product.type.lanes > WAVE:
        even, odd = _halves(c, product)
        product = even + odd
    return product


def _products(x: Value, y: Value, to: Type, signed: bool) -> Value:
    return widen(x, to, signed) * widen(y, to, signed)


def _nibble(x: Value, at: int, signed: bool) -> Value:
    """Bits at .. at+3 of each byte."""
    if signed:
        return (x << (4 - at)).ashr(4)
    return (x >> at) & 0xF
