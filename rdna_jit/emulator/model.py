"""From counters to microseconds: a bound for each resource, and what bounds leave out.

    time = start + max(memory + drain, valu, lds)      memory = max(dram, l2, latency)

valu is the issue rate, or what a wave takes for its own chain of results where that is longer. The
drain is what the waves still execute when their last data has come; the bounds of the vector units
and of LDS hold that work already.
Every constant says where it comes from. "Owners" are people who measured Radeon Pro V620 cards
and published the figures; docs/calibration.md compares predictions with what they report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Final

from rdna_jit.emulator.cards import Card

# Vector instructions per clock and SIMD with eight independent chains (owners, V620).
ISSUE_FMA: Final = 0.754
ISSUE_PACKED: Final = 0.767
ISSUE_DOT2: Final = 0.860
ISSUE_DOT4: Final = 0.726
ISSUE_DOT8: Final = 0.757
ISSUE_TRANSCENDENTAL: Final = 0.191
# 32-bit integer multiplies run at a quarter of the rate: 5.1 of 25.4 T multiply-adds on an RX 6900
# XT in a public benchmark, four slots for the multiply and one for the add.
QUARTER_RATE_SLOTS: Final = 4
# fp64 at 1/16 (1.61 TFLOPS of 25.4 in the same benchmark).
FP64_SLOTS: Final = 16
# One scalar instruction per clock and SIMD; the scalar unit is shared by none. A safe bound.
ISSUE_SCALAR: Final = 1.0

# An idle card's latency to DRAM (owners' pointer chase): what a wave waits for its first data.
DRAM_LATENCY_US: Final = 0.180
# A loaded card's: one wave on every second SIMD, 72 in all, with one 512-byte load in flight each
# reached 136 GB/s, so 36.9 KB in flight took 271 ns.
LOADED_LATENCY_US: Final = 0.271
LOADED_WAVES: Final = 72
# Loads of a wave return one after the other: the same with 2 and 4 loads in flight reached 254 and
# 433 GB/s, 290 and 341 ns a round, 22 ns for each further load of four lines.
LINE_RETURN_US: Final = 0.0055
# A scalar load whose line is in a near cache. No figure for the scalar cache is known; this is the
# owners' latency of the vector caches' second level.
SCALAR_LATENCY_US: Final = 0.040
# Workgroups that a stream needs: 36, one per workgroup processor, reach 96.5 % of the bandwidth.
STREAM_GROUPS: Final = 36
STREAM_SHARE: Final = 0.965

LINE_BYTES: Final = 128
# Reads and writes take turns on the memory bus: a copy reached 415 GB/s where the two rates alone
# would give 475 (owners). It is as if the lesser direction were moved once more, at this many times
# the read rate.
TURN_RATE: Final = 3.26
# Clocks of an LDS access without conflicts: 32 lanes on one bank, 32 clocks, took 20.0 times as
# long (owners; 16 lanes 10.1 times, 8 lanes 5.1 times).
LDS_ACCESS_CLOCKS: Final = 1.6
# LDS: 64 KB per compute unit (128 KB per pair), in steps of 1 KB.
LDS_PER_CU: Final = 65536
LDS_STEP: Final = 1024
MAX_WAVES_PER_SIMD: Final = 16
MAX_GROUPS_PER_CU: Final = 16
VGPRS_PER_SIMD: Final = 1024
VGPR_STEP: Final = 16

# Bounds after which the drain follows.
MEMORY_BOUNDS: Final = ("dram", "l2", "latency")

# A free-running launch of an empty kernel (owners: 2.81 us, 2.84 in a graph).
LAUNCH_US: Final = 2.81


@dataclass(frozen=True)
class Work:
    """What a launch did, in wave instructions, bytes and lines, and the shape it had.

    `waited_us` is the time that a wave waited for loads, at the latencies above, on average;
    `leading_waits` is the part until its first wide load had returned, in latencies. `chain_clocks`
    is what a wave takes to issue its instructions if it were alone (chains.py). `dual_cu` says that
    workgroups may use both compute units of a pair.
    """

    valu: int
    dot: int
    dot_integer: int
    dot_nibble: int
    packed: int
    transcendental: int
    quarter_rate: int
    fp64: int
    salu: int
    lds: int
    lds_cycles: int
    bytes_stored: int
    lines_requested: int
    lines_distinct: int
    waited_us: float
    leading_waits: float
    chain_clocks: float
    workgroups: int
    waves_per_group: int
    vgprs: int
    lds_bytes: int
    dual_cu: bool


@dataclass(frozen=True)
class Estimate:
    """Times in microseconds: `bounds` by resource, `start` and `drain` as in the module's text."""

    bounds: dict[str, float]
    start_us: float
    drain_us: float
    occupancy: float
    groups_resident: int
    launch_us: float = LAUNCH_US
    notes: tuple[str, ...] = field(default=())

    @property
    def bound_by(self) -> str:
        return max(self.bounds, key=self._until_the_end)

    @property
    def time_us(self) -> float:
        return self.start_us + max(map(self._until_the_end, self.bounds))

    def _until_the_end(self, name: str) -> float:
        return self.bounds[name] + (self.drain_us if name in MEMORY_BOUNDS else 0.0)


