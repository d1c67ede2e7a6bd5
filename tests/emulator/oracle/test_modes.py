"""Arithmetic under other rounding and denormal modes, set by the kernel itself."""

from __future__ import annotations

import pytest

from rdna_jit.errors import UnsupportedInstruction
from tests.emulator.oracle import harness, variants
from tests.emulator.oracle.floats import DOWN, TOWARD_ZERO, UP
from tests.emulator.oracle.forms import Form
from tests.emulator.oracle.rows import VECTOR
from tests.emulator.oracle.test_vector import report
from tests.emulator.oracle.types import Mode

ROUNDED = (
    *(f"v_{name}_{suffix}" for suffix in ("f16", "f32", "f64") for name in ("add", "mul", "fma")),
    "v_sub_f32", "v_subrev_f16", "v_fmac_f32", "v_fmac_f16", "v_fmaak_f32", "v_fmamk_f16",
    "v_cvt_f16_f32", "v_cvt_f32_f64", "v_cvt_f32_i32", "v_cvt_f32_u32", "v_cvt_f16_u16",
    "v_cvt_f32_f16", "v_cvt_f64_f32", "v_cvt_pkrtz_f16_f32",
    "v_pk_add_f16", "v_pk_mul_f16", "v_pk_fma_f16", "v_pk_fmac_f16", "v_ldexp_f32",
)  # fmt: skip
MODES = (
    Mode(round_f32=UP, round_f16_f64=DOWN), Mode(round_f32=DOWN, round_f16_f64=TOWARD_ZERO),
    Mode(round_f32=TOWARD_ZERO, round_f16_f64=UP),
    Mode(flush_in_f32=True, flush_out_f32=True),
    Mode(flush_in_f16_f64=True, flush_out_f16_f64=True),
    Mode(flush_in_f32=True, flush_out_f16_f64=True),
)  # fmt: skip


DOUBLE = ("v_add_f64", "v_mul_f64", "v_fma_f64")


def plain(names: tuple[str, ...]) -> list[Form]:
    return [variants.forms(VECTOR[name])[0] for name in names]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode.bits:#04x}")
def test_arithmetic(mode: Mode) -> None:
    left_out = (*DOUBLE, "v_cvt_f64_f32") if mode.round_f16_f64 else ()
    report(harness.check(plain(tuple(n for n in ROUNDED if n not in left_out)), 6, mode=mode))


@pytest.mark.parametrize("name", DOUBLE)
def test_directed_rounding_of_doubles_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="f64"):
        harness.check(plain((name,)), 1, mode=Mode(round_f16_f64=UP))
