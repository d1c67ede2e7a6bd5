"""Routing of MoE layers: the choice of experts, and slots sorted by expert into blocks."""

from __future__ import annotations

import torch

from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.ops import _moe_routing as kernels
from rdna_jit.ops._contract import alignment, check_tensor, reject, row_stride
from rdna_jit.ops._op import public_op

__all__ = ["moe_align_block_size", "topk_router"]

Tensor = torch.Tensor
_ALIGN, _ROUTER = "moe_align_block_size", "topk_router"
_INT, _FLOAT = torch.int32, torch.float32
_ID_TYPES = {torch.int32: "int", torch.int64: "long long"}
_LOGIT_TYPES = {torch.float32: "float", torch.float16: "_Float16"}
SCORINGS = ("softmax", "sigmoid")


def _plan_align(
    topk_ids: Tensor,
    block_size: int,
    num_experts: int,
    expert_map: Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
    return_inverse: bool = False,
) -> Plan:
    if isinstance(topk_ids, Tensor) and topk_ids.dtype not in _ID_TYPES:
        reject(_ALIGN, "topk_ids", "torch.int32 or torch.int64", topk_ids.dtype, "convert it")
    dtype = getattr(topk_ids, "dtype", _INT)
    M, T = check_tensor(_ALIGN, "topk_ids", topk_ids, dtype, (None, None)).shape
    _check_range(_ALIGN, "block_size", block_size, 1, (1 << 16) - 1)
    _check_range(_ALIGN, "num_experts", num_experts, 1, kernels.MOST_EXPERTS_ALIGN)
    if expert_map is not None:
        _check_map(expert_map, num_experts, topk_ids.device)
    slots = M * T
    rows, blocks = kernels.align_capacity(slots, block_size, num_experts, pad_sorted_ids)
    if slots > kernels.MOST_SLOTS or rows >= 1 << 29:
        reject(_ALIGN, "topk_ids", f"at most {kernels.MOST_SLOTS} slots and 2^29 padded rows",
               f"{slots} slots, {rows} rows", "split the batch")  # fmt: skip
    shape = {"M": M, "T": T, "E": num_experts, "block_size": block_size}
    if slots == 0:
        return Plan(_ALIGN, "none", shape=shape, notes=("an empty batch launches nothing",),
                    extra=(0, 0, 0))  # fmt: skip
    dense = topk_ids.is_contiguous()
    values: kernels.Values = {
        "NUM_EXPERTS": num_experts,
        "BLOCK_SIZE": block_size,
        "TOP_K": 1 if dense else T,
        "ID_STRIDE": 1 if dense else row_stride(topk_ids),
        "ID_TYPE": _ID_TYPES[topk_ids.dtype],
        "HAS_MAP": expert_map is not None,
        "DROP_INVALID": expert_map is not None and ignore_invalid_experts,
        "HAS_INVERSE": return_inverse,
        "WAVES": kernels.align_waves(slots, num_experts),
    }
    launch = Launch(kernels.ALIGN.specialise(None, **values), 1, kernels.ALIGN.block_of(values))
    return Plan(
        _ALIGN, "moe_align", values, (launch,),
        candidates=(Candidate("moe_align", True, "takes everything"),),
        shape=shape, extra=(slots, rows, blocks),
    )  # fmt: skip


def _fake_align(
    topk_ids: Tensor,
    block_size: int,
    num_experts: int,
    expert_map: Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
    return_inverse: bool = False,
) -> list[Tensor]:
    slots = topk_ids.shape[0] * topk_ids.shape[1]
    rows, blocks = kernels.align_capacity(slots, block_size, num_experts, pad_sorted_ids)
    return list(_align_outputs(topk_ids, rows, blocks, return_inverse))


def _align_outputs(ids: Tensor, rows: int, blocks: int, inverse: bool) -> tuple[Tensor, ...]:
    sizes: list[tuple[int, ...]] = [(rows,), (blocks,), (1,)]
    if inverse:
        sizes += [tuple(ids.shape), (blocks,), (1,)]
    return tuple(ids.new_empty(size, dtype=_INT) for size in sizes)


