"""MoE layers in float64, written for reading: what codes mean, and the layer on dequantised
weights. How they are packed is the case generator's business."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def local_expert(global_id: int, expert_map: Array | None, num_experts: int) -> int | None:
    """The expert on this rank that serves an id; None for a dead slot."""
    known = num_experts if expert_map is None else len(expert_map)
    if not 0 <= global_id < known:
        return None
    expert = global_id if expert_map is None else int(expert_map[global_id])
    return expert if 0 <= expert < num_experts else None


def decoded(codes: Array, format: str) -> Array:
    """float64 values of unscaled codes: uint8, one code each."""
    if format == "int4":
        return codes.astype(np.float64) - 8
    if format == "i8":
        return codes.view(np.int8).astype(np.float64)
    if format == "mxfp4":
        magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        return np.where(codes & 8, -1.0, 1.0) * magnitudes[codes & 7]
    mantissa_bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[format]
    exponent = (codes & 127) >> mantissa_bits
    fraction = (codes & (1 << mantissa_bits) - 1) / 2.0**mantissa_bits
    normal = np.ldexp(1 + fraction, exponent.astype(int) - bias)
    value = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    return np.where(codes & 128, -value, value)


def gated(
    gate: Array, up: Array, activation: str, limit: float | None, alpha: float | None
) -> Array:
    """activation(gate) * up, clamped before where there is a limit."""
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if alpha is not None:
        return gate / (1 + np.exp(-alpha * gate)) * (up + 1)
    if activation == "gelu":
        return gate * 0.5 * (1 + np.array([math.erf(g / math.sqrt(2)) for g in gate])) * up
    if activation == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return gate * 0.5 * (1 + np.tanh(inner)) * up
    return gate / (1 + np.exp(-gate)) * up


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
    activation: str = "silu",
    limit: float | None = None,
    alpha: float | None = None,
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
                a = gated(gate, up, activation, limit, alpha).astype(np.float16)
                y[m] += float(weight) * (w2[expert] @ a.astype(np.float64))
    return y if residual is None else y + residual.astype(np.float64)
