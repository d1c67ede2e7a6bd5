"""IEEE division as compilers write it.

v_div_scale, v_div_fmas and v_div_fixup have a meaning only together: whatever scaling they agree
on, the sequence rounds the quotient correctly. So the sequence is what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from tests.emulator.oracle.floating import scaled
from tests.emulator.oracle.floats import (
    DOUBLE,
    HALF,
    SINGLE,
    Format,
    Number,
    pack,
    round_to,
    unpack,
)
from tests.emulator.oracle.forms import LANES, Outcome, Wave
from tests.emulator.oracle.lanes import LaneForm, active
from tests.emulator.oracle.table import Row, vector
from tests.emulator.oracle.types import (
    F16,
    F32,
    F64,
    Expected,
    Flushable,
    OneOf,
    QuietNan,
    Type,
)

# Numerator in v10, denominator in v12, quotient in v24; v28 and up are free.
_SINGLE = """v_div_scale_f32 v28, s30, v12, v12, v10
v_div_scale_f32 v29, vcc_lo, v10, v12, v10
v_rcp_f32_e32 v30, v28
v_fma_f32 v31, -v28, v30, 1.0
v_fmac_f32_e32 v30, v31, v30
v_mul_f32_e32 v31, v29, v30
v_fma_f32 v32, -v28, v31, v29
v_fmac_f32_e32 v31, v32, v30
v_fma_f32 v32, -v28, v31, v29
v_div_fmas_f32 v31, v32, v30, v31
v_div_fixup_f32 v24, v31, v12, v10"""

_DOUBLE = """v_div_scale_f64 v[28:29], s30, v[12:13], v[12:13], v[10:11]
v_rcp_f64_e32 v[30:31], v[28:29]
v_fma_f64 v[32:33], -v[28:29], v[30:31], 1.0
v_fma_f64 v[30:31], v[30:31], v[32:33], v[30:31]
v_fma_f64 v[32:33], -v[28:29], v[30:31], 1.0
v_fma_f64 v[30:31], v[30:31], v[32:33], v[30:31]
v_div_scale_f64 v[32:33], vcc_lo, v[10:11], v[12:13], v[10:11]
v_mul_f64 v[34:35], v[32:33], v[30:31]
v_fma_f64 v[28:29], -v[28:29], v[34:35], v[32:33]
v_div_fmas_f64 v[28:29], v[28:29], v[30:31], v[34:35]
v_div_fixup_f64 v[24:25], v[28:29], v[12:13], v[10:11]"""

_HALF = """v_cvt_f32_f16_e32 v28, v12
v_cvt_f32_f16_e32 v29, v10
v_rcp_f32_e32 v30, v28
v_mul_f32_e32 v31, v29, v30
v_cvt_f16_f32_e32 v31, v31
v_div_fixup_f16 v24, v31, v12, v10"""


def quotient(form: Format, numerator: Number, denominator: Number) -> Expected:
    """The correctly rounded quotient."""
    sign = numerator.sign ^ denominator.sign
    if (
        numerator.nan
        or denominator.nan
        or (numerator.zero and denominator.zero)
        or (numerator.infinite and denominator.infinite)
    ):
        return QuietNan(form)
    if numerator.infinite or denominator.zero:
        return pack(form, Number(sign, infinite=True))
    if denominator.infinite or numerator.zero:
        return pack(form, Number(sign))
    return pack(form, _dyadic(form, numerator, denominator))


def _dyadic(form: Format, numerator: Number, denominator: Number) -> Number:
    """A dyadic number on the same side of every rounding boundary as the quotient."""
    ratio = abs(Fraction(numerator.fraction() / denominator.fraction()))
    shift = form.fraction + 4 - ratio.numerator.bit_length() + ratio.denominator.bit_length()
    whole, rest = divmod(ratio.numerator << max(shift, 0), ratio.denominator << max(-shift, 0))
    sticky = whole << 1 | int(rest != 0)
    return Number(numerator.sign ^ denominator.sign, sticky, -shift - 1)


# The two later steps alone.
def _fixup(form: Format) -> Callable[[int, int, int], Expected]:
    """The quotient with its sign put right, or what the operands' classes call for."""

    def fixup(approximate: int, denominator_bits: int, numerator_bits: int) -> Expected:
        numerator, denominator = (unpack(form, b) for b in (numerator_bits, denominator_bits))
        sign = form.sign_bit * (numerator.sign ^ denominator.sign)
        for operand in (numerator, denominator):
            if operand.nan:
                return operand.quieted().bits
        both_infinite = numerator.infinite and denominator.infinite
        if both_infinite or (numerator.zero and denominator.zero):
            return form.sign_bit | form.infinity | form.quiet_bit
        if denominator.zero or numerator.infinite:
            return sign | form.infinity
        if denominator.infinite or numerator.zero:
            return sign
        magnitude = approximate & ~form.sign_bit
        if _exponent(form, numerator_bits) - _exponent(form, denominator_bits) < UNDERFLOW[form]:
            return OneOf((sign, sign | 1, sign | magnitude))
        if magnitude > form.infinity:  # the steps before overflowed
            return OneOf((sign | form.infinity, sign | magnitude))
        return sign | magnitude

    return fixup


# Differences of exponents below which a quotient is nothing but an underflow.
UNDERFLOW = {HALF: -26, SINGLE: -150, DOUBLE: -1075}


def _exponent(form: Format, bits: int) -> int:
    return (bits & ~form.sign_bit & form.mask) >> form.fraction


def _fmas(form: Format, power: int) -> Callable[[Number, Number, Number, int], object]:
    """A fused multiply-add that undoes the scaling. One rounding, or one before the scaling."""

    def fmas(a: Number, b: Number, c: Number, scaled_operands: int) -> object:
        total = a * b + c
        if not scaled_operands:
            return total
        # A biased exponent above the bias is a magnitude of two or more.
        up = not c.finite or c.magnitude.bit_length() + c.exponent > 1
        once = scaled(total, power if up else -power)
        return Flushable(once, scaled(round_to(form, total), power if up else -power))

    return fmas


for _suffix, _type, _power in (("f32", F32, 64), ("f64", F64, 128)):
    vector(f"v_div_fmas_{_suffix}", _type, (_type,) * 3, _fmas(_type.format, _power), vcc_in=True)
for _suffix, _type in (("f16", F16), ("f32", F32), ("f64", F64)):
    _bits = Type("fb", _type.width)
    vector(f"v_div_fixup_{_suffix}", _bits, (_bits,) * 3, _fixup(_type.format))


def _form(name: str, text: str, of: Type) -> LaneForm:
    form = of.format

    def meaning(wave: Wave) -> Outcome:
        fields = []
        for lane in LANES:
            values = (unpack(form, wave.sources[k][lane]) for k in (0, 1))
            fields.append([(0, of.width, quotient(form, *values))] if active(wave, lane) else [])
        return Outcome(fields)

    return LaneForm(Row(name, of, (of, of), meaning), text, meaning)


def division_forms() -> list[LaneForm]:
    """The three sequences."""
    return [
        _form("v_div_scale_f32", _SINGLE, F32),
        _form("v_div_scale_f64", _DOUBLE, F64),
        _form("v_div_fixup_f16", _HALF, F16),
    ]


COVERED = frozenset(("v_div_scale_f32", "v_div_scale_f64"))
