"""Float64 references, written straight from the maths: the truth that ops are held against."""

from __future__ import annotations

import torch
from torch import Tensor


def experts_int4(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, experts: Tensor | list[int]
) -> dict[int, Tensor]:
    """Dequantised matrices ``[rows, K]`` float64 of some experts.

    codes uint8 ``[E, rows, K / 2]`` (low nibble = even k), scales ``[E, rows, K / G]``, zeros uint8
    ``[E, rows / 2, K / G]`` (low nibble = even row) or None: zero point 8.
    """
    matrices = {}
    for e in sorted({int(e) for e in experts}):
        q = torch.stack([codes[e] & 15, codes[e] >> 4], -1).flatten(1).double()
        group = q.shape[1] // scales.shape[2]
        z = torch.full(scales.shape[1:], 8.0, dtype=torch.float64)
        if zeros is not None:
            z = torch.stack([zeros[e] & 15, zeros[e] >> 4], 1).flatten(0, 1).double()
        matrices[e] = (q - z.repeat_interleave(group, 1)) * scales[e].double().repeat_interleave(
            group, 1
        )
    return matrices


def experts_mxfp4(codes: Tensor, scales: Tensor, experts: Tensor | list[int]) -> dict[int, Tensor]:
    """Dequantised matrices ``[rows, K]`` float64 of some experts.

    codes uint8 ``[E, rows, K / 2]`` of e2m1 (low nibble = even k), scales uint8 ``[E, rows, K /
    32]``: 2^(byte - 127).
    """
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = torch.tensor(magnitudes + [-m for m in magnitudes], dtype=torch.float64)
    matrices = {}
    for e in sorted({int(e) for e in experts}):
        q = torch.stack([codes[e] & 15, codes[e] >> 4], -1).flatten(1).long()
        scale = torch.exp2(scales[e].double() - 127)
        matrices[e] = values.to(q.device)[q] * scale.repeat_interleave(32, 1)
    return matrices


def local_expert(global_id: int, expert_map: Tensor | None, experts: int) -> int:
    """The expert of this rank that serves a router's id, -1 when the slot is dead."""
    if expert_map is not None:
        return int(expert_map[global_id]) if 0 <= global_id < len(expert_map) else -1
    return global_id if 0 <= global_id < experts else -1


def moe(
    x: Tensor,
    w1: dict[int, Tensor],
    w2: dict[int, Tensor],
    topk_weights: Tensor,
    slot_experts: list[list[int]],
    residual: Tensor | None = None,
) -> Tensor:
    """``y[m] = sum_j weight[m, j] * W2 fp16(silu(gate) * up) + residual[m]``, float64 ``[M, H]``.

    ``slot_experts[m][j]`` names the expert, -1 for a dead slot; W1 ``[2 I, H]`` holds the gate rows
    before the up rows. The activation is rounded to fp16, as its buffer is.
    """
    y = torch.zeros(x.shape, dtype=torch.float64)
    for m, experts in enumerate(slot_experts):
        for j, e in enumerate(experts):
            if e < 0:
                continue
            gate, up = (w1[e] @ x[m].double()).chunk(2)
            activation = (gate / (1 + torch.exp(-gate)) * up).half().double()
            y[m] += float(topk_weights[m, j]) * (w2[e] @ activation)
    return y if residual is None else y + residual.double()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight + bias`` in float64; ``weight`` is the dequantised ``[K, N]``."""
    y = x.double() @ weight.double()
    return y if bias is None else y + bias.double()


__all__ = ["experts_int4", "experts_mxfp4", "linear", "local_expert", "moe"]
