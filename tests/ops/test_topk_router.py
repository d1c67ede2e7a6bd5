"""topk_router against float64 scores and Python's sort: choices exactly, weights to fp32."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, emulator
from rdna_jit.ops._moe_routing import ROUTER, router_align, router_own
from rdna_jit.ops.moe import topk_router

from .clang import compile_with_clang

DEEPSEEK = {
    "scoring": "sigmoid", "num_expert_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
}  # fmt: skip


def rank(value: float) -> tuple[bool, float]:
    """NaN above all numbers."""
    return math.isnan(value), 0.0 if math.isnan(value) else value


def reference(
    logits: torch.Tensor, top_k: int, *, scoring: str = "softmax", renormalize: bool = True,
    correction_bias: torch.Tensor | None = None, num_expert_group: int = 0, topk_group: int = 0,
    routed_scaling_factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """float64 weights and ids, one token at a time."""
    exact = logits.double()
    scores = torch.softmax(exact, -1) if scoring == "softmax" else torch.sigmoid(exact)
    compared = exact if correction_bias is None else scores + correction_bias.double()
    E, groups = logits.shape[1], num_expert_group or 1
    size, kept = E // groups, topk_group if num_expert_group else 1
    ids = []
    for row in compared.tolist():
        best = [sorted(row[g * size : (g + 1) * size], key=rank)[::-1] for g in range(groups)]
        group_scores = [b[0] if correction_bias is None else sum(b[:2]) for b in best]
        order = sorted(range(groups), key=lambda g: rank(group_scores[g]), reverse=True)
        allowed = [g * size + i for g in sorted(order[:kept]) for i in range(size)]
        ids.append(sorted(allowed, key=lambda e: rank(row[e]), reverse=True)[:top_k])
    chosen = torch.tensor(ids)
    weights = scores.gather(1, chosen)
    if renormalize:
        total = weights.sum(1, keepdim=True)
        weights = torch.where(total == 0, 0.0, weights / total)
    return weights * routed_scaling_factor, chosen


def normal(M: int, E: int, dtype: torch.dtype = torch.float32, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(M * 1009 + E)
    return (scale * torch.randn(M, E, generator=generator)).to(dtype)


def check(logits: torch.Tensor, top_k: int, **options: object) -> None:
    """Exact ids, weights within 1e-5, the same bits twice, from poisoned memory, and row by row."""
    M, before = logits.shape[0], logits.clone()
    expected, chosen = reference(logits, top_k, **options)
    weights, ids = topk_router(logits, top_k, **options)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    assert torch.equal(ids.long(), chosen)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-12, equal_nan=True)
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))
    plan = topk_router.plan(logits, top_k, **options)
    again = torch.full((M, top_k), float("nan")), torch.full((M, top_k), -7, dtype=torch.int32)
    scale = options.get("routed_scaling_factor", 1.0)
    plan.launches[0](logits, options.get("correction_bias"), *again, M, plan.extra, scale)
    assert torch.equal(again[0].view(torch.int32), weights.view(torch.int32))
    assert torch.equal(again[1], ids)
    alone = topk_router(logits[-1:], top_k, **options)
    assert torch.equal(alone[0].view(torch.int32), weights[-1:].view(torch.int32))


def bias_of(E: int) -> torch.Tensor:
    return 0.3 * torch.randn(E, generator=torch.Generator().manual_seed(E))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("E, top_k", [(512, 10), (60, 4)])
def test_softmax(E, top_k, dtype):
    check(normal(5, E, dtype), top_k)


def test_softmax_without_renormalising():
    check(normal(5, 128), 8, renormalize=False, routed_scaling_factor=0.5)


def test_deepseek_groups_with_a_bias():
    check(normal(5, 256), 8, correction_bias=bias_of(256), **DEEPSEEK)


def test_groups_without_a_bias():
    check(normal(5, 160, torch.float16), 6, num_expert_group=8, topk_group=3, renormalize=False)


GRID = list(product((1, 7), (1, 8, 33, 64, 257, 384, 1000, 1024), (1, 2, 8, 32)))


@pytest.mark.slow
@pytest.mark.parametrize("scoring, has_bias, renormalize", [
    ("softmax", False, True), ("softmax", True, False), ("sigmoid", True, True),
    ("sigmoid", False, False),
])  # fmt: skip
@pytest.mark.parametrize("M, E, top_k", [g for g in GRID if g[2] <= g[1]])
def test_grid(M, E, top_k, scoring, has_bias, renormalize):
    bias = bias_of(E) if has_bias else None
    check(normal(M, E), top_k, scoring=scoring, correction_bias=bias, renormalize=renormalize)


@pytest.mark.slow
@pytest.mark.parametrize("E, groups, kept", [
    (160, 8, 3), (256, 8, 4), (256, 1, 1), (64, 2, 1), (96, 3, 2), (170, 17, 5), (1024, 32, 3),
    (512, 4, 4), (72, 12, 6),
])  # fmt: skip
@pytest.mark.parametrize("has_bias", [False, True])
def test_grid_of_groups(E, groups, kept, has_bias):
    options = {"num_expert_group": groups, "topk_group": kept, "scoring": "sigmoid"}
    check(normal(9, E), 8, correction_bias=bias_of(E) if has_bias else None, **options)


@pytest.mark.slow
def test_many_tokens():
    check(normal(1027, 64, torch.float16), 6)


def test_ties_go_to_the_lower_expert():
    logits = torch.tensor([0.0, -0.0, 1.0, -1.0]).repeat(128)[None].repeat(2, 1)
    logits[1] = 2.5
    check(logits, 10)
    assert topk_router(logits, 10)[1].tolist() == [list(range(2, 40, 4)), list(range(10))]


def test_ties_with_a_bias_go_to_the_lower_group_and_expert():
    logits = normal(3, 256, scale=1.0).round()
    bias = (4 * bias_of(256)).round() / 4
    logits[0], levels = 0.5, torch.zeros(256)
    check(logits, 8, correction_bias=bias, **DEEPSEEK)
    ids = topk_router(logits[:1], 8, correction_bias=levels, **DEEPSEEK)[1]
    assert ids.tolist() == [list(range(8))]


def test_scores_that_underflow_stay_in_order():
    logits = torch.full((1, 128), -300.0)
    logits[0, 5], logits[0, 90], logits[0, 40] = 90.0, -150.0, -200.0
    check(logits, 8, renormalize=False, routed_scaling_factor=0.5)
    assert topk_router(logits, 3)[1].tolist() == [[5, 90, 40]]


def test_special_logits():
    inf, nan = float("inf"), float("nan")
    logits = normal(6, 512)
    logits[0, [3, 400]] = nan
    logits[1, 10:] = -inf
    logits[2] = -inf
    logits[3, [7, 8]] = inf
    logits[4, 500] = -nan
    logits[5] = nan
    check(logits, 10)
    weights, ids = topk_router(logits, 10)
    assert ids[0, :2].tolist() == [3, 400] and ids[4, 0] == 500 and ids[5].tolist() == [*range(10)]
    assert weights[[0, 2, 3, 4, 5]].isnan().all() and weights[1].isfinite().all()


def test_scores_of_zero_give_weights_of_zero():
    logits = torch.full((1, 256), -200.0)
    weights, ids = topk_router(logits, 8, correction_bias=torch.zeros(256), **DEEPSEEK)
    assert weights.count_nonzero() == 0 and ids.tolist() == [list(range(8))]


@pytest.mark.parametrize("offset, pitch", [(1, 520), (0, 513)])
def test_views(offset, pitch):
    logits = normal(5, 512)
    room = torch.full((5 * pitch + 8,), float("nan"))
    view = room[offset:][: 5 * pitch].view(5, pitch)[:, :512]
    view.copy_(logits)
    check(view, 10)


def test_fresh_memory_is_never_read():
    with emulator.checks(uninitialised=True, races=True):
        check(normal(5, 60), 4)


def test_without_dot_instructions():
    with rdna_jit.config.scope(arch="gfx1010"):
        check(normal(3, 512), 10)


def test_empty_batch():
    weights, ids = topk_router(torch.empty(0, 64), 8)
    assert weights.shape == ids.shape == (0, 8)


LOGITS = torch.zeros(2, 64)
BAD = [
    ({"gating_output": LOGITS.bfloat16()}, r"gating_output: .* got torch.bfloat16; .*half\(\)"),
    ({"gating_output": LOGITS[0]}, r"gating_output: expected shape \[any, any\], got \[64\]"),
    ({"gating_output": LOGITS.t()}, "gating_output: expected a contiguous last dimension"),
    ({"gating_output": torch.zeros(1, 1025)}, "gating_output: expected 1 to 1024 experts, got 10"),
    ({"gating_output": None}, "gating_output: expected a torch.float32 tensor"),
    ({"top_k": 0}, "top_k: expected a number from 1 to 32, got 0"),
    ({"top_k": 33}, "top_k: expected a number from 1 to 32, got 33"),
    (
        {"top_k": 17, "num_expert_group": 8, "topk_group": 2},
        "top_k: expected a number from 1 to 16",
    ),
    ({"scoring": "relu"}, "scoring: expected one of softmax, sigmoid, got 'relu'"),
    ({"correction_bias": torch.zeros(63)}, r"correction_bias: expected shape \[64\], got \[63\]"),
    ({"correction_bias": torch.zeros(64).half()}, "correction_bias: expected torch.float32"),
    ({"num_expert_group": 7, "topk_group": 1}, "num_expert_group: expected a divisor of the 64"),
    ({"num_expert_group": 8}, "topk_group: expected a number from 1 to 8, got 0"),
    ({"topk_group": 2}, "topk_group: expected a number from 0 to 0, got 2"),
    ({"num_expert_group": 64, "topk_group": 2}, "num_expert_group: expected a number from 0 to 32"),
    ({"routed_scaling_factor": "x"}, "routed_scaling_factor: expected a number, got 'x'"),
]


@pytest.mark.parametrize("changes, message", BAD, ids=[m[:24] for _, m in BAD])
def test_refused(changes, message):
    arguments = {"gating_output": LOGITS, "top_k": 8, **changes}
    with pytest.raises(ContractError, match=f"topk_router: {message}"):
        topk_router(**arguments)


def test_a_bias_needs_groups_of_two():
    with pytest.raises(ContractError, match="num_expert_group: expected groups of two"):
        topk_router(
            torch.zeros(1, 8), 2, correction_bias=torch.zeros(8), num_expert_group=8, topk_group=2
        )


def test_registered_with_torch_and_explained():
    logits = normal(5, 512)
    direct = topk_router(logits, 10)
    through = torch.ops.rdna_jit.topk_router(logits, 10)
    fake = torch.ops.rdna_jit.topk_router(logits.to("meta"), 10)
    for a, b, c in zip(direct, through, fake, strict=True):
        assert torch.equal(a, b) and (a.shape, a.dtype) == (c.shape, c.dtype)
    assert topk_router.batch_invariant
    assert "runs moe_topk_router[EXPERTS=512" in str(rdna_jit.explain(topk_router, logits, 10))


@pytest.mark.slow
def test_under_torch_compile():
    logits = normal(5, 512)
    traced = torch.compile(topk_router, fullgraph=True, backend="aot_eager")
    direct = topk_router(logits, 10, scoring="softmax")
    assert all(torch.equal(a, b) for a, b in zip(direct, traced(logits, 10), strict=True))


CORNERS = [
    (512, 10, 1, 1, False), (256, 8, 8, 4, True), (1024, 32, 1, 1, True), (1020, 8, 17, 4, True),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("E, top_k, groups, kept, bias", CORNERS)
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("arch", ["gfx1010", "gfx1030"])
def test_no_spills(E, top_k, groups, kept, bias, sigmoid, arch, tmp_path):
    kernel = ROUTER.specialise(
        arch, EXPERTS=E, TOP_K=top_k, GROUPS=groups, TOP_GROUPS=kept, LOGIT_TYPE="_Float16",
        SIGMOID=sigmoid, HAS_BIAS=bias, RENORMALIZE=True, WAVES=4,
        ALIGN=router_align(router_own(E, groups), 2, 16),
    )  # fmt: skip
    clang = compile_with_clang(kernel, tmp_path, arch).kernels["moe_topk_router"]
    for info in (kernel.program().info, clang):
        r = info.resources
        assert r.vgpr_spills == r.sgpr_spills == r.scratch_bytes == 0 and r.wavefront_size == 32
