"""`fp8_w8a16_gemm` and `fp8_w8a8_gemm`: float8 weights row-major `[N, K]`."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.dispatch import Plan
from rdna_jit.formats.fp8 import Block, ScaleLayout, check_block, fp8_format, scale_layout
from rdna_jit.ops._contract import check_tensor, reject, row_stride
from rdna_jit.ops._gemv import launch_decode, plan_decode, scale_stride
from rdna_jit.ops._op import public_op

Tensor = torch.Tensor
_HALF = torch.float16


def _plan_w8a16(
    x: Tensor,
    w_fp8: Tensor,
    w_scale: Tensor,
    *,
    fmt: str | None = None,
    block: list[int] | None = None,
    bias: Tensor | None = None,
    propagate_nan: bool = False,
    out: Tensor | None = None,
) -> Plan:
    op = "fp8_w8a16_gemm"
    check_tensor(op, "x", x, _HALF, (None, None))
    found = _check_weight(op, x, w_fp8, fmt)
    layout = _weight_scales(op, w_fp8, w_scale, block)
    return plan_decode(
        op, x, w_fp8, bias, out,
        any_rows=True, format=found, nan_codes=bool(propagate_nan) and found == "e4m3",
        group=layout.group,
        **_describe(w_scale, layout),
    )  # fmt: skip


def _plan_w8a8(
    x_fp8: Tensor,
    x_scale: Tensor,
    w_fp8: Tensor,
    w_scale: Tensor,
    *,
    fmt: str | None = None,
    block: list[int] | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Plan:
    op = "fp8_w8a8_gemm"
    x_format = fp8_format(op, "x_fp8", x_fp8, fmt if _is_bytes(x_fp8) else None)
    check_tensor(op, "x_fp8", x_fp8, x_fp8.dtype, (None, None))
    found = _check_weight(op, x_fp8, w_fp8, fmt if _is_bytes(w_fp8) else None)
    layout = _weight_scales(op, w_fp8, w_scale, block)
    group, stride = _token_scales(op, x_fp8, x_scale, layout, block)
    return plan_decode(
        op, x_fp8, w_fp8, bias, out,
        any_rows=True, format=found, x_format=x_format, group=layout.group or group,
        x_scales=True, x_scale_groups=group > 0, x_scale_stride=stride,
        **_describe(w_scale, layout),
    )  # fmt: skip


def _is_bytes(t: object) -> bool:
    return isinstance(t, Tensor) and t.dtype == torch.uint8


def _check_weight(op: str, x: Tensor, w_fp8: Tensor, fmt: str | None) -> str:
    found = fp8_format(op, "w_fp8", w_fp8, fmt)
    check_tensor(op, "w_fp8", w_fp8, w_fp8.dtype, (None, x.shape[1]), x.device)
    return found


def _weight_scales(op: str, w_fp8: Tensor, w_scale: Tensor, block: list[int] | None) -> ScaleLayout:
    N, K = w_fp8.shape
    given = None if block is None else check_block(op, block)
    layout = scale_layout(op, "w_scale", w_scale, N, K, given)
    if w_scale.device != w_fp8.device:
        expected = f"a tensor on {w_fp8.device}, as w_fp8"
        reject(op, "w_scale", expected, w_scale.device, "call w_scale.to(...)")
    if layout.group % 8:
        reject(op, "block", "a multiple of 8 columns, or all of K", layout.group)
    scale_stride(op, "w_scale", layout.stride)
    return layout


def _describe(w_scale: Tensor, layout: ScaleLayout) -> dict[str, Any]:
    """GemvCall's description of the scales of w."""
    return {
        "scale_bytes": w_scale.element_size(),
        "scale_rows": layout.rows,
        "scale_stride": layout.stride,
        "scale_groups": layout.group > 0,
    }


