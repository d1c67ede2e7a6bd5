"""`f16_gemm` and `int8_gemm`: weights row-major `[N, K]`, any number of rows of x."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from rdna_jit.dispatch import Plan
from rdna_jit.ops._gemv import launch_decode, plan_f16, plan_i8
from rdna_jit.ops._op import public_op

Tensor = torch.Tensor


def _fake(x: Tensor, w: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


@public_op(
    "f16_gemm(Tensor x, Tensor w, *, Tensor? bias=None) -> Tensor",
    plan=partial(plan_f16, "f16_gemm", any_rows=True),
    fake=_fake,
)
def f16_gemm(
    plan: Plan, x: Tensor, w: Tensor, *, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """`y[m, n] = fp16(sum_k x[m, k] * w[n, k] + bias[n])` for any number of rows of x.

    gemv_f16 without its limit: above 8 rows the tiled kernel takes over where it ends first, and
    a row of a batch may then differ in the last bit from the same row alone.
    Operands and contract as gemv_f16. Raises ContractError naming the tensor.
    """
    return launch_decode(plan, x, w, None, bias, out)


@public_op(
    "int8_gemm(Tensor x, Tensor w_i8, Tensor scale, *, Tensor? bias=None) -> Tensor",
    plan=partial(plan_i8, "int8_gemm", any_rows=True),
    fake=_fake,
)
def int8_gemm(
    plan: Plan,
    x: Tensor,
    w_i8: Tensor,
    scale: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(sum_g scale[n, g] * sum_{k in g} x[m, k] * w_i8[n, k] + bias[n])`.

    gemv_i8 without its limit: above 8 rows the tiled kernel takes over where it ends first, and
    a row of a batch may then differ in the last bit from the same row alone.
    Operands and contract as gemv_i8. Raises ContractError naming the tensor.
    """
    return launch_decode(plan, x, w_i8, scale, bias, out, w_name="w_i8")
