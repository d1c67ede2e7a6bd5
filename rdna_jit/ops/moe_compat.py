"""Entry points under the names that the vLLM RDNA2 forks call.

Same argument order, same mutation of `act_buf` and `output`, nothing returned. Which kernels run
is steered by the forks' switches (docs/moe.md). Two differences: the residual is added before the
one rounding of the result, and rows of `act_buf` that belong to dead slots are left unwritten.
"""

from __future__ import annotations

import torch

from rdna_jit.config import config
from rdna_jit.formats import MoEWeights
from rdna_jit.ops._contract import reject
from rdna_jit.ops.fused_moe import fused_moe
from rdna_jit.ops.moe import moe_decode, moe_int4_decode

__all__ = [
    "moe_decode_v3",
    "moe_modular_apply",
    "moe_skinny_decode_supported",
    "moe_skinny_int4_decode",
    "moe_skinny_int4_decode_v2",
]

Tensor = torch.Tensor
_MOST_TOKENS = 16


def _check_buffers(op: str, **buffers: object) -> None:
    for name, buffer in buffers.items():
        if not isinstance(buffer, Tensor):
            reject(op, name, "a tensor, which the call fills", type(buffer).__name__)


def moe_skinny_int4_decode(
    input: Tensor,
    w13: Tensor,
    w13_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    act_buf: Tensor,
    output: Tensor,
    group_size: int,
    expert_map: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """The v2 kernels where VLLM_RDNA_MOE_V2 is on and they can take the call, else the v1 ones."""
    _check_buffers("moe_skinny_int4_decode", act_buf=act_buf, output=output)
    moe_int4_decode(
        input, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids,
        group_size=group_size, expert_map=expert_map, residual=residual,
        workspace=act_buf, out=output, variant="v2" if config.moe_v2 else "v1",
    )  # fmt: skip


def moe_skinny_int4_decode_v2(
    input: Tensor,
    w13: Tensor,
    w13_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    act_buf: Tensor,
    output: Tensor,
    group_size: int,
    expert_map: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """The v2 kernels; what they cannot take runs in the v1 ones instead of raising."""
    _check_buffers("moe_skinny_int4_decode_v2", act_buf=act_buf, output=output)
    moe_int4_decode(
        input, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids,
        group_size=group_size, expert_map=expert_map, residual=residual,
        workspace=act_buf, out=output, variant="v2",
    )  # fmt: skip


def moe_decode_v3(
    input: Tensor,
    w13: Tensor,
    w13_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    se1: Tensor,
    se1_scale: Tensor,
    se2: Tensor,
    se2_scale: Tensor,
    w_gate: Tensor | None,
    act_buf: Tensor,
    output: Tensor,
    shared_output: Tensor,
    group_size: int,
    expert_map: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """v2 with the shared expert, int8 rows, in the same launches up to two tokens. Its part goes to
    `shared_output` rounded by itself; the caller adds the two."""
    _check_buffers("moe_decode_v3", act_buf=act_buf, output=output, shared_output=shared_output)
    moe_decode(
        input, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, format="int4",
        group_size=group_size, expert_map=expert_map, residual=residual, workspace=act_buf,
        out=output, shared_w1=se1, shared_w1_scale=se1_scale, shared_w2=se2,
        shared_w2_scale=se2_scale, shared_gate=w_gate, shared_out=shared_output,
    )  # fmt: skip


def moe_modular_apply(
    output: Tensor,
    hidden_states: Tensor,
    w13: Tensor,
    w13_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    act_buf: Tensor,
    workspace: Tensor,
    block_shape: list[int] | None,
    *,
    global_num_experts: int = -1,
    expert_map: Tensor | None = None,
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
    w13_zp: Tensor | None = None,
    w2_zp: Tensor | None = None,
) -> Tensor:
    """What the forks' modular runner does with int4 experts; fills and returns `output` `[M, H]`.

    Where VLLM_RDNA_MOE_ALIAS is on and `output` has the form of the result, the experts write into
    it; else into `workspace` (fp16 `[M or more, H]`), from which the result is copied. Calls that
    `moe_skinny_decode_supported` accepts go to moe_skinny_int4_decode (v2, then v1), others to
    fused_moe.
    """
    _check_buffers("moe_modular_apply", output=output, workspace=workspace, act_buf=act_buf)
    if output.shape != hidden_states.shape:
        reject("moe_modular_apply", "output", f"shape {list(hidden_states.shape)}",
               list(output.shape), "give it the result's")  # fmt: skip
    target = output if config.moe_alias and _takes_result(output, hidden_states) else None
    result = workspace[: len(hidden_states)] if target is None else target
    group = block_shape[1] if block_shape is not None and len(block_shape) >= 2 else -1
    if moe_skinny_decode_supported(
        hidden_states, w13_scale, w2_scale, block_shape, num_experts=len(w13),
        global_num_experts=global_num_experts, expert_map=expert_map, activation=activation,
        apply_router_weight_on_input=apply_router_weight_on_input, w13_zp=w13_zp, w2_zp=w2_zp,
    ):  # fmt: skip
        moe_skinny_int4_decode(
            hidden_states, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, act_buf, result,
            group, expert_map,
        )  # fmt: skip
    else:  # what the forks leave to their tiled kernels
        codes = w13.view(torch.uint8), w2.view(torch.uint8)
        weights = MoEWeights("int4", codes[0], w13_scale, codes[1], w2_scale, w13_zp, w2_zp, group)
        fused_moe(
            hidden_states, weights, topk_weights, topk_ids, expert_map=expert_map,
            activation=activation, apply_router_weight_on_input=apply_router_weight_on_input,
            out=result,
        )  # fmt: skip
    if target is None:
        output.copy_(result)
    return output


def _takes_result(output: Tensor, hidden_states: Tensor) -> bool:
    """Whether the experts may write into the runner's output, which has the result's shape."""
    return (
        output.dtype == hidden_states.dtype
        and output.device == hidden_states.device
        and output.is_contiguous()
    )


def moe_skinny_decode_supported(
    hidden_states: Tensor,
    w13_scale: Tensor | None,
    w2_scale: Tensor | None,
    block_shape: list[int] | None,
    *,
    num_experts: int,
    global_num_experts: int = -1,
    expert_map: Tensor | None = None,
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
    w13_zp: Tensor | None = None,
    w2_zp: Tensor | None = None,
) -> bool:
    """Whether the forks send a call of int4 experts to the decode kernels: up to
    VLLM_ROCM_MOE_SKINNY_MAX_M tokens (at most 16), fp16, symmetric, SiLU, router weights after."""
    most = min(config.moe_skinny_max_m, _MOST_TOKENS)
    return (
        1 <= hidden_states.shape[0] <= most
        and hidden_states.dtype == torch.float16
        and activation == "silu"
        and not apply_router_weight_on_input
        and w13_zp is None
        and w2_zp is None
        and w13_scale is not None
        and w2_scale is not None
        and block_shape is not None
        and len(block_shape) >= 2
        and (expert_map is not None or global_num_experts in (-1, num_experts))
    )