def _token_scales(
    op: str, x: Tensor, x_scale: Tensor, layout: ScaleLayout, block: list[int] | None
) -> tuple[int, int]:
    """The group along K (0: none) and the row stride of the scales of x."""
    M, K = x.shape
    if not isinstance(x_scale, Tensor) or x_scale.dtype != torch.float32:
        got = x_scale.dtype if isinstance(x_scale, Tensor) else type(x_scale).__name__
        reject(op, "x_scale", "fp32 scales", got, "fp16 would lose range: keep them in fp32")
    if x_scale.device != x.device:
        reject(op, "x_scale", f"a tensor on {x.device}, as x_fp8", x_scale.device, "move it")
    shape = tuple(x_scale.shape)
    if shape in ((M,), (M, 1)) and M != 1:
        return 0, scale_stride(op, "x_scale", x_scale.stride(0))
    if shape in ((), (1,), (1, 1)):
        return 0, 0
    columns = shape[1] if len(shape) == 2 and shape[0] == M else 0
    size = layout.group or (block[1] if block else K // columns if columns else 0)
    if not columns or not size or -(-K // size) != columns:
        blocks = f"[{M}, {-(-K // size)}]" if size else f"[{M}, K / G]"
        reject(op, "x_scale", f"shape [1], [{M}] or {blocks}", list(shape),
               "blocks of x are those of w along K")  # fmt: skip
    if size % 8:
        reject(op, "x_scale", "groups of a multiple of 8 along K", size)
    if x_scale.stride(1) != 1:
        reject(op, "x_scale", "a contiguous last dimension", f"strides {x_scale.stride()}")
    return size, scale_stride(op, "x_scale", row_stride(x_scale))


def _fake_w8a16(x: Tensor, w_fp8: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w_fp8.shape[0]))


def _fake_w8a8(x_fp8: Tensor, x_scale: Tensor, w_fp8: Tensor, *_: Any, **__: Any) -> Tensor:
    return x_fp8.new_empty((x_fp8.shape[0], w_fp8.shape[0]), dtype=_HALF)


@public_op(
    "fp8_w8a16_gemm(Tensor x, Tensor w_fp8, Tensor w_scale, *, str? fmt=None, int[]? block=None, "
    "Tensor? bias=None, bool propagate_nan=False) -> Tensor",
    plan=_plan_w8a16,
    fake=_fake_w8a16,
)
def fp8_w8a16_gemm(
    plan: Plan,
    x: Tensor,
    w_fp8: Tensor,
    w_scale: Tensor,
    *,
    fmt: str | None = None,
    block: Block | list[int] | None = None,
    bias: Tensor | None = None,
    propagate_nan: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(sum_g w_scale[n, g] * sum_{k in g} x[m, k] * w_fp8[n, k] + bias[n])`.

    x fp16 `[M, K]`; w_fp8 float8_e4m3fn or float8_e5m2 `[N, K]`, or uint8 codes with `fmt` "e4m3"
    or "e5m2"; w_scale fp32 or fp16: of the tensor `[]` or `[1]`, of the channel `[N]` or `[N, 1]`,
    or with `block=(bn, bk)` of the block `[ceil(N / bn), ceil(K / bk)]`; bias fp16 `[N]`; returns
    fp16 `[M, N]`, `out` when given. K is a multiple of 8, bk too (or at least K), N any. Last
    dimensions must be contiguous; rows may be strided and misaligned (served by narrower loads).

    Codes are decoded exactly, sums and scales are fp32. The NaN codes of e4m3 count as +-480:
    formats.check_fp8 finds them when weights are loaded, `propagate_nan` keeps them, at half a
    vector instruction per weight. Infinities and NaN of e5m2 are kept. The numbers of e5m2 below
    2^-14 and subnormal numbers of x may count as 0. Any M is served. Raises ContractError naming
    the tensor.
    """
    return launch_decode(plan, x, w_fp8, w_scale, bias, out, w_name="w_fp8", scale_name="w_scale")


@public_op(
    "fp8_w8a8_gemm(Tensor x_fp8, Tensor x_scale, Tensor w_fp8, Tensor w_scale, *, str? fmt=None, "
    "int[]? block=None, Tensor? bias=None) -> Tensor",
    plan=_plan_w8a8,
    fake=_fake_w8a8,
)
def fp8_w8a8_gemm(
    plan: Plan,
    x_fp8: Tensor,
    x_scale: Tensor,
    w_fp8: Tensor,
    w_scale: Tensor,
    *,
    fmt: str | None = None,
    block: Block | list[int] | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """fp8_w8a16_gemm with float8 activations: `x[m, k] = x_fp8[m, k] * x_scale[m, k // bk]`.

    x_fp8 float8 `[M, K]` (e4m3 and e5m2 may differ from w_fp8), or uint8 in the format `fmt`;
    x_scale fp32: of the tensor `[]` or `[1]`, of the row `[M]` or `[M, 1]`, or of the row and block
    `[M, ceil(K / bk)]`, whose bk is that of w_scale where that has blocks along K. The rest as in
    fp8_w8a16_gemm. Both operands are decoded exactly and both scales are applied to fp32 sums, so
    nothing overflows that the result can hold. NaN codes of x_fp8 give NaN; those of e4m3 weights
    count as +-480 (formats.check_fp8). Raises ContractError naming the tensor.
    """
    return launch_decode(
        plan, x_fp8, w_fp8, w_scale, bias, out, x_scale,
        x_name="x_fp8", w_name="w_fp8", scale_name="w_scale",
    )  # fmt: skip
