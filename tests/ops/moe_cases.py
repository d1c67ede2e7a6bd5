"""Cases of MoE decode: weights of every format, routing, tensors and what they must give."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from .moe_oracle import decoded, local_expert, moe_reference

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
    """One call. `with_map` False: ids are local and E_g is E. `scales` is what a scale serves:
    "group", "channel" (a row), "block" of `block` rows and columns, "tensor"."""

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
    format: str = "int4"
    scales: str = "group"
    block: tuple[int, int] = (64, 32)
    scale_dtype: torch.dtype | None = None
    activation: str = "silu"
    limit: float | None = None
    alpha: float | None = None
    scale_bytes: tuple[int, ...] = (117, 118, 119, 120)  # of mxfp4

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
        return {**self.tensors, "group_size": self.shape.G}

    @property
    def call(self) -> dict[str, object]:
        """Keyword arguments of moe_decode."""
        grouped = self.format in ("int4", "i8")
        return {
            **self.tensors,
            "format": self.format,
            "group_size": (self.shape.G if self.scales == "group" else -1) if grouped else None,
            "block": self.block if self.scales == "block" else None,
            "activation": self.activation,
            "swiglu_limit": self.limit,
            "swiglu_alpha": self.alpha,
        }

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


def off_by(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values at an address `elements` further on."""
    room = torch.empty(tensor.numel() + 16, dtype=tensor.dtype)
    view = room[elements : elements + tensor.numel()].view(tensor.shape)
    return view.copy_(tensor)


def in_wider_rows(tensor: torch.Tensor, extra: int) -> torch.Tensor:
    """The same values as a slice of longer rows."""
    room = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + extra, dtype=tensor.dtype)
    room[..., : tensor.shape[-1]] = tensor
    return room[..., : tensor.shape[-1]]


BITS = {"int4": 4, "mxfp4": 4, "f16": 16}
TYPES = {
    "i8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "f16": torch.float16,
}  # fmt: skip
DEFAULT_SCALES = {"int4": torch.float16, "i8": torch.float16, "mxfp4": torch.uint8}


@dataclass(frozen=True)
class Stored:
    """One weight tensor: as the op takes it, and float64 `[E, rows, K]`."""

    weights: torch.Tensor
    scale: torch.Tensor | None
    zeros: torch.Tensor | None
    dense: np.ndarray


def quantised(rng: np.random.Generator, case: Case, rows: int, K: int) -> Stored:
    """Random weights of the case's format. Every finite code occurs; scales differ per row and
    group and have both signs; zero points are 0..15."""
    E, G, format = case.shape.E, case.shape.G, case.format
    if format == "f16":
        dense = rng.normal(0, 0.02 * case.scale, (E, rows, K)).astype(np.float16)
        return Stored(torch.from_numpy(dense), None, None, dense.astype(np.float64))
    codes = rng.integers(0, 16 if BITS.get(format, 8) == 4 else 256, (E, rows, K)).astype(np.uint8)
    if format == "e4m3":
        codes[codes & 127 == 127] = 0x7E
    elif format == "e5m2":
        codes[codes & 127 > 123] = 0x7B
    G, block_rows = {
        "group": (32 if format == "mxfp4" else G, 1), "channel": (K, 1),
        "block": case.block[::-1], "tensor": (K, rows),
    }[case.scales]  # fmt: skip
    shape = (E, -(-rows // block_rows), -(-K // G))
    if format == "mxfp4":
        scales = rng.choice(case.scale_bytes, shape).astype(np.uint8)
        factors = np.exp2(scales.astype(np.float64) - 127)
    else:
        largest = {"int4": 8, "i8": 128, "e4m3": 448, "e5m2": 57344}[format]
        scales = rng.uniform(0.016, 0.096, shape) / largest * rng.choice((-1, 1), (shape[1], 1))
        dtype = case.scale_dtype or DEFAULT_SCALES.get(format, torch.float32)
        scales = (scales * case.scale).astype(np.float16 if dtype == torch.float16 else np.float32)
        factors = scales.astype(np.float64)
    factors = factors.repeat(block_rows, 1)[:, :rows].repeat(G, 2)[..., :K]
    zeros = None
    values = decoded(codes, format)
    if case.asymmetric:
        zeros = rng.integers(0, 16, scales.shape).astype(np.uint8)
        values = codes - zeros.repeat(G, 2).astype(np.float64)
        zeros = torch.from_numpy(zeros[:, 0::2] | zeros[:, 1::2] << 4)
    weights = torch.from_numpy(codes)
    if BITS.get(format, 8) == 4:
        weights = (weights[..., 0::2] | weights[..., 1::2] << 4).view(case.code_dtype)
    else:
        weights = weights.view(TYPES[format])
    scale = torch.from_numpy(scales)
    if case.scales == "channel":
        scale = scale[..., 0].contiguous()
    elif case.scales == "tensor":
        scale = scale[:, 0, 0].contiguous()
    return Stored(weights, scale, zeros, values * factors)


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
    one, two = quantised(rng, case, 2 * s.I, s.H), quantised(rng, case, s.H, s.I)
    x = rng.normal(0, 1, (case.M, s.H)).astype(np.float16)
    expert_map = None
    if case.with_map:
        expert_map = np.full(s.E_g, -1, np.int32)
        expert_map[rng.permutation(s.E_g)[: s.E]] = rng.permutation(s.E)
    ids = route(rng, case, expert_map)
    weights = torch.from_numpy(rng.uniform(0.02, 0.5, ids.shape)).to(case.weight_dtype)
    residual = rng.normal(0, 1, x.shape).astype(np.float16) if case.with_residual else None
    expected = moe_reference(
        x, one.dense, two.dense, weights.double().numpy(), ids, expert_map, residual,
        activation=case.activation, limit=case.limit, alpha=case.alpha,
    )  # fmt: skip
    tensors = {
        "hidden_states": torch.from_numpy(x),
        "w1": one.weights,
        "w1_scale": one.scale,
        "w2": two.weights,
        "w2_scale": two.scale,
        "topk_weights": weights,
        "topk_ids": torch.from_numpy(ids).to(case.id_dtype),
    }
    if expert_map is not None:
        tensors["expert_map"] = torch.from_numpy(expert_map)
    if residual is not None:
        tensors["residual"] = torch.from_numpy(residual)
    if case.asymmetric:
        tensors["w1_zp"], tensors["w2_zp"] = one.zeros, two.zeros
    return tensors, expected
