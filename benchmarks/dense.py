"""Counters of the dense int4 kernels on the emulator: python -m benchmarks.dense [--json] ...

One line per shape, group size and number of rows: vector instructions per weight over the whole
kernel beside its bound, registers and spills, bytes of weights per lane and load, workgroups and
waves, bytes requested and touched, the time that the model gives for a card over the time that
the operands need from memory (floor), and the error against float64. Counts are exact for the
compiler at hand; times are a model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks import counters
from rdna_jit.dispatch import Launch
from rdna_jit.emulator.cards import CARDS
from rdna_jit.formats import Int4Weight, pack_gptq, pack_int4, pack_zeros
from rdna_jit.ops.linear import gptq_gemm

Tensor = torch.Tensor
SHAPES = ((2560, 1536), (4096, 2560), (5120, 5120))  # N, K
ROWS = (1, 2, 4, 8, 16)
GROUPS = (128, 32)
# Vector instructions per weight that a (group, rows) may take.
BOUNDS = {(128, 1): 1.75, (128, 2): 2.3, (128, 4): 3.3, (128, 8): 5.4, (32, 1): 1.85, (32, 8): 5.65}


@dataclass
class Row(counters.Row):
    """One measured launch; bytes in MB (1e6)."""

    N: int
    K: int
    group: int
    M: int
    valu_per_weight: float
    bound: float | None
    vgprs: int
    spills: int
    load_bytes: int
    workgroups: int
    waves: int
    waves_per_simd: int
    requested_mb: float
    touched_mb: float
    time_us: float
    floor_us: float
    bound_by: str
    rel_l2: float
    max_norm: float

    COLUMNS = (
        ("N x K", "{N:>6}x{K:<6}"), ("G", "{group:>4}"), ("M", "{M:>4}"),
        ("VALU/w", "{valu_per_weight:>8.3f}"), ("bound", "{limit:>7}"), ("VGPRs", "{vgprs:>6}"),
        ("spills", "{spills:>7}"), ("load", "{load_bytes:>6}"),
        ("grid", "{workgroups:>7}x{waves:<3}"), ("w/SIMD", "{waves_per_simd:>7}"),
        ("req MB", "{requested_mb:>9.2f}"),
        ("MB", "{touched_mb:>8.2f}"), ("us", "{time_us:>9.2f}"), ("/floor", "{ratio:>7.2f}"),
        ("by", " {bound_by:<8}"), ("rel L2", "{rel_l2:>9.1e}"), ("max", "{max_norm:>9.1e}"),
    )  # fmt: skip


def realistic(N: int, K: int, group: int, seed: int = 0) -> Int4Weight:
    """Codes around the middle, zeros 7..9 stored minus one, scales 0.005..0.015."""
    g = torch.Generator().manual_seed(seed)
    codes = (8 + 2.8 * torch.randn(K, N, generator=g)).round().clamp(0, 15).to(torch.uint8)
    zeros = torch.randint(7, 10, (K // group, N), generator=g).to(torch.uint8)
    scales = (0.005 + 0.01 * torch.rand(K // group, N, generator=g)).half()
    return pack_gptq(pack_int4(codes), pack_zeros(zeros, 1), scales, zero_offset=1)


def measure(weight: Int4Weight, M: int, card: str) -> Row:
    """Profile one call on the emulator and compare its result with float64."""
    x = torch.randn(M, weight.K, generator=torch.Generator().manual_seed(1)).half()
    (launch,) = gptq_gemm.plan(x, weight).launches  # type: ignore[attr-defined]
    operands = (x, weight.qweight, weight.qzeros, weight.scales, weight.perm, None)
    return row_of(launch, operands, weight, BOUNDS, card)


def row_of(
    launch: Launch,
    operands: tuple[Tensor | None, ...],
    weight: Int4Weight,
    bounds: dict[tuple[int, int], float],
    card: str,
) -> Row:
    """The launch of a decode kernel on `operands`, x first, that stand for `weight`."""
    x, N, K = operands[0], weight.N, weight.K
    assert x is not None and isinstance(launch.grid, tuple) and isinstance(launch.block, int)
    M, group = len(x), weight.group_size
    out = torch.full((M, N), torch.nan).half()
    profile = launch.kernel.profile(launch.grid, launch.block, *operands, out, M, card=card)
    rel_l2, max_norm = counters.errors(out, x.double() @ weight.dequantize(torch.float64))
    return Row(
        N,
        K,
        group,
        M,
        valu_per_weight=profile.valu * 32 / (N * K),
        bound=bounds.get((group, M)),
        load_bytes=counters.widest_load(launch.kernel),
        workgroups=launch.grid[0] * launch.grid[1],
        waves=launch.block // 32,
        floor_us=(weight.nbytes + x.nbytes + out.nbytes) / CARDS[card].read_gbs / 1e3,
        rel_l2=rel_l2,
        max_norm=max_norm,
        **counters.resources(launch.kernel),
        **counters.figures(profile),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = counters.options_of(__doc__, ROWS)
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, metavar="G")
    options = parser.parse_args(arguments)
    layers = (
        realistic(N, K, group) for N, K in options.shape or SHAPES for group in options.groups
    )
    rows = (measure(layer, M, options.card) for layer in layers for M in options.rows)
    counters.show(Row.head(), rows, options.json)


if __name__ == "__main__":
    main()
