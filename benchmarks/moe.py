"""Counters of the MoE kernels on the emulator: python -m benchmarks.moe [--json] [--layers L ..] ..

Per format, layer and number of tokens one line for each launch and one for the whole: vector
instructions per 32 slot-weights (one weight of one live slot) over the whole kernel, registers and
spills, bytes of weights per lane and load, workgroups and waves, bytes requested, how often each
live weight was requested (ids and arguments counted in, about 1 %), bytes touched, the model's time
for a card over the time that the operands need from memory (floor), and the error against float64.
Counts are exact for the compiler at hand; times are a model's. Experts are capped at 16, which
changes no count per live slot: flash-next is a quarter of the layer under four-way expert
parallelism, a quarter of the slots live; of the other layers all slots are. `peer` is what the vLLM
RDNA2 forks' int4 kernels take for the same work, both products of a layer, compiled by clang and
counted alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch

from benchmarks import counters
from rdna_jit.emulator.cards import CARDS
from rdna_jit.emulator.profile import Profile
from rdna_jit.emulator.profiling import profiling
from rdna_jit.formats import moe as packing
from rdna_jit.formats.moe_weights import MoEWeights
from rdna_jit.ops.moe import moe_decode

TOKENS = (1, 4, 8, 16)
BOUNDS = {1: 60.0, 8: 46.0}  # vector instructions per 32 slot-weights, symmetric int4
PEERS = {1: 68.1, 8: 78.1}  # the forks' int4 kernels on flash-next: 0.98 M and 7.5 M in all
FORMATS = ("int4", "i8", "e4m3", "e5m2", "mxfp4", "f16")
_BITS = {"int4": 4, "mxfp4": 4, "f16": 16}


@dataclass(frozen=True)
class Layer:
    """Sizes of a layer on one rank."""

    H: int = 2560
    I: int = 640  # noqa: E741
    G: int = 128
    T: int = 10
    E: int = 16
    E_g: int = 64


LAYERS = {
    "flash-next": Layer(),
    "30b": Layer(2048, 768, 32, 8, 16, 16),
    "30b-tp4": Layer(2048, 192, 32, 8, 16, 16),
    "35b": Layer(2048, 512, 32, 8, 16, 16),
    "122b": Layer(3072, 1024, 128, 8, 16, 16),
    "v4-flash-tp4": Layer(4096, 512, 32, 6, 16, 16),
    "glm-tp4": Layer(4096, 512, 128, 8, 16, 16),
}


@dataclass
class Row(counters.Row):
    """One launch, or all; bytes in MB (1e6)."""

    format: str
    M: int
    stage: str
    live_slots: int
    live_experts: int
    valu: float
    bound: float | None = None
    peer: float | None = None
    vgprs: int = 0
    spills: int = 0
    load_bytes: int = 0
    grid: tuple[int, ...] = ()
    waves: int = 0
    waves_per_simd: int = 0
    requested_mb: float = 0.0
    touched_mb: float = 0.0
    weight_reads: float = 0.0
    time_us: float = 0.0
    floor_us: float = 0.0
    bound_by: str = ""
    rel_l2: float | None = None
    max_norm: float | None = None
    layer: str = ""

    COLUMNS = (
        ("", "{format:<6}"), ("M", "{M:>3}"), ("stage", " {stage:<8}"),
        ("live", "{live_slots:>5}/{live_experts:<4}"), ("VALU", "{valu:>7.2f}"),
        ("bound", "{limit:>6}"), ("peer", "{known_peer:>6}"), ("VGPRs", "{vgprs:>6}"),
        ("spills", "{spills:>7}"), ("load", "{load_bytes:>5}"), ("grid", "{shape:>13}"),
        ("w/SIMD", "{waves_per_simd:>7}"), ("req MB", "{requested_mb:>9.2f}"),
        ("MB", "{touched_mb:>8.2f}"), ("reads", "{weight_reads:>7.2f}"), ("us", "{time_us:>8.2f}"),
        ("floor", "{floor_us:>8.2f}"), ("ratio", "{ratio:>7.2f}"), ("by", " {bound_by:<8}"),
        ("   rel L2      max", "{errors:<18}"),
    )  # fmt: skip

    @property
    def known_peer(self) -> str:
        return f"{self.peer:g}" if self.peer else ""

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.grid)) + (f" of {self.waves}" if self.waves else "")


def weights(
    layer: Layer, asymmetric: bool, format: str = "int4", seed: int = 0, block: int = 0
) -> dict[str, torch.Tensor | None]:
    """int4: codes around the middle, zeros 7..9, scales 0.005..0.015; others alike. i8 and fp8 have
    a scale per row, fp8 with `block` one per that many rows and columns."""
    g = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor | None] = {}
    for name, rows, K in (("w1", 2 * layer.I, layer.H), ("w2", layer.H, layer.I)):
        shape = (layer.E, rows, K)
        if format == "f16":
            tensors[name] = (0.02 * torch.randn(shape, generator=g)).half()
            tensors[f"{name}_scale"] = None
            continue
        if format == "int4":
            codes = (8 + 2.8 * torch.randn(shape, generator=g)).round().clamp(0, 15)
            scale = 0.005 + 0.01 * torch.rand(layer.E, rows, K // layer.G, generator=g)
            tensors[name] = packing.pack_codes(codes.to(torch.uint8))
            tensors[f"{name}_scale"] = scale.half()
            if asymmetric:
                zeros = torch.randint(7, 10, scale.shape, generator=g)
                tensors[f"{name}_zp"] = packing.pack_zeros(zeros)
            continue
        if format == "mxfp4":
            tensors[name] = torch.randint(0, 256, (layer.E, rows, K // 2), generator=g).byte()
            tensors[f"{name}_scale"] = torch.randint(
                119, 123, (layer.E, rows, K // 32), generator=g
            ).byte()
            continue
        values = torch.randn(shape, generator=g)
        types = {"i8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
        tensors[name] = (values * 32).clamp(-127, 127).to(types[format])
        per = (layer.E, -(-rows // block), -(-K // block)) if block else (layer.E, rows)
        tensors[f"{name}_scale"] = 0.0005 + 0.0005 * torch.rand(per, generator=g)
    return tensors


def routing(layer: Layer, M: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Uniform choices of which as many are local as there are on average."""
    g = torch.Generator().manual_seed(seed)
    table = torch.full((layer.E_g,), -1, dtype=torch.int32)
    local = torch.randperm(layer.E_g, generator=g)[: layer.E]
    table[local] = torch.arange(layer.E, dtype=torch.int32)
    wanted = -(-M * layer.T * layer.E // layer.E_g)
    while True:
        ids = torch.stack([torch.randperm(layer.E_g, generator=g)[: layer.T] for _ in range(M)])
        if int((table[ids] >= 0).sum()) == wanted:
            break
    return {
        "topk_ids": ids.int(),
        "topk_weights": torch.rand(M, layer.T, generator=g),
        "expert_map": table,
    }


def measure(
    layer: Layer,
    tensors: dict[str, torch.Tensor | None],
    M: int,
    card: str,
    format: str = "int4",
    block: int = 0,
) -> list[Row]:
    """Profile the launches of one decode call and compare the result with float64."""
    x = torch.randn(M, layer.H, generator=torch.Generator().manual_seed(1)).half()
    arguments = {"hidden_states": x, **tensors, **routing(layer, M)}
    options = {
        "format": format,
        "group_size": layer.G if format == "int4" else None,
        "block": (block, block) if block else None,
    }
    plan = moe_decode.plan(**arguments, **options)  # type: ignore[attr-defined]
    with profiling() as profiles:
        out = moe_decode(**arguments, **options)  # type: ignore[arg-type]
    experts = arguments["expert_map"][arguments["topk_ids"].long()]
    live, distinct = int((experts >= 0).sum()), experts[experts >= 0].unique().numel()
    stages = (("gate_up", "w1", 2 * layer.I * layer.H, x), ("down", "w2", layer.I * layer.H, out))
    rows, total_valu = [], 0
    for launch, found, (stage, name, size, rest) in zip(
        plan.launches, profiles, stages, strict=True
    ):
        profile = Profile.from_launch(found.stats, card=card)
        values = launch.kernel.values
        parts = [tensors.get(n) for n in (name, f"{name}_scale", f"{name}_zp")]
        per_expert = sum(t.nbytes for t in parts if t is not None) / layer.E
        operands = distinct * per_expert + rest.nbytes + live * layer.I * 2
        bits = _BITS.get(format, 8)
        # Known from the shapes: two bytes of activations per weight of a slot, shared by a lane's
        # rows; where rows have several scales, one per load, and a byte of zeros.
        others = live * size * 2 / _rows_per_lane(values)
        if values["GROUP_SIZE"] < (layer.H if name == "w1" else layer.I):
            per_load = int(values["SCALE_BYTES"]) + bool(values["HAS_ZEROS"])
            rows_of_part = values.get("ROWS", values.get("PAIRS"))
            shared = int(rows_of_part) if values["SCALE_ROWS"] > 1 else 1  # type: ignore[call-overload]
            others += distinct * size * bits / 128 * per_load / shared
        rows.append(Row(
            format, M, stage, live, distinct, profile.valu * 32 * 32 / (live * size),
            load_bytes=counters.widest_load(launch.kernel),
            grid=launch.grid,
            waves=launch.block // 32,
            weight_reads=(profile.bytes_loaded - others) / (distinct * size * bits / 8),
            floor_us=operands / CARDS[card].read_gbs / 1e3,
            **counters.resources(launch.kernel),
            **counters.figures(profile),
        ))  # fmt: skip
        total_valu += profile.valu
    symmetric = format == "int4" and "w1_zp" not in tensors
    both = replace(
        max(rows, key=lambda row: row.time_us),
        stage="both",
        valu=total_valu * 32 * 32 / (live * 3 * layer.I * layer.H),
        bound=BOUNDS.get(M) if symmetric else 64.0 if format == "int4" and M == 1 else None,
        peer=PEERS.get(M) if symmetric and layer == Layer() else None,
        vgprs=max(row.vgprs for row in rows),
        grid=(),
        waves=0,
        waves_per_simd=min(row.waves_per_simd for row in rows),
        weight_reads=(2 * rows[0].weight_reads + rows[1].weight_reads) / 3,
        **{
            name: sum(getattr(row, name) for row in rows)
            for name in ("spills", "requested_mb", "touched_mb", "time_us", "floor_us")
        },
    )
    weights = MoEWeights(
        format, *(tensors[n] for n in ("w1", "w1_scale", "w2", "w2_scale")),
        tensors.get("w1_zp"), tensors.get("w2_zp"), layer.G if format == "int4" else -1,
        options["block"],
    )  # fmt: skip
    both.rel_l2, both.max_norm = _errors(arguments, weights, experts, out)
    return [*rows, both]


def _rows_per_lane(values: dict[str, object]) -> int:
    """Rows that share a lane's load of activations."""
    return int(values["ROWS"]) if "ROWS" in values else 2 * int(values["PAIRS"])  # type: ignore[call-overload]


def _errors(
    arguments: dict[str, torch.Tensor],
    weights: MoEWeights,
    experts: torch.Tensor,
    out: torch.Tensor,
) -> tuple[float, float]:
    want = torch.zeros(out.shape, dtype=torch.float64)
    slots: dict[int, list[tuple[int, int]]] = {}
    for m, j in (experts >= 0).nonzero().tolist():
        slots.setdefault(int(experts[m, j]), []).append((m, j))
    for e, served in slots.items():
        one = {n: None if t is None else t[e : e + 1] for n, t in weights.tensors.items()}
        dense = replace(weights, **one).dequantize(torch.float64)
        for m, j in served:
            gate, up = (dense[0][0] @ arguments["hidden_states"][m].double()).chunk(2)
            activation = (torch.nn.functional.silu(gate) * up).half().double()
            want[m] += float(arguments["topk_weights"][m, j]) * (dense[1][0] @ activation)
    return counters.errors(out, want)


def decode(options: argparse.Namespace, name: str) -> Iterator[Row]:
    """The rows of the decode kernels for one layer."""
    sizes = {n: v for n in asdict(Layer()) if (v := getattr(options, n)) is not None}
    layer = replace(LAYERS[name], **sizes)
    for format in options.formats:
        block = options.block if format in ("e4m3", "e5m2") else 0
        tensors = weights(layer, options.asymmetric, format, block=block)
        for M in options.tokens:
            for row in measure(layer, tensors, M, options.card, format, block):
                yield replace(row, layer=name)


def main(arguments: list[str] | None = None) -> None:
    parser = counters.plain_options(__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS, metavar="M")
    parser.add_argument("--formats", nargs="*", default=("int4",), choices=FORMATS)
    parser.add_argument("--layers", nargs="*", default=("flash-next",), choices=LAYERS)
    parser.add_argument("--asymmetric", action="store_true", help="int4 with zero points")
    parser.add_argument("--block", type=int, default=0, help="fp8 with a scale per square block")
    for name in asdict(Layer()):
        parser.add_argument(f"--{name}", type=int, help="instead of the layers' own")
    options = parser.parse_args(arguments)
    for name in options.layers:
        counters.show(f"{name}\n{Row.head()}", decode(options, name), options.json)


if __name__ == "__main__":
    main()
