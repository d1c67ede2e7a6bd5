"""`mxfp4_gemm`: e2m1 weights with e8m0 scales, as checkpoints store them."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.dispatch import Plan
from rdna_jit.formats.mxfp4 import BLOCK, scale_bytes
from rdna_jit.ops._contract import check_tensor, reject, row_stride
from rdna_jit.ops._gemv import launch_decode, plan_decode, scale_stride
from rdna_jit.ops._op import public_op

Tensor = torch.Tensor


def _plan(
    x: Tensor,
    w_e2m1: Tensor,
    w_e8m0: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Plan:
    op = "mxfp4_gemm"
    check_tensor(op, "x", x, torch.float16, (None, None))
    K = x.shape[1]
    if K % BLOCK or not K:
        reject(op, "x", f"K a positive multiple of {BLOCK}", f"K = {K}", "a scale covers 32")
    signed = isinstance(w_e2m1, Tensor) and w_e2m1.dtype == torch.int8
    check_tensor(op, "w_e2m1", w_e2m1, torch.int8 if signed else torch.uint8, (None, None))
    N = w_e2m1.shape[0]
    if w_e2m1.shape[1] * 2 != K:
        hint = ""
        if N * 2 == K:
            hint = "these look like transposed bytes: the op takes them as the checkpoint has them"
        reject(op, "w_e2m1", f"shape [any, {K // 2}]", list(w_e2m1.shape), hint)
    check_tensor(op, "w_e2m1", w_e2m1, w_e2m1.dtype, (N, K // 2), x.device)
    stored = scale_bytes(op, "w_e8m0", w_e8m0)
    check_tensor(op, "w_e8m0", stored, torch.uint8, (N, K // BLOCK), x.device)
    return plan_decode(
        op, x, w_e2m1, bias, out,
        any_rows=True, format="mxfp4", group=BLOCK, scale_bytes=1, scale_groups=True,
        scale_stride=scale_stride(op, "w_e8m0", row_stride(stored)),
    )  # fmt: skip


def _fake(x: Tensor, w_e2m1: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w_e2m1.shape[0]))


@public_op(
    "mxfp4_gemm(Tensor x, Tensor w_e2m1, Tensor w_e8m0, *, Tensor? bias=None) -> Tensor",
    plan=_plan,
    fake=_fake,
)
def mxfp4_gemm(
    plan: Plan,
    x: Tensor,
    w_e2m1: Tensor,
    w_e8m0: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(sum_b 2^(w_e8m0[n, b] - 127) * sum_{k in b} x[m, k] * e2m1[n, k] + bias[n])`.

    x fp16 `[M, K]`; w_e2m1 uint8 `[N, K / 2]`, the low nibble for even k; w_e8m0 uint8 or
    float8_e8m0fnu `[N, K / 32]`; bias fp16 `[N]`; returns fp16 `[M, N]`, `out` when given. K is a
    multiple of 32, N any. Last dimensions must be contiguous; rows may be strided and misaligned
    (served by narrower loads).

    Codes are decoded exactly, sums and scales are fp32: every scale byte 0..254 counts as it is.
    255, NaN by the format, gives infinity or NaN; formats.check_mxfp4 finds it when weights are
    loaded. Subnormal numbers of x may count as 0. Any M is served. Raises ContractError naming the
    tensor. formats.quantize_mxfp4 makes weights, formats.mxfp4_from_k_major turns those of kernels
    that keep words `[K / 8, N]`.
    """
    return launch_decode(plan, x, w_e2m1, w_e8m0, bias, out, w_name="w_e2m1", scale_name="w_e8m0")
