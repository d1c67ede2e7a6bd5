"""Arithmetic under other rounding and denormal modes, set by the kernel itself."""

from __future__ import annotations

import pytest

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
    "v_cvt_f32_f16", "v_cvt_f64_f32", "v_cvt_f64_i32", "v_cvt_f64_u32", "v_cvt_pkrtz_f16_f32",
    "v_cvt_i32_f64", "v_cvt_u32_f64", "v_cvt_i32_f32", "v_cvt_u16_f16",
    "v_pk_add_f16", "v_pk_mul_f16", "v_pk_fma_f16", "v_pk_fmac_f16",
    "v_ldexp_f16", "v_ldexp_f32", "v_ldexp_f64", "v_min_f64", "v_max_f64", "v_min_f32",
    "v_floor_f64", "v_rndne_f64", "v_frexp_mant_f64", "v_trig_preop_f64",
    "v_div_fmas_f32", "v_div_fmas_f64",
    "v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16",
)  # fmt: skip
MODES = (
    Mode(round_f32=UP, round_f16_f64=DOWN), Mode(round_f32=DOWN, round_f16_f64=TOWARD_ZERO),
    Mode(round_f32=TOWARD_ZERO, round_f16_f64=UP),
    Mode(flush_in_f32=True, flush_out_f32=True),
    Mode(flush_in_f16_f64=True, flush_out_f16_f64=True),
    Mode(flush_in_f32=True, flush_out_f16_f64=True),
)  # fmt: skip


def plain(names: tuple[str, ...]) -> list[Form]:
    return [variants.forms(VECTOR[name])[0] for name in names]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode.bits:#04x}")
def test_arithmetic(mode: Mode) -> None:
    report(harness.check(plain(ROUNDED), 6, mode=mode))


@pytest.mark.parametrize("mode", MODES[:3], ids=lambda mode: f"{mode.bits:#04x}")
def test_fixup_does_not_round(mode: Mode) -> None:
    names = ("v_div_fixup_f16", "v_div_fixup_f32", "v_div_fixup_f64")
    report(harness.check(plain(names), 6, mode=mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode.bits:#04x}")
@pytest.mark.parametrize("tier", ["quick", "optimised"])
def test_arithmetic_long(mode: Mode, tier: str) -> None:
    report(harness.check(plain(ROUNDED), 96, seed=3, mode=mode, tier=tier))