@public_op(
    "moe_align_block_size(Tensor topk_ids, int block_size, int num_experts,"
    " Tensor? expert_map=None, bool pad_sorted_ids=False, bool ignore_invalid_experts=False,"
    " bool return_inverse=False) -> Tensor[]",
    plan=_plan_align,
    fake=_fake_align,
)
def moe_align_block_size(
    plan: Plan,
    topk_ids: Tensor,
    block_size: int,
    num_experts: int,
    expert_map: Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
    return_inverse: bool = False,
) -> tuple[Tensor, ...]:
    """Slots sorted by expert, every expert's run padded to whole blocks, in one launch.

    A slot is one (token, choice) pair, numbered `token * T + choice`. A grouped GEMM gives each
    workgroup one block of rows, all of one expert.

    topk_ids       int32 or int64 `[M, T]`, global expert ids, rows may be strided
    block_size     rows of a block, any from 1
    num_experts    experts that ids count, up to 2048; the **global** count when a map is given
    expert_map     int32 `[num_experts]`: the expert on this rank, -1 where another rank has it

    Returns int32 tensors on the device of topk_ids:

    sorted_token_ids         `[rows]`: slots by ascending expert, ascending within an expert;
                             `M * T` in padding and in the unused tail
    expert_ids               `[blocks]`: the expert of each block; -1 for experts of other ranks
                             and past the last block
    num_tokens_post_padded   `[1]`: rows in use, a multiple of block_size

    and with return_inverse also

    inverse                  `[M, T]`: row of each slot, so that
                             `sorted_token_ids[inverse] == slot`; -1 for a dropped slot
    active_blocks            `[blocks]`: the blocks whose expert is not -1, ascending, then -1
    num_active_blocks        `[1]`

    Ids that are negative or not below num_experts are dropped, always. With
    `ignore_invalid_experts` slots of experts of other ranks are dropped as well, and slots are
    sorted by the rank's own expert numbers; without, they keep their rows, sorted by global number,
    and their blocks say -1 (also where the map has a number that is not below num_experts).

    `rows` is M * T + num_experts * (block_size - 1), rounded up to whole blocks by
    `pad_sorted_ids`, and at most M * T * block_size when there are fewer slots than experts;
    `blocks` is that over block_size, rounded up. The host never waits for the device. Two runs
    give the same bits. Every element is written. Raises ContractError naming the tensor.

    Through `torch.ops.rdna_jit.moe_align_block_size` the result is a list.
    """
    slots, rows, blocks = plan.extra
    outputs = _align_outputs(topk_ids, rows, blocks, return_inverse)
    if not plan.launches:
        for output in outputs:
            output.zero_()  # the counts; the others have no elements
        return outputs
    extra = outputs[3:] if return_inverse else (None, None, None)
    plan.launches[0](topk_ids, expert_map, *outputs[:3], *extra, slots, rows, blocks)
    return outputs


