"""Counters of the tiled MoE kernels on the emulator: python -m benchmarks.moe_tiled [--json] ...

Per layer, format and number of tokens one line for each launch and one for the whole. A layer's
tokens choose among all of its experts, of which a few are on this rank (`--experts`, 4): their
slots per expert are those of the whole layer, and so are all figures per multiplication. VALU:
vector instructions per multiplication and addition of a row that is multiplied, rows of padding
included (padded), and of a live slot (useful), over the whole kernel; the reference kernels take
2.1. Rates in TFLOPS likewise, by the model's time for the slice on a card, which few workgroups do
not fill. Errors are against float64. Counts are exact for the compiler at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from benchmarks import counters
from benchmarks.moe import LAYERS, Layer
from rdna_jit.emulator.profile import Profile
from rdna_jit.emulator.profiling import profiling
from rdna_jit.formats import MoEWeights
from rdna_jit.ops.moe_tiled import moe_tiled

TOKENS = (64, 256, 2048)
FORMATS = ("int4", "w4a8", "i8", "e4m3", "mxfp4", "f16")
PEER = 2.1  # vector instructions per useful multiplication of the forks' block kernels
STAGES = {
    "moe_align": "align", "moe_tile_gate_up": "gate_up", "moe_tile_down": "down",
    "moe_combine": "combine", "quantize_int8": "round x", "moe_w4a8_gate_up": "gate_up",
    "moe_w4a8_down": "down",
}  # fmt: skip


EXPERTS = {  # of the whole layer
    "flash-next": 512, "30b": 128, "30b-tp4": 128, "35b": 256, "122b": 256, "v4-flash-tp4": 256,
    "glm-tp4": 288,
}  # fmt: skip


@dataclass
class Row(counters.Row):
    """One launch, or all; bytes in MB (1e6)."""

    layer: str
    format: str
    M: int
    stage: str
    slots: int
    valu: int
    valu_padded: float = 0.0
    valu_useful: float = 0.0
    vgprs: int = 0
    spills: int = 0
    waves_per_simd: int = 0
    requested_mb: float = 0.0
    touched_mb: float = 0.0
    time_us: float = 0.0
    bound_by: str = ""
    tflops_padded: float = 0.0
    tflops_useful: float = 0.0
    rel_l2: float | None = None
    max_norm: float | None = None

    COLUMNS = (
        ("layer", "{layer:<13}"), ("", "{format:<6}"), ("M", "{M:>5}"), ("stage", " {stage:<8}"),
        ("slots", "{slots:>6}"), ("VALU", "{valu:>11}"), ("padded", "{valu_padded:>8.3f}"),
        ("useful", "{valu_useful:>8.3f}"), ("VGPRs", "{vgprs:>6}"), ("spills", "{spills:>7}"),
        ("w/SIMD", "{waves_per_simd:>7}"), ("req MB", "{requested_mb:>9.2f}"),
        ("MB", "{touched_mb:>8.2f}"), ("us", "{time_us:>9.2f}"), ("by", " {bound_by:<8}"),
        ("TF pad", "{tflops_padded:>7.2f}"), ("TF", "{tflops_useful:>7.2f}"),
        ("   rel L2      max", "{errors:<18}"),
    )  # fmt: skip


def routing(layer: Layer, M: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Uniform choices among all experts, E of them here."""
    g = torch.Generator().manual_seed(seed)
    table = torch.full((layer.E_g,), -1, dtype=torch.int32)
    table[torch.randperm(layer.E_g, generator=g)[: layer.E]] = torch.arange(layer.E).int()
    ids = torch.rand(M, layer.E_g, generator=g).argsort(1)[:, : layer.T]
    weights = torch.rand(M, layer.T, generator=g)
    return {"topk_ids": ids.int(), "topk_weights": weights, "expert_map": table}


def weights(layer: Layer, format: str) -> MoEWeights:
    g = torch.Generator().manual_seed(1)
    w1 = 0.05 * torch.randn(layer.E, 2 * layer.I, layer.H, generator=g)
    w2 = 0.05 * torch.randn(layer.E, layer.H, layer.I, generator=g)
    group = layer.G if format in ("int4", "i8") else -1
    block = (128, 128) if format == "e4m3" else None
    return MoEWeights.quantize(w1, w2, format, group, block=block)


