"""Counters of the int4 MoE decode kernels on the emulator: python -m benchmarks.moe [--json] ...

Per number of tokens one line for each stage and one for both: vector instructions per 32
slot-weights (one weight of one live slot) over the whole kernel, registers and spills, bytes of
weights per lane and load, workgroups and waves, bytes requested, how often each live weight was
requested (ids and arguments counted in, about 1 %), bytes touched, the model's time for a card over
the time that the operands need from memory (floor), and the error against float64. Counts are exact
for the compiler at hand; times are a model's. The default layer is a quarter of Flash-Next's under
four-way expert parallelism: 16 of 64 experts local, a quarter of the slots live.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, dataclass

import torch

from rdna_jit.emulator.cards import CARDS
from rdna_jit.formats import moe as packing
from rdna_jit.ops.moe import moe_int4_decode

TOKENS = (1, 4, 8, 16)
BOUNDS = {1: 60.0, 8: 46.0}  # vector instructions per 32 slot-weights, symmetric


@dataclass(frozen=True)
class Layer:
    """Sizes of a layer on one rank."""

    H: int = 2560
    I: int = 640  # noqa: E741
    G: int = 128
    T: int = 10
    E: int = 16
    E_g: int = 64


@dataclass
class Row:
    """One stage, or both; bytes in MB (1e6)."""

    M: int
    stage: str
    live_slots: int
    live_experts: int
    valu: float
    bound: float | None = None
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

    @property
    def line(self) -> str:
        limit = f"<={self.bound:g}" if self.bound else ""
        grid = "x".join(map(str, self.grid)) + (f" of {self.waves}" if self.waves else "")
        errors = "" if self.rel_l2 is None else f"{self.rel_l2:>9.1e}{self.max_norm:>9.1e}"
        return (
            f"{self.M:>3} {self.stage:<8}{self.live_slots:>5}/{self.live_experts:<4}"
            f"{self.valu:>7.2f}{limit:>6}{self.vgprs:>6}{self.spills:>7}{self.load_bytes:>5}"
            f"{grid:>13}{self.waves_per_simd:>7}{self.requested_mb:>9.2f}{self.touched_mb:>8.2f}"
            f"{self.weight_reads:>7.2f}{self.time_us:>8.2f}{self.floor_us:>8.2f}"
            f"{self.time_us / self.floor_us:>7.2f} {self.bound_by:<8}{errors}"
        )


HEAD = (
    f"{'M':>3} {'stage':<8}{'live':>10}{'VALU':>7}{'bound':>6}{'VGPRs':>6}{'spills':>7}{'load':>5}"
    f"{'grid':>13}{'w/SIMD':>7}{'req MB':>9}{'MB':>8}{'reads':>7}{'us':>8}{'floor':>8}{'ratio':>7}"
    f" {'by':<8}{'rel L2':>9}{'max':>9}"
)


def weights(layer: Layer, asymmetric: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    """Codes around the middle, zeros 7..9, scales 0.005..0.015."""
    g = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, rows, K in (("w1", 2 * layer.I, layer.H), ("w2", layer.H, layer.I)):
        codes = (8 + 2.8 * torch.randn(layer.E, rows, K, generator=g)).round().clamp(0, 15)
        scale = 0.005 + 0.01 * torch.rand(layer.E, rows, K // layer.G, generator=g)
        tensors[name] = packing.pack_codes(codes.to(torch.uint8))
        tensors[f"{name}_scale"] = scale.half()
        if asymmetric:
            zeros = torch.randint(7, 10, scale.shape, generator=g)
            tensors[f"{name}_zp"] = packing.pack_zeros(zeros)
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


def measure(layer: Layer, tensors: dict[str, torch.Tensor], M: int, card: str) -> list[Row]:
    """Profile both launches of one call and compare the result with float64."""
    x = torch.randn(M, layer.H, generator=torch.Generator().manual_seed(1)).half()
    arguments = {"hidden_states": x, **tensors, **routing(layer, M)}
    plan = moe_int4_decode.plan(**arguments, group_size=layer.G)  # type: ignore[attr-defined]
    ids, table = arguments["topk_ids"], arguments["expert_map"]
    experts = table[ids.long()]
    live, distinct = int((experts >= 0).sum()), experts[experts >= 0].unique().numel()
    act = torch.full((M, layer.T, layer.I), torch.nan).half()
    out = torch.full((M, layer.H), torch.nan).half()
    w, sizes = tensors, (layer.E, layer.E_g)
    stages = (
        ("gate_up", (x, w["w1"], w["w1_scale"], w.get("w1_zp"), ids, table, act, M, *sizes,
                     layer.H), "w1", 2 * layer.I * layer.H, x),
        ("down", (act, w["w2"], w["w2_scale"], w.get("w2_zp"), ids, table,
                  arguments["topk_weights"], None, out, M, *sizes, layer.H, layer.H),
         "w2", layer.I * layer.H, out),
    )  # fmt: skip
    rows, total_valu = [], 0
    for launch, (stage, args, name, size, rest) in zip(plan.launches, stages, strict=True):
        profile = launch.kernel.profile(launch.grid, launch.block, *args, card=card)
        resources = launch.kernel.resources
        names = (name, f"{name}_scale", f"{name}_zp")
        per_expert = sum(w[n][0].nbytes for n in names if n in w)
        operands = distinct * per_expert + rest.nbytes + live * layer.I * 2
        # Known from the shapes: 64 bytes of activations per slot and lane's chunk of 32 codes,
        # shared by the lane's rows; a scale, and a byte of zeros, per row and chunk.
        others = live * size * 2 / _rows_per_lane(launch.kernel.values)
        others += distinct * size / 32 * (3 if f"{name}_zp" in w else 2)
        row = Row(
            M, stage, live, distinct, profile.valu * 32 * 32 / (live * size),
            vgprs=resources.vgprs,
            spills=resources.vgpr_spills + resources.sgpr_spills,
            load_bytes=_widest_load(launch.kernel.isa()),
            grid=launch.grid,
            waves=launch.block // 32,
            waves_per_simd=resources.waves_per_simd,
            requested_mb=profile.bytes_loaded / 1e6,
            touched_mb=profile.lines_distinct * 128 / 1e6,
            weight_reads=(profile.bytes_loaded - others) / (distinct * size / 2),
            time_us=profile.time_us,
            floor_us=operands / CARDS[card].read_gbs / 1e3,
            bound_by=profile.bound_by,
        )  # fmt: skip
        rows.append(row)
        total_valu += profile.valu
    both = Row(
        M, "both", live, distinct, total_valu * 32 * 32 / (live * 3 * layer.I * layer.H),
        bound=BOUNDS.get(M) if "w1_zp" not in w else 64.0 if M == 1 else None,
        spills=sum(row.spills for row in rows),
        requested_mb=sum(row.requested_mb for row in rows),
        touched_mb=sum(row.touched_mb for row in rows),
        time_us=sum(row.time_us for row in rows),
        floor_us=sum(row.floor_us for row in rows),
    )  # fmt: skip
    both.rel_l2, both.max_norm = _errors(arguments, experts, out)
    return [*rows, both]


def _rows_per_lane(values: dict[str, object]) -> int:
    """Rows that share a lane's load of activations."""
    return int(values["ROWS"]) if "ROWS" in values else 2 * int(values["PAIRS"])  # type: ignore[call-overload]