def _plan_router(
    gating_output: Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    renormalize: bool = True,
    correction_bias: Tensor | None = None,
    num_expert_group: int = 0,
    topk_group: int = 0,
    routed_scaling_factor: float = 1.0,
) -> Plan:
    if scoring not in SCORINGS:
        reject(_ROUTER, "scoring", f"one of {', '.join(SCORINGS)}", repr(scoring), "leave it out")
    if isinstance(gating_output, Tensor) and gating_output.dtype not in _LOGIT_TYPES:
        half = gating_output.is_floating_point()
        reject(_ROUTER, "gating_output", "torch.float16 or torch.float32", gating_output.dtype,
               "call gating_output." + ("half() or .float()" if half else "float()"))  # fmt: skip
    if not isinstance(routed_scaling_factor, (int, float)):
        reject(_ROUTER, "routed_scaling_factor", "a number", repr(routed_scaling_factor))
    dtype = getattr(gating_output, "dtype", _FLOAT)
    M, E = check_tensor(_ROUTER, "gating_output", gating_output, dtype, (None, None)).shape
    if not 1 <= E <= kernels.MOST_EXPERTS:
        reject(_ROUTER, "gating_output", f"1 to {kernels.MOST_EXPERTS} experts", f"{E} experts")
    if correction_bias is not None:
        check_tensor(_ROUTER, "correction_bias", correction_bias, _FLOAT, (E,),
                     gating_output.device)  # fmt: skip
    groups, chosen = _check_groups(E, num_expert_group, topk_group, correction_bias is not None)
    _check_range(_ROUTER, "top_k", top_k, 1, min(kernels.MOST_CHOICES, E // groups * chosen))
    shape = {"M": M, "E": E, "T": top_k}
    if M == 0:
        return Plan(_ROUTER, "none", shape=shape, notes=("an empty batch launches nothing",))
    own, size = kernels.router_own(E, groups), gating_output.element_size()
    waves = kernels.router_waves(M)
    values: kernels.Values = {
        "EXPERTS": E,
        "TOP_K": top_k,
        "GROUPS": groups,
        "TOP_GROUPS": chosen,
        "LOGIT_TYPE": _LOGIT_TYPES[gating_output.dtype],
        "SIGMOID": scoring == "sigmoid",
        "HAS_BIAS": correction_bias is not None,
        "RENORMALIZE": bool(renormalize),
        "ALIGN": kernels.router_align(own, size, alignment(gating_output, 16)),
        "WAVES": waves,
    }
    kernel = kernels.ROUTER.specialise(None, **values)
    launch = Launch(kernel, -(-M // waves), kernels.ROUTER.block_of(values))
    return Plan(
        _ROUTER, "moe_topk_router", values, (launch,),
        candidates=(Candidate("moe_topk_router", True, "takes everything"),),
        shape=shape, extra=row_stride(gating_output),
    )  # fmt: skip


def _fake_router(
    gating_output: Tensor, top_k: int, *args: object, **kwargs: object
) -> tuple[Tensor, Tensor]:
    size = (gating_output.shape[0], top_k)
    return gating_output.new_empty(size, dtype=_FLOAT), gating_output.new_empty(size, dtype=_INT)


@public_op(
    "topk_router(Tensor gating_output, int top_k, *, str scoring='softmax',"
    " bool renormalize=True, Tensor? correction_bias=None, int num_expert_group=0,"
    " int topk_group=0, float routed_scaling_factor=1.0) -> (Tensor, Tensor)",
    plan=_plan_router,
    fake=_fake_router,
    batch_invariant=True,
)
def topk_router(
    plan: Plan,
    gating_output: Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    renormalize: bool = True,
    correction_bias: Tensor | None = None,
    num_expert_group: int = 0,
    topk_group: int = 0,
    routed_scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The top_k experts of each token and their weights: fp32 and int32 `[M, top_k]`, best first.

    gating_output          fp16 or fp32 `[M, E]` logits, E up to 1024, rows may be strided
    top_k                  up to 32, and no more than the experts of the chosen groups
    scoring                "softmax" over all experts, or "sigmoid" of each
    correction_bias        fp32 `[E]`, added to the scores for the choice only; weights are the
                           scores without it
    num_expert_group       groups of neighbouring experts, up to 32, a divisor of E; 0: none
    topk_group             groups that experts are chosen from: those with the best expert, or with
                           a bias the best sum of their two best (score + bias, in fp32)
    renormalize            divides the weights by their sum over the chosen experts; a sum of zero
                           gives zeros
    routed_scaling_factor  multiplies the weights at the end

    Scores are fp32. Without a bias experts are compared by their logits, so that scores which
    round to the same number stay in order. Ties go to the lower expert and the lower group. A NaN
    ranks above every number, as in torch.topk: its expert is chosen and its weight is NaN; under
    softmax, or renormalised, all weights of the token are NaN (so too where all logits are -inf or
    one is +inf under softmax). Ids are always valid and distinct.

    A row has the same bits alone and in a batch. Raises ContractError naming the tensor.
    """
    size, device = (gating_output.shape[0], top_k), gating_output.device
    weights = torch.empty(size, dtype=_FLOAT, device=device)
    ids = torch.empty(size, dtype=_INT, device=device)
    if plan.launches:
        plan.launches[0](gating_output, correction_bias, weights, ids, size[0], plan.extra,
                         float(routed_scaling_factor))  # fmt: skip
    return weights, ids


def _check_range(op: str, name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        reject(op, name, f"a number from {low} to {high}", repr(value), "see the docstring")


def _check_map(expert_map: Tensor, num_experts: int, device: torch.device) -> None:
    check_tensor(_ALIGN, "expert_map", expert_map, _INT, (None,), device)
    if expert_map.shape[0] != num_experts:
        reject(_ALIGN, "expert_map", f"one entry for each of the {num_experts} experts",
               f"{expert_map.shape[0]} entries", "num_experts is the global count")  # fmt: skip


def _check_groups(E: int, groups: object, chosen: object, has_bias: bool) -> tuple[int, int]:
    """Groups and how many of them are chosen; 1, 1 without groups."""
    if groups == 0:
        _check_range(_ROUTER, "topk_group", chosen, 0, 0)
        return 1, 1
    _check_range(_ROUTER, "num_expert_group", groups, 0, kernels.MOST_GROUPS)
    assert isinstance(groups, int)
    if E % groups:
        reject(_ROUTER, "num_expert_group", f"a divisor of the {E} experts", groups, "pad them")
    _check_range(_ROUTER, "topk_group", chosen, 1, groups)
    assert isinstance(chosen, int)
    if has_bias and chosen < groups and E // groups < 2:
        reject(_ROUTER, "num_expert_group", "groups of two experts or more with a bias", groups,
               "a group's score is the sum of its two best")  # fmt: skip
    return groups, chosen
