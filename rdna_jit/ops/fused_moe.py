"""A MoE layer from its weights: one op that chooses the kernels by the tokens that come.

The choice is made inside the op, so a graph that torch.compile traced for a prefill runs the decode
kernels when it gets one token. docs/moe-layer.md has the whole path, from a checkpoint on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from rdna_jit.dispatch import Candidate, Plan
from rdna_jit.errors import ContractError
from rdna_jit.formats import MoEWeights
from rdna_jit.ops import _moe_cost, moe
from rdna_jit.ops._contract import check_no_overlap, check_tensor, reject
from rdna_jit.ops._moe_decode import GROUPED
from rdna_jit.ops._op import public_op
from rdna_jit.ops._switches import disabling
from rdna_jit.ops.moe_tiled import moe_tiled

__all__ = ["SharedExpert", "fused_moe"]

Tensor = torch.Tensor
_OP = "fused_moe"
_HALF, _BYTE = torch.float16, torch.uint8
VARIANTS = ("auto", "decode", "tiled", "w4a8")
_run_tiled: Callable[..., Tensor] = moe_tiled.__wrapped__  # type: ignore[attr-defined]


class SharedExpert(NamedTuple):
    """An expert that every token has: int8 `w1` `[2 I_s, H]` and `w2` `[H, I_s]` with fp16 or fp32
    scales per row `[2 I_s]`, `[H]`; its result counts `sigmoid(gate . x)` times, `gate` fp16 `[H]`,
    or once."""

    w1: Tensor
    w1_scale: Tensor
    w2: Tensor
    w2_scale: Tensor
    gate: Tensor | None = None

    @classmethod
    def of(cls, weights: MoEWeights, gate: Tensor | None = None) -> SharedExpert:
        """Of the one expert of `weights`, in format i8 with a scale per row."""
        if (weights.format, weights.E, weights.group_size) != ("i8", 1, -1):
            reject("SharedExpert", "weights", "one i8 expert with a scale per row", weights)
        assert weights.w1_scale is not None and weights.w2_scale is not None
        return cls(weights.w1[0], weights.w1_scale[0], weights.w2[0], weights.w2_scale[0], gate)


class _Way(NamedTuple):
    """What a plan chose: the inner op's plan, whether it does the shared expert as well, and how
    many bytes of workspace it needs."""

    inner: Plan
    tiled: bool
    shared_inside: bool
    workspace_bytes: int


def _plan(
    *,
    apply_router_weight_on_input: bool = False,
    workspace: Tensor | None = None,
    variant: str = "auto",
    **given: Any,
) -> Plan:
    on_input, x, out = apply_router_weight_on_input, given["hidden_states"], given["out"]
    shared = {name: given.pop(name) for name in list(given) if name.startswith("shared_")}
    if variant not in VARIANTS:
        reject(_OP, "variant", f"one of {', '.join(VARIANTS)}", repr(variant), "leave it out")
    decode = _plan_decode({**given, **shared})  # checks the operands
    M, T = decode.shape["M"], decode.shape["T"]
    if on_input and T != 1:
        reject(_OP, "apply_router_weight_on_input", "False unless top-k is 1", f"top-k {T}",
               "a token has one input")  # fmt: skip
    if M == 0:
        return decode
    tiles, why = _wanted(variant, decode, given)
    tiled, cannot = _plan_tiled(tiles, given, on_input) if tiles else (None, "")
    size = 2 * M * T * decode.shape["I"] if tiled is None else tiled.extra.nbytes
    if workspace is not None:
        _check_workspace(workspace, size, x)
    inner, other = tiled, Candidate(decode.kernel, False, why)
    if inner is None:
        inner, other = decode, Candidate("moe_tile", False, cannot or why)
        operands = {**given, **shared}
        if on_input:  # the shared expert's input is not weighted
            weighted = torch.empty(x.shape, dtype=_HALF, device=x.device)
            ones = given["topk_weights"].new_empty((M, T))
            operands = {**given, "hidden_states": weighted, "topk_weights": ones}
        if workspace is not None:
            operands["workspace"] = workspace[:size].view(_HALF).view(M, T, -1)
        if on_input or workspace is not None:
            inner = _plan_decode(operands)
    launches, notes, fallbacks = inner.launches, inner.notes, [cannot, inner.fallback]
    shared_inside = tiled is None and inner.extra.fused
    if shared.get("shared_w1") is not None and not shared_inside:
        y = torch.empty(x.shape, dtype=_HALF, device=x.device) if out is None else out
        slots = torch.empty((M, 1), device=x.device)
        activation = {n: given[n] for n in ("activation", "swiglu_limit", "swiglu_alpha")}
        weights = list(shared.values())[:4]
        alone = moe._shared_alone(_plan, x, y, None, slots, slots.int(), weights, **activation)
        launches += alone.launches
        notes += (f"the shared expert runs by itself in {alone.kernel}",)
        fallbacks.append(alone.fallback and f"shared expert: {alone.fallback}")
    return Plan(
        _OP, inner.kernel, inner.values, launches, (*inner.candidates, other), notes, inner.shape,
        "; ".join(filter(None, fallbacks)),
        extra=_Way(inner, tiled is not None, shared_inside, size),
    )  # fmt: skip


def _plan_decode(given: dict[str, Any]) -> Plan:
    """The decode kernels' plan, under this op's name."""
    return moe._plan(_OP, **given, variant="auto")


def _plan_tiled(tiles: str, given: dict[str, Any], on_input: bool) -> tuple[Plan | None, str]:
    """The tile kernels' plan for operands that are known to be right, and why not the wanted one:
    exact tiles stand in for those of int8 activations."""
    operands = dict(given)
    cannot = []
    for kernel in ("moe_tile_w4a8", "moe_tile")[tiles != "w4a8" :]:
        if setting := disabling(kernel):
            cannot.append(f"{kernel}: {setting} names it")
            continue
        operands["variant"] = "w4a8" if kernel.endswith("w4a8") else "auto"
        try:
            plan: Plan = moe_tiled.plan(  # type: ignore[attr-defined]
                **operands, apply_router_weight_on_input=on_input
            )
        except ContractError as error:
            cannot.append(f"{kernel}: {error.got}")
        else:
            return replace(plan, op=_OP), "; ".join(cannot)
    return None, "; ".join(cannot)


def _wanted(variant: str, decode: Plan, given: dict[str, Any]) -> tuple[str, str]:
    """The variant of tiles to take, "" for the decode kernels, and what speaks against the other
    kind."""
    if variant in ("decode", "tiled"):
        tiles = "" if variant == "decode" else variant
        return tiles, f"variant={variant!r} asks for the other kernels"
    sizes = {name: decode.shape[name] for name in "MTHIE"}
    parts = (given.get(n) for n in ("w1", "w1_scale", "w1_zp", "w2", "w2_scale", "w2_zp"))
    table = given.get("expert_map")
    layer = _moe_cost.Layer(
        format=given["format"],
        num_ids=sizes["E"] if table is None else table.shape[0],
        expert_bytes=sum(t.nbytes for t in parts if t is not None) / sizes["E"],
        **sizes,
    )
    few = _moe_cost.decode_us(layer, decode.kernel == GROUPED)
    many = _moe_cost.tiled_us(layer, variant == "w4a8")
    if few <= many:
        return "", f"estimated {many:.0f} us, {decode.kernel} {few:.0f}"
    return variant, f"estimated {few:.0f} us, tiles {many:.0f}"


def _check_workspace(workspace: object, size: int, x: Tensor) -> None:
    tensor = check_tensor(_OP, "workspace", workspace, _BYTE, (None,), x.device)
    if tensor.shape[0] < size or tensor.data_ptr() % 16:
        got = f"{tensor.shape[0]} at {tensor.data_ptr():#x}"
        reject(_OP, "workspace", f"{size} bytes, 16-byte aligned", got,
               "fused_moe.workspace_bytes tells how many")  # fmt: skip


def _weighted_input(x: Tensor, topk_weights: Tensor) -> tuple[Tensor, Tensor]:
    """fp16(weight * x), rounded once, and weights of one: for the decode kernels."""
    scaled = torch.empty(x.shape, dtype=_HALF, device=x.device)
    torch.mul(x, topk_weights, out=scaled)
    return scaled, torch.ones(topk_weights.shape, dtype=topk_weights.dtype, device=x.device)


def _fake(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


@public_op(
    "fused_moe(Tensor hidden_states, Tensor w1, Tensor? w1_scale, Tensor w2, Tensor? w2_scale,"
    " Tensor topk_weights, Tensor topk_ids, *, str format, int group_size=-1, int[]? block=None,"
    " Tensor? expert_map=None, Tensor? residual=None, Tensor? w1_zp=None, Tensor? w2_zp=None,"
    ' str activation="silu", float? swiglu_limit=None, float? swiglu_alpha=None,'
    " bool apply_router_weight_on_input=False, Tensor? shared_w1=None,"
    " Tensor? shared_w1_scale=None, Tensor? shared_w2=None, Tensor? shared_w2_scale=None,"
    ' Tensor? shared_gate=None, Tensor(w!)? workspace=None, str variant="auto") -> Tensor',
    plan=_plan,
    fake=_fake,
)
def _layer(
    plan: Plan,
    hidden_states: Tensor,
    w1: Tensor,
    w1_scale: Tensor | None,
    w2: Tensor,
    w2_scale: Tensor | None,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    format: str,
    group_size: int = -1,
    block: Sequence[int] | None = None,
    expert_map: Tensor | None = None,
    residual: Tensor | None = None,
    w1_zp: Tensor | None = None,
    w2_zp: Tensor | None = None,
    activation: str = "silu",
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    apply_router_weight_on_input: bool = False,
    shared_w1: Tensor | None = None,
    shared_w1_scale: Tensor | None = None,
    shared_w2: Tensor | None = None,
    shared_w2_scale: Tensor | None = None,
    shared_gate: Tensor | None = None,
    workspace: Tensor | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    way: _Way | None = plan.extra
    if way is None:
        return hidden_states.new_empty(hidden_states.shape) if out is None else out
    if way.tiled:
        y = _run_tiled(
            way.inner, hidden_states, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids,
            format=format, expert_map=expert_map, residual=residual, w1_zp=w1_zp, w2_zp=w2_zp,
            workspace=workspace, out=out,
        )  # fmt: skip
    else:
        x, weights = hidden_states, topk_weights
        if apply_router_weight_on_input:
            if out is not None:
                check_no_overlap(_OP, out, {"hidden_states": x, "topk_weights": weights})
            x, weights = _weighted_input(x, weights)
        y = way.inner.extra.launch((
            x, w1, w1_scale, w2, w2_scale, weights, topk_ids, expert_map, w1_zp, w2_zp, residual,
            shared_w1, shared_w1_scale, shared_w2, shared_w2_scale, shared_gate, None, workspace,
            None, out,
        ))  # fmt: skip
    if shared_w1 is None or way.shared_inside:
        return y
    ids = torch.zeros((len(y), 1), dtype=torch.int32, device=y.device)
    factor = torch.ones((len(y), 1), device=y.device)
    if shared_gate is not None:
        factor = torch.sigmoid(hidden_states.float() @ shared_gate.float()[:, None])
    result: Tensor = moe._shared_alone(
        _layer, hidden_states, y, None, factor, ids,
        (shared_w1, shared_w1_scale, shared_w2, shared_w2_scale), activation=activation,
        swiglu_limit=swiglu_limit, swiglu_alpha=swiglu_alpha,
    )  # fmt: skip
    return result


def _through(op: Callable[..., Any]) -> Callable[..., Any]:
    """The front of `op`: of the layer, or of its plan."""

    def fused_moe(
        hidden_states: Tensor,
        weights: MoEWeights,
        topk_weights: Tensor,
        topk_ids: Tensor,
        *,
        expert_map: Tensor | None = None,
        residual: Tensor | None = None,
        activation: str = "silu",
        swiglu_limit: float | None = None,
        swiglu_alpha: float | None = None,
        apply_router_weight_on_input: bool = False,
        shared_expert: SharedExpert | None = None,
        workspace: Tensor | None = None,
        out: Tensor | None = None,
        variant: str = "auto",
    ) -> Any:
        """A gated MoE layer, for any number of tokens and experts in any format.

        For token m and choice j, e = expert_map[topk_ids[m, j]] (or the id itself):
        `a = fp16(f(W1[e, :I] x) * (W1[e, I:] x))`, `y = sum_j topk_weights[m, j] * W2[e] a`, and
        the result is `fp16(y + residual)`, rounded once. A slot whose id is negative, out of range
        or mapped to -1 is dead and adds nothing; every row of the result is written.

        hidden_states, residual, out   fp16 `[M, H]`, rows may be strided
        weights                        formats.MoEWeights: the experts of this rank
        topk_weights, topk_ids         `[M, T]`: fp32 or fp16, int32 or int64 (global ids)
        expert_map                     int32 `[global experts]`, -1 where another rank has it
        activation                     f: "silu", "gelu" or "gelu_tanh"
        swiglu_limit                   clamps gate from above and up to both sides before f
        swiglu_alpha                   f(gate) up becomes gate sigmoid(alpha gate) (up + 1)
        shared_expert                  SharedExpert that every token has, added to the result; see
                                       its rounding in docs/moe-layer.md
        workspace                      uint8 `[n]` contiguous scratch, 16-byte aligned, n of
                                       fused_moe.workspace_bytes(the same arguments) or more; not
                                       for the shared expert

        Under expert or tensor parallelism (weights.slice_ep, weights.slice_tp) the result is this
        rank's part: the caller adds up the ranks', and gives the residual to one of them.

        apply_router_weight_on_input (T = 1): the weight multiplies x, and the result no more. The
        decode kernels get `fp16(weight * x)`, rounded once; the tile kernels round nothing.

        variant: "decode" takes the kernels for few tokens, which read an expert once for 16 of
        them, "tiled" the sorted, tiled ones, "auto" those that are estimated to be faster; "w4a8"
        too, with tiles that round activations to int8 (int4 experts; half the instructions). What
        one kind cannot take the other does. rdna_jit.explain says which and why. `out` may be the
        residual itself and no other operand. Two runs give the same bits; a row of a batch may
        differ in the last bit from the row alone. Raises ContractError naming the tensor.
        """
        if not isinstance(weights, MoEWeights):
            reject(_OP, "weights", "a MoEWeights", type(weights).__name__, "see formats.MoEWeights")
        shared = _NO_SHARED if shared_expert is None else shared_expert
        if not isinstance(shared, tuple) or len(shared) != len(_NO_SHARED):
            reject(_OP, "shared_expert", "a SharedExpert", type(shared).__name__,
                   "see moe.SharedExpert.of")  # fmt: skip
        w = weights
        size = tuple(getattr(hidden_states, "shape", ()))
        if len(size) == 2 and size[1] != w.H:
            reject(_OP, "hidden_states", f"[tokens, {w.H}], as the experts' w1", list(size))
        return op(
            hidden_states, w.w1, w.w1_scale, w.w2, w.w2_scale, topk_weights, topk_ids,
            format=w.format, group_size=w.group_size, block=w.block, expert_map=expert_map,
            residual=residual, w1_zp=w.w1_zp, w2_zp=w.w2_zp, activation=activation,
            swiglu_limit=swiglu_limit, swiglu_alpha=swiglu_alpha,
            apply_router_weight_on_input=apply_router_weight_on_input, shared_w1=shared[0],
            shared_w1_scale=shared[1], shared_w2=shared[2], shared_w2_scale=shared[3],
            shared_gate=shared[4], workspace=workspace, out=out, variant=variant,
        )  # fmt: skip

    fused_moe.__qualname__ = _OP
    return fused_moe


_NO_SHARED = (None,) * 5
fused_moe = _through(_layer)
fused_moe.plan = _through(_layer.plan)  # type: ignore[attr-defined]
fused_moe.schema = _layer.schema  # type: ignore[attr-defined]
fused_moe.batch_invariant = _layer.batch_invariant  # type: ignore[attr-defined]


def workspace_bytes(*args: Any, **kwargs: Any) -> int:
    """Bytes of workspace for these arguments of fused_moe; depends on M, T, H, I and experts."""
    way: _Way | None = fused_moe.plan(*args, **kwargs).extra  # type: ignore[attr-defined]
    return 0 if way is None else way.workspace_bytes


fused_moe.workspace_bytes = workspace_bytes  # type: ignore[attr-defined]
