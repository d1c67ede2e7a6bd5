"""The performance model against what owners of V620 cards measured and published.

    python -m benchmarks.calibration [--kernels] [--json]

Micro-kernels of the same shape as the published device measurements run on the emulator; the model
gives their time on a V620. Rates are taken between two sizes, so that a launch's start and end
play no part, as in a long measurement. `--kernels` adds int4 layers of this project beside the
published figures of other people's kernels for the same shapes: those are different programs, so
they say whether the model is plausible, not whether it is right.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rdna_jit import Template, emulator

if TYPE_CHECKING:
    from rdna_jit import Kernel, Profile

_FOLDER = Path(__file__).with_name("calibration_kernels")
_SIMDS = 144
_UNITS = 72
_LANES = 32


@dataclass(frozen=True)
class Row:
    """One figure: `predicted` by the model, `reported` by owners, in `unit`. `modelled` is False
    where the model leaves the effect out on purpose; `note` says why the two may differ."""

    group: str
    name: str
    unit: str
    reported: float
    predicted: float
    note: str = ""
    modelled: bool = True

    @property
    def ratio(self) -> float:
        return self.predicted / self.reported


@cache
def kernel(file: str, **values: object) -> Kernel:
    return Template.from_file(_FOLDER / f"{file}.hip").specialise(
        arch="gfx1030", options=("-mno-cumode", "-nogpuinc"), **values
    )


def between(launch: Callable[[int], Profile], low: int, high: int) -> float:
    """Microseconds that the work of `high` steps takes beyond that of `low`."""
    return launch(high).time_us - launch(low).time_us


# Memory
def stream_us(
    bytes_each: int,
    in_flight: int,
    groups: int,
    waves: int,
    *,
    read: bool = True,
    write: bool = False,
    stride: int = 1,
    cycle: int = 1 << 30,
    shared_by: int = 1,
    steps: tuple[int, int] = (4, 12),
) -> tuple[float, float]:
    """(bytes read or written that a lane asked for, microseconds) of the marginal steps."""
    block = waves * _LANES
    threads = groups * block // shared_by
    of_kernel = kernel(
        "stream", BYTES=bytes_each, IN_FLIGHT=in_flight, STRIDE=stride, BLOCK=block,
        READ=read, WRITE=write,
    )  # fmt: skip
    held = threads * in_flight * stride * bytes_each // 4 * min(cycle, steps[1])
    source, target = torch.zeros(held, dtype=torch.int32), torch.zeros(held, dtype=torch.int32)

    def launch(count: int) -> Profile:
        return of_kernel.profile(groups, block, source, target, count, cycle, threads)

    asked = groups * block * in_flight * bytes_each * (steps[1] - steps[0]) * (read + write)
    return asked, between(launch, *steps)


def gbs(figures: tuple[float, float]) -> float:
    return figures[0] / figures[1] / 1e3


def memory() -> Iterator[Row]:
    for size, reported in ((16, 506), (8, 506), (4, 495)):
        rate = gbs(stream_us(size, 4, 72, 8))
        yield Row("DRAM", f"read, {size}-byte loads", "GB/s", reported, rate)
    rate = gbs(stream_us(16, 4, 72, 8, read=False, write=True))
    yield Row("DRAM", "write", "GB/s", 447, rate)
    rate = gbs(stream_us(16, 4, 72, 8, write=True))
    yield Row("DRAM", "copy, both directions", "GB/s", 415, rate)
    for stride, reported in ((32, 15.79), (64, 15.62), (128, 7.82)):
        rate = gbs(stream_us(4, 1, 72, 8, stride=stride))
        note = "half of the memory channels: not modelled" if stride == 128 else ""
        yield Row(
            "DRAM", f"4 useful bytes every {4 * stride}", "GB/s", reported, rate, note, stride < 128
        )
    for groups, share in ((36, 0.965), (72, 0.998)):
        rate = gbs(stream_us(16, 4, groups, 8))
        yield Row("DRAM", f"read with {groups} workgroups", "GB/s", 506 * share, rate)
    # 16,384 threads with four 16-byte loads: 1 MB
    rate = gbs(stream_us(16, 4, 144, 16, cycle=1, shared_by=9, steps=(2, 6)))
    yield Row("caches", "L2, a set of 1 MB again and again", "GB/s", 9340, rate)
    rate = gbs(stream_us(16, 4, 72, 32, cycle=2, steps=(48, 64)))
    note = "a set above 4 MB comes from the Infinity Cache; re-reads count as L2 here"
    yield Row("caches", "9 MB again and again", "GB/s", 1890, rate, note, modelled=False)
    yield Row("caches", "dependent loads", "ns", 180.3, chase_ns())


def chase_ns() -> float:
    steps, line = 64, 32
    places = torch.arange(steps + 1, dtype=torch.int32) * line
    following = torch.zeros((steps + 1) * line, dtype=torch.int32)
    following[places[:-1].long()] = places[1:]
    out = torch.zeros(32, dtype=torch.int32)
    of_kernel = kernel("chase")
    us = between(lambda n: of_kernel.profile(1, 32, following, out, n), steps // 2, steps)
    return us * 1e3 / (steps // 2)


WAVES_AND_LOADS = {
    0.5: (136, 254, 433, 140),
    2: (486, 503, 506, 490),
    4: (503, 506, 506, 503),
    12: (506, 506, 506, 508),
}


def in_flight() -> Iterator[Row]:
    for per_simd, reported in WAVES_AND_LOADS.items():
        for loads, figure in zip((1, 2, 4, 8), reported, strict=True):
            waves = int(per_simd * _SIMDS / _UNITS)
            rate = gbs(stream_us(16, loads, _UNITS, waves, steps=(4, 8)))
            outlier = per_simd == 0.5 and loads == 8
            note = "published so; half of the figure for four loads in flight" if outlier else ""
            name = f"{per_simd:g} waves per SIMD, {loads} loads in flight"
            yield Row("in flight", name, "GB/s", figure, rate, note, modelled=not outlier)


# Issue
# Name, operations of one instruction and lane, reported, unit of 1e12 operations or issue rate.
CHAINS = (
    ("FMA", "v_fmac_f32", 2, 16.7),
    ("PK_FMA", "v_pk_fma_f16", 4, 33.9),
    ("DOT2", "v_dot2c_f32_f16", 4, 38.0),
    ("DOT4", "v_dot4c_i32_i8", 8, 64.2),
    ("DOT8", "v_dot8_i32_i4", 16, 133.7),
)


def chain_us(instruction: str) -> tuple[float, float]:
    """(wave instructions, microseconds) of eight chains on 8 waves per SIMD."""
    groups, waves, chains, steps = 144, 8, 8, (4, 12)
    out = torch.zeros(groups * 256, dtype=torch.int32)
    of_kernel = kernel("chain", INSTRUCTION=instruction, CHAINS=chains)

    def launch(count: int) -> Profile:
        return of_kernel.profile(groups, 256, out, count, 0x3C003C00, 0)

    return groups * waves * chains * 4 * (steps[1] - steps[0]), between(launch, *steps)


def issue() -> Iterator[Row]:
    for name, mnemonic, operations, reported in CHAINS:
        executed, us = chain_us(name)
        tera = executed * _LANES * operations / us / 1e6
        yield Row("issue", mnemonic, "Tops/s", reported, tera)
    executed, us = chain_us("EXP")
    rate = executed / us / 1e3 / 2.4 / _SIMDS
    yield Row("issue", "v_exp_f32", "per clock and SIMD", 0.191, rate)
    groups, weights, counts = 144, 32, (4, 12)
    out = torch.zeros(groups * 256)
    of_kernel = kernel("dequant", GROUP=weights)
    us = between(lambda n: of_kernel.profile(groups, 256, out, n, 8, 0.01), *counts)
    billions = groups * 256 * weights * (counts[1] - counts[0]) / us / 1e3
    note = "their instructions are not published: 4 per weight here"
    yield Row("issue", "int4 dequant chain, group 32", "G weights/s", 1907, billions, note)
    for through_lds, name, reported in ((False, "lane moves", 13.0), (True, "LDS", 26.1)):
        of_kernel = kernel("reduce", THROUGH_LDS=through_lds)
        out = torch.zeros(32)
        us = between(lambda n, k=of_kernel, o=out: k.profile(1, 32, o, n), 16, 48)
        note = "one wave, five clocks for each result that is used"
        note += "; the latency of LDS is not known" if through_lds else ""
        row = f"sum over a wave, {name}"
        yield Row("issue", row, "ns", reported, us * 1e3 / 32, note, modelled=False)


def lds() -> Iterator[Row]:
    """Time against that without conflicts."""
    reported = {2: 1.41, 4: 2.60, 8: 5.09, 16: 10.1, 32: 20.0}
    times = {ways: lds_us(ways) for ways in (1, *reported)}
    for ways, figure in reported.items():
        yield Row("LDS", f"{ways}-way conflict", "x", figure, times[ways] / times[1])


def lds_us(ways: int) -> float:
    out = torch.zeros(144 * 256, dtype=torch.int32)
    of_kernel = kernel("lds", WAYS=ways)
    return between(lambda n: of_kernel.profile(144, 256, out, n), 16, 64)


# Kernels
def gemv() -> Iterator[Row]:
    """A plain fp16 GEMV, beside the vendor library's."""
    n = k = 5120
    x, out = torch.zeros(k, dtype=torch.float16), torch.zeros(n)
    weights = torch.zeros(n, k, dtype=torch.float16)
    measured = kernel("gemv", K=k, IN_FLIGHT=4).profile(n // 8, 256, weights, x, out, n)
    rate = n * k * 2 / measured.time_us / 1e3
    yield Row(
        "kernels", "fp16 GEMV 5120 x 5120, M=1 (rocBLAS)", "GB/s", 443.9, rate, "other kernel"
    )


def int4_layers() -> Iterator[Row]:
    """This project's int4 kernels where others published a time for the shape."""
    from benchmarks import calibration_layers

    for name, unit, reported, predicted in calibration_layers.rows():
        yield Row("kernels", name, unit, reported, predicted, "other kernel")


def collect(kernels: bool) -> list[Row]:
    parts = [memory, in_flight, issue, lds, *([gemv, int4_layers] if kernels else [])]
    return [row for part in parts for row in part()]


def table(rows: Sequence[Row]) -> str:
    """Aligned text, a block per group, and the error over all that the model claims to cover."""
    lines = [f"{'':<42}{'unit':<20}{'reported':>9}{'predicted':>11}{'ratio':>7}"]
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            lines.append(group)
        figures = f"{row.reported:>9.4g}{row.predicted:>11.4g}{row.ratio:>7.2f}"
        note = f"  {row.note}" if row.note else ""
        lines.append(f"  {row.name:<40}{row.unit:<20}{figures}{note}")
    lines.append(summary(rows))
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    covered = [row for row in rows if row.modelled and row.group != "kernels"]
    errors = sorted(abs(math.log(row.ratio)) for row in covered)
    mean = math.exp(sum(errors) / len(errors)) - 1
    worst = max(covered, key=lambda row: abs(math.log(row.ratio)))
    return (
        f"{len(covered)} figures that the model covers: mean error {mean:.1%}, median "
        f"{math.exp(errors[len(errors) // 2]) - 1:.1%}, worst {worst.ratio:.2f} ({worst.name})"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernels", action="store_true", help="also whole layers (slower)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    with emulator.modes(threads=None):
        rows = collect(arguments.kernels)
    if arguments.json:
        report: dict[str, Any] = {"rows": [{**asdict(r), "ratio": r.ratio} for r in rows]}
        print(json.dumps({**report, "summary": summary(rows)}))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
