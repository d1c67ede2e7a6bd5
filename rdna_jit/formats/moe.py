"""Int4 weights of experts, K-sequential, as moe_int4_decode takes them ("moe_wna16").

`w` `[E, rows, K / 2]` uint8: code k of a row is in byte k / 2, the low nibble for even k; the same
bytes as int32 are `[E, rows, K / 8]`. `scales` fp16 `[E, rows, K / G]`. `zeros` uint8
`[E, rows / 2, K / G]`, the low nibble for even rows, or None: zero point 8. A weight is
`(q - z) * scale`, with the zero point as stored.
"""

from __future__ import annotations

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats.int4_words import unpack_int4


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 `[.., K]` (K even) to uint8 `[.., K / 2]`."""
    _check_nibbles("codes", codes, codes.shape[-1])
    codes = codes.to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_codes(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of pack_codes, for uint8 `[.., K / 2]` or int32 `[.., K / 8]`."""
    packed = packed.contiguous().view(torch.uint8)
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def pack_zeros(zeros: torch.Tensor) -> torch.Tensor:
    """Zero points 0..15 `[E, rows, K / G]` (rows even) to uint8 `[E, rows / 2, K / G]`."""
    _check_nibbles("zeros", zeros, zeros.shape[-2])
    zeros = zeros.to(torch.uint8)
    return zeros[..., 0::2, :] | zeros[..., 1::2, :] << 4


def unpack_zeros(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of pack_zeros."""
    return torch.stack((packed & 15, packed >> 4), dim=-2).flatten(-3, -2)


def dequantize(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """`(q - z) * scale` as `[E, rows, K]`."""
    codes = unpack_codes(packed)
    group = codes.shape[-1] // scales.shape[-1]
    if zeros is None:
        centred = codes.to(dtype) - 8
    else:
        centred = codes.to(dtype) - unpack_zeros(zeros).repeat_interleave(group, dim=-1)
    return centred * scales.to(dtype).repeat_interleave(group, dim=-1)


def split_groups(
    scales: torch.Tensor, zeros: torch.Tensor | None, factor: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zeros of groups `factor` times as small: what a slice along K needs whose length
    the group size does not divide (128 over 160 codes becomes 32)."""
    finer = None if zeros is None else zeros.repeat_interleave(factor, dim=-1)
    return scales.repeat_interleave(factor, dim=-1), finer


def from_gptq(
    qweight: torch.Tensor,
    scales: torch.Tensor,
    qzeros: torch.Tensor | None = None,
    *,
    zero_offset: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """One expert's GPTQ matrix to `(w, scales, zeros)` `[rows, ..]`; stack them over experts.

    qweight int32 `[K / 8, rows]`, scales fp16 `[K / G, rows]`, qzeros int32 `[K / G, rows / 8]` or
    None (zero point 8). ContractError where stored zero + zero_offset is 16: four bits cannot
    hold it, and adding in packed form would carry into the neighbour.
    """
    w = qweight.t().contiguous().view(torch.uint8)
    zeros = None
    if qzeros is not None:
        zeros = pack_zeros((unpack_int4(qzeros, dim=1).to(torch.int16) + zero_offset).t())
    return w, scales.t().contiguous(), zeros


def _check_nibbles(name: str, values: torch.Tensor, size: int) -> None:
    if size % 2:
        raise ContractError(
            f"{name}: two values share a byte, got an odd number of {size}; pad to an even one",
            name=name,
            expected="an even number",
            got=size,
        )
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) <= 15:
        raise ContractError(
            f"{name}: expected 0..15, got {int(values.min())}..{int(values.max())}; this layout "
            "holds four bits per value",
            name=name,
            expected="0..15",
            got=(int(values.min()), int(values.max())),
        )
