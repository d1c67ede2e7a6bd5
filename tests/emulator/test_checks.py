"""Every check finds its sin, which is still in the ISA, and passes the clean twin."""

from __future__ import annotations

import numpy as np
import pytest

from rdna_jit import emulator
from rdna_jit.config import config
from rdna_jit.errors import (
    ContractError,
    DataRace,
    DivergentBarrier,
    MemoryFault,
    MisalignedAccess,
    UninitialisedRead,
)
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
        with pytest.raises(
            UninitialisedRead, match=r"LDS byte 200 .* barrier is missing"
        ) as caught:
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


# Lanes 0 to `n - 1` of each wave meet a barrier that the others do not.
LEFT_OUT = """KERNEL(64) k(u32* out, u32 n) {{
  u32 t = lane_x(), lane = t & 31; __shared__ u32 s[64]; s[t] = t;
  {before} if (lane < n) {{ {inside} }} {otherwise} {after} }}"""
SINS = {
    "both sides": dict(inside="s[t] *= 3; barrier(); out[t] = s[t ^ 32];",
                       otherwise="else { s[t] += 7; barrier(); s[t] += 1; }", after="out[t] += 1;"),
    "one side": dict(inside="barrier();", otherwise="", after="out[t] = s[t ^ 32];"),
    "a loop": dict(inside="for (u32 i = 0; i < lane; i++) { barrier(); s[t] += i; }",
                   otherwise="", after="out[t] = s[t ^ 32];"),
}  # fmt: skip


@pytest.mark.parametrize("sin", SINS)
def test_lanes_that_leave_out_a_barrier(sin: str) -> None:
    """hiprtc leaves these barriers where they are, in code that only some lanes execute."""
    source = LEFT_OUT.format(before="", **SINS[sin])
    code = [i.mnemonic for i in harness.program(source).code]
    assert "s_and_saveexec_b32" in code[: code.index("s_barrier")]
    assert code.count("s_barrier") == (2 if sin == "both sides" else 1)
    out = np.zeros(64, np.uint32)
    with emulator.checks(races=True), pytest.raises(DivergentBarrier) as caught:
        harness.run(source, out, 20, block=64)
    assert caught.value.kernel == "k" and caught.value.source_line.startswith("kernel.hip:")


@pytest.mark.parametrize("lanes", [1, 20, 32, 33, 50, 64])
def test_lanes_that_have_ended_need_no_barrier(lanes: int) -> None:
    """Also in a workgroup whose last wave is not full."""
    source = LEFT_OUT.format(
        before="if (t >= n) return;", inside="barrier(); s[t] += 1; barrier(); out[t] = s[t];",
        otherwise="", after="",
    )  # fmt: skip
    assert "s_barrier" in harness.mnemonics(source)
    out = np.zeros(64, np.uint32)
    with emulator.checks(races=True):
        harness.run(source, out, min(lanes, 32), block=32)
        harness.run(source, out, 32, block=min(lanes, 32))
    assert (out[: min(lanes, 32)] == np.arange(min(lanes, 32)) + 1).all()


# (instruction, type of an element, its bytes, an offset that aligned mode does not serve, the
# smallest that it does)
MISALIGNED = [
    ("global_load_dwordx4", "u4", 16, 2, 4),
    ("global_load_dword", "u32", 4, 3, 4),
    ("global_load_ushort", "unsigned short", 2, 1, 2),
    ("ds_read_b128", "u4", 16, 8, 16),
    ("ds_read_b64", "u64", 8, 4, 8),
    ("ds_read_u16", "unsigned short", 2, 1, 2),
]


@pytest.mark.parametrize(("mnemonic", "element", "nbytes", "bad", "good"), MISALIGNED)
def test_misaligned_load(mnemonic: str, element: str, nbytes: int, bad: int, good: int) -> None:
    """Work-item 40 is off; the types promise alignment, so that nothing is split."""
    in_lds = mnemonic.startswith("ds_")
    source = f"""typedef unsigned u4 __attribute__((ext_vector_type(4)));
      typedef {element} element;
      KERNEL(64) k(const u4* in, char* out, int shift) {{
        __shared__ u4 s[65]; u32 t = lane_x(); s[t] = in[t]; s[64] = in[64]; barrier();
        int at = t * 16 + (t == 40 ? shift : 0);
        *(element*)(out + t * 16) = *(const element*)((const char*){"s" if in_lds else "in"} + at);
      }}"""
    assert mnemonic in harness.mnemonics(source)
    data, out = np.arange(65 * 4, dtype=np.uint32), np.zeros(64 * 4, np.uint32)
    want = np.zeros((64, 16), np.uint8)
    for lane in range(64):
        at = lane * 16 + (good if lane == 40 else 0)
        want[lane, :nbytes] = data.view(np.uint8)[at : at + nbytes]
    with emulator.checks(misaligned=True):
        harness.run(source, data, out, good, block=64)
        assert (out.view(np.uint8) == want.ravel()).all()
        with pytest.raises(MisalignedAccess, match=f"not a multiple of {good}") as caught:
            harness.run(source, data, out, bad, block=64)
    error = caught.value
    assert (error.kernel, error.wave, error.lane, error.nbytes) == ("k", 1, 8, nbytes)
    assert error.instruction.startswith(mnemonic)
    assert error.buffer == ("LDS" if in_lds else "in")
    assert error.address - error.buffer_address == 640 + bad
    harness.run(source, data, out, bad, block=64)  # a card in its default mode serves it


@pytest.mark.parametrize("tier", ["quick", "optimised"])
def test_misaligned_store_of_consecutive_lanes(tier: str) -> None:
    source = "KERNEL(32) k(char* out, int shift) { *(u32*)(out + shift + lane_x() * 4) = 7; }"
    assert "global_store_dword" in harness.mnemonics(source)
    out = np.zeros(40, np.uint32)
    with emulator.modes(tier=tier):
        harness.run(source, out, 2)
        with config.scope(checks=("misaligned",)):
            harness.run(source, out, 4)
            with pytest.raises(MisalignedAccess, match=r"global store .* byte 2 of out"):
                harness.run(source, out, 2)


def test_misaligned_atomics_are_faults_in_any_case() -> None:
    source = "KERNEL(32) k(char* out, int shift) { atomicAdd((u32*)(out + shift), lane_x()); }"
    out = np.zeros(2, np.uint32)
    assert "global_atomic_add" in harness.mnemonics(source)
    harness.run(source, out, 4)
    assert out[1] == 31 * 16
    with pytest.raises(MemoryFault, match="byte 2 of out") as caught:
        harness.run(source, out, 2)
    assert caught.value.lane == 0 and caught.value.address == out.ctypes.data + 2


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


@pytest.mark.parametrize(
    "mistake",
    [{"dot2": "x"}, {"tier": "z"}, {"threads": 0}, {"transcendental": 1}, {"descending": "no"}],
)
def test_a_mode_that_does_not_exist_is_refused(mistake: dict[str, object]) -> None:
    [(name, _)] = mistake.items()
    with pytest.raises(ContractError, match=name), emulator.modes(**mistake):
        pass


def test_steps_are_a_positive_integer() -> None:
    for steps in (0, -1, "x", 1.5):
        with pytest.raises(ContractError, match="steps"), emulator.checks(steps=steps):  # type: ignore[arg-type]
            pass
