"""What fused_moe chooses by, against the emulator: python -m benchmarks.moe_layer [--json] ...

Per format and number of tokens: the time of the decode and of the tile kernels as estimated,
without knowing the routing, and by the emulator's model of the launches on a V620, which knows it,
both in us with launches; and which kernels `variant="auto"` takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks import counters
from rdna_jit.dispatch import plan_of
from rdna_jit.emulator.profiling import profiling
from rdna_jit.formats import MoEWeights
from rdna_jit.ops import _moe_cost as cost
from rdna_jit.ops.moe import fused_moe

TOKENS = (1, 4, 16, 20, 64)
FORMATS = ("int4", "e4m3")
EXPERTS, CHOICES, HIDDEN, INTERMEDIATE, GROUP = 16, 2, 2048, 768, 128


@dataclass
class Row(counters.Row):
    """Times in us."""

    format: str
    M: int
    decode_us: float
    decode_estimate: float
    tiled_us: float
    tiled_estimate: float
    chosen: str

    COLUMNS = (
        ("format", "{format:<7}"), ("M", "{M:>4}"), ("decode", "{decode_us:>10.1f}"),
        ("estimate", "{decode_estimate:>10.1f}"), ("tiled", "{tiled_us:>10.1f}"),
        ("estimate", "{tiled_estimate:>10.1f}"), ("chosen", "  {chosen:<7}"),
    )  # fmt: skip


def measure(format: str, tokens: tuple[int, ...]) -> Iterator[Row]:
    """One row for each number of tokens."""
    g = torch.Generator().manual_seed(0)
    w1 = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, generator=g)
    w2 = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=g)
    grouped = format in ("int4", "i8")
    weights = MoEWeights.quantize(w1 * 0.02, w2 * 0.02, format, GROUP if grouped else -1)
    for M in tokens:
        x = torch.randn(M, HIDDEN, generator=g).half()
        ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:CHOICES] for _ in range(M)]).int()
        operands = (x, weights, torch.rand(M, CHOICES, generator=g), ids)
        times = []
        for variant in ("decode", "tiled"):
            with profiling() as profiles:
                fused_moe(*operands, variant=variant)
            times.append(sum(p.time_us + cost.LAUNCH_US for p in profiles))
        layer = cost.Layer(
            format, M, CHOICES, HIDDEN, INTERMEDIATE, EXPERTS, EXPERTS, weights.nbytes / EXPERTS
        )
        estimates = cost.decode_us(layer), cost.tiled_us(layer)
        chosen = plan_of(fused_moe, *operands).kernel
        yield Row(format, M, times[0], estimates[0], times[1], estimates[1], chosen)


def main(arguments: list[str] | None = None) -> None:
    parser = counters.plain_options(__doc__, card=False)
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS, metavar="M")
    parser.add_argument("--format", nargs="*", default=FORMATS, help="of MoEWeights")
    options = parser.parse_args(arguments)
    rows = (row for format in options.format for row in measure(format, tuple(options.tokens)))
    counters.show(Row.head(), rows, options.json)


if __name__ == "__main__":
    main()
