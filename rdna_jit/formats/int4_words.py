"""Unsigned 4-bit codes in 32-bit words: packing along any axis, and the two orders within a word.

Natural order: code `j` of a word sits at bits 4j..4j+3. Shuffled order (exllama's): the slots hold
the codes 0, 2, 4, 6, 1, 3, 5, 7, so that both 16-bit halves, masked at the same place, give
neighbouring codes. AWQ interleaves columns by the same order.
"""

from __future__ import annotations

import torch

from rdna_jit.errors import ContractError

# SHUFFLE[slot] is the natural index of the code in that slot.
SHUFFLE = (0, 2, 4, 6, 1, 3, 5, 7)
UNSHUFFLE = tuple(SHUFFLE.index(j) for j in range(8))


def pack_int4(codes: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Codes 0..15, eight neighbours along `dim` to an int32 word in natural order.

    The axis `dim` must be a multiple of 8 long and becomes 8 times shorter.
    """
    length = codes.shape[dim]
    if length % 8:
        raise ContractError(
            f"codes: eight codes make a word, but axis {dim} has {length}; pad it to a multiple "
            "of 8",
            name="codes",
            expected="a multiple of 8",
            got=length,
        )
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) > 15):
        raise ContractError(
            f"codes: expected values 0..15, got {int(codes.min())}..{int(codes.max())}",
            name="codes",
            expected="0..15",
            got=(int(codes.min()), int(codes.max())),
        )
    octets = codes.movedim(dim, -1).unflatten(-1, (length // 8, 8))
    words = torch.zeros(octets.shape[:-1], dtype=torch.int32, device=codes.device)
    for slot in range(8):
        words |= octets[..., slot].to(torch.int32) << (4 * slot)
    return words.movedim(-1, dim).contiguous()


def unpack_int4(words: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The uint8 codes of int32 words in natural order; the axis `dim` becomes 8 times longer."""
    _check_words(words)
    moved = words.movedim(dim, -1)
    codes = torch.stack([(moved >> (4 * slot) & 15).to(torch.uint8) for slot in range(8)], dim=-1)
    return codes.flatten(-2).movedim(-1, dim).contiguous()


def reorder_words(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Words whose slot `s` holds what slot `order[s]` held."""
    _check_words(words)
    result = torch.zeros_like(words, memory_format=torch.contiguous_format)
    for slot, source in enumerate(order):
        result |= (words >> (4 * source) & 15) << (4 * slot)
    return result


def _check_words(words: torch.Tensor) -> None:
    if words.dtype != torch.int32:
        raise ContractError(
            f"packed words: expected int32, got {words.dtype}; use .view(torch.int32)",
            name="words",
            expected="torch.int32",
            got=words.dtype,
        )
