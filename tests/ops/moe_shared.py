"""A shared expert beside a case: int8 rows, an optional gate, and what it adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from .moe_cases import Case
from .moe_oracle import gated


@dataclass(frozen=True)
class SharedExpert:
    """`I` channels; scales of `dtype`; `seed` of its weights."""

    case: Case
    I: int = 48  # noqa: E741
    with_gate: bool = True
    dtype: torch.dtype = torch.float16
    seed: int = 5

    @cached_property
    def _made(self) -> tuple[dict[str, torch.Tensor], np.ndarray]:
        rng, H, case = np.random.default_rng(self.seed), self.case.shape.H, self.case
        kind = np.float16 if self.dtype == torch.float16 else np.float32

        def rows(N: int, K: int) -> tuple[np.ndarray, np.ndarray]:
            codes = rng.integers(-128, 128, (N, K)).astype(np.int8)
            sign = rng.choice((-1, 1), N)
            return codes, (rng.uniform(0.0005, 0.001, N) * sign).astype(kind)

        (w1, s1), (w2, s2) = rows(2 * self.I, H), rows(H, self.I)
        gate = rng.normal(0, 0.1, H).astype(np.float16)
        x = case.tensors["hidden_states"].numpy().astype(np.float64)
        u = x @ (w1 * s1[:, None].astype(np.float64)).T
        a = gated(u[:, : self.I], u[:, self.I :], case.activation, case.limit, case.alpha)
        y = a.astype(np.float16).astype(np.float64) @ (w2 * s2[:, None].astype(np.float64)).T
        if self.with_gate:
            y /= 1 + np.exp(-(x @ gate.astype(np.float64)))[:, None]
        tensors = {"w1": w1, "w1_scale": s1, "w2": w2, "w2_scale": s2}
        if self.with_gate:
            tensors["gate"] = gate
        return {f"shared_{name}": torch.from_numpy(t) for name, t in tensors.items()}, y

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by argument name."""
        return self._made[0]

    @property
    def part(self) -> np.ndarray:
        """float64 `[M, H]`, what it adds."""
        return self._made[1]