def measure(layer: Layer, format: str, M: int, card: str, name: str = "") -> list[Row]:
    """Profile the launches of one call and compare the result with float64. "w4a8": int4 weights,
    activations rounded to int8."""
    w4a8 = format == "w4a8"
    stored = "int4" if w4a8 else format
    experts, routed = weights(layer, stored), routing(layer, M)
    x = torch.randn(M, layer.H, generator=torch.Generator().manual_seed(2)).half()
    call = {
        "hidden_states": x, **experts.tensors, **routed, "format": stored,
        "group_size": experts.group_size, "block": experts.block,
        "variant": "w4a8" if w4a8 else "auto",
    }  # fmt: skip
    local = routed["expert_map"][routed["topk_ids"].long()]
    slots = int((local >= 0).sum())
    plan = moe_tiled.plan(**call)  # type: ignore[attr-defined]
    with profiling() as profiles:
        y = moe_tiled(**call)  # type: ignore[arg-type]
    profiles = [Profile.from_launch(p.stats, card=card) for p in profiles]
    rows = []
    per_slot = {"gate_up": 2 * layer.I * layer.H, "down": layer.I * layer.H}
    padded = 0
    for launch, profile in zip(plan.launches, profiles, strict=True):
        stage = STAGES[launch.kernel.name]
        row = Row(
            name, format, M, stage, slots, profile.valu,
            **counters.resources(launch.kernel), **counters.figures(profile),
        )  # fmt: skip
        if stage in per_slot:
            # A dot is two multiplications in 32 lanes, or four.
            multiplied = profile.dot * (128 if w4a8 else 64)
            padded += multiplied
            _rates(row, multiplied, slots * per_slot[stage])
        rows.append(row)
    whole = Row(
        name, format, M, "layer", slots, sum(r.valu for r in rows),
        spills=sum(r.spills for r in rows), time_us=sum(r.time_us for r in rows),
        requested_mb=sum(r.requested_mb for r in rows),
        touched_mb=sum(r.touched_mb for r in rows),
    )  # fmt: skip
    _rates(whole, padded, slots * sum(per_slot.values()))
    whole.rel_l2, whole.max_norm = _errors(experts, x, routed["topk_weights"], local, y)
    return [*rows, whole]


def _rates(row: Row, multiplied: int, useful: int) -> None:
    row.valu_padded, row.valu_useful = row.valu * 32 / multiplied, row.valu * 32 / useful
    row.tflops_padded = 2 * multiplied / row.time_us / 1e6
    row.tflops_useful = 2 * useful / row.time_us / 1e6


def _errors(
    experts: MoEWeights, x: torch.Tensor, router: torch.Tensor, local: torch.Tensor, y: torch.Tensor
) -> tuple[float, float]:
    want = torch.zeros(y.shape, dtype=torch.float64)
    w1, w2 = experts.dequantize(torch.float64)
    for e in range(experts.E):
        m, j = (local == e).nonzero(as_tuple=True)
        gate, up = (x[m].double() @ w1[e].T).chunk(2, 1)
        act = (torch.nn.functional.silu(gate) * up).half().double()
        want.index_add_(0, m, router[m, j, None].double() * (act @ w2[e].T))
    return counters.errors(y, want)


def main(arguments: list[str] | None = None) -> None:
    parser = counters.plain_options(__doc__)
    parser.add_argument("--layer", nargs="+", default=["flash-next"], choices=(*LAYERS, "all"))
    parser.add_argument("--format", nargs="+", default=["int4"], choices=FORMATS)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--experts", type=int, default=4, help="of the layer, on this rank")
    options = parser.parse_args(arguments)
    peer = f"reference kernels: {PEER} vector instructions per useful multiplication"
    rows = (
        row
        for name in (LAYERS if "all" in options.layer else options.layer)
        for format in options.format for M in options.tokens
        for row in measure(
            replace(LAYERS[name], E=options.experts, E_g=EXPERTS[name]),
            format, M, options.card, name,
        )
    )  # fmt: skip
    counters.show(f"{peer}\n{Row.head()}", rows, options.json)


if __name__ == "__main__":
    main()
