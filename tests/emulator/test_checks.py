"""Every check finds its sin, which is still in the ISA, and passes the clean twin."""

from __future__ import annotations

import numpy as np
import pytest

from rdna_jit import emulator
from rdna_jit.config import config
from rdna_jit.errors import ContractError, DataRace, DivergentBarrier, UninitialisedRead
from tests.emulator import harness

REVERSE = """KERNEL(64) k(const u32* in, u32* out) {{
  __shared__ u32 s[64]; u32 t = lane_x(); s[t] = in[t]; {between} out[t] = s[63 - t]; }}"""


def test_missing_barrier_is_a_race() -> None:
    bad, good = REVERSE.format(between=""), REVERSE.format(between="barrier();")
    assert {"ds_write_b32", "ds_read_b32"} <= harness.mnemonics(bad)
    assert "s_barrier" not in harness.mnemonics(bad)
    data, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    with emulator.checks(races=True):
        harness.run(good, data, out, block=64)
        assert (out == data[::-1]).all()
        with pytest.raises(DataRace, match="LDS byte") as caught:
            harness.run(bad, data, out, block=64)
    assert caught.value.wave in (0, 1) and "ds_" in caught.value.instruction


def test_write_after_read_is_a_race_too() -> None:
    source = """KERNEL(64) k(const u32* in, u32* out) {{
      __shared__ u32 s[64]; u32 t = lane_x(); s[t] = in[t]; barrier();
      u32 x = s[63 - t]; {between} s[t] = x + 1; barrier(); out[t] = s[t]; }}"""
    data, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    with emulator.checks(races=True):
        harness.run(source.format(between="barrier();"), data, out, block=64)
        with pytest.raises(DataRace):
            harness.run(source.format(between=""), data, out, block=64)


def test_atomics_do_not_race_with_each_other() -> None:
    source = """KERNEL(64) k(u32* out) {{ __shared__ u32 s; if (lane_x() == 0) s = 0; barrier();
      atomicAdd(&s, lane_x()); {between} if (lane_x() == 40) out[0] = s; }}"""
    out = np.zeros(1, np.uint32)
    with emulator.checks(races=True):
        harness.run(source.format(between="barrier();"), out, block=64)
        assert out[0] == 64 * 63 // 2
        with pytest.raises(DataRace):
            harness.run(source.format(between=""), out, block=64)


def test_two_workgroups_writing_the_same_bytes() -> None:
    source = "KERNEL(32) k(u32* out, int step) { out[group_x() * step + lane_x()] = group_x(); }"
    out = np.zeros(64, np.uint32)
    with emulator.checks(races=True):
        harness.run(source, out, 32, grid=2)
        with pytest.raises(DataRace, match="byte 124 of out") as caught:
            harness.run(source, out, 31, grid=2)
    assert caught.value.workgroup == (1, 0, 0) and caught.value.lane == 0


def test_unwritten_lds() -> None:
    source = """KERNEL(64) k(const u32* in, u32* out, int n) {
      __shared__ u32 s[64]; u32 t = lane_x(); if (t < n) s[t] = in[t]; barrier();
      out[t] = s[t]; }"""
    assert {"ds_write_b32", "ds_read_b32"} <= harness.mnemonics(source)
    data, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    with emulator.checks(uninitialised=True):
        harness.run(source, data, out, 64, block=64)
        with pytest.raises(UninitialisedRead, match="LDS byte 200") as caught:
            harness.run(source, data, out, 50, block=64)
    assert (caught.value.wave, caught.value.lane) == (1, 18)


def test_reading_an_output_that_nobody_wrote() -> None:
    source = "KERNEL(32) k(u32* out, int n) { u32 t = lane_x(); if (n) out[t] = t; out[t] += 1; }"
    out = np.zeros(32, np.uint32)
    with emulator.checks(uninitialised=True):
        harness.run(source, out, 0)
        harness.run(source, out, 1, uninitialised=[out])
        with pytest.raises(UninitialisedRead, match="byte 0 of out"):
            harness.run(source, out, 0, uninitialised=[out])


def test_barriers_that_only_some_waves_reach() -> None:
    source = """KERNEL(64) k(u32* out, int n) { u32 t = lane_x();
      if (__builtin_amdgcn_readfirstlane(t) >= n) return;
      out[t] = 1; barrier(); out[t] += 1; }"""
    assert "s_barrier" in harness.mnemonics(source)
    out = np.zeros(64, np.uint32)
    with emulator.checks(races=True):
        harness.run(source, out, 64, block=64)
        with pytest.raises(DivergentBarrier) as caught:
            harness.run(source, out, 32, block=64)
    assert caught.value.instruction == "s_barrier"


def test_checks_come_from_the_settings_too() -> None:
    source = REVERSE.format(between="")
    data, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    with config.scope(checks=("races",)), pytest.raises(DataRace):
        harness.run(source, data, out, block=64)
    harness.run(source, data, out, block=64)


def test_scopes_nest_and_are_strict() -> None:
    with pytest.raises(ContractError, match="always"), emulator.checks(bounds=False):
        pass
    with pytest.raises(ContractError, match="positive"), emulator.checks(steps=0):
        pass
    with pytest.raises(ContractError, match="no mode speed"), emulator.modes(speed=3):
        pass
