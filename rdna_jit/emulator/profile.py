"""What a launch did, counted exactly, and how long a card would take for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rdna_jit.emulator import model, report
from rdna_jit.emulator.cards import Card
from rdna_jit.emulator.cards import card as find_card
from rdna_jit.emulator.chains import block_clocks
from rdna_jit.emulator.classes import COUNTERS, FINE_COUNTERS

if TYPE_CHECKING:
    from rdna_jit.emulator.machine import LaunchStats

_WGP_MODE = 1 << 29


@dataclass(frozen=True)
class HotSpot:
    """One instruction: how often waves executed it, and its share of the issue clocks."""

    pc: int
    text: str
    source: str
    count: int
    share: float

    def __str__(self) -> str:
        return f"{self.share:6.1%} {self.count:>12,}  {self.pc:#06x}  {self.text}  {self.source}"


@dataclass(frozen=True)
class SourceLine:
    """One source line: wave instructions executed for it, and its share of the issue clocks."""

    source: str
    count: int
    share: float

    def __str__(self) -> str:
        return f"{self.share:6.1%} {self.count:>12,}  {self.source}"


@dataclass(frozen=True, order=True)
class BlockRow:
    """One basic block: its address, how often it ran, its instructions, its mean active lanes
    over vector instructions (0 when it has none)."""

    pc: int
    executions: int
    instructions: int
    mean_lanes: float


@dataclass(frozen=True, repr=False)
class Profile:
    """Counters of one launch and the model's times for one card.

    Counters are wave instructions by class: `valu` with its subsets `dot`, `packed`,
    `transcendental` and `quarter_rate`; `salu`, `smem`, `vmem_load`, `vmem_store`, `atomic`,
    `lds`, `branch`, `barrier`, `wait`, `scratch`. `waves` counts waves, `active_lanes` sums the
    active lanes of `valu` instructions. `bytes_loaded` and `bytes_stored` are active lanes times
    size (scalar loads included, scratch not, atomics as stored); `lines_requested` and
    `lines_distinct` are 128-byte lines per access and over the launch; `lds_bank_conflicts` are
    LDS cycles beyond those without conflicts.

    `time_us` is the estimate without the launch itself (`launch_us`), `floor_us` what the operands
    take at the card's bandwidth, `bound_by` the resource that decides, `occupancy` the waves that
    fit on a SIMD.
    """

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    card: Card
    counters: dict[str, int]
    estimate: model.Estimate
    floor_us: float
    stats: LaunchStats = field(repr=False, compare=False)

    @classmethod
    def from_launch(
        cls, stats: LaunchStats, card: str | Card = "V620", operand_bytes: int | None = None
    ) -> Profile:
        """The profile of a launch made with `profile=True`. `operand_bytes` are the bytes of all
        operands, each once; without it the touched lines stand for them."""
        found = find_card(card)
        counters = _count(stats)
        estimate = model.estimate(_work(stats, counters), found)
        floor = operand_bytes
        if floor is None:
            floor = counters["lines_distinct"] * model.LINE_BYTES
        return cls(
            stats.program.info.name,
            stats.program.code_object.arch,
            stats.geometry.grid,
            stats.geometry.block,
            found,
            counters,
            estimate,
            floor / found.read_gbs / 1e3,
            stats,
        )

    def __getattr__(self, name: str) -> int:
        counters = self.__dict__.get("counters", {})
        if name in counters:
            return int(counters[name])
        raise AttributeError(f"a profile has no {name!r}")

    @property
    def time_us(self) -> float:
        return self.estimate.time_us

    @property
    def launch_us(self) -> float:
        return self.estimate.launch_us

    @property
    def bound_by(self) -> str:
        return self.estimate.bound_by

    @property
    def occupancy(self) -> float:
        return self.estimate.occupancy

    @property
    def mean_lanes(self) -> float:
        """Active lanes of a vector instruction, of 32."""
        return self.active_lanes / self.valu if self.valu else 0.0

    # Where
    @cached_property
    def blocks(self) -> list[BlockRow]:
        """Every basic block of the kernel, by address."""
        rows = []
        blocks = self.stats.executable.blocks
        for block, n, lanes in zip(blocks, self.stats.counts, self.stats.lanes, strict=True):
            vector = n * block.counts.get("valu", 0)
            rows.append(
                BlockRow(block.pc, n, block.instructions, lanes / vector if vector else 0.0)
            )
        return sorted(rows)

    def hot(self, count: int = 10) -> list[HotSpot]:
        """The instructions that take the most issue clocks, most first."""
        spots = sorted(self._instructions(), key=lambda spot: -spot.share)
        return spots[:count]

    def lines(self, count: int | None = None) -> list[SourceLine]:
        """Source lines by their share of issue clocks; empty names without a line table."""
        counts: dict[str, int] = {}
        shares: dict[str, float] = {}
        for spot in self._instructions():
            counts[spot.source] = counts.get(spot.source, 0) + spot.count
            shares[spot.source] = shares.get(spot.source, 0.0) + spot.share
        rows = [SourceLine(source, counts[source], shares[source]) for source in counts]
        return sorted(rows, key=lambda row: -row.share)[:count]

    def _instructions(self) -> Iterator[HotSpot]:
        program = self.stats.program
        blocks = zip(self.stats.executable.blocks, self.stats.counts, strict=True)
        starts = {block.pc: n for block, n in blocks}
        executed, weights = 0, []
        for i in program.code:
            executed = starts.get(i.address, executed)
            weights.append((i, executed, executed * report.issue_clocks(i.mnemonic)))
        total = sum(weight for _, _, weight in weights) or 1.0
        for i, n, weight in weights:
            source = program.source_at(i.address)
            yield HotSpot(i.address, i.text, source, n, weight / total)

    # Presentation
    def to_dict(self) -> dict[str, object]:
        """Counters, times and bounds as plain values."""
        return {
            "kernel": self.kernel,
            "arch": self.arch,
            "grid": list(self.grid),
            "block": list(self.block),
            "card": self.card.name,
            **self.counters,
            "time_us": self.time_us,
            "launch_us": self.launch_us,
            "floor_us": self.floor_us,
            "bound_by": self.bound_by,
            "occupancy": self.occupancy,
            "bounds_us": dict(self.estimate.bounds),
            "start_us": self.estimate.start_us,
            "drain_us": self.estimate.drain_us,
        }

    def __repr__(self) -> str:
        return (
            f"<Profile of {self.kernel}: {self.time_us:.2f} us on a {self.card.name}, "
            f"bound by {self.bound_by}>"
        )

    def __str__(self) -> str:
        return report.text(self)

    def _repr_html_(self) -> str:
        return report.html(self)

    def plot(self) -> report.Svg:
        """A roofline: the card's roofs, the kernel's place under them, its floor and its bound."""
        return report.roofline(self)


def _count(stats: LaunchStats) -> dict[str, int]:
    counters = dict.fromkeys((*COUNTERS, *FINE_COUNTERS), 0)
    for block, n in zip(stats.executable.blocks, stats.counts, strict=True):
        for name, k in block.counts.items():
            counters[name] += n * k
    counters["waves"] = stats.geometry.workgroups * stats.geometry.waves
    counters["active_lanes"] = sum(stats.lanes)
    extra = ("bytes_loaded", "bytes_stored", "lines_requested", "lds_cycles", "lds_bank_conflicts")
    counters.update(dict.fromkeys(extra, 0))
    for site, (nbytes, units, conflicts) in zip(stats.executable.sites, stats.traffic, strict=True):
        if site.space == "lds":
            counters["lds_cycles"] += units
            counters["lds_bank_conflicts"] += conflicts
        elif site.space != "scratch":
            counters["bytes_loaded" if site.access == "load" else "bytes_stored"] += nbytes
            counters["lines_requested"] += units
    counters["lines_distinct"] = stats.lines_touched
    return counters


def _work(stats: LaunchStats, counters: dict[str, int]) -> model.Work:
    info, waves = stats.program.info, counters["waves"]
    names = (
        "valu", "dot", "dot_integer", "dot_nibble", "packed", "transcendental", "quarter_rate",
        "fp64", "salu", "lds", "lds_cycles", "bytes_stored", "lines_requested", "lines_distinct",
    )  # fmt: skip
    return model.Work(
        **{name: counters[name] for name in names},
        waited_us=stats.waited_ns / waves / 1e3,
        chain_clocks=_chain_clocks(stats) / waves,
        leading_waits=stats.leading_ns / waves / 1e3 / model.load_latency_us(waves),
        workgroups=stats.geometry.workgroups,
        waves_per_group=stats.geometry.waves,
        vgprs=info.resources.vgprs,
        lds_bytes=info.descriptor.lds_bytes + stats.geometry.dynamic_lds,
        dual_cu=bool(info.descriptor.rsrc1 & _WGP_MODE),
    )


def _chain_clocks(stats: LaunchStats) -> int:
    """Clocks that all waves take to issue their blocks, each wave alone."""
    code = sorted(stats.program.code, key=lambda i: i.address)
    addresses = [i.address for i in code]
    total = 0
    for block, n in zip(stats.executable.blocks, stats.counts, strict=True):
        if n:
            first = bisect_left(addresses, block.pc)
            total += n * block_clocks(code[first : first + block.instructions])
    return total
