"""The MoE part of the demo: one layer of a served model, as one rank of four sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rdna_jit import emulator, models, reference
from rdna_jit.check import errors
from rdna_jit.device import device
from rdna_jit.emulator.profile import Profile
from rdna_jit.kernel import Kernel
from rdna_jit.ops import moe

MODEL = "flash-next"
SPLIT = "EP4"
LIVE_EXPERTS = 16  # experts with weights: the others of the rank are not drawn
TOKENS = 1
REL_L2, MAX_NORM = 5e-4, 2e-3


@dataclass(frozen=True)
class Layer:
    """Random weights and routing of one layer, on one rank."""

    x: Tensor
    w1: Tensor
    w1_scale: Tensor
    w2: Tensor
    w2_scale: Tensor
    topk_weights: Tensor
    topk_ids: Tensor
    expert_map: Tensor
    group_size: int

    def run(self) -> Tensor:
        """The layer through our kernels."""
        return moe.moe_int4_decode(
            self.x, self.w1, self.w1_scale, self.w2, self.w2_scale, self.topk_weights,
            self.topk_ids, group_size=self.group_size, expert_map=self.expert_map,
        )  # fmt: skip

    def slot_experts(self) -> list[list[int]]:
        """The local expert of each slot, -1 for those of other ranks."""
        return [[int(self.expert_map[g]) for g in ids] for ids in self.topk_ids.tolist()]

    def truth(self) -> Tensor:
        """The float64 oracle."""
        slots = self.slot_experts()
        live = [e for row in slots for e in row if e >= 0]
        w1 = reference.experts_int4(self.w1, self.w1_scale, None, live)
        w2 = reference.experts_int4(self.w2, self.w2_scale, None, live)
        return reference.moe(self.x, w1, w2, self.topk_weights, slots)


def make_layer(tokens: int = TOKENS, seed: int = 0, on: torch.device | str = "cpu") -> Layer:
    """A layer at the model's shape; a quarter of the slots is this rank's.

    Every fourth global expert is local. Each token has 2 or 3 local choices of 10 (its share of
    top_k over four ranks), the rest go to other ranks.
    """
    shape = models.get(MODEL).experts
    assert shape is not None
    H, I, G = shape.hidden, shape.splits[SPLIT][1], shape.group  # noqa: E741
    generator = torch.Generator().manual_seed(seed)

    def codes(*size: int) -> Tensor:
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).to(on)

    def scales(*size: int) -> Tensor:
        return (0.002 + 0.01 * torch.rand(size, generator=generator)).half().to(on)

    experts, local = shape.experts, LIVE_EXPERTS
    expert_map = torch.full((experts,), -1, dtype=torch.int32)
    here = torch.arange(local) * (experts // local)
    expert_map[here] = torch.arange(local, dtype=torch.int32)
    away = torch.nonzero(expert_map < 0).flatten()
    ids = torch.empty(tokens, shape.top_k, dtype=torch.int64)
    for m in range(tokens):
        live = 3 - m % 2
        ids[m, :live] = here[torch.randperm(local, generator=generator)[:live]]
        rest = torch.randperm(len(away), generator=generator)[: shape.top_k - live]
        ids[m, live:] = away[rest]
        ids[m] = ids[m, torch.randperm(shape.top_k, generator=generator)]
    weights = torch.rand(tokens, shape.top_k, generator=generator)
    return Layer(
        x=(0.5 * torch.randn(tokens, H, generator=generator)).half().to(on),
        w1=codes(local, 2 * I, H // 2),
        w1_scale=scales(local, 2 * I, H // G),
        w2=codes(local, H, I // 2),
        w2_scale=scales(local, H, I // G),
        topk_weights=(weights / weights.sum(1, keepdim=True)).to(on),
        topk_ids=ids.to(on),
        expert_map=expert_map.to(on),
        group_size=G,
    )


@dataclass(frozen=True)
class Report:
    """Errors against the oracle, what the two launches did, and the modelled time."""

    rel_l2: float
    max_norm: float
    valu_per_weight: float
    vgprs: int
    spills: int
    profiles: tuple[Profile, ...]

    @property
    def ok(self) -> bool:
        return self.rel_l2 <= REL_L2 and self.max_norm <= MAX_NORM and self.spills == 0

    def to_dict(self) -> dict[str, float | int]:
        return {
            "rel_l2": self.rel_l2,
            "max_norm": self.max_norm,
            "valu_per_weight": round(self.valu_per_weight, 4),
            "vgprs": self.vgprs,
            "spills": self.spills,
        }

    def table(self) -> str:
        """Errors, instructions per weight and the model's times."""
        lines = [
            f"{MODEL} MoE layer, {SPLIT}, {TOKENS} token: int4 gate+up and down",
            f"  error against float64   rel L2 {self.rel_l2:.1e}, max {self.max_norm:.1e}",
            f"  vector instructions     {self.valu_per_weight:.3f} per weight "
            f"({32 * self.valu_per_weight:.1f} per 32)",
            f"  registers               {self.vgprs} VGPRs at most, {self.spills} spills",
        ]
        for p in self.profiles:
            lines.append(
                f"  {p.kernel:<24}{p.time_us:.1f} us modelled on a {p.card.name} "
                f"(floor {p.floor_us:.1f}, bound by {p.bound_by})"
            )
        return "\n".join(lines)


def run() -> Report:
    """Runs the layer, on a card too; counters come from the emulator."""
    layer = make_layer(on="cuda" if device().backend == "hip" else "cpu")
    rel_l2, max_norm = errors(layer.run(), make_layer().truth())
    from rdna_jit.config import config

    layer = make_layer()
    with config.scope(backend="emulator"), emulator.profiling() as profiles:
        layer.run()
    plan = moe.moe_int4_decode.plan(
        layer.x, layer.w1, layer.w1_scale, layer.w2, layer.w2_scale, layer.topk_weights,
        layer.topk_ids, group_size=layer.group_size, expert_map=layer.expert_map,
    )  # fmt: skip
    kernels: list[Kernel] = [launch.kernel for launch in plan.launches]
    per_expert = 2 * (layer.w1[0].numel() + layer.w2[0].numel())
    weights = per_expert * sum(e >= 0 for row in layer.slot_experts() for e in row)
    used = [kernel.resources for kernel in kernels]
    return Report(
        rel_l2=rel_l2,
        max_norm=max_norm,
        valu_per_weight=32 * sum(p.valu for p in profiles) / weights,
        vgprs=max(r.vgprs for r in used),
        spills=sum(r.vgpr_spills + r.sgpr_spills for r in used),
        profiles=tuple(profiles),
    )
