"""Counters of the tiled kernels on the emulator: python -m benchmarks.prefill [--json] ...

One line per form of the operands, shape and number of rows: vector instructions per product over
both launches (0.5 are the dots), registers and spills, workgroups and how many share K, waves that
fit on a SIMD, what the model gives for a card as the time of the vector units, of LDS, of memory
and of both launches in all, over the time that dots and operands alone need (floor), what bounds
the first launch, and the error against float64. Counts are exact for the compiler at hand; times
are a model's. `--slice` cuts N and runs the tiles that the whole layer would run: its times are the
slice's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks import counters, gemv
from benchmarks.dense import realistic
from rdna_jit.dispatch import Plan
from rdna_jit.emulator.cards import CARDS
from rdna_jit.emulator.model import ISSUE_DOT2
from rdna_jit.formats import gptq_to_awq, gptq_unshuffle
from rdna_jit.ops._dense_int4 import Int4Call
from rdna_jit.ops._dense_tile import TileLaunch, plan_int4, plan_rows

Tensor = torch.Tensor
SHAPES = ((2560, 1536), (4096, 2560), (5120, 5120))  # N, K
ROWS = (64, 256, 512)
INT4 = {"int4": 128, "int4 G=32": 32, "awq": 128}  # form and group
FORMS = (*INT4, *gemv.FORMS)
# Vector instructions per product that a form may take, of 64 rows or more.
MOST = {
    "int4": 0.56,
    "int4 G=32": 0.59,
    "awq": 0.575,
    "f16": 0.52,
    "i8": 0.56,
    "i8 G=128": 0.57,
    "e4m3": 0.585,
    "e4m3 128^2": 0.59,
    "e5m2": 0.535,
    "w8a8": 0.61,
    "w8a8 128^2": 0.62,
    "mxfp4": 0.605,
}


@dataclass
class Row(counters.Row):
    """One measured call; `valu_us`, `lds_us`, `dram_us` and `bound_by` are of the first launch."""

    form: str
    N: int
    K: int
    M: int
    valu_per_mac: float
    vgprs: int
    spills: int
    workgroups: int
    splits: int
    waves_per_simd: int
    valu_us: float
    lds_us: float
    dram_us: float
    time_us: float
    floor_us: float
    bound_by: str
    rel_l2: float

    COLUMNS = (
        ("form", "{form:<11}"), ("N x K", "{N:>6}x{K:<6}"), ("M", "{M:>5}"),
        ("VALU", "{valu_per_mac:>8.4f}"), ("VGPRs", "{vgprs:>6}"), ("spills", "{spills:>7}"),
        ("grid/K", "{workgroups:>6} /{splits:<3}"), ("w/SIMD", "{waves_per_simd:>7}"),
        ("valu us", "{valu_us:>9.1f}"), ("lds us", "{lds_us:>9.1f}"),
        ("dram us", "{dram_us:>9.1f}"), ("us", "{time_us:>9.1f}"), ("/floor", "{ratio:>7.2f}"),
        ("by", " {bound_by:<8}"), ("rel L2", "{rel_l2:>9.1e}"),
    )  # fmt: skip


@dataclass
class Case:
    """A plan for the whole layer, and operands of the columns that are measured."""

    plan: Plan
    operands: tuple[Tensor | None, ...]
    exact: Tensor  # x W, float64


def int4_case(form: str, N: int, K: int, M: int, columns: int) -> Case:
    group, awq = INT4[form], form == "awq"
    call = Int4Call(
        M, N, K, group, shuffled=True, zeros="packed", zero_offset=0 if awq else 1, x_stride=K,
        w_stride=columns // 8 if awq else columns, z_stride=columns // 8, s_stride=columns,
        out_stride=columns,
    )  # fmt: skip
    weight = realistic(columns, K, group)
    words, zeros = weight.qweight, weight.qzeros
    if awq:
        assert zeros is not None
        # Stored zeros are 6..8, one less than they mean.
        words, zeros = gptq_to_awq(gptq_unshuffle(words), zeros + 0x11111111)
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(1)).half()
    exact = x.double() @ weight.dequantize(torch.float64)
    operands = (x, words, zeros, weight.scales, None)
    return Case(plan_int4(form, call, awq=awq), operands, exact)


def rows_case(form: str, N: int, K: int, M: int, columns: int) -> Case:
    format, x_format, blocks = gemv.FORMS[form]
    g = torch.Generator().manual_seed(0)
    side = gemv.BLOCK if format in ("e4m3", "e5m2") else 1
    w = gemv.operand(
        format, 0.05 * torch.randn(columns, K, generator=g), (side, gemv.BLOCK) if blocks else None
    )
    x = gemv.operand(x_format, torch.randn(M, K, generator=g), (1, gemv.BLOCK) if blocks else None)
    plan = plan_rows(form, gemv.describe(form, N, K, M), 8)
    return Case(plan, (x.codes, w.codes, w.scale, x.scale), x.exact @ w.exact.T)


def measure(form: str, N: int, K: int, M: int, card: str, columns: int | None = None) -> Row:
    """Profile both launches of a call; `columns`: of N, those measured."""
    columns = min(columns or N, N)
    case = (int4_case if form in INT4 else rows_case)(form, N, K, M, columns)
    splits = case.plan.launches[0].grid[2]  # type: ignore[index]
    out = torch.full((M, columns), torch.nan).half()
    parts = torch.full((splits, M, columns), torch.nan) if splits > 1 else out
    operands = [(*case.operands, None, parts, M), (parts, None, out, M)]
    profiles, kernels = [], []
    for launch, args in zip(case.plan.launches, operands, strict=False):
        if isinstance(launch, TileLaunch):
            args = (*args, launch.slice)
        values = dict(launch.kernel.values) | {"N": columns}
        for stride in ("STRIDE", "OUT_STRIDE"):
            values |= {stride: columns} if stride in values else {}
        assert launch.kernel.spec is not None
        kernel = launch.kernel.spec.specialise(None, **values)
        kernels.append(kernel)
        grid = list(launch.grid)  # type: ignore[arg-type]
        grid[1] = -(-columns // (128 if len(grid) == 3 else 1024))
        profiles.append(kernel.profile(tuple(grid), launch.block, *args, card=card))
    tile, bounds = profiles[0], profiles[0].estimate.bounds
    found = CARDS[card]
    nbytes = out.nbytes + sum(t.nbytes for t in case.operands if t is not None)
    dots = M * columns * K / 64 / (2 * found.compute_units * found.clock_ghz * 1e3 * ISSUE_DOT2)
    return Row(
        form,
        columns,
        K,
        M,
        valu_per_mac=sum(p.valu for p in profiles) * 32 / (M * columns * K),
        workgroups=tile.grid[0] * tile.grid[1] * tile.grid[2],
        splits=splits,
        valu_us=bounds["valu"],
        lds_us=bounds["lds"],
        dram_us=bounds["dram"],
        floor_us=max(dots, nbytes / found.read_gbs / 1e3),
        time_us=sum(p.time_us for p in profiles),
        bound_by=tile.bound_by,
        rel_l2=counters.errors(out, case.exact)[0],
        **counters.resources(kernels[0]),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = counters.options_of(__doc__, ROWS)
    parser.add_argument("--form", nargs="*", default=tuple(FORMS), choices=tuple(FORMS))
    parser.add_argument("--slice", type=int, metavar="N", help="measure this many columns")
    options = parser.parse_args(arguments)
    rows = (
        measure(form, N, K, M, options.card, options.slice)
        for N, K in options.shape or SHAPES for form in options.form for M in options.rows
    )  # fmt: skip
    counters.show(Row.head(), rows, options.json)


if __name__ == "__main__":
    main()
