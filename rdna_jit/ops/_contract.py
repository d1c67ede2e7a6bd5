"""Argument checks that the ops share: which tensor is wrong, what was expected, what came."""

from __future__ import annotations

from typing import NoReturn

import torch

from rdna_jit.errors import ContractError, ContractTypeError


def reject(op: str, name: str, expected: object, got: object, hint: str = "") -> NoReturn:
    """Raise ContractError for the argument `name`; `hint` says what to do."""
    message = f"{op}: {name}: expected {expected}, got {got}"
    if hint:
        message += f"; {hint}"
    kind = ContractTypeError if not hint and got is None else ContractError
    raise kind(message, name=name, expected=expected, got=got)


_WRITTEN = ("out", "workspace")


def check_tensor(
    op: str,
    name: str,
    value: object,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    device: torch.device | None = None,
) -> torch.Tensor:
    """A tensor of this dtype and shape (None: any size) whose last dimension is contiguous."""
    if not isinstance(value, torch.Tensor):
        got = "None" if value is None else type(value).__name__
        reject(op, name, f"a {dtype} tensor {_sizes(shape)}", got, "pass a tensor")
    if value.dtype != dtype:
        half = dtype == torch.float16 and value.is_floating_point()
        hint = f"call {name}.half()" if half else f"convert {name} to {dtype}"
        if name in _WRITTEN:  # a converted copy would take the result and be lost
            hint = f"make it with dtype={dtype}"
        reject(op, name, dtype, value.dtype, hint)
    fits = value.dim() == len(shape) and all(
        want is None or want == size for want, size in zip(shape, value.shape, strict=True)
    )
    if not fits:
        reject(op, name, f"shape {_sizes(shape)}", _sizes(tuple(value.shape)))
    if value.numel() and value.shape[-1] > 1 and value.stride(-1) != 1:
        reject(
            op, name, "a contiguous last dimension", f"strides {value.stride()}",
            "make its rows contiguous" if name in _WRITTEN else f"call {name}.contiguous()",
        )  # fmt: skip
    if device is not None and value.device != device:
        reject(op, name, f"a tensor on {device}, as x", value.device, f"call {name}.to(...)")
    return value


def check_results(
    op: str, M: int, N: int, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> None:
    """An fp16 bias `[N]` and result `[M, N]`, where they are given."""
    if bias is not None:
        check_tensor(op, "bias", bias, torch.float16, (N,), x.device)
    if out is not None:
        check_tensor(op, "out", out, torch.float16, (M, N), x.device)
        if M > 1 and out.stride(0) < N:
            reject(op, "out", "rows apart from each other", f"strides {out.stride()}")


def row_stride(matrix: torch.Tensor) -> int:
    """Elements from one row to the next; the row's length where there is but one row."""
    return matrix.stride(0) if matrix.shape[0] > 1 else matrix.shape[1]


def alignment(matrix: torch.Tensor, most: int) -> int:
    """The largest power of two of bytes, at most `most`, that every row starts on."""
    spots = matrix.data_ptr() | most
    if matrix.dim() > 1 and matrix.shape[0] > 1:
        spots |= matrix.stride(0) * matrix.element_size()
    return spots & -spots


def out_alignment(N: int, out: torch.Tensor | None) -> int:
    """What rows of the result start on a multiple of, in bytes, also of one yet to be made."""
    return 2 * N & -(2 * N) or 16 if out is None else alignment(out, 16)


def check_no_overlap(
    op: str, out: torch.Tensor, inputs: dict[str, torch.Tensor | None], name: str = "out"
) -> None:
    """ContractError when writing `out`, the argument `name`, would change an input."""
    start = out.data_ptr()
    end = start + span(out)
    for other, tensor in inputs.items():
        if tensor is None:
            continue
        first = tensor.data_ptr()
        if first >= end or start >= first + span(tensor) or _interleaved(out, tensor):
            continue
        reject(
            op, name, f"memory apart from {other}", f"memory that overlaps {other}",
            "pass another tensor",
        )  # fmt: skip


def span(t: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if t.is_contiguous() or not t.numel():
        return t.nbytes
    last = sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def _interleaved(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two matrices are column slices of one buffer that do not touch."""
    if a.dim() != 2 or b.dim() != 2:
        return False
    pitch = a.stride(0) * a.element_size()
    if not pitch or pitch != b.stride(0) * b.element_size():
        return False
    ahead = (b.data_ptr() - a.data_ptr()) % pitch
    a_row, b_row = a.shape[1] * a.element_size(), b.shape[1] * b.element_size()
    return ahead >= a_row and ahead + b_row <= pitch


def _sizes(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
