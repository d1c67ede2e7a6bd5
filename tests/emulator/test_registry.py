"""The instruction table: what it refuses, and what the wrapper around a row does."""

from __future__ import annotations

import numpy as np
import pytest

from rdna_jit.disassembler import Instruction
from rdna_jit.emulator import registry
from rdna_jit.emulator.context import Options, Unsupported
from rdna_jit.emulator.decode import EXEC, decode_line
from rdna_jit.emulator.vector import lane_order
from tests.emulator.wave_function import WaveState, execute

RNG = np.random.default_rng(1)


def find(text: str) -> registry.Handler:
    return registry.find(decode_line(Instruction(0, 8, (0, 0), text)))


@pytest.mark.parametrize(("text", "named"), [
    ("v_interp_p1_f32 v0, v1, attr0.x", "v_interp_p1_f32"),
    ("v_and_b32_e64 v0, v1, v2 clamp", "clamp"),
    ("v_xor_b32_e64 v0, -v1, v2", "neg"),
    ("v_add_f32_e64 v0, v1, v2 op_sel:[1,0,0]", "op_sel"),
    ("v_add_f32_sdwa v0, sext(v1), v2 dst_sel:SOMEWHERE newmod:1", "newmod"),
    ("ds_bpermute_b32 v0, v1, v2 gds", "gds"),
])  # fmt: skip
def test_an_unknown_name_or_modifier_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        find(text)


def test_a_mnemonic_has_one_handler() -> None:
    registry.entries()
    with pytest.raises(ValueError, match="v_add_f32 is registered twice"):
        registry.op("v_add_f32")(lambda c, i: None)


def test_modifiers_of_a_row_follow_from_its_types() -> None:
    def of(mnemonic: str) -> frozenset[str]:
        return registry.entries()[mnemonic].modifiers

    assert {"neg", "abs", "clamp", "mul", "src0_sel", "row_shl"} <= of("v_add_f32")
    assert "op_sel" in of("v_fma_f16") and "row_shl" not in of("v_fma_f16")
    assert "clamp" in of("v_add_nc_u32") and "clamp" not in of("v_or_b32")
    assert not of("v_mul_hi_u32") & {"neg", "clamp"}


@pytest.mark.parametrize(("modifier", "lane", "origin"), [
    ("quad_perm:[3,2,1,0]", 4, 7), ("row_shl:1", 0, 1), ("row_shl:1", 15, None),
    ("row_shr:2", 17, None), ("row_shr:2", 18, 16), ("row_ror:1", 16, 31),
    ("row_mirror", 1, 14), ("row_half_mirror", 9, 14), ("row_share:3", 20, 19),
    ("row_xmask:5", 16, 21), ("dpp8:[7,6,5,4,3,2,1,0]", 8, 15),
])  # fmt: skip
def test_lane_orders(modifier: str, lane: int, origin: int | None) -> None:
    i = decode_line(Instruction(0, 8, (0, 0), f"v_mov_b32_dpp v0, v1 {modifier}"))
    assert lane_order(i)[lane] == origin


def test_a_row_without_its_source_lane_is_not_written() -> None:
    state = WaveState()
    state.vgprs[0], state.vgprs[1] = 77, np.arange(32)
    state.sgprs[EXEC] = 0xFFFFFFFE  # lane 0 is inactive
    execute("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0x1 bank_mask:0xf", state)
    expected = np.full(32, 77)
    expected[2:16] = np.arange(1, 15)  # lane 1 would read inactive lane 0; row 1 is masked
    np.testing.assert_array_equal(state.vgprs[0], expected)


def test_dot2_modes() -> None:
    """1 * 1 + 0 * 0 - 1: the aligned model leaves two units, from two one's complements."""
    results = {}
    for mode in ("chain", "exact", "gfx11"):
        state = WaveState()
        state.vgprs[1], state.vgprs[2] = 0x3C00, 0x3C00
        state.floats(3)[:] = -1
        execute("v_dot2_f32_f16 v0, v1, v2, v3", state, Options(dot2=mode))
        results[mode] = float(state.floats(0)[0])
    assert results == {"chain": 0.0, "exact": 0.0, "gfx11": 2.0**-23}


def test_dot2_rounds_once_or_twice() -> None:
    """2**24 + 1 + 1: each one alone is lost, the two together are not."""
    state = WaveState()
    state.vgprs[1], state.vgprs[2] = 0x3C003C00, 0x3C003C00
    state.floats(3)[:] = 2.0**24
    execute("v_dot2_f32_f16 v0, v1, v2, v3", state, Options(dot2="chain"))
    assert state.floats(0)[0] == 2.0**24
    execute("v_dot2_f32_f16 v0, v1, v2, v3", state, Options(dot2="exact"))
    assert state.floats(0)[0] == 2.0**24 + 2


def test_dot2_flush_takes_subnormals_for_zero() -> None:
    state = WaveState()
    state.vgprs[1], state.vgprs[2] = 0, 0
    state.vgprs[3] = 5  # a subnormal accumulator
    execute("v_dot2_f32_f16 v0, v1, v2, v3", state, Options(dot2_flush=True))
    assert not state.vgprs[0].any()
    execute("v_dot2_f32_f16 v0, v1, v2, v3", state)
    assert set(state.vgprs[0].tolist()) == {5}


@pytest.mark.parametrize("function", ["exp", "log", "rcp", "rsq", "sqrt", "sin", "cos"])
def test_transcendental_modes_round_to_either_side(function: str) -> None:
    x = RNG.uniform(1.1, 9.9, 32).astype(np.float32)
    results = {}
    for mode in ("exact", "+1ulp", "-1ulp", "hash"):
        state = WaveState()
        state.floats(1)[:] = x
        execute(f"v_{function}_f32_e32 v0, v1", state, Options(transcendental=mode))
        results[mode] = state.floats(0).copy()
    up, down, exact = results["+1ulp"], results["-1ulp"], results["exact"]
    np.testing.assert_array_equal(up, np.nextafter(down, np.float32(np.inf)))
    assert ((exact == up) | (exact == down)).all() and (exact == up).any() and (exact == down).any()
    taken_up = results["hash"] == up
    assert (results["hash"] == np.where(taken_up, up, down)).all() and 0 < taken_up.sum() < 32


def test_exact_transcendental_results_stay_in_every_mode() -> None:
    for mode in ("+1ulp", "-1ulp", "hash"):
        state = WaveState()
        state.floats(1)[:] = 4.0
        for function, result in (("rcp", 0.25), ("sqrt", 2.0), ("exp", 16.0), ("log", 2.0)):
            execute(f"v_{function}_f32_e32 v0, v1", state, Options(transcendental=mode))
            assert set(state.floats(0).tolist()) == {result}


def test_scalar_rows_set_the_condition() -> None:
    state = WaveState()
    state.sgprs[1:3] = 0xFFFFFFFF, 1
    execute("s_add_u32 s0, s1, s2", state)
    assert (state.sgprs[0], state.scc[0]) == (0, 1)
    execute("s_addc_u32 s0, s2, s2", state)
    assert (state.sgprs[0], state.scc[0]) == (3, 0)
