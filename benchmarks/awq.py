"""Counters of int4 layers in AWQ's order on the emulator: python -m benchmarks.awq [--json] ...

The columns of benchmarks.dense, for awq_gemm on the same weights.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import torch

from benchmarks.dense import HEAD, SHAPES, Row, _weight_load_bytes, realistic
from rdna_jit.emulator.cards import CARDS
from rdna_jit.formats import gptq_to_awq, gptq_unshuffle, pack_zeros, unpack_zeros
from rdna_jit.ops.linear import awq_gemm

ROWS = (1, 2, 4, 8, 16)
GROUPS = (128, 32)
# Vector instructions per weight that a (group, rows) may take.
BOUNDS = {
    (128, 1): 1.9, (128, 2): 2.45, (128, 4): 3.45, (128, 8): 5.55, (32, 1): 2.0, (32, 8): 5.8,
}  # fmt: skip


def measure(N: int, K: int, group: int, M: int, card: str) -> Row:
    """Profile one decode call and compare its result with float64."""
    weight = realistic(N, K, group)
    zeros = pack_zeros(unpack_zeros(weight.qzeros, weight.zero_offset), 0)  # type: ignore[arg-type]
    words, zeros = gptq_to_awq(gptq_unshuffle(weight.qweight), zeros)
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(1)).half()
    plan = awq_gemm.plan(x, words, zeros, weight.scales)  # type: ignore[attr-defined]
    (launch,) = plan.launches
    out = torch.full((M, N), torch.nan).half()
    args = (x, words, zeros, weight.scales, None, out, M)
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
            for M in options.rows:
                row = measure(N, K, group, M, options.card)
                print(json.dumps(asdict(row)) if options.json else row.line, flush=True)


if __name__ == "__main__":
    main()
