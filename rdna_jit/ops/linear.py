"""Linear layers with quantised weights: `y = x @ W (+ bias)`.

Activations, scales and results are fp16, sums fp32. Codes are dequantised exactly: q - z is an
exact integer and the scale is applied in fp32 after the dot, once per group. Two runs give the
same bits. docs/linear.md describes the formats, the kernels and what they cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.formats import Int4Weight
from rdna_jit.ops import _act_order, _dense_int4, _dense_tile
from rdna_jit.ops._awq import awq_gemm
from rdna_jit.ops._contract import (
    alignment,
    check_no_overlap,
    check_results,
    check_tensor,
    reject,
    row_stride,
)
from rdna_jit.ops._dense_int4 import Choice, Int4Call
from rdna_jit.ops._dense_tile import TILE_KERNELS, launch_tiles
from rdna_jit.ops._fp8 import fp8_w8a8_gemm, fp8_w8a16_gemm
from rdna_jit.ops._gemv import dense_gemm_int8, gemv_f16, gemv_i8
from rdna_jit.ops._int4_contract import (
    check_order,
    check_scales,
    check_words,
    check_zeros,
    describe,
)
from rdna_jit.ops._mxfp4 import mxfp4_gemm
from rdna_jit.ops._op import public_op
from rdna_jit.ops._row_gemm import f16_gemm, int8_gemm
from rdna_jit.ops._switches import prefer
from rdna_jit.ops._w4a8 import quantize_int8_grouped, w4a8_gemm
from rdna_jit.spec import KernelSpec

__all__ = [
    "awq_gemm",
    "dense_gemm_int8",
    "f16_gemm",
    "fp8_w8a8_gemm",
    "fp8_w8a16_gemm",
    "gemv_f16",
    "gemv_i8",
    "gptq_gemm",
    "int8_gemm",
    "mxfp4_gemm",
    "quantize_int8_grouped",
    "w4a8_gemm",
    "w4a16_gemv",
]

Tensor = torch.Tensor
_HALF, _INT = torch.float16, torch.int32


def gptq_gemm(
    x: Tensor,
    qweight: Tensor | Int4Weight,
    qzeros: Tensor | None = None,
    scales: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    zero_offset: int | None = None,
    shuffled: bool | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(sum_k x[m, k] * (q[k, n] - z[g, n]) * scales[g, n] + bias[n])`.

    x fp16 `[M, K]`; qweight int32 `[K/8, N]`; qzeros int32 `[K/G, N/8]` or None (all zeros 8);
    scales fp16 `[K/G, N]`; bias fp16 `[N]`; returns fp16 `[M, N]`, `out` when given. The last
    dimensions must be contiguous, rows may be strided and misaligned (served more slowly).

    G is K divided by the rows of `scales`: a multiple of 32, or K itself. K is a multiple of 8; N
    is a multiple of 8 where there are qzeros. `zero_offset` is added to the stored zeros: 1 for
    GPTQ v1 checkpoints, 0 for v2, AWQ and compressed-tensors. `shuffled` tells the order of the
    codes in a word: False as in checkpoints, True after formats.gptq_shuffle.

    `g_idx` int32 `[K]`: as in the checkpoint (the group of each row), or with `shuffled` the order
    of rows that gptq_shuffle took. Its content is looked at once per tensor. Act-order weights in
    checkpoint order run in a slower kernel: pack them once with formats.pack_gptq.

    `qweight` may be a formats.Int4Weight, which brings all of this along. Any M is served, many
    rows by the tiled kernel. Rows of a batch may differ in the last bit from the same row
    alone. Raises ContractError naming the tensor.
    """
    if g_idx is None and not isinstance(qweight, Int4Weight):  # the shortest way
        return _gptq_gemm(  # type: ignore[call-arg]
            x, qweight, qzeros, scales,  # type: ignore[arg-type]
            zero_offset=zero_offset, shuffled=shuffled, bias=bias, out=out,  # type: ignore[arg-type]
        )  # fmt: skip
    return _forward(
        _gptq_gemm, x, qweight, qzeros, scales, g_idx,
        zero_offset=zero_offset, shuffled=shuffled, bias=bias, out=out,
    )  # fmt: skip


