"""`gemv_f16`, `gemv_i8` and `dense_gemm_int8`: weights row-major `[N, K]`, few rows of x.

Also what every op on such weights shares: plan_decode and launch_decode.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.formats.int8 import dequantize_i8
from rdna_jit.ops import _dense_tile
from rdna_jit.ops._contract import (
    alignment,
    check_no_overlap,
    check_results,
    check_tensor,
    out_alignment,
    reject,
    row_stride,
)
from rdna_jit.ops._dense_cost import decode_limit, per_call, tile_ends_first
from rdna_jit.ops._dense_gemv import (
    MOST_ROWS,
    MOST_SCALE_STRIDE,
    GemvCall,
    choose,
    decode_cost,
    row_tile,
)
from rdna_jit.ops._op import public_op
from rdna_jit.ops._switches import prefer

Tensor = torch.Tensor
_HALF = torch.float16
_TILE_ABOVE = 8  # rows of x that the tile is not tried for
_SCRATCH_ROWS = 8192  # of the dequantised shadow at a time


def plan_f16(
    op: str, x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor | None, any_rows: bool = False
) -> Plan:
    check_tensor(op, "x", x, _HALF, (None, None))
    check_tensor(op, "w", w, _HALF, (None, x.shape[1]), x.device)
    if not any_rows:
        _check_most(op, x, "torch.matmul")
    return plan_decode(op, x, w, bias, out, format="f16", any_rows=any_rows)


def plan_i8(
    op: str,
    x: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    any_rows: bool = False,
) -> Plan:
    check_int8(op, x, w_i8, scale)
    if not any_rows:
        _check_most(op, x, "dense_gemm_int8")
    scales = int8_scales(op, w_i8, scale)
    return plan_decode(op, x, w_i8, bias, out, format="i8", any_rows=any_rows, **scales)


def plan_shadow(
    op: str,
    most: int,
    x: Tensor,
    w: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor | None = None,
) -> Plan:
    """The decode kernel on the shadow up to `most` rows, torch.matmul above."""
    check_int8(op, x, w_i8, scale)
    if not isinstance(w, Tensor) or w.numel():
        check_tensor(op, "w", w, _HALF, tuple(w_i8.shape), x.device)
    (M, K), N = x.shape, w_i8.shape[0]
    scales = int8_scales(op, w_i8, scale)
    if most >= M and K % 8 == 0 and K:
        return plan_decode(op, x, w_i8, bias, out, format="i8", **scales)
    check_results(op, M, N, x, bias, out)
    reason = f"{M} rows, it takes 1..{most}" if most < M else f"K = {K} is no multiple of 8"
    held = bool(w.numel())
    why = "the fp16 weight is held" if held else "the fp16 weight was released"
    candidates = (
        Candidate("gemv_i8", False, reason),
        Candidate("matmul on w", held, why),
        Candidate("matmul on the dequantised shadow", not held, why),
    )
    shape = {"M": M, "N": N, "K": K}
    return Plan(op, "torch.matmul", candidates=candidates, shape=shape, extra=(M, N))


def check_int8(op: str, x: Tensor, w_i8: Tensor, scale: Tensor) -> None:
    check_tensor(op, "x", x, _HALF, (None, None))
    check_tensor(op, "w_i8", w_i8, torch.int8, (None, x.shape[1]), x.device)
    wide = isinstance(scale, Tensor) and scale.dtype == torch.float32
    N, grouped = w_i8.shape[0], isinstance(scale, Tensor) and scale.dim() == 2
    shape = (N, None) if grouped else (N,)
    check_tensor(op, "scale", scale, torch.float32 if wide else _HALF, shape, x.device)


def int8_scales(op: str, w_i8: Tensor, scale: Tensor) -> dict[str, Any]:
    """GemvCall's description of scales `[N]` or `[N, K / G]`."""
    found = {"scale_bytes": scale.element_size()}
    if scale.dim() == 1:
        return found
    K, groups = w_i8.shape[1], scale.shape[1]
    if not groups or K % groups or ((K // groups) % 8 and groups > 1):
        hint = "a group holds a multiple of 8 weights"
        reject(op, "scale", f"columns that divide K = {K} into groups", groups, hint)
    found["scale_stride"] = scale_stride(op, "scale", row_stride(scale))
    return found | ({"group": K // groups, "scale_groups": True} if groups > 1 else {})


def scale_stride(op: str, name: str, stride: int) -> int:
    """The row stride of a matrix of scales, in elements, if the kernels can use it."""
    if stride >= MOST_SCALE_STRIDE:
        expected = f"rows less than {MOST_SCALE_STRIDE} elements apart"
        reject(op, name, expected, stride, f"call {name}.contiguous()")
    return stride


def _check_most(op: str, x: Tensor, other: str) -> None:
    if x.shape[0] > MOST_ROWS[op]:
        hint = f"larger batches are for {other}"
        reject(op, "x", f"1..{MOST_ROWS[op]} rows", x.shape[0], hint)


def plan_decode(
    op: str,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    *,
    format: str,
    any_rows: bool = False,
    **described: Any,
) -> Plan:
    """The plan of a call on checked operands; `described`: GemvCall's fields for the scales.

    `any_rows`: above 8 rows the tiled kernel may take over.
    """
    (M, K), N = x.shape, w.shape[0]
    check_results(op, M, N, x, bias, out)
    if K % 8 or not K:
        reject(
            op,
            "x" if x.dtype == _HALF else "x_fp8",
            "K a positive multiple of 8",
            f"K = {K}",
            "pad x and the weights",
        )
    call = GemvCall(
        M=M,
        N=N,
        K=K,
        format=format,
        has_bias=bias is not None,
        x_stride=row_stride(x),
        w_stride=row_stride(w),
        out_stride=N if out is None else row_stride(out),
        x_align=alignment(x, 16),
        w_align=alignment(w, 16),
        **described,
    )
    if not M or not N:
        shape = {"M": M, "N": N, "K": K}
        return Plan(op, "none", shape=shape, extra=(M, N), notes=("nothing to compute",))
    candidates: tuple[Candidate, ...] = ()
    if any_rows:
        chosen, candidates = _choose_kernel(op, call)
        if chosen != call.spec.name:
            return _dense_tile.plan_rows(op, call, out_alignment(N, out), candidates)
    return _plan_decode(op, call, candidates)


def _choose_kernel(op: str, call: GemvCall) -> tuple[str, tuple[Candidate, ...]]:
    """The kernel that ends first by the estimates, unless settings name another."""
    decode, tile = call.spec.name, _dense_tile.ROWS_TILE.name
    refusal = _dense_tile.refuses_rows(call)
    able = (decode,) if refusal else (decode, tile)
    chosen = decode
    candidates: tuple[Candidate, ...] = ()
    if call.M > _TILE_ABOVE:
        decoded, tiled = decode_cost(call), _dense_tile.rows_tile(call)[1].clocks
        taken = not refusal and tile_ends_first(call.M, tiled, decoded)
        chosen = tile if taken else decode
        each = f"{per_call(decoded, call.M)}, {row_tile(call)} at a time{decode_limit(call.M)}"
        candidates = (
            Candidate(decode, not taken, each),
            Candidate(tile, taken, refusal or per_call(tiled, call.M)),
        )
    chosen, switched = prefer(op, chosen, able)
    return chosen, switched or candidates


def _plan_decode(op: str, call: GemvCall, candidates: tuple[Candidate, ...] = ()) -> Plan:
    choice, spec = choose(call), call.spec
    kernel = spec.specialise(None, **choice.values)
    launch = Launch(kernel, choice.grid, spec.block_of(choice.values))
    shape = {"M": call.M, "N": call.N, "K": call.K} | ({"G": call.group} if call.group else {})
    return Plan(
        op, spec.name, choice.values, (launch,), (*candidates, *choice.candidates), (), shape,
        extra=(call.M, call.N),
    )  # fmt: skip


def launch_decode(
    plan: Plan,
    x: Tensor,
    w: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    x_scale: Tensor | None = None,
    *,
    x_name: str = "x",
    w_name: str = "w",
    scale_name: str = "scale",
) -> Tensor:
    """Run a plan of plan_decode into `out` or a new tensor; named in messages as the op does."""
    if out is None:
        out = x.new_empty(plan.extra, dtype=_HALF)
    else:
        inputs = {x_name: x, w_name: w, scale_name: scale}
        check_no_overlap(plan.op, out, inputs | {"x_scale": x_scale, "bias": bias})
    if plan.kernel in _dense_tile.TILE_KERNELS:
        _dense_tile.launch_tiles(plan, (x, w, scale, x_scale), bias, out)
        return out
    for launch in plan.launches:
        launch(x, w, scale, x_scale, bias, out, plan.extra[0])
    return out


def _fake(x: Tensor, w: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def _fake_dense(x: Tensor, w: Tensor, w_i8: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w_i8.shape[0]))


@public_op(
    "gemv_f16(Tensor x, Tensor w, Tensor? bias=None) -> Tensor",
    plan=partial(plan_f16, "gemv_f16"),
    fake=_fake,
    batch_invariant=True,
)
def gemv_f16(
    plan: Plan, x: Tensor, w: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """`y[m, n] = fp16(sum_k x[m, k] * w[n, k] + bias[n])` for 1..32 rows of x.

    x fp16 `[M, K]`, w fp16 `[N, K]`, bias fp16 `[N]`; returns fp16 `[M, N]`, `out` when given. K is
    a multiple of 8, N any. Last dimensions must be contiguous; rows may be strided and misaligned
    (served by narrower loads). Sums are fp32; subnormal numbers of x and w may count as 0. From 17
    rows on the weights are read twice. A row of a batch has the bits it has alone. Raises
    ContractError naming the tensor.
    """
    return launch_decode(plan, x, w, None, bias, out)


@public_op(
    "gemv_i8(Tensor x, Tensor w_i8, Tensor scale, Tensor? bias=None) -> Tensor",
    plan=partial(plan_i8, "gemv_i8"),
    fake=_fake,
    batch_invariant=True,
)
def gemv_i8(
    plan: Plan,
    x: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(scale[n] * sum_k x[m, k] * w_i8[n, k] + bias[n])` for 1..16 rows of x.

    x fp16 `[M, K]`, w_i8 int8 `[N, K]` (any value, -128 too), scale fp16 or fp32 `[N]`, or
    `[N, K / G]` where every G weights of a row share one (a multiple of 8), bias fp16 `[N]`;
    returns fp16 `[M, N]`, `out` when given. K is a multiple of 8 (of 16 for 16-byte loads), N any.
    Last dimensions must be contiguous; rows may be strided and misaligned (served by
    narrower loads). Codes are exact, sums and the scale fp32; subnormal numbers of x may count as
    0. One launch for every M; a row of a batch has the bits it has alone. Raises ContractError
    naming the tensor. formats.make_int8_shadow and formats.quantize_int8 make the weights.
    """
    return launch_decode(plan, x, w_i8, scale, bias, out, w_name="w_i8")


@public_op(
    "dense_gemm_int8(Tensor x, Tensor w, Tensor w_i8, Tensor scale, Tensor? bias=None) -> Tensor",
    plan=partial(plan_shadow, "dense_gemm_int8", MOST_ROWS["gemv_i8"]),
    fake=_fake_dense,
)
def dense_gemm_int8(
    plan: Plan,
    x: Tensor,
    w: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """A linear layer with an int8 shadow: gemv_i8 up to 16 rows of x, torch.matmul above.

    x fp16 `[M, K]`; w fp16 `[N, K]`, or any empty tensor where the fp16 weight was released; w_i8
    int8 `[N, K]`, scale fp16 or fp32 `[N]`, bias fp16 `[N]`; returns fp16 `[M, N]`, `out` when
    given. Without `w` the shadow is dequantised in chunks of 8192 rows through one scratch. The
    choice by M is made at run time, also under torch.compile. Small batches use the shadow's
    values and large ones those of `w`, where it is held. Raises ContractError naming the tensor.
    """
    return launch_shadow(plan, x, w, w_i8, scale, bias, out)


def launch_shadow(
    plan: Plan,
    x: Tensor,
    w: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor | None = None,
) -> Tensor:
    """Run a plan of plan_shadow, or one for `w` alone."""
    if out is not None:
        check_no_overlap(plan.op, out, {"w": w})
    if plan.kernel == "gemv_f16":
        return launch_decode(plan, x, w, None, bias, out)
    out = launch_decode(plan, x, w_i8, scale, bias, out, w_name="w_i8")
    if plan.kernel == "torch.matmul":
        _matmul(x, w, w_i8, scale, bias, out)
    return out


def _matmul(
    x: Tensor, w: Tensor, w_i8: Tensor, scale: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    N = out.shape[1]
    rows = max(N, 1) if w.numel() else _SCRATCH_ROWS
    for begin in range(0, N, rows):
        part = slice(begin, begin + rows)
        weight = w if w.numel() else dequantize_i8(w_i8[part], scale[part])
        y = torch.nn.functional.linear(x, weight, None if bias is None else bias[part])
        out[:, part] = y
