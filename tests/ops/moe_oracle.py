"""MoE layers in float64, written for reading. Works on dequantised weights: how they are packed is
the case generator's business."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def local_expert(global_id: int, expert_map: Array | None, num_experts: int) -> int | None:
    """The expert on this rank that serves an id; None for a dead slot."""
    known = num_experts if expert_map is None else len(expert_map)
    if not 0 <= global_id < known:
        return None
    expert = global_id if expert_map is None else int(expert_map[global_id])
    return expert if 0 <= expert < num_experts else None


def moe_reference(
    hidden_states: Array,
    w1: Array,
    w2: Array,
    topk_weights: Array,
    topk_ids: Array,
    expert_map: Array | None = None,
    residual: Array | None = None,
    *,
    round_gate_up: bool = False,
) -> Array:
    """float64 `[M, H]` before the final rounding.

    w1 float64 `[E, 2 I, H]`, gate rows first; w2 float64 `[E, H, I]`. The activation is rounded to
    fp16 between the two products, as the layer's contract says; `round_gate_up` also rounds gate
    and up.
    """
    y = np.zeros((hidden_states.shape[0], w2.shape[1]))
    for m, (ids, weights) in enumerate(zip(topk_ids, topk_weights, strict=True)):
        for global_id, weight in zip(ids, weights, strict=True):
            expert = local_expert(int(global_id), expert_map, len(w1))
            if expert is None:
                continue
            gate, up = np.split(w1[expert] @ hidden_states[m].astype(np.float64), 2)
            if round_gate_up:
                gate, up = (v.astype(np.float16).astype(np.float64) for v in (gate, up))
            # An activation may overflow fp16; infinities then spread as they do in the kernels.
            with np.errstate(over="ignore", invalid="ignore"):
                activation = (gate / (1 + np.exp(-gate)) * up).astype(np.float16)
                y[m] += float(weight) * (w2[expert] @ activation.astype(np.float64))
    return y if residual is None else y + residual.astype(np.float64)
