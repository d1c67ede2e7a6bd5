"""Mixture-of-experts layers with quantised weights.

Activations and results are fp16, sums fp32, weights are dequantised exactly. No atomics, nothing
zeroed beforehand: two runs give the same bits. docs/moe.md describes formats, kernels and cost.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rdna_jit.dispatch import Plan
from rdna_jit.ops import _moe_decode
from rdna_jit.ops._contract import alignment, check_tensor, reject, row_stride, span
from rdna_jit.ops._moe_contract import (
    HALF,
    ID_TYPES,
    WEIGHT_TYPES,
    check_activation,
    check_apart,
    check_experts,
    check_format,
    check_routing,
    check_rows,
    check_workspace,
)
from rdna_jit.ops._moe_decode import MOST_SHARED, MoeCall, Shared
from rdna_jit.ops._op import public_op
from rdna_jit.ops._switches import disabling
from rdna_jit.ops.moe_routing import moe_align_block_size, topk_router
from rdna_jit.ops.moe_tiled import moe_tiled

if TYPE_CHECKING:
    from rdna_jit.ops.fused_moe import SharedExpert, fused_moe

__all__ = [
    "SharedExpert", "fused_moe", "moe_align_block_size", "moe_decode", "moe_int4_decode",
    "moe_tiled", "topk_router",
]  # fmt: skip

Tensor = torch.Tensor
VARIANTS = ("auto", "v1", "v2")
_READ = (
    "hidden_states", "w1", "w1_scale", "w2", "w2_scale", "topk_weights", "topk_ids", "expert_map",
    "w1_zp", "w2_zp", "residual", "shared_w1", "shared_w1_scale", "shared_w2", "shared_w2_scale",
    "shared_gate",
)  # fmt: skip
_WRITTEN = ("shared_out", "workspace", "shared_workspace", "out")
Operands = tuple[Tensor | None, ...]


def __getattr__(name: str) -> object:
    if name in ("SharedExpert", "fused_moe"):  # made of the ops here: its module imports this one
        module = importlib.import_module("rdna_jit.ops.fused_moe")
        return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module 'rdna_jit.ops.moe' has no attribute {name!r}")


def _plan(
    op: str,
    *,
    format: str,
    group_size: int | None,
    block: Sequence[int] | None = None,
    activation: str = "silu",
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    variant: str,
    **tensors: Tensor | None,
) -> Plan:
    """The plan of a decode op; `tensors` by the names of moe_decode, absent ones count as None."""
    if variant not in VARIANTS:
        reject(op, "variant", f"one of {', '.join(VARIANTS)}", repr(variant), "leave it out")
    check_format(op, format)
    activation = check_activation(op, activation, swiglu_limit, swiglu_alpha)
    t = {name: tensors.get(name) for name in (*_READ, *_WRITTEN)}
    x = check_tensor(op, "hidden_states", t["hidden_states"], HALF, (None, None))
    M, H = x.shape
    device = x.device
    E, I, one, two = check_experts(op, format, t, H, device, group_size, block)  # noqa: E741
    expert_map, residual, workspace, out = (
        t[n] for n in ("expert_map", "residual", "workspace", "out")
    )
    ids, weights = t["topk_ids"], t["topk_weights"]
    T = check_routing(op, weights, ids, expert_map, M, device)  # type: ignore[arg-type]
    assert ids is not None and weights is not None
    check_rows(op, residual, out, (M, H), device)
    if workspace is not None:
        check_workspace(op, "workspace", workspace, (M, T, I), device)
    shared = _check_shared(op, t, M, H, device)
    shape = {"M": M, "H": H, "I": I, "E": E, "T": T, "G": one.group}
    if M == 0:
        return Plan(op, "none", shape=shape, notes=("an empty batch launches nothing",))
    call = MoeCall(
        M=M, T=T, H=H, I=I, E=E, format=format, w1=one, w2=two,
        id_type=ID_TYPES[ids.dtype],
        id_stride=row_stride(ids),
        weight_type=WEIGHT_TYPES[weights.dtype],
        weight_stride=row_stride(weights),
        has_map=expert_map is not None,
        has_residual=residual is not None,
        x_align=alignment(x, 16),
        act_align=16 if workspace is None else alignment(workspace, 16),
        row_strides=(
            row_stride(x),
            H if residual is None else row_stride(residual),
            H if out is None else row_stride(out),
        ),
        activation=activation,
        clamped=swiglu_limit is not None,
        shared=shared,
    )  # fmt: skip
    num_ids = E if expert_map is None else expert_map.shape[0]
    epilogue = (swiglu_limit or 0.0, swiglu_alpha or 0.0)
    spans = tuple(0 if v is None else span(v) for v in t.values())
    return _plan_of(op, call, shape, variant, _Run(op, call, num_ids, epilogue, spans))


def _plan_of(op: str, call: MoeCall, shape: dict[str, int], variant: str, run: _Run) -> Plan:
    choice = _moe_decode.choose(call, variant, disabling(_moe_decode.GROUPED))
    run.chunks = choice.chunks
    run.grouped = choice.kernel == _moe_decode.GROUPED
    run.fused = choice.fused
    rows = choice.chunks[0][1]
    run.workspace_shape = (rows, call.T, call.I)
    notes = []
    if len(choice.chunks) > 1:
        notes.append(f"{call.M} tokens run in {len(choice.chunks)} chunks of at most {rows}")
    if call.shared is not None and not choice.fused:
        why = call.shared.reason or "the plain kernels do not fuse it"
        notes.append(f"the shared expert runs in launches of its own: {why}")
    launches = [launch for chunk in choice.chunks for launch in chunk[2:]]
    return Plan(
        op,
        choice.kernel,
        values=choice.values,
        launches=tuple(dict.fromkeys(launches)),
        candidates=choice.candidates,
        notes=tuple(notes),
        shape=shape,
        fallback=choice.fallback,
        extra=run,
    )


class _Run:
    """What the launches of a plan need beside the tensors."""

    def __init__(
        self,
        op: str,
        call: MoeCall,
        num_ids: int,
        epilogue: tuple[float, float],
        spans: tuple[int, ...],
    ) -> None:
        self.op = op
        self.spans = spans  # of the operands, in bytes
        self.apart: list[int] = []  # addresses of operands that were found not to overlap
        self.chunks: tuple[Any, ...] = ()
        self.grouped = self.fused = False
        self.workspace_shape = (0, 0, 0)
        self.shared = call.shared
        x_stride, residual_stride, out_stride = call.row_strides
        self.gate_up_sizes = (call.E, num_ids, x_stride, *epilogue)
        self.down_sizes = (call.E, num_ids, residual_stride, out_stride)
        self.strides_1 = (*call.w1.expert_strides, *call.w1.row_strides)
        self.strides_2 = (*call.w2.expert_strides, *call.w2.row_strides)

    def may_overlap(self, operands: Operands) -> bool:
        """Whether the address range of a written operand, the last four, meets another."""
        starts = [0 if t is None else t.data_ptr() for t in operands]
        if starts == self.apart:  # the same buffers as last time
            return False
        for written in range(-len(_WRITTEN), 0):
            low = starts[written]
            high = low + self.spans[written]
            meets = [
                start < high and low < start + size
                for start, size in zip(starts, self.spans, strict=True)
            ]
            if sum(meets) > (operands[written] is not None):  # each meets itself
                return True
        self.apart = starts
        return False

    def launch(self, operands: Operands) -> Tensor:
        """Run the plan on the operands in the order of _READ and _WRITTEN; returns out."""
        (
            hidden_states, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, expert_map, w1_zp,
            w2_zp, residual, shared_w1, shared_s1, shared_w2, shared_s2, shared_gate, shared_out,
            workspace, shared_act, out,
        ) = operands  # fmt: skip
        assert hidden_states is not None and topk_ids is not None and topk_weights is not None
        device = hidden_states.device
        written_given = any(t is not None for t in operands[-len(_WRITTEN) :])
        if written_given and self.may_overlap(operands):
            named = dict(zip((*_READ, *_WRITTEN), operands, strict=True))
            written = {n: named[n] for n in _WRITTEN}
            check_apart(self.op, written, {n: named[n] for n in _READ})
        if out is None:
            out = torch.empty(hidden_states.shape, dtype=HALF, device=device)
        if workspace is None:
            workspace = torch.empty(self.workspace_shape, dtype=HALF, device=device)
        if self.fused and shared_act is None:
            assert self.shared is not None
            size = (len(hidden_states), self.shared.I + 8)
            shared_act = torch.empty(size, dtype=HALF, device=device)
        for first, last, gate_up, down in self.chunks:
            x, weights, ids, add, y = hidden_states, topk_weights, topk_ids, residual, out
            if len(self.chunks) > 1:
                x, weights, ids = x[first:last], weights[first:last], ids[first:last]
                y = y[first:last]
                add = None if residual is None else residual[first:last]
            # Through the kernels: Launch's own call costs a frame that a decode step feels.
            stage_1, stage_2 = gate_up.kernel.launch, down.kernel.launch
            if self.grouped:
                tokens = last - first
                stage_1(gate_up.grid, gate_up.block, x, w1, w1_scale, w1_zp, ids, expert_map,
                        workspace, shared_w1, shared_s1, shared_gate, shared_act, tokens,
                        *self.gate_up_sizes)  # fmt: skip
                stage_2(down.grid, down.block, workspace, w2, w2_scale, w2_zp, ids, expert_map,
                        weights, add, y, shared_act, shared_w2, shared_s2, shared_out, tokens,
                        *self.down_sizes)  # fmt: skip
            else:
                stage_1(gate_up.grid, gate_up.block, x, w1, w1_scale, w1_zp, ids, expert_map,
                        workspace, *self.gate_up_sizes, *self.strides_1)  # fmt: skip
                stage_2(down.grid, down.block, workspace, w2, w2_scale, w2_zp, ids, expert_map,
                        weights, add, y, *self.down_sizes, *self.strides_2)  # fmt: skip
        return out


def _check_shared(
    op: str, t: dict[str, Tensor | None], M: int, H: int, device: torch.device
) -> Shared | None:
    """The shared expert: int8 rows, which the pair of launches takes along for few tokens."""
    names = ("shared_w1", "shared_w1_scale", "shared_w2", "shared_w2_scale")
    given = [n for n in (*names, "shared_gate", "shared_out") if t[n] is not None]
    if not given:
        return None
    for name in names:
        if t[name] is None:
            reject(op, name, f"a tensor beside {given[0]}", "None", "pass all four of the weights")
        if not isinstance(t[name], Tensor):
            reject(op, name, "a tensor", type(t[name]).__name__, "pass a tensor")
    one_expert = {name: t[name][None] for name in names}  # type: ignore[index]
    _, I, one, two = check_experts(  # noqa: E741
        op, "i8", one_expert, H, device, -1, None, E=1, prefix="shared_"
    )
    gate, out, buffer = (t[n] for n in ("shared_gate", "shared_out", "shared_workspace"))
    if gate is not None:
        check_tensor(op, "shared_gate", gate, HALF, (H,), device)
    if out is not None:
        check_workspace(op, "shared_out", out, (M, H), device)
    if buffer is not None:
        check_workspace(op, "shared_workspace", buffer, (M, I + 8), device)
    aligned = all(v is None or v.data_ptr() % 16 == 0 for v in (gate, buffer))
    checks = (
        (M > MOST_SHARED, f"M {M} is above {MOST_SHARED}"),
        (I % 16 or H % 32, f"I {I} is no multiple of 16, or H {H} of 32"),
        (one.scale_bytes != two.scale_bytes, "its scales differ in dtype"),
        (not (one.dense and two.dense), "its rows are strided"),
        (min(one.base_align, two.base_align) < 16 or not aligned, "it is not 16-byte aligned"),
    )
    reason = next((reason for fails, reason in checks if fails), "")
    return Shared(I, one.scale_bytes, gate is not None, out is not None, reason)


def _plan_decode(**given: Any) -> Plan:
    plan = _plan("moe_decode", **given)
    run: _Run | None = plan.extra
    if run is None or run.shared is None or run.fused:
        return plan
    x, out, shared_out = given["hidden_states"], given["out"], given["shared_out"]
    y = torch.empty(x.shape, dtype=HALF, device=x.device) if out is None else out
    slots = torch.empty((len(x), 1), device=x.device)
    weights = [given[n] for n in ("shared_w1", "shared_w1_scale", "shared_w2", "shared_w2_scale")]
    options = {n: given[n] for n in ("activation", "swiglu_limit", "swiglu_alpha", "variant")}
    alone = _shared_alone(_plan_decode, x, y, shared_out, slots, slots.int(), weights, **options)
    both = (plan.fallback, alone.fallback and f"shared expert: {alone.fallback}")
    launches = tuple(dict.fromkeys(plan.launches + alone.launches))
    return replace(plan, launches=launches, fallback="; ".join(filter(None, both)))


def _shared_alone(
    op: Callable[..., Any], x: Tensor, y: Tensor, apart: Tensor | None, factor: Tensor, ids: Tensor,
    weights: Sequence[Any], **options: Any,
) -> Any:  # fmt: skip
    """The shared expert by `op`, moe_decode, fused_moe's layer or a plan of them: a layer of one
    expert, whose router weight is its factor; added to y, or into `apart`."""
    w1, w1_scale, w2, w2_scale = (t[None] for t in weights)
    return op(
        hidden_states=x, w1=w1, w1_scale=w1_scale, w2=w2, w2_scale=w2_scale, topk_weights=factor,
        topk_ids=ids, format="i8", group_size=-1,
        residual=y if apart is None else None, out=y if apart is None else apart[: len(x)],
        **options,
    )  # fmt: skip


def _fake(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


@public_op(
    "moe_decode(Tensor hidden_states, Tensor w1, Tensor? w1_scale, Tensor w2, Tensor? w2_scale,"
    " Tensor topk_weights, Tensor topk_ids, *, str format, int? group_size=None,"
    " int[]? block=None, Tensor? expert_map=None, Tensor? residual=None, Tensor? w1_zp=None,"
    ' Tensor? w2_zp=None, str activation="silu", float? swiglu_limit=None,'
    " float? swiglu_alpha=None, Tensor? shared_w1=None, Tensor? shared_w1_scale=None,"
    " Tensor? shared_w2=None, Tensor? shared_w2_scale=None, Tensor? shared_gate=None,"
    " Tensor(s!)? shared_out=None, Tensor(w!)? workspace=None, Tensor(v!)? shared_workspace=None,"
    ' str variant="auto") -> Tensor',
    plan=_plan_decode,
    fake=_fake,
)
def moe_decode(
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
    group_size: int | None = None,
    block: Sequence[int] | None = None,
    expert_map: Tensor | None = None,
    residual: Tensor | None = None,
    w1_zp: Tensor | None = None,
    w2_zp: Tensor | None = None,
    activation: str = "silu",
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    shared_w1: Tensor | None = None,
    shared_w1_scale: Tensor | None = None,
    shared_w2: Tensor | None = None,
    shared_w2_scale: Tensor | None = None,
    shared_gate: Tensor | None = None,
    shared_out: Tensor | None = None,
    workspace: Tensor | None = None,
    shared_workspace: Tensor | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    """A whole gated MoE layer for a decode batch, in two launches, experts in any format.

    For token m and choice j, e = expert_map[topk_ids[m, j]] (or the id itself):
    `a = fp16(f(W1[e, :I] x) * (W1[e, I:] x))`, `y = sum_j topk_weights[m, j] * W2[e] a`, and
    the result is `fp16(y + residual)`, rounded once. A slot whose id is negative, out of range or
    mapped to -1 is dead and adds nothing; every row of the result is written.

    hidden_states, residual, out   fp16 `[M, H]`, rows may be strided
    w1, w2                         `[E, 2 I, H]` (gate rows before up rows) and `[E, H, I]`, by
                                   `format`: "f16" fp16; "i8" int8; "e4m3" and "e5m2" float8 or
                                   uint8; "mxfp4" and "int4" uint8 `[.., K / 2]`, low nibble = even
                                   k, or the same bytes as int32
    w1_scale, w2_scale             f16: None. int4: fp16 `[E, rows, K / G]`. i8: fp16 or fp32
                                   `[E, rows]` or `[E, rows, K / G]`. e4m3, e5m2: fp32 or fp16
                                   `[E]`, `[E, rows]`, or with `block` (rows, columns)
                                   `[E, ceil(rows / block[0]), ceil(K / block[1])]`. mxfp4: uint8 or
                                   float8_e8m0fnu `[E, rows, K / 32]`
    w1_zp, w2_zp                   of int4: uint8 `[E, I, H / G]`, `[E, H / 2, I / G]`, low nibble =
                                   even row, or None: zero point 8
    group_size                     G of int4 and i8, a divisor of H and I; -1: one group per row
    topk_weights, topk_ids         `[M, T]`: fp32 or fp16, int32 or int64 (global ids)
    expert_map                     int32 `[global experts]`, -1 where another rank has the expert
    activation                     f: "silu", "gelu" or "gelu_tanh"
    swiglu_limit                   clamps gate from above and up to both sides before f
    swiglu_alpha                   f(gate) up becomes gate sigmoid(alpha gate) (up + 1)
    workspace                      fp16 `[M or more, T, I]` contiguous scratch; its content after
                                   the call is unspecified, rows of dead slots are not written

    The shared expert, if any, is int8: shared_w1 `[2 I_s, H]`, shared_w2 `[H, I_s]`, with a scale
    per row, times `sigmoid(shared_gate . x)` where shared_gate `[H]` is given. It is added in fp32
    before the rounding, or goes to shared_out `[M, H]` rounded by itself. For M up to 2 it rides in
    the same two launches (shared_workspace: fp16 `[M or more, I_s + 8]`); above, or where its
    shapes or addresses do not fit (`rdna_jit.explain` says so), it runs in two launches of its own
    that add to the rounded result.

    NaN codes of e4m3 count as +-480. variant: "v2" prefers the grouped kernels, which read an
    expert's weights once for all its tokens (up to 4 per pass), "v1" takes the plain ones, "auto"
    the best. What the grouped kernels cannot take (rdna_jit.explain says why) runs in the plain
    ones. M up to 2^24, above 16 in chunks of 16. `out` may be the residual itself and no other
    operand. Rows of a batch may differ in the last bit from the same row alone. Raises
    ContractError naming the tensor.
    """
    run: _Run | None = plan.extra
    if run is None:
        return hidden_states.new_empty(hidden_states.shape) if out is None else out
    y = run.launch((
        hidden_states, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, expert_map, w1_zp,
        w2_zp, residual, shared_w1, shared_w1_scale, shared_w2, shared_w2_scale, shared_gate,
        shared_out, workspace, shared_workspace, out,
    ))  # fmt: skip
    if run.shared is None or run.fused:
        return y
    ids = torch.zeros((len(y), 1), dtype=torch.int32, device=y.device)
    factor = torch.ones((len(y), 1), dtype=torch.float32, device=y.device)
    if shared_gate is not None:
        factor = torch.sigmoid(hidden_states.float() @ shared_gate.float()[:, None])
    _shared_alone(
        moe_decode, hidden_states, y, shared_out, factor, ids,
        (shared_w1, shared_w1_scale, shared_w2, shared_w2_scale), activation=activation,
        swiglu_limit=swiglu_limit, swiglu_alpha=swiglu_alpha, variant=variant,
    )  # fmt: skip
    return y


@public_op(
    "moe_int4_decode(Tensor hidden_states, Tensor w1, Tensor w1_scale, Tensor w2, Tensor w2_scale,"
    " Tensor topk_weights, Tensor topk_ids, *, int group_size, Tensor? expert_map=None,"
    " Tensor? residual=None, Tensor? w1_zp=None, Tensor? w2_zp=None, Tensor(w!)? workspace=None,"
    ' str variant="auto") -> Tensor',
    plan=partial(_plan, "moe_int4_decode", format="int4"),
    fake=_fake,
)
def moe_int4_decode(
    plan: Plan,
    hidden_states: Tensor,
    w1: Tensor,
    w1_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    group_size: int,
    expert_map: Tensor | None = None,
    residual: Tensor | None = None,
    w1_zp: Tensor | None = None,
    w2_zp: Tensor | None = None,
    workspace: Tensor | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    """`moe_decode` with int4 experts and SiLU: same operands, same kernels.

    w1, w2           `[E, 2 I, H / 2]`, `[E, H, I / 2]` uint8, low nibble = even k, or the same
                     bytes as int32 `[.., / 8]`; gate rows before up rows
    w1_scale, w2_scale   fp16 `[E, 2 I, H / G]`, `[E, H, I / G]`
    w1_zp, w2_zp     uint8 `[E, I, H / G]`, `[E, H / 2, I / G]`, low nibble = even row, or None:
                     zero point 8
    group_size       G, a divisor of H and I; -1: one group per row
    """
    run: _Run | None = plan.extra
    if run is None:
        return hidden_states.new_empty(hidden_states.shape) if out is None else out
    return run.launch((
        hidden_states, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, expert_map, w1_zp,
        w2_zp, residual, None, None, None, None, None, None, workspace, None, out,
    ))  # fmt: skip
