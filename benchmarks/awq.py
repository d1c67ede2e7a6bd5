"""Counters of int4 layers in AWQ's order on the emulator: python -m benchmarks.awq [--json] ...

The columns of benchmarks.dense, for awq_gemm on the same weights.
"""

from __future__ import annotations

import torch

from benchmarks import counters
from benchmarks.dense import SHAPES, Row, realistic, row_of
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
    (launch,) = awq_gemm.plan(x, words, zeros, weight.scales).launches  # type: ignore[attr-defined]
    return row_of(launch, (x, words, zeros, weight.scales, None), weight, BOUNDS, card)


def main(arguments: list[str] | None = None) -> None:
    parser = counters.options_of(__doc__, ROWS)
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, metavar="G")
    options = parser.parse_args(arguments)
    rows = (
        measure(N, K, group, M, options.card)
        for N, K in options.shape or SHAPES for group in options.groups for M in options.rows
    )  # fmt: skip
    counters.show(Row.head(), rows, options.json)


if __name__ == "__main__":
    main()
