"""Entry points under the names that the vLLM RDNA2 forks call.

Same argument order, same mutation of `act_buf` and `output`, nothing returned. Which kernels run
is steered by the forks' switches (docs/moe.md). Two differences: the residual is added before the
one rounding of the result, and rows of `act_buf` that belong to dead slots are left unwritten.
"""

from __future__ import annotations

import torch

from rdna_jit.config import config
from rdna_jit.ops._contract import reject
from rdna_jit.ops.moe import moe_int4_decode

__all__ = ["moe_skinny_decode_supported", "moe_skinny_int4_decode", "moe_skinny_int4_decode_v2"]

Tensor = torch.Tensor
_MOST_TOKENS = 16


def _check_buffers(op: str, act_buf: object, output: object) -> None:
    for name, buffer in (("act_buf", act_buf), ("output", output)):
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
    _check_buffers("moe_skinny_int4_decode", act_buf, output)
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
    _check_buffers("moe_skinny_int4_decode_v2", act_buf, output)
    moe_int4_decode(
        input, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids,
        group_size=group_size, expert_map=expert_map, residual=residual,
        workspace=act_buf, out=output, variant="v2",
    )  # fmt: skip


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
