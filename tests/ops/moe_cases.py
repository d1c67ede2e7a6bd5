"""Cases of int4 MoE decode: weights, routing, tensors and what they must give."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from .moe_oracle import local_expert, moe_reference

# Exact dequantisation: what is left is the fp16 rounding of the result.
REL_L2, MAX_NORM = 5e-4, 2e-3
ROUTINGS = (
    "uniform", "skewed", "one_expert", "all_dead", "dead_token", "duplicates", "padding",
    "out_of_range",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of one layer on one rank: E experts of E_g."""

    H: int = 256
    I: int = 64  # noqa: E741
    G: int = 32
    T: int = 4
    E: int = 4
    E_g: int = 8


@dataclass(frozen=True)
class Case:
    """One call. `with_map` False: ids are local and E_g is E."""

    M: int
    shape: Shape = field(default_factory=Shape)
    routing: str = "uniform"
    asymmetric: bool = False
    with_map: bool = True
    with_residual: bool = False
    id_dtype: torch.dtype = torch.int32
    weight_dtype: torch.dtype = torch.float32
    code_dtype: torch.dtype = torch.uint8
    scale: float = 1.0  # of the weights
    seed: int = 1

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The call's tensors by argument name."""
        return _tensors(self)[0]

    @cached_property
    def expected(self) -> np.ndarray:
        """float64 result."""
        return _tensors(self)[1]

    @property
    def arguments(self) -> dict[str, object]:
        """Keyword arguments of moe_int4_decode."""
        group = self.shape.G
        return {**self.tensors, "group_size": group}

    def with_(self, **changes: object) -> Case:
        return replace(self, **changes)

    def live(self) -> list[tuple[int, int]]:
        """(slot, local expert) of the live slots."""
        ids = self.tensors["topk_ids"].flatten().tolist()
        table = self.tensors.get("expert_map")
        numbers = None if table is None else table.numpy()
        found = ((s, local_expert(i, numbers, self.shape.E)) for s, i in enumerate(ids))
        return [(slot, expert) for slot, expert in found if expert is not None]


def errors(y: torch.Tensor, expected: np.ndarray) -> tuple[float, float]:
    """Relative L2 and max-norm error; NaN where the result has one."""
    difference = y.double().numpy() - expected
    norm = max(float(np.linalg.norm(expected)), 1e-30)
    largest = max(float(np.abs(expected).max(initial=0)), 1e-30)
    return float(np.linalg.norm(difference)) / norm, float(np.abs(difference).max()) / largest


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=torch.float16)


def quantised(
    rng: np.random.Generator,
    experts: int,
    rows: int,
    K: int,
    G: int,
    asymmetric: bool,
    scale: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Packed codes, scales, packed zeros, float64 weights. Every code occurs, scales differ per row
    and group and have both signs, zero points are 0..15."""
    codes = rng.integers(0, 16, (experts, rows, K)).astype(np.uint8)
    scales = rng.uniform(0.002, 0.012, (experts, rows, K // G)) * rng.choice((-1, 1), (rows, 1))
    scales = (scales * scale).astype(np.float16)
    zeros = rng.integers(0, 16, scales.shape) if asymmetric else np.full(scales.shape, 8)
    zeros = zeros.astype(np.uint8)
    weights = (codes - zeros.repeat(G, 2).astype(np.float64)) * scales.astype(np.float64).repeat(
        G, 2
    )
    packed_zeros = zeros[:, 0::2] | zeros[:, 1::2] << 4
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales, packed_zeros, weights


def route(rng: np.random.Generator, case: Case, expert_map: np.ndarray | None) -> np.ndarray:
    """Global ids int64 `[M, T]` of the case's kind of routing."""
    s = case.shape
    count = s.E_g if case.with_map else s.E
    probability = 1 / np.arange(1, count + 1) ** (1.2 if case.routing == "skewed" else 0.0)
    probability /= probability.sum()
    repeat = count < case.shape.T
    ids = np.stack(
        [rng.choice(count, s.T, replace=repeat, p=probability) for _ in range(case.M)]
    ).astype(np.int64)
    local = np.arange(count) if expert_map is None else np.flatnonzero(expert_map >= 0)
    if case.routing == "one_expert":
        ids[:] = local[0]
    elif case.routing == "all_dead":
        ids[:] = -1
    elif case.routing == "dead_token":
        ids[case.M // 2] = -1
    elif case.routing == "duplicates":
        ids[:, -1] = ids[:, 0] = local[-1]
    elif case.routing == "padding":
        ids[:, -1] = -1
    elif case.routing == "out_of_range":
        far = (count, count + 7, -5, 2**31 - 1)
        if case.id_dtype == torch.int64:  # low halves that are valid ids
            far = (*far, 2**32 + int(local[0]), -(2**32) + int(local[0]))
        ids[:, 0] = np.resize(far, case.M)
    return ids


def _tensors(case: Case) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    s, rng = case.shape, np.random.default_rng(case.seed)
    w1, w1_scale, w1_zp, dense_1 = quantised(
        rng, s.E, 2 * s.I, s.H, s.G, case.asymmetric, case.scale
    )
    w2, w2_scale, w2_zp, dense_2 = quantised(rng, s.E, s.H, s.I, s.G, case.asymmetric, case.scale)
    x = rng.normal(0, 1, (case.M, s.H)).astype(np.float16)
    expert_map = None
    if case.with_map:
        expert_map = np.full(s.E_g, -1, np.int32)
        expert_map[rng.permutation(s.E_g)[: s.E]] = rng.permutation(s.E)
    ids = route(rng, case, expert_map)
    weights = torch.from_numpy(rng.uniform(0.02, 0.5, ids.shape)).to(case.weight_dtype)
    residual = rng.normal(0, 1, x.shape).astype(np.float16) if case.with_residual else None
    expected = moe_reference(
        x, dense_1, dense_2, weights.double().numpy(), ids, expert_map, residual
    )
    tensors = {
        "hidden_states": torch.from_numpy(x),
        "w1": torch.from_numpy(w1).view(case.code_dtype),
        "w1_scale": torch.from_numpy(w1_scale),
        "w2": torch.from_numpy(w2).view(case.code_dtype),
        "w2_scale": torch.from_numpy(w2_scale),
        "topk_weights": weights,
        "topk_ids": torch.from_numpy(ids).to(case.id_dtype),
    }
    if expert_map is not None:
        tensors["expert_map"] = torch.from_numpy(expert_map)
    if residual is not None:
        tensors["residual"] = torch.from_numpy(residual)
    if case.asymmetric:
        tensors["w1_zp"], tensors["w2_zp"] = torch.from_numpy(w1_zp), torch.from_numpy(w2_zp)
    return tensors, expected
