"""Checks that the MoE ops share: experts' weights in every format, routing, buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rdna_jit.ops._contract import check_no_overlap, check_tensor, reject

Tensor = torch.Tensor
HALF, BYTE, INT, FLOAT = torch.float16, torch.uint8, torch.int32, torch.float32
ID_TYPES = {torch.int32: "int", torch.int64: "long long"}
WEIGHT_TYPES = {torch.float32: "float", torch.float16: "_Float16"}
MX_GROUP = 32
_E8M0 = getattr(torch, "float8_e8m0fnu", BYTE)
MOST_TOKENS = 1 << 24  # of a call: a plan lists its chunks
# Per format: dtypes of the weights, with the weights that one element holds.
STORED = {
    "int4": {BYTE: 2, INT: 8},
    "i8": {torch.int8: 1},
    "e4m3": {torch.float8_e4m3fn: 1, BYTE: 1},
    "e5m2": {torch.float8_e5m2: 1, BYTE: 1},
    "mxfp4": {BYTE: 2, INT: 8},
    "f16": {HALF: 1},
}
_SCALES = {
    "int4": (HALF,),
    "i8": (HALF, FLOAT),
    "e4m3": (FLOAT, HALF),
    "e5m2": (FLOAT, HALF),
    "mxfp4": (BYTE, _E8M0),
}


class Matrix(NamedTuple):
    """Layout of one weight tensor and what belongs to it.

    A scale of `scale_bytes` (0: none) serves `group` weights along K of `scale_rows` rows. Strides
    of experts and rows are in bytes for weights and zeros and in elements for scales; `dense`:
    experts and rows follow each other; `align` is what weights start on a multiple of, in bytes,
    rows included, `base_align` the first of them."""

    group: int
    scale_rows: int
    scale_bytes: int
    has_zeros: bool
    dense: bool
    base_align: int
    align: int
    expert_strides: tuple[int, int, int]
    row_strides: tuple[int, int, int]


def check_format(op: str, format: object) -> None:
    if not isinstance(format, str) or format not in STORED:
        reject(
            op, "format", f"one of {', '.join(STORED)}", repr(format), "name the weights' format"
        )


def check_weights(
    op: str,
    name: str,
    format: str,
    weights: object,
    rows: tuple[int | None, ...],
    K: int,
    device: torch.device,
) -> tuple[int, ...]:
    """Experts and rows of a weight tensor `[E, rows, K]`, K packed as its format and dtype say."""
    stored = STORED[format]
    dtype = next(iter(stored))
    if isinstance(weights, Tensor) and weights.dtype in stored:
        dtype = weights.dtype
    elif isinstance(weights, Tensor):
        _reject_dtype(op, name, format, weights)
    per = stored[dtype]
    if K == 0 or K % per:
        what = "codes" if format == "int4" else "weights"
        reject(op, name, f"rows of a multiple of {per} {what}", f"{K} {what}", "pad the rows")
    tensor = check_tensor(op, name, weights, dtype, (*rows, K // per), device)
    if not tensor.numel():
        reject(op, name, "at least one expert and one row", f"shape {tuple(tensor.shape)}")
    return tuple(tensor.shape[:2])


def _reject_dtype(op: str, name: str, format: str, weights: Tensor) -> None:
    got = weights.dtype
    if format == "int4":
        reject(op, name, "uint8 or int32 codes", got, "pack them with formats.moe")
    if "fnuz" in str(got):
        reject(op, name, f"{format} codes", got, "its codes have another bias: convert them")
    if format == "f16" and weights.is_floating_point():
        reject(op, name, HALF, got, f"call {name}.half()")
    expected = " or ".join(str(dtype) for dtype in STORED[format])
    reject(op, name, f"{expected} for format {format}", got, "pass the format of these weights")


def check_experts(
    op: str,
    format: str,
    tensors: Mapping[str, Any],
    H: int,
    device: torch.device,
    group_size: int | None,
    block: Sequence[int] | None,
    *,
    E: int | None = None,
    prefix: str = "",
) -> tuple[int, int, Matrix, Matrix]:
    """E, I and the layouts of both weights of a gated layer, named as in moe_decode."""
    names = f"{prefix}w1", f"{prefix}w2"
    E, rows = check_weights(op, names[0], format, tensors[names[0]], (E, None), H, device)
    if rows % 2:
        reject(op, names[0], "an even number of rows, gate and up", f"{rows} rows")
    I = rows // 2  # noqa: E741
    check_weights(op, names[1], format, tensors[names[1]], (E, H), I, device)
    one, two = (
        check_matrix(
            op, n, format, (tensors[n], tensors[f"{n}_scale"], tensors.get(f"{n}_zp")), size,
            group_size, block,
        )
        for n, size in zip(names, ((E, rows, H), (E, H, I)), strict=True)
    )  # fmt: skip
    return E, I, one, two


def check_matrix(
    op: str,
    name: str,
    format: str,
    tensors: tuple[Tensor, Tensor | None, Tensor | None],
    size: tuple[int, int, int],
    group_size: int | None,
    block: Sequence[int] | None,
) -> Matrix:
    """The layout of (weights, scale, zeros) whose weights have been checked to be `size`."""
    weights, scale, zeros = tensors
    E, rows, K = size
    group, scale_rows = K, 1
    if format in ("int4", "i8"):
        group = _group(op, name, K, -1 if group_size is None and format == "i8" else group_size)
    elif format == "mxfp4":
        if group_size not in (None, -1, MX_GROUP):
            reject(op, "group_size", f"{MX_GROUP} or None for mxfp4", group_size, "leave it out")
        group = _group(op, name, K, MX_GROUP)
    elif group_size not in (None, -1):
        reject(op, "group_size", f"None for format {format}", group_size, "leave it out")
    if block is not None:
        if format not in ("e4m3", "e5m2"):
            reject(op, "block", f"None for format {format}", block, "leave it out")
        scale_rows, group = _block(op, block)
    elif format in ("e4m3", "e5m2") and isinstance(scale, Tensor) and scale.dim() == 1:
        scale_rows = rows
    if format == "f16":
        if scale is not None:
            reject(op, f"{name}_scale", "None for format f16", "a tensor", "leave it out")
    else:
        _check_scale(op, f"{name}_scale", format, scale, size, (scale_rows, group), weights.device)
    if zeros is not None:
        if format != "int4":
            reject(op, f"{name}_zp", f"None for format {format}", "a tensor", "leave it out")
        check_tensor(op, f"{name}_zp", zeros, BYTE, (E, rows // 2, K // group), weights.device)
    every = (weights, scale, zeros)
    unit = weights.element_size()
    strides = weights.stride()
    scale_strides = (0, 0) if scale is None else (*scale.stride(), 0)[:2]
    zero_strides = (0, 0) if zeros is None else zeros.stride()
    return Matrix(
        group=group,
        scale_rows=scale_rows,
        scale_bytes=0 if scale is None else scale.element_size(),
        has_zeros=zeros is not None,
        dense=all(t is None or t.is_contiguous() for t in every),
        base_align=_power_of_two(weights.data_ptr()),
        align=_power_of_two(weights.data_ptr() | strides[0] * unit | strides[1] * unit),
        expert_strides=(strides[0] * unit, scale_strides[0], zero_strides[0]),
        row_strides=(strides[1] * unit, scale_strides[1], zero_strides[1]),
    )


def _group(op: str, name: str, K: int, group_size: int | None) -> int:
    if type(group_size) is not int or group_size == 0 or group_size < -1:
        got = group_size
        reject(op, "group_size", "a positive number, or -1 for one group per row", got)
    group = K if group_size == -1 else group_size
    if K % group:
        reject(
            op, "group_size", f"a divisor of the {K} codes in a row of {name}", group_size,
            "repeat the scales for a smaller group (formats.moe.split_groups)",
        )  # fmt: skip
    return group


def _block(op: str, block: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a block of fp8 weights."""
    if len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        reject(op, "block", "(rows, columns) of a block", block)
    return block[0], block[1]


