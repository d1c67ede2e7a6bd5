"""One rank of a MoE layer whose experts are spread over processes; see test_moe_parallel.py."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from rdna_jit.formats import MoEWeights
from rdna_jit.ops.moe import moe_decode, moe_tiled

EXPERTS, H, I, T = 8, 128, 64, 3  # noqa: E741
TOKENS = {"moe_tiled": 24, "moe_decode": 3}
OPS = {"moe_tiled": moe_tiled, "moe_decode": moe_decode}


def layer() -> MoEWeights:
    """All experts, int4 with zero points, groups of 32: the same in every process."""
    g = torch.Generator().manual_seed(7)
    w1 = 0.1 * torch.randn(EXPERTS, 2 * I, H, generator=g)
    w2 = 0.1 * torch.randn(EXPERTS, H, I, generator=g)
    return MoEWeights.quantize(w1, w2, "int4", 32, symmetric=False)


def tokens(op: str) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(8)
    M = TOKENS[op]
    ids = torch.rand(M, EXPERTS, generator=g).argsort(1)[:, :T]
    ids[1] = -1  # a token without experts
    return {
        "hidden_states": torch.randn(M, H, generator=g).half(),
        "topk_weights": torch.rand(M, T, generator=g),
        "topk_ids": ids,
    }


def residual(op: str) -> torch.Tensor:
    return torch.randn(TOKENS[op], H, generator=torch.Generator().manual_seed(9)).half()


def part(op: str, weights: MoEWeights, **more: torch.Tensor | None) -> torch.Tensor:
    """One call on these weights."""
    return OPS[op](
        **tokens(op),
        **weights.tensors,
        format=weights.format,
        group_size=weights.group_size,
        **more,
    )  # type: ignore[arg-type]


def rank_part(op: str, rank: int, size: int) -> torch.Tensor:
    """What a rank adds: its experts' share, and on rank 0 the residual."""
    weights, expert_map = layer().slice_ep(rank, size)
    return part(op, weights, expert_map=expert_map, residual=residual(op) if rank == 0 else None)


def main(rank: int, size: int, folder: str) -> None:
    """Run as a process of a gloo group; every rank leaves the reduced results in the folder."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=size)
    for op in OPS:
        y = rank_part(op, rank, size).float()
        dist.all_reduce(y)
        torch.save(y, Path(folder) / f"{op}.{rank}")
    dist.destroy_process_group()
