"""Counters of the dense int4 kernels on the emulator: python -m benchmarks.dense [--json] ...

One line per shape, group size and number of rows: vector instructions per weight over the whole
kernel beside its bound, registers and spills, bytes of weights per lane and load, workgroups and
waves, bytes requested and touched, the time that the model gives for a card over the time that
the operands need from memory (floor), and the error against float64. Counts are exact for the
compiler at hand; times are a model's.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, dataclass

import torch

from rdna_jit.emulator.cards import CARDS
from rdna_jit.formats import Int4Weight, pack_gptq, pack_int4, pack_zeros
from rdna_jit.ops.linear import gptq_gemm

SHAPES = ((2560, 1536), (4096, 2560), (5120, 5120))  # N, K
ROWS = (1, 2, 4, 8, 16)
GROUPS = (128, 32)
# Vector instructions per weight that a (group, rows) may take.
BOUNDS = {(128, 1): 1.75, (128, 2): 2.3, (128, 4): 3.3, (128, 8): 5.4, (32, 1): 1.85, (32, 8): 5.65}


@dataclass
class Row:
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

    @property
    def line(self) -> str:
        limit = f"<={self.bound:g}" if self.bound else ""
        return (
            f"{self.N:>6}x{self.K:<6}{self.group:>4}{self.M:>4}{self.valu_per_weight:>8.3f}"
            f"{limit:>7}{self.vgprs:>6}{self.spills:>7}{self.load_bytes:>6}"
            f"{self.workgroups:>7}x{self.waves:<3}{self.waves_per_simd:>6}"
            f"{self.requested_mb:>9.2f}{self.touched_mb:>8.2f}{self.time_us:>9.2f}"
            f"{self.time_us / self.floor_us:>7.2f} {self.bound_by:<8}"
            f"{self.rel_l2:>9.1e}{self.max_norm:>9.1e}"
        )


HEAD = (
    f"{'N x K':>13}{'G':>4}{'M':>4}{'VALU/w':>8}{'bound':>7}{'VGPRs':>6}{'spills':>7}{'load':>6}"
    f"{'grid':>11}{'w/SIMD':>6}{'req MB':>9}{'MB':>8}{'us':>9}{'/floor':>7} {'by':<8}"
    f"{'rel L2':>9}{'max':>9}"
)


def realistic(N: int, K: int, group: int, seed: int = 0) -> Int4Weight:
    """Codes around the middle, zeros 7..9 stored minus one, scales 0.005..0.015."""
    g = torch.Generator().manual_seed(seed)
    codes = (8 + 2.8 * torch.randn(K, N, generator=g)).round().clamp(0, 15).to(torch.uint8)
    zeros = torch.randint(7, 10, (K // group, N), generator=g).to(torch.uint8)
    scales = (0.005 + 0.01 * torch.rand(K // group, N, generator=g)).half()
    return pack_gptq(pack_int4(codes), pack_zeros(zeros, 1), scales, zero_offset=1)


def measure(weight: Int4Weight, M: int, card: str) -> Row:
    """Profile one call on the emulator and compare its result with float64."""
    K, N, group = weight.K, weight.N, weight.group_size
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(1)).half()
    plan = gptq_gemm.plan(x, weight)  # type: ignore[attr-defined]
    launch = plan.launches[0]
    out = torch.full((M, N), torch.nan).half()
    args = (x, weight.qweight, weight.qzeros, weight.scales, weight.perm, None, out, M)
    profile = launch.kernel.profile(launch.grid, launch.block, *args, card=card)
    resources = launch.kernel.resources
    want = x.double() @ weight.dequantize(torch.float64)
    error = (out.double() - want).abs()
    operands = weight.nbytes + x.nbytes + out.nbytes
    return Row(
        N,
        K,
        group,
        M,
        valu_per_weight=profile.valu * 32 / (N * K),
        bound=BOUNDS.get((group, M)),
        vgprs=resources.vgprs,
        spills=resources.vgpr_spills + resources.sgpr_spills,
        load_bytes=_weight_load_bytes(launch.kernel.isa()),
        workgroups=launch.grid[0] * launch.grid[1],
        waves=launch.block // 32,
        waves_per_simd=resources.waves_per_simd,
        requested_mb=profile.bytes_loaded / 1e6,
        touched_mb=profile.lines_distinct * 128 / 1e6,
        time_us=profile.time_us,
        floor_us=operands / CARDS[card].read_gbs / 1e3,
        bound_by=profile.bound_by,
        rel_l2=float(error.norm() / want.norm()),
        max_norm=float(error.max() / want.abs().max()),
    )


def _weight_load_bytes(isa: str) -> int:
    """Bytes per lane of the widest vector load: the weights'."""
    widths = re.findall(r"global_load_dword(?:x(\d))?\b", isa)
    return 4 * max((int(width or 1) for width in widths), default=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--card", default="V620", choices=sorted(CARDS))
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, metavar="M")
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, metavar="G")
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("N", "K"))
    options = parser.parse_args(arguments)
    if not options.json:
        print(HEAD)
    for N, K in options.shape or SHAPES:
        for group in options.groups:
            weight = realistic(N, K, group)
            for M in options.rows:
                row = measure(weight, M, options.card)
                print(json.dumps(asdict(row)) if options.json else row.line, flush=True)


if __name__ == "__main__":
    main()
