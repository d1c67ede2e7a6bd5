"""Counters of the int4 x int8 tile on the emulator: python -m benchmarks.w4a8 [--json] ...

One line per shape, group size and number of rows: vector instructions per multiply-add of the tile,
and of the quantisation of x per value; registers and spills, workgroups, LDS per vector cycles,
the time that the model gives for a card, quantisation and partial sums included, the time at the
card's dot4 peak, and the error against float64 on rounded and on exact activations. Counts are
exact for the compiler at hand; times are a model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks import counters
from benchmarks.dense import realistic
from rdna_jit.emulator.cards import CARDS
from rdna_jit.ops.linear import quantize_int8_grouped, w4a8_gemm

SHAPES = ((1024, 2560),)  # N, K
ROWS = (64, 256)
GROUPS = (128, 64, 32)
BOUNDS = {128: 0.30, 64: 0.33, 32: 0.40}  # vector instructions per multiply-add of the tile


@dataclass
class Row(counters.Row):
    """One measured call."""

    M: int
    N: int
    K: int
    group: int
    valu_per_mac: float
    valu_per_value: float
    vgprs: int
    spills: int
    waves_per_simd: int
    workgroups: int
    lds_share: float
    time_us: float
    peak_us: float
    rel_l2: float
    rel_l2_exact: float

    COLUMNS = (
        ("N x K", "{N:>6}x{K:<6}"), ("G", "{group:>4}"), ("M", "{M:>5}"),
        ("VALU/MAC", "{valu_per_mac:>9.4f}"), ("/value", "{valu_per_value:>7.1f}"),
        ("VGPRs", "{vgprs:>6}"), ("spills", "{spills:>7}"), ("w/SIMD", "{waves_per_simd:>7}"),
        ("grid", "{workgroups:>6}"), ("LDS", "{lds_share:>7.2f}"), ("us", "{time_us:>9.1f}"),
        ("peak", "{peak_us:>8.1f}"), ("rel L2", "{rel_l2:>9.1e}"),
        ("exact", "{rel_l2_exact:>9.1e}"),
    )  # fmt: skip


def measure(M: int, N: int, K: int, group: int, card: str) -> Row:
    """Profile the launches of one call and compare its result with float64."""
    weight = realistic(N, K, group)
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(1)).half()
    how = {"zero_offset": weight.zero_offset, "shuffled": True}
    plan = w4a8_gemm.plan(x, weight.qweight, weight.qzeros, weight.scales, **how)  # type: ignore
    quantize, tile, *combine = plan.launches
    groups = K // group
    codes = torch.empty(M, K, dtype=torch.int8)
    x_scale, x_sum = torch.empty(M, groups), torch.empty(M, groups, dtype=torch.int32)
    out = torch.full((M, N), torch.nan).half()
    target = torch.empty(tile.grid[2], M, N) if combine else out
    operands = (codes, x_scale, x_sum, weight.qweight, weight.qzeros, weight.scales, None)
    profiles = [
        quantize.kernel.profile(
            quantize.grid, quantize.block, x, codes, x_scale, x_sum, M * groups, card=card
        ),
        tile.kernel.profile(tile.grid, tile.block, *operands, target, M, card=card),
    ]
    for launch in combine:
        profiles.append(
            launch.kernel.profile(launch.grid, launch.block, target, None, out, M, card=card)
        )
    codes, scale, _ = quantize_int8_grouped(x, group)
    rounded = (codes.double().view(M, groups, group) * scale.double()[..., None]).flatten(1)
    w = weight.dequantize(torch.float64)
    bounds = profiles[1].estimate.bounds
    return Row(
        M,
        N,
        K,
        group,
        valu_per_mac=profiles[1].valu * 32 / (M * N * K),
        valu_per_value=profiles[0].valu * 32 / (M * K),
        workgroups=tile.grid[0] * tile.grid[1] * tile.grid[2],
        lds_share=bounds["lds"] / bounds["valu"],
        time_us=sum(profile.time_us for profile in profiles),
        peak_us=2 * M * N * K / CARDS[card].dot4_tops / 1e6,
        rel_l2=counters.errors(out, rounded @ w)[0],
        rel_l2_exact=counters.errors(out, x.double() @ w)[0],
        **counters.resources(tile.kernel),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = counters.options_of(__doc__, ROWS)
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, metavar="G")
    options = parser.parse_args(arguments)
    rows = (
        measure(M, N, K, group, options.card)
        for N, K in options.shape or SHAPES for group in options.groups for M in options.rows
    )  # fmt: skip
    counters.show(Row.head(), rows, options.json)


if __name__ == "__main__":
    main()