def estimate(work: Work, card: Card) -> Estimate:
    """The model. All bounds assume operands that come from DRAM once."""
    units = card.compute_units // 2 if work.dual_cu else card.compute_units
    simds = 4 if work.dual_cu else 2
    resident = groups_per_unit(work, simds)
    # The unit with the most workgroups decides, and in it the SIMD with the most waves.
    groups = ceil(work.workgroups / units)
    waves_per_simd = ceil(groups * work.waves_per_group / simds)
    waves = work.workgroups * work.waves_per_group
    clocks_per_us = card.clock_ghz * 1e3
    valu = vector_slots(work) / waves * waves_per_simd / clocks_per_us
    salu = work.salu / ISSUE_SCALAR / waves * waves_per_simd / clocks_per_us
    lds_units = 2 if work.dual_cu else 1
    lds_clocks = max(work.lds_cycles, LDS_ACCESS_CLOCKS * work.lds)
    lds = lds_clocks / work.workgroups * ceil(groups / lds_units) / clocks_per_us
    batches = ceil(groups / resident)
    chain = work.chain_clocks * batches / clocks_per_us
    bounds = {
        "dram": dram_us(work, card),
        "l2": work.lines_requested * LINE_BYTES / card.l2_gbs / 1e3,
        "valu": max(valu, salu, chain),
        "lds": lds,
        "latency": work.waited_us * batches,
    }
    return Estimate(
        bounds,
        start_us=work.leading_waits * DRAM_LATENCY_US,
        drain_us=_drain_us(work, waves, min(groups, resident), simds, clocks_per_us),
        occupancy=min(MAX_WAVES_PER_SIMD, resident * work.waves_per_group / simds),
        groups_resident=resident * units,
    )


def load_latency_us(waves: int) -> float:
    """What a load takes with so many waves in the launch: between an idle and a loaded card."""
    load = min(1.0, waves / LOADED_WAVES)
    return DRAM_LATENCY_US + (LOADED_LATENCY_US - DRAM_LATENCY_US) * load


def vector_slots(work: Work) -> float:
    """Clocks of one SIMD that all vector instructions take."""
    special = work.dot + work.packed + work.transcendental + work.quarter_rate + work.fp64
    plain = work.valu - special
    return (
        (plain + QUARTER_RATE_SLOTS * work.quarter_rate + FP64_SLOTS * work.fp64) / ISSUE_FMA
        + work.packed / ISSUE_PACKED
        + (work.dot - work.dot_integer) / ISSUE_DOT2
        + (work.dot_integer - work.dot_nibble) / ISSUE_DOT4
        + work.dot_nibble / ISSUE_DOT8
        + work.transcendental / ISSUE_TRANSCENDENTAL
    )


def dram_us(work: Work, card: Card) -> float:
    """Every line that the launch touched, once; stores at the rate of stores."""
    touched = work.lines_distinct * LINE_BYTES
    stored = min(work.bytes_stored, touched)
    read = touched - stored
    turns = min(read, stored) / (TURN_RATE * card.read_gbs)
    share = min(1.0, STREAM_SHARE * work.workgroups / STREAM_GROUPS)
    return (read / card.read_gbs + stored / card.write_gbs + turns) / share / 1e3


def groups_per_unit(work: Work, simds: int) -> int:
    """Workgroups that fit on a compute unit (or pair of them) at once."""
    by_vgprs = VGPRS_PER_SIMD // (max(1, ceil(work.vgprs / VGPR_STEP)) * VGPR_STEP)
    wave_slots = min(MAX_WAVES_PER_SIMD, by_vgprs) * simds
    fits = [wave_slots // work.waves_per_group, MAX_GROUPS_PER_CU * simds // 2]
    if work.lds_bytes:
        allocated = ceil(work.lds_bytes / LDS_STEP) * LDS_STEP
        fits.append(LDS_PER_CU * simds // 2 // allocated)
    return max(1, min(fits))


def _drain_us(work: Work, waves: int, groups: int, simds: int, clocks_per_us: float) -> float:
    """After the last data has arrived, the waves of a SIMD still execute what depends on it: the
    vector instructions of one round each."""
    rounds = work.waited_us / load_latency_us(waves)
    per_round = vector_slots(work) / waves / (rounds + 1)
    return per_round * ceil(groups * work.waves_per_group / simds) / clocks_per_us
