"""Int4 weights in the form that the decode kernels read best, made once at load time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats.int4 import (
    act_order,
    awq_to_gptq,
    ct_to_gptq,
    dequantize_w4,
    fp16_scales,
    gptq_shuffle,
)
from rdna_jit.formats.int4_words import pack_int4


@dataclass(frozen=True)
class Int4Weight:
    """A `[K, N]` int4 matrix, accepted by `gptq_gemm` in place of `qweight`.

    `qweight` int32 `[K/8, N]` in shuffled order, rows sorted by group; `scales` fp16 `[K/G, N]`;
    `qzeros` int32 `[K/G, N/8]` plus `zero_offset`, or None (all 8); `perm` int32 `[K]`: row k of
    the matrix belongs to x[:, perm[k]], None when rows are in order.
    """

    qweight: torch.Tensor
    scales: torch.Tensor
    qzeros: torch.Tensor | None = None
    perm: torch.Tensor | None = None
    zero_offset: int = 0

    def __repr__(self) -> str:
        zeros = ", zeros" if self.qzeros is not None else ""
        order = ", act-order" if self.perm is not None else ""
        return f"Int4Weight(K={self.K}, N={self.N}, group_size={self.group_size}{zeros}{order})"

    @property
    def K(self) -> int:
        return self.qweight.shape[0] * 8

    @property
    def N(self) -> int:
        return self.qweight.shape[1]

    @property
    def group_size(self) -> int:
        return self.K // self.scales.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: what a call with one row has to read, x aside."""
        tensors = (self.qweight, self.scales, self.qzeros, self.perm)
        return sum(t.nbytes for t in tensors if t is not None)

    def to(self, device: torch.device | str) -> Int4Weight:
        """The same weight on another device."""

        def move(t: torch.Tensor | None) -> torch.Tensor | None:
            return None if t is None else t.to(device)

        qweight, scales = self.qweight.to(device), self.scales.to(device)
        return Int4Weight(qweight, scales, move(self.qzeros), move(self.perm), self.zero_offset)

    def dequantize(self, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        """The weights `[K, N]` in the checkpoint's row order, rounded once to `dtype`."""
        return dequantize_w4(
            self.qweight,
            self.qzeros,
            self.scales,
            self.perm,
            zero_offset=self.zero_offset,
            shuffled=True,
            dtype=dtype,
        )


def pack_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor | None,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    zero_offset: int,
) -> Int4Weight:
    """From a GPTQ checkpoint's tensors; `zero_offset` is 1 for v1 and 0 for v2 checkpoints."""
    perm = None if g_idx is None else act_order(g_idx, scales.shape[0])
    shuffled = gptq_shuffle(qweight, perm)
    return Int4Weight(shuffled, fp16_scales(scales), qzeros, perm, zero_offset)


def pack_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Int4Weight:
    """From an AWQ checkpoint's tensors."""
    words, zeros = awq_to_gptq(qweight, qzeros)
    return pack_gptq(words, zeros, scales, zero_offset=0)


def pack_compressed_tensors(
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_zero_point: torch.Tensor | None = None,
    weight_g_idx: torch.Tensor | None = None,
) -> Int4Weight:
    """From a compressed-tensors pack-quantized checkpoint's tensors."""
    words, zeros, scales = ct_to_gptq(weight_packed, weight_scale, weight_zero_point)
    return pack_gptq(words, zeros, scales, weight_g_idx, zero_offset=0)


def quantize_int4(
    weight: torch.Tensor, group_size: int = 128, *, symmetric: bool = False
) -> Int4Weight:
    """Round a `[N, K]` weight to int4, group by group along K (`group_size` -1: the whole K).

    The codes are chosen for the scale as it is stored, rounded to fp16. `symmetric` fixes z = 8;
    otherwise N must be a multiple of 8, the form of packed zeros.
    """
    N, K = weight.shape
    G = K if group_size == -1 else group_size
    if G <= 0 or K % G or K % 8:
        raise ContractError(
            f"group_size: expected a divisor of K = {K} (a multiple of 8), got {group_size}",
            name="group_size",
            expected=f"a divisor of {K}",
            got=group_size,
        )
    groups = weight.float().reshape(N, K // G, G)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    span = torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15
    scales = fp16_scales(span.clamp(min=2.0**-24))
    step = scales.float()
    zeros = torch.full_like(step, 8.0) if symmetric else (-low / step).round().clamp(0, 15)
    codes = ((groups / step[..., None]).round() + zeros[..., None]).clamp(0, 15)
    qweight = pack_int4(codes.to(torch.uint8).reshape(N, K).t())
    qzeros = None if symmetric else pack_int4(zeros.to(torch.uint8).t(), dim=1)
    return Int4Weight(gptq_shuffle(qweight), scales.t().contiguous(), qzeros)