def _widest_load(isa: str) -> int:
    widths = re.findall(r"global_load_dword(?:x(\d))?\b", isa)
    return 4 * max((int(width or 1) for width in widths), default=0)


def _errors(
    arguments: dict[str, torch.Tensor], experts: torch.Tensor, out: torch.Tensor
) -> tuple[float, float]:
    want = torch.zeros(out.shape, dtype=torch.float64)
    for m, j in (experts >= 0).nonzero().tolist():
        e = int(experts[m, j])
        dense = [
            packing.dequantize(
                arguments[n][e : e + 1],
                arguments[f"{n}_scale"][e : e + 1],
                arguments[f"{n}_zp"][e : e + 1] if f"{n}_zp" in arguments else None,
                torch.float64,
            )[0]
            for n in ("w1", "w2")
        ]
        gate, up = (dense[0] @ arguments["hidden_states"][m].double()).chunk(2)
        activation = (torch.nn.functional.silu(gate) * up).half().double()
        want[m] += float(arguments["topk_weights"][m, j]) * (dense[1] @ activation)
    error = (out.double() - want).abs()
    return float(error.norm() / want.norm()), float(error.max() / want.abs().max())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--card", default="V620", choices=sorted(CARDS))
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS, metavar="M")
    parser.add_argument("--asymmetric", action="store_true", help="with zero points")
    for name, value in asdict(Layer()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(arguments)
    layer = Layer(**{name: getattr(options, name) for name in asdict(Layer())})
    tensors = weights(layer, options.asymmetric)
    if not options.json:
        print(HEAD)
    for M in options.tokens:
        for row in measure(layer, tensors, M, options.card):
            print(json.dumps(asdict(row)) if options.json else row.line, flush=True)


if __name__ == "__main__":
    main()
