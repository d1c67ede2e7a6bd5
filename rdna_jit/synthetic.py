"""Random layers at the shapes of served models, for checks, demos and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdna_jit import reference
from rdna_jit.models import Experts
from rdna_jit.ops import moe


@dataclass(frozen=True)
class MoeLayer:
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
    format: str = "int4"

    def operands(self) -> tuple[Tensor, ...]:
        """The positional arguments of `moe_decode`, or for int4 of `moe_int4_decode`."""
        weights = (self.w1, self.w1_scale, self.w2, self.w2_scale)
        return (self.x, *weights, self.topk_weights, self.topk_ids)

    def options(self) -> dict[str, Any]:
        """Its keyword arguments."""
        if self.format == "mxfp4":
            return {"format": "mxfp4", "expert_map": self.expert_map}
        return {"group_size": self.group_size, "expert_map": self.expert_map}

    def run(self) -> Tensor:
        """The layer through our kernels."""
        op = moe.moe_decode if self.format == "mxfp4" else moe.moe_int4_decode
        return op(*self.operands(), **self.options())

    def slot_experts(self) -> list[list[int]]:
        """The local expert of each slot, -1 for those of other ranks."""
        return [[int(self.expert_map[g]) for g in ids] for ids in self.topk_ids.tolist()]

    def truth(self) -> Tensor:
        """The float64 oracle."""
        slots = self.slot_experts()
        live = [e for row in slots for e in row if e >= 0]
        w1, w2 = (
            reference.experts_mxfp4(w, scale, live)
            if self.format == "mxfp4"
            else reference.experts_int4(w, scale, None, live)
            for w, scale in ((self.w1, self.w1_scale), (self.w2, self.w2_scale))
        )
        return reference.moe(self.x, w1, w2, self.topk_weights, slots)


def moe_layer(
    shape: Experts,
    intermediate: int,
    tokens: int,
    *,
    local: int,
    ranks: int = 1,
    seed: int = 0,
    on: torch.device | str = "cpu",
) -> MoeLayer:
    """A layer of int4 or MXFP4 with `local` experts of `intermediate` size on this rank of `ranks`.

    The local experts are spread evenly over the global ids. A token's choices are this rank's in
    turn rounded up and down (10 choices over 4 ranks: 3, 2, 3, ...), the rest are other ranks'.
    """
    H, I, G = shape.hidden, intermediate, shape.group  # noqa: E741
    generator = torch.Generator().manual_seed(seed)

    def codes(*size: int) -> Tensor:
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).to(on)

    def scales(*size: int) -> Tensor:
        if shape.format == "mxfp4":
            return torch.randint(119, 123, size, dtype=torch.uint8, generator=generator).to(on)
        return (0.002 + 0.01 * torch.rand(size, generator=generator)).half().to(on)

    experts, local = shape.experts, min(local, shape.experts)
    expert_map = torch.full((experts,), -1, dtype=torch.int32)
    here = torch.arange(local) * (experts // local)
    expert_map[here] = torch.arange(local, dtype=torch.int32)
    away = torch.nonzero(expert_map < 0).flatten()
    ids = torch.empty(tokens, shape.top_k, dtype=torch.int64)
    for m in range(tokens):
        live = -(-shape.top_k // ranks) if m % 2 == 0 else shape.top_k // ranks
        ids[m, :live] = here[torch.randperm(local, generator=generator)[:live]]
        rest = torch.randperm(len(away), generator=generator)[: shape.top_k - live]
        ids[m, live:] = away[rest]
        ids[m] = ids[m, torch.randperm(shape.top_k, generator=generator)]
    weights = torch.rand(tokens, shape.top_k, generator=generator)
    return MoeLayer(
        x=(0.5 * torch.randn(tokens, H, generator=generator)).half().to(on),
        w1=codes(local, 2 * I, H // 2),
        w1_scale=scales(local, 2 * I, H // G),
        w2=codes(local, H, I // 2),
        w2_scale=scales(local, H, I // G),
        topk_weights=(weights / weights.sum(1, keepdim=True)).to(on),
        topk_ids=ids.to(on),
        expert_map=expert_map.to(on),
        group_size=G,
        format=shape.format,
    )
