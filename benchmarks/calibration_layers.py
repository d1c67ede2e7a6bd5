"""int4 layers of this project at shapes for which others published times of their own kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rdna_jit import emulator
from rdna_jit.ops import linear, moe

HIDDEN, INTERMEDIATE, GROUP, TOP_K = 2560, 640, 128, 10
EXPERTS, LOCAL = 512, 128

Figure = tuple[str, str, float, float]


def rows() -> Iterator[Figure]:
    """(name, unit, reported, predicted), the model's time summed over an op's launches."""
    n, k, group = 17408, 5120, 32
    rate = n * k / 2 / dense_us(n, k, group) / 1e3
    yield f"int4 g32 {n} x {k}, M=1 (Exllama)", "GB/s", 400.0, rate
    yield "MoE, 1 token, 10 local (v1)", "us", 88.0, moe_us(1, LOCAL, "v1")
    yield "MoE, 1 token, 10 local (v2)", "us", 71.0, moe_us(1, LOCAL, "v2")
    yield "MoE, 12 tokens, all local (v1)", "us", 803.7, moe_us(12, LOCAL, "v1")
    yield "MoE, 12 tokens, 128 of 512 local (v1)", "us", 257.1, moe_us(12, EXPERTS, "v1")


def dense_us(n: int, k: int, group: int) -> float:
    """One token through an int4 layer with zeros of 8."""
    x = torch.zeros(1, k, dtype=torch.float16)
    codes = torch.zeros(k // 8, n, dtype=torch.int32)
    scales = torch.zeros(k // group, n, dtype=torch.float16)
    with emulator.profiling() as profiles:
        linear.gptq_gemm(x, codes, None, scales, shuffled=True)
    return sum(p.time_us for p in profiles)


def moe_us(tokens: int, experts: int, variant: str) -> float:
    """A gated layer with uniform routing over `experts`, of which this rank has LOCAL. Launches
    after the first add what a dependent launch takes."""
    random = torch.Generator().manual_seed(1)
    ids = torch.stack([torch.randperm(experts, generator=random)[:TOP_K] for _ in range(tokens)])
    mapped = torch.full((experts,), -1, dtype=torch.int32)
    mapped[:LOCAL] = torch.arange(LOCAL, dtype=torch.int32)
    with emulator.profiling() as profiles:
        moe.moe_int4_decode(
            torch.zeros(tokens, HIDDEN, dtype=torch.float16),
            torch.zeros(LOCAL, 2 * INTERMEDIATE, HIDDEN // 2, dtype=torch.uint8),
            torch.zeros(LOCAL, 2 * INTERMEDIATE, HIDDEN // GROUP, dtype=torch.float16),
            torch.zeros(LOCAL, HIDDEN, INTERMEDIATE // 2, dtype=torch.uint8),
            torch.zeros(LOCAL, HIDDEN, INTERMEDIATE // GROUP, dtype=torch.float16),
            torch.ones(tokens, TOP_K),
            ids.int(),
            group_size=GROUP,
            expert_map=mapped,
            variant=variant,
        )
    return sum(p.time_us for p in profiles) + (len(profiles) - 1) * profiles[0].launch_us
