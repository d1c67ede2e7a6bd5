"""Mixture-of-experts layers with quantised weights.

Activations and results are fp16, sums fp32, weights are dequantised exactly. No atomics, nothing
zeroed beforehand: two runs give the same bits. docs/moe.md describes formats, kernels and cost.
"""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.config import config
from rdna_jit.dispatch import Plan
from rdna_jit.ops import _moe_int4
from rdna_jit.ops._contract import (
    alignment,
    check_no_overlap,
    check_tensor,
    reject,
    row_stride,
    span,
)
from rdna_jit.ops._moe_int4 import Matrix, MoeCall
from rdna_jit.ops._op import public_op
from rdna_jit.ops.moe_routing import moe_align_block_size, topk_router

__all__ = ["moe_align_block_size", "moe_int4_decode", "topk_router"]

Tensor = torch.Tensor
_OP = "moe_int4_decode"
_HALF, _BYTE, _INT = torch.float16, torch.uint8, torch.int32
_ID_TYPES = {torch.int32: "int", torch.int64: "long long"}
_WEIGHT_TYPES = {torch.float32: "float", torch.float16: "_Float16"}
VARIANTS = ("auto", "v1", "v2")


def _plan(
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
) -> Plan:
    if variant not in VARIANTS:
        reject(_OP, "variant", f"one of {', '.join(VARIANTS)}", repr(variant), "leave it out")
    check_tensor(_OP, "hidden_states", hidden_states, _HALF, (None, None))
    M, H = hidden_states.shape
    device = hidden_states.device
    E, two_i = _check_codes("w1", w1, (None, None), H, device)
    if two_i % 2:
        reject(_OP, "w1", "an even number of rows, gate and up", f"{two_i} rows")
    I = two_i // 2  # noqa: E741
    _check_codes("w2", w2, (E, H), I, device)
    one = _check_matrix("w1", w1, w1_scale, w1_zp, (E, 2 * I, H), group_size)
    two = _check_matrix("w2", w2, w2_scale, w2_zp, (E, H, I), group_size)
    T = _check_routing(topk_weights, topk_ids, expert_map, M, device)
    if residual is not None:
        check_tensor(_OP, "residual", residual, _HALF, (M, H), device)
    if out is not None:
        check_tensor(_OP, "out", out, _HALF, (M, H), device)
    if workspace is not None:
        _check_workspace(workspace, (M, T, I), device)
    shape = {"M": M, "H": H, "I": I, "E": E, "T": T, "G": group_size}
    if M == 0:
        return Plan(_OP, "none", shape=shape, notes=("an empty batch launches nothing",))
    call = MoeCall(
        M=M, T=T, H=H, I=I, E=E, w1=one, w2=two,
        id_type=_ID_TYPES[topk_ids.dtype],
        id_stride=row_stride(topk_ids),
        weight_type=_WEIGHT_TYPES[topk_weights.dtype],
        weight_stride=row_stride(topk_weights),
        has_map=expert_map is not None,
        has_residual=residual is not None,
        x_align=alignment(hidden_states, 16),
        act_align=16 if workspace is None else alignment(workspace, 16),
        row_strides=(
            row_stride(hidden_states),
            H if residual is None else row_stride(residual),
            H if out is None else row_stride(out),
        ),
    )  # fmt: skip
    operands = (
        hidden_states, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, expert_map, w1_zp,
        w2_zp, residual, workspace, out,
    )  # fmt: skip
    spans = tuple(0 if t is None else span(t) for t in operands)
    num_ids = E if expert_map is None else expert_map.shape[0]
    return _plan_of(call, shape, num_ids, variant, spans)


def _plan_of(
    call: MoeCall, shape: dict[str, int], num_ids: int, variant: str, spans: tuple[int, ...]
) -> Plan:
    choice = _moe_int4.choose(call, variant, config.disabled_kernels)
    rows = choice.chunks[0][1]
    notes = []
    if len(choice.chunks) > 1:
        notes.append(f"{call.M} tokens run in {len(choice.chunks)} chunks of at most {rows}")
    launches = [launch for chunk in choice.chunks for launch in chunk[2:]]
    return Plan(
        _OP,
        choice.kernel,
        values=choice.values,
        launches=tuple(dict.fromkeys(launches)),
        candidates=choice.candidates,
        notes=tuple(notes),
        shape=shape,
        fallback=choice.fallback,
        extra=_Run(call, choice.chunks, choice.kernel == _moe_int4.GROUPED, rows, num_ids, spans),
    )


