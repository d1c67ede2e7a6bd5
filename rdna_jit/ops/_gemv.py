"""`gemv_f16`, `gemv_i8` and `dense_gemm_int8`: weights row-major `[N, K]`, few rows of x."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.formats.int8 import dequantize_i8
from rdna_jit.ops._contract import (
    alignment,
    check_no_overlap,
    check_tensor,
    reject,
    row_stride,
)
from rdna_jit.ops._dense_gemv import MOST_ROWS, GemvCall, choose
from rdna_jit.ops._op import public_op

Tensor = torch.Tensor
_HALF = torch.float16
_SCRATCH_ROWS = 8192  # of the dequantised shadow at a time


def _plan_f16(
    x: Tensor, w: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Plan:
    check_tensor("gemv_f16", "x", x, _HALF, (None, None))
    check_tensor("gemv_f16", "w", w, _HALF, (None, x.shape[1]), x.device)
    return _plan("gemv_f16", x, w, None, bias, out)


def _plan_i8(
    x: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Plan:
    _check_int8("gemv_i8", x, w_i8, scale)
    return _plan("gemv_i8", x, w_i8, scale, bias, out)


def _plan_dense(
    x: Tensor,
    w: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Plan:
    op = "dense_gemm_int8"
    _check_int8(op, x, w_i8, scale)
    if not isinstance(w, Tensor) or w.numel():
        check_tensor(op, "w", w, _HALF, tuple(w_i8.shape), x.device)
    (M, K), N, most = x.shape, w_i8.shape[0], MOST_ROWS["gemv_i8"]
    if most >= M and K % 8 == 0 and K:
        return _plan(op, x, w_i8, scale, bias, out)
    _check_results(op, M, N, x, bias, out)
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


def _check_int8(op: str, x: Tensor, w_i8: Tensor, scale: Tensor) -> None:
    check_tensor(op, "x", x, _HALF, (None, None))
    check_tensor(op, "w_i8", w_i8, torch.int8, (None, x.shape[1]), x.device)
    wide = isinstance(scale, Tensor) and scale.dtype == torch.float32
    dtype = torch.float32 if wide else _HALF
    check_tensor(op, "scale", scale, dtype, (w_i8.shape[0],), x.device)


def _check_results(
    op: str, M: int, N: int, x: Tensor, bias: Tensor | None, out: Tensor | None
) -> None:
    if bias is not None:
        check_tensor(op, "bias", bias, _HALF, (N,), x.device)
    if out is not None:
        check_tensor(op, "out", out, _HALF, (M, N), x.device)
        if M > 1 and out.stride(0) < N:
            reject(op, "out", "rows apart from each other", f"strides {out.stride()}")


def _plan(
    op: str, x: Tensor, w: Tensor, scale: Tensor | None, bias: Tensor | None, out: Tensor | None
) -> Plan:
    (M, K), N = x.shape, w.shape[0]
    _check_results(op, M, N, x, bias, out)
    if K % 8 or not K:
        reject(op, "x", "K a positive multiple of 8", f"K = {K}", "pad x and the weights")
    call = GemvCall(
        M=M,
        N=N,
        K=K,
        scale_bytes=0 if scale is None else scale.element_size(),
        has_bias=bias is not None,
        x_stride=row_stride(x),
        w_stride=row_stride(w),
        out_stride=N if out is None else row_stride(out),
        x_align=alignment(x, 16),
        w_align=alignment(w, 16),
    )
    spec, shape = call.spec, {"M": M, "N": N, "K": K}
    most = MOST_ROWS[spec.name]
    if most < M:
        other = "torch.matmul" if scale is None else "dense_gemm_int8"
        reject(op, "x", f"1..{most} rows", M, f"larger batches are for {other}")
    if not M or not N:
        return Plan(op, "none", shape=shape, extra=(M, N), notes=("nothing to compute",))
    values, groups, candidates = choose(call)
    kernel = spec.specialise(None, **values)
    launch = Launch(kernel, (groups,), spec.block_of(values))
    return Plan(op, spec.name, values, (launch,), candidates, (), shape, extra=(M, N))


def _fake(x: Tensor, w: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def _fake_dense(x: Tensor, w: Tensor, w_i8: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w_i8.shape[0]))


@public_op(
    "gemv_f16(Tensor x, Tensor w, Tensor? bias=None) -> Tensor",
    plan=_plan_f16,
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
    if out is None:
        out = x.new_empty(plan.extra)
    else:
        check_no_overlap("gemv_f16", out, {"x": x, "w": w, "bias": bias})
    for launch in plan.launches:
        launch(x, w, None, bias, out, plan.extra[0])
    return out


@public_op(
    "gemv_i8(Tensor x, Tensor w_i8, Tensor scale, Tensor? bias=None) -> Tensor",
    plan=_plan_i8,
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

    x fp16 `[M, K]`, w_i8 int8 `[N, K]` (any value, -128 too), scale fp16 or fp32 `[N]`, bias fp16
    `[N]`; returns fp16 `[M, N]`, `out` when given. K is a multiple of 8 (of 16 for 16-byte loads),
    N any. Last dimensions must be contiguous; rows may be strided and misaligned (served by
    narrower loads). Codes are exact, sums and the scale fp32; subnormal numbers of x may count as
    0. One launch for every M; a row of a batch has the bits it has alone. Raises ContractError
    naming the tensor. formats.make_int8_shadow makes the weights.
    """
    if out is None:
        out = x.new_empty(plan.extra)
    else:
        check_no_overlap("gemv_i8", out, {"x": x, "w_i8": w_i8, "scale": scale, "bias": bias})
    for launch in plan.launches:
        launch(x, w_i8, scale, bias, out, plan.extra[0])
    return out


@public_op(
    "dense_gemm_int8(Tensor x, Tensor w, Tensor w_i8, Tensor scale, Tensor? bias=None) -> Tensor",
    plan=_plan_dense,
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
    if out is None:
        out = x.new_empty(plan.extra)
    else:
        inputs = {"x": x, "w": w, "w_i8": w_i8, "scale": scale, "bias": bias}
        check_no_overlap("dense_gemm_int8", out, inputs)
    for launch in plan.launches:
        launch(x, w_i8, scale, bias, out, plan.extra[0])
    if plan.kernel == "torch.matmul":
        _matmul(x, w, w_i8, scale, bias, out)
    return out


def _matmul(
    x: Tensor, w: Tensor, w_i8: Tensor, scale: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    rows = max(w_i8.shape[0], 1) if w.numel() else _SCRATCH_ROWS
    for begin in range(0, w_i8.shape[0], rows):
        part = slice(begin, begin + rows)
        weight = w if w.numel() else dequantize_i8(w_i8[part], scale[part])
        y = torch.nn.functional.linear(x, weight, None if bias is None else bias[part])
        out[:, part] = y
