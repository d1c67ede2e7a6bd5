"""Rounding and denormal modes other than the kernels' default are refused, never ignored."""

from __future__ import annotations

import pytest

from rdna_jit.errors import UnsupportedInstruction
from tests.emulator.oracle import harness, variants
from tests.emulator.oracle.floats import DOWN, TOWARD_ZERO, UP
from tests.emulator.oracle.rows import VECTOR
from tests.emulator.oracle.types import Mode

MODES = (
    Mode(round_f32=UP), Mode(round_f32=DOWN), Mode(round_f16_f64=TOWARD_ZERO),
    Mode(flush_in_f32=True, flush_out_f32=True), Mode(flush_out_f16_f64=True),
)  # fmt: skip


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode.bits:#04x}")
def test_another_mode_is_refused(mode: Mode) -> None:
    with pytest.raises(UnsupportedInstruction, match="mode"):
        harness.check(variants.forms(VECTOR["v_add_f32"])[:1], 1, mode=mode)