def _forward(
    target: Callable[..., Any],
    x: Tensor,
    qweight: Tensor | Int4Weight,
    qzeros: Tensor | None = None,
    scales: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    zero_offset: int | None = None,
    shuffled: bool | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Any:
    """Call the registered op, or its planner, with plain tensors and a resolved g_idx."""
    if isinstance(qweight, Int4Weight):
        w = qweight
        given = {"qzeros": qzeros, "scales": scales, "g_idx": g_idx, "zero_offset": zero_offset}
        for name, value in given.items():
            if value is not None:
                reject("gptq_gemm", name, "nothing beside an Int4Weight, which brings its own",
                       type(value).__name__, "leave it out")  # fmt: skip
        return target(
            x, w.qweight, w.qzeros, w.scales, w.perm,
            zero_offset=w.zero_offset, shuffled=True, bias=bias, out=out,
        )  # fmt: skip
    known = isinstance(g_idx, Tensor) and isinstance(scales, Tensor)
    if known and isinstance(qweight, Tensor) and not torch.compiler.is_compiling():
        K, groups = qweight.shape[0] * 8, scales.shape[0]  # type: ignore[union-attr]
        g_idx = _act_order.resolve(g_idx, K, groups, bool(shuffled))  # type: ignore[arg-type]
    return target(
        x, qweight, qzeros, scales, g_idx,
        zero_offset=zero_offset, shuffled=shuffled, bias=bias, out=out,
    )  # fmt: skip


def _plan_gptq(
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    g_idx: Tensor | None = None,
    *,
    zero_offset: int,
    shuffled: bool,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Plan:
    op = "gptq_gemm"
    M, N, K = check_words(op, x, qweight)
    check_results(op, M, N, x, bias, out)
    check_order(op, shuffled)
    groups, group = check_scales(op, x, scales, N)
    _check_group(op, K, group)
    check_zeros(op, x, qzeros, groups, N, zero_offset)
    if g_idx is not None:
        check_tensor(op, "g_idx", g_idx, _INT, (K,), x.device)
    call = describe(
        x, qweight, qzeros, scales, bias, out, group, shuffled=shuffled, zero_offset=zero_offset
    )
    if g_idx is not None and not shuffled:
        return _plan(op, _act_order.ACT_ORDER, _act_order.choose, call)
    return _plan_any_rows(op, replace(call, has_perm=g_idx is not None))


def _plan_gemv(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    group_size: int,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Plan:
    op = "w4a16_gemv"
    M, N, K = check_words(op, x, qweight)
    check_results(op, M, N, x, bias, out)
    if type(group_size) is not int:
        reject(op, "group_size", "an integer", repr(group_size), "-1 is the whole of K")
    group = K if group_size == -1 else group_size
    if group <= 0 or K % group:
        reject(op, "group_size", f"a divisor of K = {K}, or -1 for all of it", group_size)
    groups = K // group
    _check_group(op, K, group)
    check_tensor(op, "scales", scales, _HALF, (groups, N), x.device)
    call = describe(x, qweight, None, scales, bias, out, group, shuffled=False)
    if zeros is not None:
        check_tensor(op, "zeros", zeros, torch.uint8, (groups, N), x.device)
        z_stride, z_align = row_stride(zeros), alignment(zeros, 16)
        call = replace(call, zeros="bytes", z_stride=z_stride, z_align=z_align)
    return _plan_any_rows(op, call)


def _check_group(op: str, K: int, group: int) -> None:
    if group % 32 and group < K:
        hint = "a matrix with one group may have any K"
        reject(op, "scales", "groups of a multiple of 32 rows", f"{group} (K = {K})", hint)


def _plan_any_rows(op: str, call: Int4Call) -> Plan:
    """The decode kernel for few rows of x, the tile where it ends first."""
    decode, tile = _dense_int4.DECODE.name, _dense_tile.INT4_TILE.name
    chosen = decode
    candidates: tuple[Candidate, ...] = ()
    if call.M > _dense_int4.MOST_ROWS and call.N:
        better, candidates = _dense_tile.beats_decode(call)
        chosen = tile if better else decode
    able = (decode,) if _dense_tile.refuses_int4(call) else (decode, tile)
    chosen, switched = prefer(op, chosen, able)
    candidates = switched or candidates
    if chosen == tile and call.M and call.N:
        return _dense_tile.plan_int4(op, call, candidates)
    plan = _plan(op, _dense_int4.DECODE, _dense_int4.choose, call)
    return replace(plan, candidates=(*candidates, *plan.candidates))


def _plan(op: str, spec: KernelSpec, choose: Callable[[Int4Call], Choice], call: Int4Call) -> Plan:
    shape = {"M": call.M, "N": call.N, "K": call.K, "G": call.group}
    size = (call.M, call.N)
    if not call.M or not call.N:
        return Plan(op, "none", shape=shape, extra=size, notes=("nothing to compute",))
    choice = choose(call)
    kernel = spec.specialise(None, **choice.values)
    launch = Launch(kernel, choice.grid, spec.block_of(choice.values))
    return Plan(
        op,
        spec.name,
        choice.values,
        (launch,),
        choice.candidates,
        choice.notes,
        shape,
        extra=size,
    )


def _fake(x: Tensor, qweight: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], qweight.shape[1]))


@public_op(
    "gptq_gemm(Tensor x, Tensor qweight, Tensor? qzeros, Tensor scales, Tensor? g_idx=None, *, "
    "int zero_offset, bool shuffled, Tensor? bias=None) -> Tensor",
    plan=_plan_gptq,
    fake=_fake,
)
def _gptq_gemm(
    plan: Plan,
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    g_idx: Tensor | None = None,
    *,
    zero_offset: int,
    shuffled: bool,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    if out is None:
        out = x.new_empty(plan.extra)
    else:
        inputs = {"x": x, "qweight": qweight, "qzeros": qzeros, "scales": scales, "bias": bias}
        check_no_overlap("gptq_gemm", out, {**inputs, "g_idx": g_idx})
    if g_idx is not None and shuffled:
        g_idx = _act_order.row_order(g_idx, scales.shape[0])
    operands = x, qweight, qzeros, scales, g_idx
    if plan.kernel in TILE_KERNELS:
        launch_tiles(plan, operands, bias, out)
        return out
    for launch in plan.launches:
        launch(*operands, bias, out, plan.extra[0])
    return out


gptq_gemm.plan = partial(_forward, _gptq_gemm.plan)  # type: ignore[attr-defined]
gptq_gemm.schema = _gptq_gemm.schema  # type: ignore[attr-defined]
gptq_gemm.batch_invariant = False  # type: ignore[attr-defined]


@public_op(
    "w4a16_gemv(Tensor x, Tensor qweight, Tensor scales, Tensor? zeros=None, *, int group_size, "
    "Tensor? bias=None) -> Tensor",
    plan=_plan_gemv,
    fake=_fake,
)
def w4a16_gemv(
    plan: Plan,
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    group_size: int,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(sum_k x[m, k] * (q[k, n] - z[g, n]) * scales[g, n] + bias[n])`.

    As gptq_gemm, for words in natural order with one byte per zero: x fp16 `[M, K]`, qweight int32
    `[K/8, N]`, scales fp16 `[K/G, N]`, zeros uint8 `[K/G, N]` or None (all 8), bias fp16 `[N]`.
    `group_size` is a multiple of 32 that divides K, or K (also as -1). Every N is served. Returns
    fp16 `[M, N]`, `out` when given. Raises ContractError naming the tensor.
    """
    if out is None:
        out = x.new_empty(plan.extra)
    else:
        inputs = {"x": x, "qweight": qweight, "zeros": zeros, "scales": scales, "bias": bias}
        check_no_overlap("w4a16_gemv", out, inputs)
    operands = x, qweight, zeros, scales, None
    if plan.kernel in TILE_KERNELS:
        launch_tiles(plan, operands, bias, out)
        return out
    for launch in plan.launches:
        launch(*operands, bias, out, plan.extra[0])
    return out