def _check_scale(
    op: str,
    name: str,
    format: str,
    scale: object,
    size: tuple[int, int, int],
    per: tuple[int, int],
    device: torch.device,
) -> None:
    E, rows, K = size
    scale_rows, group = per
    dtypes = _SCALES[format]
    dtype = dtypes[0]
    if isinstance(scale, Tensor) and scale.dtype in dtypes:
        dtype = scale.dtype
    elif isinstance(scale, Tensor) and len(dtypes) > 1:
        expected = " or ".join(str(d) for d in dict.fromkeys(dtypes))
        reject(op, name, expected, scale.dtype, f"convert {name}")
    shape: tuple[int, ...] = (E, -(-rows // scale_rows), -(-K // group))
    dims = scale.dim() if isinstance(scale, Tensor) else 3
    if shape[2] == 1 and dims < 3 and format in ("i8", "e4m3", "e5m2"):
        shape = shape[:1] if dims == 1 and scale_rows == rows else shape[:2]
    check_tensor(op, name, scale, dtype, shape, device)


def _power_of_two(spots: int) -> int:
    return (spots | 16) & -(spots | 16)


def check_routing(
    op: str,
    weights: Tensor,
    ids: Tensor,
    expert_map: Tensor | None,
    M: int,
    device: torch.device,
) -> int:
    """The number of choices per token."""
    for name, tensor, dtypes in (
        ("topk_ids", ids, ID_TYPES),
        ("topk_weights", weights, WEIGHT_TYPES),
    ):
        if isinstance(tensor, Tensor) and tensor.dtype not in dtypes:
            expected = " or ".join(str(dtype) for dtype in dtypes)
            convert = name == "topk_weights" and tensor.is_floating_point()
            hint = f"call {name}.half()" if convert else f"convert {name}"
            reject(op, name, expected, tensor.dtype, hint)
    if M > MOST_TOKENS:
        reject(op, "hidden_states", f"at most {MOST_TOKENS} tokens", M, "split the batch")
    check_tensor(op, "topk_ids", ids, getattr(ids, "dtype", INT), (M, None), device)
    T = ids.shape[1]
    if T == 0:
        reject(op, "topk_ids", "at least one choice per token", f"shape {tuple(ids.shape)}")
    dtype = getattr(weights, "dtype", FLOAT)
    check_tensor(op, "topk_weights", weights, dtype, (M, T), device)
    if expert_map is not None:
        check_tensor(op, "expert_map", expert_map, INT, (None,), device)
        if not expert_map.shape[0]:
            reject(op, "expert_map", "an entry for each of all experts", "none", "leave it out")
    return T


def check_rows(
    op: str, residual: Tensor | None, out: Tensor | None, shape: tuple[int, int],
    device: torch.device,
) -> None:  # fmt: skip
    """fp16 residual and out of this shape; rows of out are memory of their own."""
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None:
            check_tensor(op, name, tensor, HALF, shape, device)
    if out is not None and shape[0] > 1 and out.stride(0) < shape[1]:
        reject(op, "out", "rows apart from each other", f"strides {out.stride()}", "allocate it")


def check_workspace(
    op: str, name: str, workspace: Tensor, shape: tuple[int, ...], device: torch.device
) -> None:
    """A contiguous fp16 buffer of at least so many rows."""
    check_tensor(op, name, workspace, HALF, (None, *shape[1:]), device)
    if workspace.shape[0] < shape[0] or not workspace.is_contiguous():
        got = f"{tuple(workspace.shape)} with strides {workspace.stride()}"
        reject(op, name, f"contiguous, at least {list(shape)}", got, "allocate it anew")


ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def check_activation(op: str, activation: str, limit: float | None, alpha: float | None) -> str:
    """The kernels' name of the activation."""
    if activation not in ACTIVATIONS:
        reject(op, "activation", f"one of {', '.join(ACTIVATIONS)}", repr(activation))
    for name, number in (("swiglu_limit", limit), ("swiglu_alpha", alpha)):
        if number is not None and not isinstance(number, (int, float)):
            reject(op, name, "a positive number, or None", repr(number), "pass a float")
    if limit is not None and not limit > 0:
        reject(op, "swiglu_limit", "a positive number, or None", limit)
    if alpha is None:
        return activation
    if activation != "silu":
        got = f"{alpha} with {activation}"
        reject(op, "swiglu_alpha", "None unless the activation is silu", got, "leave it out")
    if not 0 < alpha < float("inf"):
        reject(op, "swiglu_alpha", "a positive number", alpha)
    return "swiglu"


def check_apart(op: str, written: dict[str, Tensor | None], read: dict[str, Tensor | None]) -> None:
    """ContractError unless what the op writes is memory of its own; out may be the residual: each
    lane reads an element before it writes it."""
    before = dict(read)
    for name, tensor in written.items():
        if tensor is None:
            continue
        others, residual = before, before.get("residual")
        if name == "out" and residual is not None and _same(tensor, residual):
            others = {k: v for k, v in before.items() if k != "residual"}
        check_no_overlap(op, tensor, others, name)
        before[name] = tensor


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.data_ptr(), a.stride()) == (b.data_ptr(), b.stride())
