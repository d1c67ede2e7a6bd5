"""How long the decode and the tile kernels take for a MoE layer, estimated before the routing is
known: what fused_moe chooses by.

Tokens are taken to spread evenly over the experts. The rates are those of a V620; other cards of
the family have nearly the same ratio of them, and that decides. docs/moe-layer.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rdna_jit.ops._moe_decode import MOST_TOKENS
from rdna_jit.ops._moe_tile import block_rows

READ_GBS = 506.0
VECTOR_RATE = 8.8e6  # lane instructions per us: 72 CUs, 2 x 32 lanes, 2.4 GHz, 0.8 issued
LAUNCH_US = 2.81
DECODE_PASS = 4  # tokens of an expert that share a decoded weight
TILE_STEP = 8  # rows of a block whose dots are skipped together
TILE_STEP_US = 0.38  # a workgroup's step of 32 along K, when it waits for memory
# Lane instructions per weight, counted on the emulator (gfx1030): decode kernels per pass and per
# token; tiles per block, and per 8 rows of it.
_DECODE = {
    "int4": (1.2, 0.7), "mxfp4": (1.5, 0.73), "i8": (1.25, 0.71), "e4m3": (2.0, 0.71),
    "e5m2": (0.55, 0.6), "f16": (0.1, 0.56),
}  # fmt: skip
_TILE = {"int4": 1.85, "mxfp4": 2.8, "i8": 1.7, "e4m3": 2.2, "e5m2": 0.65, "f16": 0.15}
_TILE_ROWS = 4.1
_TILE_W4A8 = (0.6, 2.6)  # the two with int8 activations
_PLAIN = 4.4  # of the plain decode kernels, per token


class Layer(NamedTuple):
    """A call: M tokens with T choices among `num_ids` experts, E of them here, each of
    `expert_bytes` bytes; sizes H and I."""

    format: str
    M: int
    T: int
    H: int
    I: int  # noqa: E741
    E: int
    num_ids: int
    expert_bytes: float


def tokens_of_expert(M: int, share: float) -> list[tuple[int, float]]:
    """How many of M tokens choose an expert, each with this probability: (tokens, probability);
    what is eight standard deviations away is left out."""
    if share >= 1.0:
        return [(M, 1.0)]
    mean, reach = M * share, 8 * math.sqrt(M * share * (1 - share)) + 8
    yes, no = math.log(share), math.log1p(-share)
    every = math.lgamma(M + 1)
    return [
        (n, math.exp(every - math.lgamma(n + 1) - math.lgamma(M - n + 1) + n * yes + (M - n) * no))
        for n in range(max(0, int(mean - reach)), min(M, int(mean + reach)) + 1)
    ]


def decode_us(layer: Layer, grouped: bool = True) -> float:
    """The decode kernels, in chunks of 16 tokens."""
    full, rest = divmod(layer.M, MOST_TOKENS)
    once, each = _DECODE[layer.format] if grouped else (0.0, _PLAIN)

    def chunk(tokens: int) -> float:
        def instructions(n: int) -> float:
            return once * -(-n // DECODE_PASS) + each * n

        return _stream_us(layer, tokens, instructions) + 2 * LAUNCH_US

    return (full * chunk(MOST_TOKENS) if full else 0.0) + (chunk(rest) if rest else 0.0)


def tiled_us(layer: Layer, w4a8: bool = False) -> float:
    """The tile kernels: sorting, two products, combining; `w4a8`: with int8 activations."""
    slots = layer.M * layer.T
    rows = block_rows(slots, layer.num_ids)
    block, step = _TILE_W4A8 if w4a8 else (_TILE[layer.format], _TILE_ROWS)

    def instructions(n: int) -> float:
        return block * -(-n // rows) + step * -(-n // TILE_STEP)

    here = slots * layer.E / layer.num_ids
    between = here * (4 * layer.I + 8 * layer.H)  # activations and partial sums, out and in again
    waits = -(-(layer.H + layer.I) // 32) * TILE_STEP_US
    products = max(_stream_us(layer, layer.M, instructions), waits)
    sorting = 0.5 + slots / 400
    return products + sorting + between / READ_GBS / 1e3 + 4 * LAUNCH_US


def _stream_us(layer: Layer, tokens: int, instructions: Callable[[int], float]) -> float:
    """Reading the experts that `tokens` choose, or the instructions on them, whichever is more."""
    spread = tokens_of_expert(tokens, min(1.0, layer.T / layer.num_ids))
    live = layer.E * sum(p for n, p in spread if n)
    work = layer.E * sum(p * instructions(n) for n, p in spread)
    weights = 3 * layer.I * layer.H
    return max(live * layer.expert_bytes / READ_GBS / 1e3, work * weights / VECTOR_RATE)