class _Run:
    """What the launches of a plan need beside the tensors."""

    def __init__(
        self,
        call: MoeCall,
        chunks: tuple[Any, ...],
        grouped: bool,
        rows: int,
        num_ids: int,
        spans: tuple[int, ...],
    ) -> None:
        self.spans = spans  # of the operands, in bytes
        self.apart: list[int] = []  # addresses of operands that were found not to overlap
        self.chunks = chunks
        self.grouped = grouped
        self.workspace_shape = (rows, call.T, call.I)
        x_stride, residual_stride, out_stride = call.row_strides
        self.gate_up_sizes = (call.E, num_ids, x_stride)
        self.down_sizes = (call.E, num_ids, residual_stride, out_stride)
        self.strides_1 = (*call.w1.expert_strides, *call.w1.row_strides)
        self.strides_2 = (*call.w2.expert_strides, *call.w2.row_strides)

    def may_overlap(self, operands: tuple[Tensor | None, ...]) -> bool:
        """Whether the address range of workspace or out, the last two operands, meets another."""
        starts = [0 if t is None else t.data_ptr() for t in operands]
        if starts == self.apart:  # the same buffers as last time
            return False
        for written in (-2, -1):
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


def _fake(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


@public_op(
    "moe_int4_decode(Tensor hidden_states, Tensor w1, Tensor w1_scale, Tensor w2, Tensor w2_scale,"
    " Tensor topk_weights, Tensor topk_ids, *, int group_size, Tensor? expert_map=None,"
    " Tensor? residual=None, Tensor? w1_zp=None, Tensor? w2_zp=None, Tensor(w!)? workspace=None,"
    ' str variant="auto") -> Tensor',
    plan=_plan,
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
    """A whole gated MoE layer for a decode batch, in two launches.

    For token m and choice j, e = expert_map[topk_ids[m, j]] (or the id itself):
    `a = fp16(silu(W1[e, :I] x) * (W1[e, I:] x))`, `y = sum_j topk_weights[m, j] * W2[e] a`, and
    the result is `fp16(y + residual)`, rounded once. A slot whose id is negative, out of range or
    mapped to -1 is dead and adds nothing; every row of the result is written.

    hidden_states, residual, out   fp16 `[M, H]`, rows may be strided
    w1, w2                         `[E, 2 I, H / 2]`, `[E, H, I / 2]` uint8, low nibble = even k, or
                                   the same bytes as int32 `[.., / 8]`; gate rows before up rows
    w1_scale, w2_scale             fp16 `[E, 2 I, H / G]`, `[E, H, I / G]`
    w1_zp, w2_zp                   uint8 `[E, I, H / G]`, `[E, H / 2, I / G]`, low nibble = even
                                   row, or None: zero point 8
    topk_weights, topk_ids         `[M, T]`: fp32 or fp16, int32 or int64 (global ids)
    expert_map                     int32 `[global experts]`, -1 where another rank has the expert
    workspace                      fp16 `[M or more, T, I]` contiguous scratch; its content after
                                   the call is unspecified, rows of dead slots are not written
    group_size                     G, a divisor of H and I; -1: one group per row

    variant: "v2" prefers the grouped kernels, which read an expert's weights once for all its
    tokens (up to 4 per pass), "v1" takes the plain ones, "auto" the best. What the grouped kernels
    cannot take (rdna_jit.explain says why) runs in the plain ones. Any M: above 16 in chunks of
    16 tokens. `out` may be the residual itself and no other operand. Rows of a batch may differ in
    the last bit from the same row alone. Raises ContractError naming the tensor.
    """
    run: _Run | None = plan.extra
    if run is None:
        return hidden_states.new_empty(hidden_states.shape) if out is None else out
    if out is not None or workspace is not None:
        operands = (
            hidden_states, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, expert_map, w1_zp,
            w2_zp, residual, workspace, out,
        )  # fmt: skip
        if run.may_overlap(operands):
            _check_overlap(operands)
    if out is None:
        out = torch.empty(hidden_states.shape, dtype=_HALF, device=hidden_states.device)
    if workspace is None:
        workspace = torch.empty(run.workspace_shape, dtype=_HALF, device=hidden_states.device)
    for first, last, gate_up, down in run.chunks:
        x, weights, ids, add, y = hidden_states, topk_weights, topk_ids, residual, out
        if len(run.chunks) > 1:
            x, weights, ids, y = x[first:last], weights[first:last], ids[first:last], y[first:last]
            add = None if residual is None else residual[first:last]
        # Through the kernels: Launch's own call costs a frame that a decode step feels.
        stage_1, stage_2 = gate_up.kernel.launch, down.kernel.launch
        if run.grouped:
            tokens = last - first
            stage_1(gate_up.grid, gate_up.block, x, w1, w1_scale, w1_zp, ids, expert_map, workspace,
                    tokens, *run.gate_up_sizes)  # fmt: skip
            stage_2(down.grid, down.block, workspace, w2, w2_scale, w2_zp, ids, expert_map, weights,
                    add, y, tokens, *run.down_sizes)  # fmt: skip
        else:
            stage_1(gate_up.grid, gate_up.block, x, w1, w1_scale, w1_zp, ids, expert_map, workspace,
                    *run.gate_up_sizes, *run.strides_1)  # fmt: skip
            stage_2(down.grid, down.block, workspace, w2, w2_scale, w2_zp, ids, expert_map, weights,
                    add, y, *run.down_sizes, *run.strides_2)  # fmt: skip
    return out


def _check_codes(
    name: str, codes: object, rows: tuple[int | None, ...], K: int, device: torch.device
) -> tuple[int, ...]:
    """Experts and rows of a tensor of codes, uint8 or int32."""
    dtype = _INT if isinstance(codes, Tensor) and codes.dtype == _INT else _BYTE
    per = 8 if dtype == _INT else 2
    if isinstance(codes, Tensor) and codes.dtype not in (_INT, _BYTE):
        reject(_OP, name, "uint8 or int32 codes", codes.dtype, "pack them with formats.moe")
    if K == 0 or K % per:
        reject(_OP, name, f"rows of a multiple of {per} codes", f"{K} codes", "pad the rows")
    tensor = check_tensor(_OP, name, codes, dtype, (*rows, K // per), device)
    if not tensor.numel():
        reject(_OP, name, "at least one expert and one row", f"shape {tuple(tensor.shape)}")
    return tuple(tensor.shape[:2])


def _check_matrix(
    name: str, codes: Tensor, scale: Tensor, zeros: Tensor | None, size: tuple[int, int, int],
    group_size: int,
) -> Matrix:  # fmt: skip
    """Scales and zeros that fit the codes, and the layout of the three."""
    E, rows, K = size
    if type(group_size) is not int or group_size == 0 or group_size < -1:
        reject(_OP, "group_size", "a positive number, or -1 for one group per row", group_size)
    group = K if group_size == -1 else group_size
    if K % group:
        reject(
            _OP, "group_size", f"a divisor of the {K} codes in a row of {name}", group_size,
            "repeat the scales for a smaller group (formats.moe.split_groups)",
        )  # fmt: skip
    check_tensor(_OP, f"{name}_scale", scale, _HALF, (E, rows, K // group), codes.device)
    if zeros is not None:
        check_tensor(_OP, f"{name}_zp", zeros, _BYTE, (E, rows // 2, K // group), codes.device)
    tensors = (codes, scale, zeros)
    unit = codes.element_size()
    strides = codes.stride()
    zero_strides = (0, 0) if zeros is None else zeros.stride()
    return Matrix(
        group=group,
        has_zeros=zeros is not None,
        dense=all(t is None or t.is_contiguous() for t in tensors),
        base_align=_power_of_two(codes.data_ptr()),
        align=_power_of_two(codes.data_ptr() | strides[0] * unit | strides[1] * unit),
        expert_strides=(strides[0] * unit, scale.stride(0), zero_strides[0]),
        row_strides=(strides[1] * unit, scale.stride(1), zero_strides[1]),
    )


def _power_of_two(spots: int) -> int:
    return (spots | 16) & -(spots | 16)


def _check_routing(
    weights: Tensor, ids: Tensor, expert_map: Tensor | None, M: int, device: torch.device
) -> int:
    """The number of choices per token."""
    for name, tensor, dtypes in (
        ("topk_ids", ids, _ID_TYPES),
        ("topk_weights", weights, _WEIGHT_TYPES),
    ):
        if isinstance(tensor, Tensor) and tensor.dtype not in dtypes:
            expected = " or ".join(str(dtype) for dtype in dtypes)
            convert = name == "topk_weights" and tensor.is_floating_point()
            hint = f"call {name}.half()" if convert else f"convert {name}"
            reject(_OP, name, expected, tensor.dtype, hint)
    check_tensor(_OP, "topk_ids", ids, getattr(ids, "dtype", _INT), (M, None), device)
    T = ids.shape[1]
    if T == 0:
        reject(_OP, "topk_ids", "at least one choice per token", f"shape {tuple(ids.shape)}")
    dtype = getattr(weights, "dtype", torch.float32)
    check_tensor(_OP, "topk_weights", weights, dtype, (M, T), device)
    if expert_map is not None:
        check_tensor(_OP, "expert_map", expert_map, _INT, (None,), device)
    return T


def _check_workspace(workspace: Tensor, shape: tuple[int, int, int], device: torch.device) -> None:
    check_tensor(_OP, "workspace", workspace, _HALF, (None, *shape[1:]), device)
    if workspace.shape[0] < shape[0] or not workspace.is_contiguous():
        got = f"{tuple(workspace.shape)} with strides {workspace.stride()}"
        reject(_OP, "workspace", f"contiguous, at least {list(shape)}", got, "allocate it anew")


_OPERANDS = (
    "hidden_states", "w1", "w1_scale", "w2", "w2_scale", "topk_weights", "topk_ids", "expert_map",
    "w1_zp", "w2_zp", "residual", "workspace", "out",
)  # fmt: skip


def _check_overlap(operands: tuple[Tensor | None, ...]) -> None:
    """ContractError unless out and workspace are memory of their own; out may be the residual."""
    named = dict(zip(_OPERANDS, operands, strict=True))
    out, workspace, residual = named.pop("out"), named.pop("workspace"), named["residual"]
    if workspace is not None:
        check_no_overlap(_OP, workspace, named, "workspace")
    if out is None:
        return
    if residual is not None and (out.data_ptr(), out.stride()) == (
        residual.data_ptr(),
        residual.stride(),
    ):
        del named["residual"]  # each lane reads an element before it writes it
    check_no_overlap(_OP, out, {**named, "workspace": workspace})
