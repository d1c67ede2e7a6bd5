"""Counters are exact, the model follows from them, and reports show them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rdna_jit.disassembler import Instruction
from rdna_jit.emulator import model
from rdna_jit.emulator.cards import CARDS, card
from rdna_jit.emulator.chains import block_clocks
from rdna_jit.emulator.classes import COUNTERS, classify
from rdna_jit.emulator.decode import decode_line
from rdna_jit.emulator.profile import Profile
from rdna_jit.errors import ContractError
from tests.emulator import harness

COPY = """
typedef u32 V __attribute__((ext_vector_type(4)));
KERNEL(64) k(const V* __restrict in, V* __restrict out, int step) {
  u32 i = group_x() * 64 + lane_x(); out[i] = in[i * step]; }"""


def profiled(source: str, *args: object, operand_bytes: int | None = None, **shape: object):
    stats = harness.run(source, *args, profile=True, **shape)  # type: ignore[arg-type]
    return Profile.from_launch(stats, operand_bytes=operand_bytes)


def test_bytes_and_lines() -> None:
    data = np.arange(4 * 64 * 3 * 8, dtype=np.uint32)
    out = np.zeros(4 * 64 * 3, np.uint32)
    p = profiled(COPY, data, out, 1, grid=3, block=64)
    assert (p.waves, p.vmem_load, p.vmem_store) == (6, 6, 6)
    kernarg = sum(
        n * s.nbytes
        for s, n in zip(p.stats.executable.sites, [6] * 9, strict=False)
        if s.space == "scalar"
    )
    assert p.bytes_loaded == 3 * 64 * 16 + kernarg
    assert p.bytes_stored == 3 * 64 * 16
    assert p.lines_distinct == 2 * 3 * 64 * 16 // 128
    scattered = profiled(COPY, data, out, 8, grid=3, block=64)
    # every lane of a load has a line of its own now
    assert scattered.lines_distinct == 3 * 64 + 3 * 64 * 16 // 128
    assert scattered.lines_requested - p.lines_requested == 6 * (32 - 4)


def test_counts_do_not_depend_on_where_buffers_lie() -> None:
    seen = set()
    for shift in (0, 1, 5, 31):
        storage = np.zeros(4 * 64 + 32, np.uint32)
        data, out = storage[shift : shift + 256], np.zeros(4 * 64, np.uint32)
        p = profiled(COPY, data, out, 1, block=64)
        seen.add((p.lines_requested, p.lines_distinct))
    assert len(seen) == 1


def test_active_lanes_follow_exec() -> None:
    source = """KERNEL(64) k(const float* in, float* out, int n) { int t = lane_x();
      float x = in[t]; if (t < n) { x = x * x + 1; out[64 + t] = x * in[2]; } out[t] = x; }"""
    data, out = np.ones(64, np.float32), np.zeros(128, np.float32)
    full = profiled(source, data, out, 64, block=64)
    half = profiled(source, data, out, 16, block=64)
    assert full.active_lanes == 32 * full.valu and full.mean_lanes == 32
    # one wave runs the branch with half of its lanes, the other one leaves it out
    assert half.valu < full.valu
    assert half.active_lanes == 32 * half.valu - 16 * (full.valu - half.valu)
    assert sum(b.executions * b.instructions for b in half.blocks) == half.stats.wave_instructions
    partial = profiled(source, data, out, 64, block=40)
    assert partial.active_lanes == full.active_lanes // 64 * 40


@pytest.mark.parametrize(("stride", "conflicts"), [(1, 0), (2, 1), (4, 3), (32, 31), (33, 0)])
def test_lds_bank_conflicts(stride: int, conflicts: int) -> None:
    source = """KERNEL(32) k(u32* out, int stride) { __shared__ u32 s[33 * 32];
      u32 t = lane_x(); s[t * stride] = t; barrier(); out[t] = s[t * stride]; }"""
    out = np.zeros(32, np.uint32)
    p = profiled(source, out, stride)
    assert (out == np.arange(32)).all()
    # one write and one read, each 1 cycle without conflicts
    assert p.lds == 2 and p.lds_bank_conflicts == 2 * conflicts
    assert p.counters["lds_cycles"] == 2 * (1 + conflicts)


def test_broadcast_reads_have_no_conflict() -> None:
    source = """KERNEL(32) k(u32* out) { __shared__ u32 s[32]; u32 t = lane_x(); s[t] = t;
      barrier(); out[t] = s[t & 3]; }"""
    p = profiled(source, np.zeros(32, np.uint32))
    assert p.lds_bank_conflicts == 0


CHASE = """KERNEL(32) k(const u32* next, u32* out, int hops) {
  u32 at = lane_x(); for (int n = 0; n < hops; n++) at = next[at]; out[lane_x()] = at; }"""


def test_serial_loads_set_the_latency_bound() -> None:
    order = np.roll(np.arange(64, dtype=np.uint32), -1)
    out = np.zeros(32, np.uint32)
    times = {}
    for hops in (8, 16):
        p = profiled(CHASE, order, out, hops)
        assert (out == (np.arange(32) + hops) % 64).all()
        times[hops] = p.estimate.bounds["latency"]
        assert p.bound_by == "latency"
    assert times[16] - times[8] == pytest.approx(8 * model.load_latency_us(1), rel=2e-3)


def test_a_loaded_card_takes_longer() -> None:
    order, waits = np.roll(np.arange(64, dtype=np.uint32), -1), {}
    for groups in (1, 36, 72, 500):
        p = profiled(CHASE, order, np.zeros(32, np.uint32), 8, grid=groups)
        waits[groups] = p.estimate.start_us, p.stats.waited_ns / groups
        assert p.estimate.start_us == pytest.approx(model.DRAM_LATENCY_US, rel=5e-3)
    assert waits[72][1] == waits[500][1]
    assert waits[72][1] / waits[1][1] == pytest.approx(271 / 181, rel=0.05)
    assert waits[1][1] < waits[36][1] < waits[72][1]


def test_independent_loads_return_one_after_the_other() -> None:
    source = """KERNEL(32) k(const u32* in, u32* out) { u32 s = 0;
      for (int n = 0; n < 16; n++) s += in[n * 32 + lane_x()]; out[lane_x()] = s; }"""
    p = profiled(source, np.ones(512, np.uint32), np.zeros(32, np.uint32))
    assert p.vmem_load == 16
    assert p.stats.waited_ns == 181 + 15 * 5  # one line each, whose 5.5 ns are cut to whole ones


CODE = {
    "v_add_f32_e32 v1, v2, v3\nv_add_f32_e32 v4, v2, v3": 2,
    "v_add_f32_e32 v1, v2, v3\nv_add_f32_e32 v4, v1, v3": 6,
    "v_fmac_f32_e32 v1, v2, v3\nv_fmac_f32_e32 v1, v2, v3": 6,
    "v_dot2c_f32_f16 v1, v2, v3\nv_add_nc_u32_e32 v5, 1, v6\nv_dot2c_f32_f16 v1, v2, v3": 6,
    "v_cmp_gt_f32_e32 vcc_lo, v1, v2\nv_cndmask_b32_e32 v3, v4, v5, vcc_lo": 6,
    "v_add_co_u32 v1, s0, v2, v3\nv_add_co_ci_u32_e64 v4, null, v5, v6, s0": 6,
    "v_mul_f64 v[2:3], v[4:5], v[6:7]\nv_mov_b32_e32 v0, v3\nglobal_store_dword v1, v0, s[0:1]": 11,
    "s_add_u32 s0, s1, s2\ns_add_u32 s0, s0, s2": 2,
}


@pytest.mark.parametrize("text", CODE)
def test_a_wave_waits_for_its_own_results(text: str) -> None:
    lines = [decode_line(Instruction(0, 4, (0,), line)) for line in text.splitlines()]
    assert block_clocks(lines) == CODE[text]


def test_a_chain_of_one_wave_is_slower_than_its_rate() -> None:
    source = """KERNEL(32) k(float* out, int n) { float x = lane_x();
#pragma unroll 1
      for (int j = 0; j < n; j++)
        asm volatile("v_fma_f32 %0, %0, %0, 1.0\\nv_fma_f32 %0, %0, %0, 1.0\\n"
                     "v_fma_f32 %0, %0, %0, 1.0\\nv_fma_f32 %0, %0, %0, 1.0" : "+v"(x));
      out[lane_x()] = x; }"""
    per_step = {}
    for groups in (1, 144 * 16):
        low, high = (
            profiled(source, np.zeros(32, np.float32), n, grid=groups).estimate.bounds["valu"]
            for n in (100, 300)
        )
        per_step[groups] = (high - low) / 200 * 2400
    assert 16 < per_step[1] <= 20  # three waits of five clocks, and the loop around them
    assert per_step[144 * 16] == pytest.approx(16 * 4 / model.ISSUE_FMA, rel=1e-3)


def test_classes() -> None:
    assert classify("v_dot2c_f32_f16") == ("valu", "dot")
    assert classify("v_dot4_i32_i8") == ("valu", "dot", "dot_integer")
    assert classify("v_dot8_u32_u4") == ("valu", "dot", "dot_integer", "dot_nibble")
    assert classify("v_pk_fma_f16") == ("valu", "packed")
    assert classify("v_exp_f32") == ("valu", "transcendental")
    assert classify("v_mul_lo_u32") == ("valu", "quarter_rate")
    assert classify("v_mul_u32_u24") == ("valu",)
    for mnemonic, counter in (
        ("s_add_u32", "salu"), ("s_load_dwordx4", "smem"), ("s_cbranch_scc1", "branch"),
        ("s_waitcnt", "wait"), ("s_clause", "wait"), ("s_barrier", "barrier"),
        ("global_load_dword", "vmem_load"), ("global_store_byte", "vmem_store"),
        ("global_atomic_add", "atomic"), ("flat_load_dword", "vmem_load"),
        ("buffer_store_dword", "scratch"), ("buffer_gl0_inv", "wait"), ("ds_add_u32", "lds"),
    ):  # fmt: skip
        assert classify(mnemonic) == (counter,) and counter in COUNTERS


def test_hot_instructions_and_source_lines() -> None:
    source = """KERNEL(32) k(const float* in, float* out, int n) {
  float x = in[lane_x()];
  for (int j = 0; j < n; j++)
    x = __builtin_fmaf(x, 0.5f, 1.0f);
  out[lane_x()] = x; }"""
    p = profiled(source, np.ones(32, np.float32), np.ones(32, np.float32), 1000)
    top = p.hot(3)
    assert top[0].count >= 100 and "fma" in " ".join(spot.text for spot in top)
    assert sum(spot.share for spot in p.hot(10_000)) == pytest.approx(1)
    assert str(top[0]).split() == [
        f"{top[0].share:.1%}", f"{top[0].count:,}", f"{top[0].pc:#06x}", *top[0].text.split(),
        top[0].source,
    ]  # fmt: skip
    assert str(p.lines()[0]).endswith(p.lines()[0].source)
    assert p.lines()[0].source in ("kernel.hip:3", "kernel.hip:4")
    assert sum(line.count for line in p.lines()) == p.stats.wave_instructions


def test_reports() -> None:
    out = np.zeros(4 * 64, np.uint32)
    p = profiled(COPY, np.arange(256, dtype=np.uint32), out, 1, block=64, operand_bytes=2048)
    values = p.to_dict()
    assert set(COUNTERS) <= set(values)
    assert values["bound_by"] in ("dram", "l2", "valu", "lds", "latency")
    assert p.bound_by in model.MEMORY_BOUNDS
    assert values["time_us"] == pytest.approx(
        max(p.estimate.bounds.values()) + p.estimate.start_us + p.estimate.drain_us
    )
    assert p.floor_us == pytest.approx(2048 / 506 / 1e3)
    assert repr(p) == f"<Profile of k: {p.time_us:.2f} us on a V620, bound by {p.bound_by}>"
    assert "bound by" in str(p) and f"vmem_load {p.vmem_load}" in str(p)
    page = p._repr_html_()
    assert page.count("<table>") == 2 and "<svg" in page
    assert p.hot()[0].text in page
    assert p.plot().startswith("<svg") and "DRAM" in p.plot()
    with pytest.raises(AttributeError):
        _ = p.nothing


WORK = model.Work(
    valu=1_000_000, dot=0, dot_integer=0, dot_nibble=0, packed=0, transcendental=0, quarter_rate=0,
    fp64=0, salu=100_000, lds=0, lds_cycles=0, bytes_stored=0, lines_requested=100_000,
    lines_distinct=100_000,
    waited_us=1.0, leading_waits=1, chain_clocks=0, workgroups=720, waves_per_group=8, vgprs=64,
    lds_bytes=0, dual_cu=False,
)  # fmt: skip


def test_bounds_of_the_model() -> None:
    v620 = CARDS["V620"]
    e = model.estimate(WORK, v620)
    assert e.bounds["dram"] == pytest.approx(100_000 * 128 / 506e3)
    # ten workgroups of eight waves on each compute unit, 40 waves on each of its two SIMDs
    clocks = 1_000_000 / (720 * 8) / model.ISSUE_FMA * 40
    assert e.bounds["valu"] == pytest.approx(clocks / 2400)
    assert e.start_us == model.DRAM_LATENCY_US
    # 73 workgroups leave one compute unit with two
    assert model.estimate(replace(WORK, workgroups=73), v620).bounds["valu"] == pytest.approx(
        1_000_000 / (73 * 8) / model.ISSUE_FMA * 8 / 2400
    )


def test_the_drain_is_part_of_the_vector_work() -> None:
    """Work that only the vector units bound takes no longer than they need for all of it."""
    work = replace(WORK, lines_requested=0, lines_distinct=0, waited_us=0.0, leading_waits=0)
    e = model.estimate(work, CARDS["V620"])
    assert e.bound_by == "valu" and e.drain_us > 0
    assert e.time_us == e.bounds["valu"]


def test_copies_turn_the_bus_and_lds_accesses_take_turns() -> None:
    v620 = CARDS["V620"]
    half = replace(WORK, bytes_stored=50_000 * 128)
    assert 2 * 50_000 * 128 / model.estimate(half, v620).bounds["dram"] / 1e3 == pytest.approx(
        415, rel=0.01
    )
    free = model.estimate(replace(WORK, lds=1000, lds_cycles=1000), v620).bounds["lds"]
    worst = model.estimate(replace(WORK, lds=1000, lds_cycles=32_000), v620).bounds["lds"]
    assert worst / free == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("vgprs", "waves"), [(64, 16), (80, 12), (96, 10), (112, 9), (128, 8), (160, 6), (256, 4)]
)
def test_occupancy_by_registers(vgprs: int, waves: int) -> None:
    work = replace(WORK, vgprs=vgprs, waves_per_group=2)
    assert model.estimate(work, CARDS["V620"]).occupancy == waves


def test_occupancy_by_lds() -> None:
    # 20 KB: three workgroups in a compute unit's 64 KB, six in a pair's 128 KB
    work = replace(WORK, lds_bytes=20 * 1024, waves_per_group=4)
    assert model.groups_per_unit(work, 2) == 3 and model.groups_per_unit(work, 4) == 6


def test_peaks_of_the_reference_card() -> None:
    v620 = card("v620")
    assert v620.fp32_tflops == pytest.approx(22.1, abs=0.1)
    assert v620.dot2_tflops * model.ISSUE_DOT2 == pytest.approx(38.0, abs=0.1)
    assert v620.dot4_tops * model.ISSUE_DOT4 == pytest.approx(64.2, abs=0.1)
    with pytest.raises(ContractError, match="RX6800XT"):
        card("RX 9999")
