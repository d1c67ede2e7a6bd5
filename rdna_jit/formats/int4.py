"""Int4 weights as checkpoints store them, and conversions between the forms.

Everywhere `w[k, n] = (q[k, n] - z[g, n]) * scale[g, n]` with codes q in 0..15 and `g` the group of
row k. The forms differ in where a code sits and in how z is coded (docs/linear.md has the table):

- GPTQ: `qweight` int32 `[K/8, N]`, `qzeros` int32 `[K/G, N/8]` holding z - zero_offset (1 in v1
  checkpoints, 0 in v2), `scales` `[K/G, N]`, optionally `g_idx` int32 `[K]` (act-order).
- AWQ: `qweight` int32 `[K, N/8]`, `qzeros` int32 `[K/G, N/8]`, columns interleaved, z literal.
- compressed-tensors: `weight_packed` int32 `[N, K/8]`, `weight_scale` `[N, K/G]`,
  `weight_zero_point` int32 `[N/8, K/G]` or none (z = 8).
"""

from __future__ import annotations

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats.int4_words import (
    SHUFFLE,
    UNSHUFFLE,
    pack_int4,
    reorder_words,
    unpack_int4,
)


def act_order(g_idx: torch.Tensor, groups: int) -> torch.Tensor | None:
    """The order of rows that sorts them by group: int32 `[K]`, or None when they are sorted.

    `g_idx` int32 `[K]` names the group of each row. ContractError unless each of the `groups`
    groups owns K / groups rows, as it does in an unsliced checkpoint. Reads the tensor's content.
    """
    K = g_idx.numel()
    order = torch.argsort(g_idx.long(), stable=True)
    expected = torch.arange(groups, device=g_idx.device).repeat_interleave(K // groups)
    if K % groups or not torch.equal(g_idx.long()[order], expected):
        raise ContractError(
            f"g_idx: expected each of the {groups} groups to own {K // groups} of the {K} rows; "
            "an act-order matrix cannot be sliced along K",
            name="g_idx",
            expected=f"{K // groups} rows per group",
            got="other counts",
        )
    is_sorted = torch.equal(order, torch.arange(K, device=order.device))
    return None if is_sorted else order.to(torch.int32)


def gptq_shuffle(qweight: torch.Tensor, perm: torch.Tensor | None = None) -> torch.Tensor:
    """GPTQ words in shuffled order; with `perm` (see act_order) row k becomes row perm[k] first."""
    if perm is not None:
        qweight = pack_int4(unpack_int4(qweight)[perm.long()])
    return reorder_words(qweight, SHUFFLE)


def gptq_unshuffle(qweight: torch.Tensor, perm: torch.Tensor | None = None) -> torch.Tensor:
    """Inverse of gptq_shuffle."""
    words = reorder_words(qweight, UNSHUFFLE)
    if perm is None:
        return words
    return pack_int4(unpack_int4(words)[torch.argsort(perm.long())])


def awq_to_gptq(qweight: torch.Tensor, qzeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """AWQ `qweight` `[K, N/8]` and `qzeros` `[K/G, N/8]` to GPTQ form with zero_offset 0."""
    codes = unpack_int4(reorder_words(qweight, UNSHUFFLE), dim=1)
    return pack_int4(codes), reorder_words(qzeros, UNSHUFFLE)


def gptq_to_awq(qweight: torch.Tensor, qzeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of awq_to_gptq; `qzeros` must be literal (zero_offset 0)."""
    words = pack_int4(unpack_int4(qweight), dim=1)
    return reorder_words(words, SHUFFLE), reorder_words(qzeros, SHUFFLE)


def ct_to_gptq(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_zero_point: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """compressed-tensors to GPTQ `(qweight, qzeros, scales)` with zero_offset 0.

    Scales become fp16; ContractError when a scale overflows or vanishes there.
    """
    zeros = None if weight_zero_point is None else weight_zero_point.t().contiguous()
    return weight_packed.t().contiguous(), zeros, fp16_scales(weight_scale).t().contiguous()


def gptq_to_ct(
    qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Inverse of ct_to_gptq: `(weight_packed, weight_scale, weight_zero_point)`."""
    zeros = None if qzeros is None else qzeros.t().contiguous()
    return qweight.t().contiguous(), scales.t().contiguous(), zeros


def gptq_to_nk(qweight: torch.Tensor) -> torch.Tensor:
    """`[K/8, N]` words to `[N, K/8]`, K along the row; the order within words stays."""
    return qweight.t().contiguous()


def nk_to_gptq(qweight: torch.Tensor) -> torch.Tensor:
    """Inverse of gptq_to_nk."""
    return qweight.t().contiguous()


def unpack_zeros(qzeros: torch.Tensor, zero_offset: int) -> torch.Tensor:
    """GPTQ `qzeros` `[K/G, N/8]` to uint8 z `[K/G, N]`: what w4a16_gemv takes."""
    return unpack_int4(qzeros, dim=1) + zero_offset


def pack_zeros(zeros: torch.Tensor, zero_offset: int) -> torch.Tensor:
    """Inverse of unpack_zeros. ContractError for a z that four bits cannot hold."""
    stored = zeros.to(torch.int16) - zero_offset
    return pack_int4(stored, dim=1)


def fp16_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales cast to fp16; ContractError when one becomes infinite, or zero without being zero."""
    cast = scales.to(torch.float16)
    bad = (torch.isinf(cast) & ~torch.isinf(scales)) | ((cast == 0) & (scales != 0))
    if bool(bad.any()):
        worst = scales[bad][0].item()
        raise ContractError(
            f"scales: {int(bad.sum())} of {scales.numel()} do not fit fp16 ({worst:g} for one); "
            "rescale the layer",
            name="scales",
            expected="values that fit fp16",
            got=worst,
        )
    return cast


def dequantize_w4(
    qweight: torch.Tensor,
    qzeros: torch.Tensor | None,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    zero_offset: int,
    shuffled: bool = False,
    dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """The weights `[K, N]`: exact (q - z) times scale, rounded once to `dtype`.

    GPTQ form. `qzeros` None means z = 8. With `shuffled`, `g_idx` is the order that
    gptq_shuffle took, and the rows come back in the checkpoint's order.
    """
    perm = g_idx if shuffled else None
    codes = unpack_int4(gptq_unshuffle(qweight, perm) if shuffled else qweight)
    K, groups = codes.shape[0], scales.shape[0]
    group_of_row = torch.arange(K, device=codes.device) // (K // groups)
    if perm is not None:
        group_of_row = group_of_row[torch.argsort(perm.long())]
    elif g_idx is not None:
        group_of_row = g_idx.long()
    zeros: torch.Tensor | float = 8.0
    if qzeros is not None:
        zeros = unpack_zeros(qzeros, zero_offset).double()[group_of_row]
    return ((codes.double() - zeros) * scales.double()[group_of_row]).to(dtype)
