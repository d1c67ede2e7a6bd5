"""MoE layers for many tokens: sorted slots, two grouped products on tiles, one combine."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from rdna_jit.device import device as current
from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.ops import _moe_tile
from rdna_jit.ops._contract import alignment, check_tensor, reject, row_stride
from rdna_jit.ops._moe_contract import (
    BYTE,
    HALF,
    ID_TYPES,
    WEIGHT_TYPES,
    check_activation,
    check_apart,
    check_experts,
    check_format,
    check_routing,
    check_rows,
)
from rdna_jit.ops._moe_tile import Chunk, TileCall
from rdna_jit.ops._op import public_op
from rdna_jit.ops._w4a8 import _quantize_launch as quantize_launch

__all__ = ["moe_tiled"]

Tensor = torch.Tensor
_OP = "moe_tiled"
VARIANTS = ("auto", "32", "64", "w4a8")
_NATURAL = 2  # order of codes in an octet that natural int4 words meet
_UNIT = 256  # bytes; buffers within the workspace start on multiples


def _plan(**given: Any) -> Plan:
    a = SimpleNamespace(**given)
    if a.variant not in VARIANTS:
        reject(_OP, "variant", f"one of {', '.join(VARIANTS)}", repr(a.variant), "leave it out")
    check_format(_OP, a.format)
    kind = check_activation(_OP, a.activation, a.swiglu_limit, a.swiglu_alpha)
    M, H = check_tensor(_OP, "hidden_states", a.hidden_states, HALF, (None, None)).shape
    device = a.hidden_states.device
    E, I, one, two = check_experts(  # noqa: E741
        _OP, a.format, given, H, device, a.group_size, a.block
    )
    T = check_routing(_OP, a.topk_weights, a.topk_ids, a.expert_map, M, device)
    check_rows(_OP, a.residual, a.out, (M, H), device)
    if a.apply_router_weight_on_input and T != 1:
        reject(_OP, "apply_router_weight_on_input", "False unless top-k is 1", f"top-k {T}",
               "a token has one input")  # fmt: skip
    shape = {"M": M, "H": H, "I": I, "E": E, "T": T, "G": one.group}
    if M == 0:
        return Plan(_OP, "none", shape=shape, notes=("an empty batch launches nothing",))
    call = TileCall(
        M=M, T=T, H=H, I=I, E=E, num_ids=E if a.expert_map is None else a.expert_map.shape[0],
        format=a.format, w1=one, w2=two,
        id_type=ID_TYPES[a.topk_ids.dtype],
        id_stride=row_stride(a.topk_ids),
        weight_type=WEIGHT_TYPES[a.topk_weights.dtype],
        weight_stride=row_stride(a.topk_weights),
        has_map=a.expert_map is not None,
        has_residual=a.residual is not None,
        x_stride=row_stride(a.hidden_states),
        aligns=(
            alignment(a.hidden_states, 16),
            8 if a.residual is None else alignment(a.residual, 8),
            8 if a.out is None else alignment(a.out, 8),
        ),
        activation=kind,
        clamped=a.swiglu_limit is not None,
        weight_on_input=a.apply_router_weight_on_input,
    )  # fmt: skip
    reason = _moe_tile.tiled_reason(call)
    if reason:
        reject(_OP, "w1", "what tiles can take", reason, "moe_decode takes any number of tokens")
    w4a8 = a.variant == "w4a8"
    if w4a8:
        _check_w4a8(call)
    chunks = _moe_tile.plan_chunks(call, int(a.variant) if a.variant.isdigit() else None, w4a8)
    run = _Run(call, chunks, (a.swiglu_limit or 0.0, a.swiglu_alpha or 0.0))
    if w4a8:
        for tokens in {c.last - c.first for c in chunks}:
            launch = quantize_launch(a.hidden_states[:tokens], one.group, _NATURAL, H)
            run.quantize[tokens] = launch
    if a.workspace is not None:
        check_tensor(_OP, "workspace", a.workspace, BYTE, (None,), device)
        if a.workspace.shape[0] < run.nbytes or a.workspace.data_ptr() % 16:
            got = f"{a.workspace.shape[0]} at {a.workspace.data_ptr():#x}"
            reject(_OP, "workspace", f"{run.nbytes} bytes, 16-byte aligned", got,
                   "moe_tiled.workspace_bytes tells how many")  # fmt: skip
    launches = []
    for c in chunks:
        rounds = [run.quantize[c.last - c.first]] if w4a8 else []
        launches += [c.align, *rounds, c.gate_up, c.down, c.combine]
    notes = [f"blocks of {chunks[0].gate_up.block // 4} slots, {run.nbytes} bytes of workspace"]  # type: ignore[operator]
    if len(chunks) > 1:
        notes.append(f"{M} tokens run in {len(chunks)} chunks of at most {chunks[0].last}")
    return Plan(
        _OP,
        "moe_tile_w4a8" if w4a8 else "moe_tile",
        values=dict(chunks[0].gate_up.kernel.values),
        launches=tuple(dict.fromkeys(launches)),
        candidates=(
            Candidate("moe_tile", not w4a8, "variant='w4a8'" if w4a8 else "shapes and strides fit"),
            Candidate("moe_tile_w4a8", w4a8, "asked for" if w4a8 else "only when asked for"),
        ),
        notes=tuple(notes),
        shape=shape,
        extra=run,
    )


def _check_w4a8(call: TileCall) -> None:
    reason = _moe_tile.w4a8_reason(call)
    arch = current().arch
    if not reason and _moe_tile.GATE_UP_W4A8.missing(arch):
        reason = f"{arch} has no v_dot4_i32_i8"
    if reason:
        reject(_OP, "variant", "another than 'w4a8'", reason, "leave it out")


class _Run:
    """What the launches of a plan need beside the tensors."""

    def __init__(
        self, call: TileCall, chunks: tuple[Chunk, ...], epilogue: tuple[float, float]
    ) -> None:
        self.call, self.chunks, self.epilogue = call, chunks, epilogue
        self.quantize: dict[int, Launch] = {}  # of x, by tokens
        first = chunks[0]  # the largest
        slots = first.last * call.T
        sizes = {
            "sorted": first.rows * 4, "block_experts": first.blocks * 4, "num_rows": 4,
            "partial": slots * call.H * 4,
        }  # fmt: skip
        if "STEP" in first.gate_up.kernel.values:  # int8 activations
            for name, rows, K, group in (
                ("x", first.last, call.H, call.w1.group),
                ("act", slots, call.I, _moe_tile.act_group(call)),
            ):
                scales = rows * (K // group) * 4
                sizes |= {f"{name}_codes": rows * K, f"{name}_scale": scales, f"{name}_sum": scales}
        else:
            sizes["act"] = slots * call.I * 2
        self.spans: dict[str, tuple[int, int]] = {}
        self.nbytes = 0
        for name, size in sizes.items():
            self.spans[name] = self.nbytes, self.nbytes + size
            self.nbytes += -(-size // _UNIT) * _UNIT

    def __call__(
        self,
        tokens: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
        expert_map: Tensor | None,
        w: Sequence[Tensor | None],
        b: dict[str, Tensor],
    ) -> None:
        """`tokens`: hidden_states, topk_weights, topk_ids, residual, out."""
        call = self.call
        for chunk in self.chunks:
            parts = tokens
            if len(self.chunks) > 1:
                part = slice(chunk.first, chunk.last)
                residual = None if tokens[3] is None else tokens[3][part]
                parts = (*(t[part] for t in tokens[:3]), residual, tokens[4][part])  # type: ignore[assignment, index]
            x, weights, ids, residual, out = parts
            strides = (0 if residual is None else row_stride(residual), row_stride(out))
            slots = (chunk.last - chunk.first) * call.T
            blocks = b["sorted"], b["block_experts"], b["num_rows"]
            chunk.align(ids, expert_map, *blocks, None, None, None, slots, chunk.rows, chunk.blocks)
            inner: tuple[Tensor, ...]
            if self.quantize:
                x_parts, inner = (
                    tuple(b[f"{name}_{part}"] for part in ("codes", "scale", "sum"))
                    for name in ("x", "act")
                )
                count = len(x) * (call.H // call.w1.group)
                self.quantize[len(x)](x, *x_parts, count)
            else:
                x_parts, inner = (x,), (b["act"],)
            chunk.gate_up(*x_parts, *w[:3], *blocks, weights, *inner, slots, call.E,
                          *self.epilogue)  # fmt: skip
            chunk.down(*inner, *w[3:], *blocks, b["partial"], slots, call.E)
            chunk.combine(b["partial"], ids, expert_map, weights, residual, out, call.E,
                          call.num_ids, *strides)  # fmt: skip


def _fake(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


@public_op(
    "moe_tiled(Tensor hidden_states, Tensor w1, Tensor? w1_scale, Tensor w2, Tensor? w2_scale,"
    " Tensor topk_weights, Tensor topk_ids, *, str format, int? group_size=None, int[]? block=None,"
    " Tensor? expert_map=None, Tensor? residual=None, Tensor? w1_zp=None, Tensor? w2_zp=None,"
    ' str activation="silu", float? swiglu_limit=None, float? swiglu_alpha=None,'
    " bool apply_router_weight_on_input=False, Tensor(w!)? workspace=None,"
    ' str variant="auto") -> Tensor',
    plan=_plan,
    fake=_fake,
    batch_invariant=True,
)
def moe_tiled(
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
    apply_router_weight_on_input: bool = False,
    workspace: Tensor | None = None,
    out: Tensor | None = None,
    variant: str = "auto",
) -> Tensor:
    """A whole gated MoE layer for many tokens, in four launches.

    The computation and the operands are those of moe_decode: weights in any of its formats, dead
    slots, one rounding of the result, every row of it written. Slots are sorted by expert into
    blocks (moe_align_block_size); a workgroup multiplies a block with the gate and up rows of 64
    channels and stores the activation; a second product gives fp32 partial sums per slot; the last
    launch adds a token's slots in their order, with router weights and residual. No atomics,
    nothing zeroed beforehand, no wait for the device: two runs give the same bits.

    H and I: multiples of 8; groups: multiples of 32, or one per row; weights: dense. ContractError
    names what does not fit, and moe_decode takes it.

    workspace   uint8 `[n]` scratch, n of moe_tiled.workspace_bytes(the same arguments)
    apply_router_weight_on_input   the weight multiplies the input of a token's one expert (top-k 1)
    variant     "32" or "64" slots per block; "auto": 64 unless experts have few tokens; "w4a8":
                int4 weights times activations rounded to int8, per group of x and per 64 (or 32)
                channels between the products, summed exactly: half the instructions. Only when
                asked for. A group with an infinity or NaN gives NaN

    More tokens than 512 MB of partial sums hold run in chunks. `out` may be the residual itself.
    A row has the same bits alone and in any batch, with blocks of 32 and of 64 slots.
    """
    run: _Run | None = plan.extra
    if run is None:
        return hidden_states.new_empty(hidden_states.shape) if out is None else out
    read = {
        "hidden_states": hidden_states, "w1": w1, "w1_scale": w1_scale, "w2": w2,
        "w2_scale": w2_scale, "topk_weights": topk_weights, "topk_ids": topk_ids,
        "expert_map": expert_map, "residual": residual, "w1_zp": w1_zp, "w2_zp": w2_zp,
    }  # fmt: skip
    if out is not None or workspace is not None:
        check_apart(plan.op, {"workspace": workspace, "out": out}, read)
    if out is None:
        out = torch.empty(hidden_states.shape, dtype=HALF, device=hidden_states.device)
    device = hidden_states.device
    if workspace is None:  # one each, so that the emulator knows their ends
        buffers = {
            name: torch.empty(end - first, dtype=BYTE, device=device)
            for name, (first, end) in run.spans.items()
        }
    else:
        buffers = {name: workspace[first:end] for name, (first, end) in run.spans.items()}
    tokens = hidden_states, topk_weights, topk_ids, residual, out
    run(tokens, expert_map, (w1, w1_scale, w1_zp, w2, w2_scale, w2_zp), buffers)
    return out


def workspace_bytes(*args: Any, **kwargs: Any) -> int:
    """Bytes of workspace for these arguments of moe_tiled; depends on M, T, H, I and experts."""
    run: _Run | None = moe_tiled.plan(*args, **kwargs).extra  # type: ignore[attr-defined]
    return 0 if run is None else run.nbytes


moe_tiled.workspace_bytes = workspace_bytes  # type: ignore[attr-defined]
