"""Experts and channels spread over ranks: the ranks' results add up to the one-rank result."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdna_jit import config
from rdna_jit.formats import MoEWeights
from rdna_jit.ops.moe import fused_moe
from tests.ops.moe_cases import MAX_NORM, REL_L2, Case, Shape, errors

RANKS = 4
# Ranks hold 3, 3, 2 and 2 experts. Skewed routing: most slots are the first rank's.
SPREAD = Case(
    M=5, shape=Shape(H=128, I=64, T=3, E=10, E_g=10), with_map=False, with_residual=True,
    routing="skewed", id_dtype=torch.int64,
)  # fmt: skip


def layer_of(case: Case) -> tuple[MoEWeights, dict[str, Any]]:
    """The weights of all experts, and the other operands."""
    given: dict[str, Any] = dict(case.tensors)
    names = ("w1", "w1_scale", "w2", "w2_scale", "w1_zp", "w2_zp")
    parts = {name: given.pop(name, None) for name in names}
    weights = MoEWeights(
        case.format, **parts, group_size=case.shape.G if case.format in ("int4", "i8") else -1,
        block=case.block if case.scales == "block" else None,
    )  # fmt: skip
    return weights, given


def for_rank(given: dict[str, Any], rank: int) -> dict[str, Any]:
    """The residual is added by the first rank."""
    return given if rank == 0 else {**given, "residual": None}


def assert_close(y: torch.Tensor, case: Case) -> None:
    rel, largest = errors(y, case.expected)
    assert rel <= REL_L2 and largest <= MAX_NORM, (rel, largest)


def run_rank(rank: int, folder: str, cache: str) -> None:
    """One process: its experts' part of the result, summed over all processes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["RDNA_JIT_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    weights, given = layer_of(SPREAD)
    part, expert_map = weights.slice_ep(rank, RANKS)
    with config.scope(backend="emulator"):
        partial = fused_moe(weights=part, expert_map=expert_map, **for_rank(given, rank))
    total = partial.float()
    dist.all_reduce(total)
    torch.save((partial, expert_map, total.half()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_experts_spread_over_processes(tmp_path: Path):
    weights, given = layer_of(SPREAD)
    whole = fused_moe(weights=weights, **given)
    assert_close(whole, SPREAD)
    # One process imports torch; the ranks are forked from it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rdna_jit.ops.moe", __name__])
    arguments = str(tmp_path), os.environ["RDNA_JIT_CACHE_DIR"]
    processes = [context.Process(target=run_rank, args=(r, *arguments)) for r in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]
    ids = given["topk_ids"]
    for rank, (partial, expert_map, total) in enumerate(results):
        here = (expert_map[ids] >= 0).sum(1)
        assert here.sum() < ids.numel(), "no expert is another rank's"
        if rank:  # a token without experts here adds nothing
            assert torch.equal(partial.count_nonzero(1) > 0, here > 0)
        assert torch.equal(total, results[0][2])
        assert_close(total, SPREAD)
        rel, largest = errors(total, whole.double().numpy())
        assert rel <= REL_L2 and largest <= MAX_NORM
    assert any((expert_map[ids] < 0).all(1).any() for _, expert_map, _ in results)


NARROW = Case(M=3, shape=Shape(H=128, I=640, G=128, T=2, E=4, E_g=4), asymmetric=True)
CHANNELS = [
    (NARROW, 2), (NARROW, 4),  # 160 channels are no whole groups of 128
    (Case(M=3, shape=Shape(H=64, I=128, T=2, E=4, E_g=4), format="mxfp4"), 4),
    (Case(M=3, shape=Shape(H=64, I=384, T=2, E=4, E_g=4), format="e4m3", scales="block",
          block=(64, 64)), 4),  # nor are 96 whole blocks of 64
    (Case(M=40, shape=Shape(H=64, I=64, T=2, E=4, E_g=4), format="i8"), 2),
]  # fmt: skip


@pytest.mark.parametrize("case, size", CHANNELS, ids=lambda v: getattr(v, "format", v))
def test_channels_spread_over_ranks(case, size):
    case = case.with_(with_map=False, with_residual=True)
    weights, given = layer_of(case)
    total = torch.zeros(case.M, case.shape.H)
    for rank in range(size):
        part = weights.slice_tp(rank, size)
        assert (part.E, part.I * size) == (weights.E, weights.I)
        total += fused_moe(weights=part, **for_rank(given, rank)).float()
    assert_close(total.half(), case)


def test_groups_are_halved_for_a_narrow_slice():
    weights, given = layer_of(NARROW.with_(with_map=False))
    part = weights.slice_tp(3, 4)
    assert (weights.group_size, part.I, part.group_size) == (128, 160, 32)
    assert fused_moe.plan(weights=part, **given).kernel == "moe_grouped"


def test_channels_and_experts_at_once():
    weights, given = layer_of(SPREAD)
    total = torch.zeros(SPREAD.M, SPREAD.shape.H)
    for rank in range(4):
        part, expert_map = weights.slice_ep(rank // 2, 2)
        part = part.slice_tp(rank % 2, 2)
        total += fused_moe(weights=part, expert_map=expert_map, **for_rank(given, rank)).float()
    assert_close(total.half(), SPREAD)
