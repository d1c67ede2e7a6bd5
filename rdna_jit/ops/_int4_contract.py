"""Operands of the dense int4 ops: their checks, and what the choice of kernels knows of them."""

from __future__ import annotations

import torch

from rdna_jit.ops._contract import alignment, check_tensor, out_alignment, reject, row_stride
from rdna_jit.ops._dense_int4 import Int4Call

Tensor = torch.Tensor
_HALF, _INT = torch.float16, torch.int32


def check_words(op: str, x: Tensor, qweight: Tensor) -> tuple[int, int, int]:
    """M, N and K of a call on words `[K/8, N]`."""
    M, K = check_tensor(op, "x", x, _HALF, (None, None)).shape
    check_tensor(op, "qweight", qweight, _INT, (None, None), x.device)
    if K % 8 or not K:
        reject(op, "x", "K a positive multiple of 8", f"K = {K}", "pad x and the weights")
    if qweight.shape[0] * 8 != K:
        hint = "qweight holds 8 codes of one column per word"
        if qweight.shape[0] == K:
            hint = "this looks like AWQ's form: convert it with formats.awq_to_gptq"
        reject(op, "qweight", f"{K // 8} rows for K = {K}", qweight.shape[0], hint)
    return M, qweight.shape[1], K


def check_order(op: str, shuffled: object) -> None:
    if shuffled not in (False, True):
        reject(op, "shuffled", "True or False", shuffled, "say which order the codes have")


def check_scales(op: str, x: Tensor, scales: Tensor, N: int) -> tuple[int, int]:
    """How many groups the scales `[K/G, N]` are for, and G."""
    groups = check_tensor(op, "scales", scales, _HALF, (None, N), x.device).shape[0]
    return groups, group_of(op, x.shape[1], groups)


def group_of(op: str, K: int, groups: int) -> int:
    """The group size of `groups` rows of scales."""
    if not groups or K % groups:
        reject(op, "scales", f"rows that divide K = {K} into groups", groups)
    return K // groups


def check_zeros(
    op: str, x: Tensor, qzeros: Tensor | None, groups: int, N: int, zero_offset: object
) -> None:
    """Packed zeros `[K/G, N/8]`, where there are any."""
    if qzeros is None:
        return
    if N % 8:
        reject(op, "qweight", "a multiple of 8 columns, as qzeros packs them", f"N = {N}")
    check_tensor(op, "qzeros", qzeros, _INT, (groups, N // 8), x.device)
    if zero_offset not in (0, 1):
        hint = "1 for GPTQ v1 checkpoints, 0 for v2, AWQ and compressed-tensors"
        reject(op, "zero_offset", "0 or 1", zero_offset, hint)


def describe(
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    group: int,
    *,
    shuffled: bool,
    zero_offset: int = 0,
) -> Int4Call:
    """A call on checked operands with packed zeros or none."""
    (M, K), N = x.shape, scales.shape[1]
    packed = qzeros is not None
    return Int4Call(
        M, N, K, group, shuffled,
        zeros="packed" if packed else "none",
        zero_offset=int(zero_offset) if packed else 0,
        has_bias=bias is not None,
        x_stride=row_stride(x),
        w_stride=row_stride(qweight),
        z_stride=0 if qzeros is None else row_stride(qzeros),
        s_stride=row_stride(scales),
        out_stride=N if out is None else row_stride(out),
        x_align=alignment(x, 16),
        w_align=alignment(qweight, 16),
        z_align=16 if qzeros is None else alignment(qzeros, 16),
        s_align=alignment(scales, 16),
        out_align=out_alignment(N, out),
    )  # fmt: skip
