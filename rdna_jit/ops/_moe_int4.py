"""Which int4 MoE decode kernels serve a call, with which template values, and why.

Pure functions of sizes, strides and alignments: no tensor content, no device access.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rdna_jit.dispatch import Candidate, Launch
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Legal, Value

TOKEN_TILES = (1, 2, 4, 8, 16)
MOST_TOKENS = max(TOKEN_TILES)  # of one launch pair; more run in chunks
MOST_TOP_K = 32  # of the grouped kernels
_MOST_TOKENS_ANY = 32768  # grid limit of the plain kernels
_CHUNK = 32  # codes of one 16-byte load
_CHUNK_COST = 57  # vector instructions per chunk and row: 36 dequantise, 16 dot, 5 x and scale
_SIZES = range(1, 1 << 24)

GROUPED, ANY = "moe_int4_grouped", "moe_int4_any"

_ROUTING = (
    Parameter("topk_ids", "const Id*", align=4),
    Parameter("expert_map", "const i32*", align=4),
)
_GATE_UP = (
    Parameter("x", "const f16*", align=2),
    Parameter("w1", "const u8*"),
    Parameter("scales", "const f16*", align=2),
    Parameter("zeros", "const u8*"),
    *_ROUTING,
    Parameter("act", "f16*", "scratch", align=2),
)
_DOWN = (
    Parameter("act", "const f16*", align=2),
    Parameter("w2", "const u8*"),
    Parameter("scales", "const f16*", align=2),
    Parameter("zeros", "const u8*"),
    *_ROUTING,
    Parameter("topk_weights", "const RouterWeight*", align=2),
    Parameter("residual", "const f16*", align=2),
    Parameter("out", "f16*", "out", align=2),
)


def _sizes(*names: str, ctype: str = "int") -> tuple[Parameter, ...]:
    return tuple(Parameter(name, ctype, "size") for name in names)


_STRIDES = (
    *_sizes("codes_expert", "scales_expert", "zeros_expert", ctype="long long"),
    *_sizes("codes_row", "scales_row", "zeros_row"),
)
_BOOL = (False, True)
_SHARED: dict[str, Legal] = {
    "TOP_K": _SIZES,
    "HIDDEN": _SIZES,
    "INTERMEDIATE": _SIZES,
    "HAS_ZEROS": _BOOL,
    "HAS_MAP": _BOOL,
    "ID_TYPE": ("int", "long long"),
    "ID_STRIDE": range(1 << 24),
}
_WEIGHTS: dict[str, Legal] = {
    "HAS_RESIDUAL": _BOOL,
    "WEIGHT_TYPE": ("float", "_Float16"),
    "WEIGHT_STRIDE": range(1 << 24),
}
_TILE: dict[str, Legal] = {
    "TOKENS": TOKEN_TILES,
    "GROUP_SIZE": range(_CHUNK, 1 << 24, _CHUNK),
    "LANES": (1, 2, 4, 8, 16, 32),
    "BLOCK": range(1, 17),
    "WAVES": (1, 2, 4, 8, 16),
}
GATE_UP = KernelSpec(
    name="moe_int4_gate_up",
    file="moe_int4_gate_up.hip",
    entry="moe_int4_gate_up",
    parameters=(*_GATE_UP, *_sizes("num_tokens", "num_experts", "num_ids", "x_stride")),
    template={**_SHARED, **_TILE, "PAIRS": (1, 2, 4)},
    block=lambda values: int(values["WAVES"]) * 32,
)
DOWN = KernelSpec(
    name="moe_int4_down",
    file="moe_int4_down.hip",
    entry="moe_int4_down",
    parameters=(
        *_DOWN,
        *_sizes("num_tokens", "num_experts", "num_ids", "residual_stride", "out_stride"),
    ),
    template={**_SHARED, **_WEIGHTS, **_TILE, "ROWS": (1, 2, 4)},
    block=lambda values: int(values["WAVES"]) * 32,
)
_ANY_VALUES: dict[str, Legal] = {
    **_SHARED,
    **_WEIGHTS,
    "GROUP_1": _SIZES,
    "GROUP_2": _SIZES,
    "HAS_ZEROS_2": _BOOL,
    "BY_WORD": _BOOL,
    "CODES_ALIGN": (1, 4),
    "VECTOR_ALIGN": (2, 16),
}
GATE_UP_ANY = KernelSpec(
    name="moe_int4_gate_up_any",
    file="moe_int4_generic.hip",
    entry="moe_int4_gate_up_any",
    parameters=(*_GATE_UP, *_sizes("num_experts", "num_ids", "x_stride"), *_STRIDES),
    template=_ANY_VALUES,
    block=256,
)
DOWN_ANY = KernelSpec(
    name="moe_int4_down_any",
    file="moe_int4_generic.hip",
    entry="moe_int4_down_any",
    parameters=(
        *_DOWN,
        *_sizes("num_experts", "num_ids", "residual_stride", "out_stride"),
        *_STRIDES,
    ),
    template=_ANY_VALUES,
    block=256,
)


class Matrix(NamedTuple):
    """Layout of one weight tensor and what belongs to it: strides of experts and rows, in bytes
    for codes and zeros and in elements for scales; whether experts and rows follow each other;
    `align` is what codes start on a multiple of, in bytes, rows included."""

    group: int
    has_zeros: bool
    dense: bool
    base_align: int
    align: int
    expert_strides: tuple[int, int, int]
    row_strides: tuple[int, int, int]


@dataclass(frozen=True)
class MoeCall:
    """An int4 MoE decode call: sizes, strides in elements, alignments in bytes."""

    M: int
    T: int
    H: int
    I: int  # noqa: E741
    E: int
    w1: Matrix
    w2: Matrix
    id_type: str
    id_stride: int
    weight_type: str
    weight_stride: int
    has_map: bool
    has_residual: bool
    x_align: int
    act_align: int
    row_strides: tuple[int, int, int]  # of hidden_states, residual, out


@dataclass(frozen=True)
class Choice:
    """Kernel pairs for the chunks of a batch."""

    kernel: str
    chunks: tuple[tuple[int, int, Launch, Launch], ...]  # first and last token, gate_up, down
    candidates: tuple[Candidate, ...]
    fallback: str = ""

    @property
    def values(self) -> dict[str, Value]:
        """Template values of the first pair, the stage in front of those that differ."""
        gate_up, down = (launch.kernel.values for launch in self.chunks[0][2:])
        merged: dict[str, Value] = dict(gate_up)
        for name, value in down.items():
            if merged.setdefault(name, value) != value:
                merged[f"{name}_2"] = value
        return merged


def choose(call: MoeCall, variant: str, disabled: tuple[str, ...] = ()) -> Choice:
    """The kernels for a call with M >= 1: the grouped pair where its contract holds."""
    reason = ungrouped_reason(call)
    if GROUPED in disabled:
        reason = "VLLM_DISABLED_KERNELS names it"
    if variant == "v1" or reason:
        asked = "variant='v1' asks for the plain kernels" if variant == "v1" else reason
        candidates = (Candidate(GROUPED, False, asked), Candidate(ANY, True, "takes everything"))
        return Choice(ANY, _any_chunks(call), candidates, reason if variant != "v1" else "")
    candidates = (Candidate(GROUPED, True, "shapes, strides and alignments fit"),
                  Candidate(ANY, False, "slower"))  # fmt: skip
    return Choice(GROUPED, _grouped_chunks(call), candidates)


def ungrouped_reason(call: MoeCall) -> str:
    """Why the grouped kernels cannot serve the call; empty when they can."""
    checks = (
        (call.T > MOST_TOP_K, f"top-k {call.T} is above {MOST_TOP_K}"),
        (call.H % _CHUNK or call.I % _CHUNK, f"H {call.H} or I {call.I} is no multiple of 32"),
        (call.w1.group % _CHUNK or call.w2.group % _CHUNK, "the group size is no multiple of 32"),
        (not (call.w1.dense and call.w2.dense), "the weights' rows or experts are strided"),
        (call.w1.base_align < 16 or call.w2.base_align < 16, "the weights are not 16-byte aligned"),
        (call.x_align < 16, "rows of hidden_states are not 16-byte aligned"),
        (call.act_align < 16, "the workspace is not 16-byte aligned"),
        (call.E * max(2 * call.I, call.H) >= 1 << 31 or call.E > 1 << 16, "too many experts"),
    )
    return next((reason for fails, reason in checks if fails), "")


def tile_lanes(K: int) -> int:
    """Lanes that share a row: the most that cost at most 3 % over the fewest instructions per
    chunk, idle lanes and the reduction over lanes included."""
    chunks = K // _CHUNK

    def cost(lanes: int) -> float:
        rounds = -(-chunks // lanes)
        steps = lanes.bit_length() - 1 + (lanes == 32)
        return lanes * (rounds * _CHUNK_COST + steps) / chunks

    lanes = (1, 2, 4, 8, 16, 32)
    best = min(map(cost, lanes))
    return max(n for n in lanes if cost(n) <= 1.03 * best)


def tile_block(K: int, lanes: int, rows: int, tokens: int) -> int:
    """Rounds whose loads a wave issues together: for one token up to 24 loads per lane, in even
    blocks; for several one round, whose code is repeated for 1 to 4 tokens."""
    if tokens > 1:
        return 1
    rounds = -(-K // (_CHUNK * lanes))
    blocks = -(-rounds // (24 // rows))
    return -(-rounds // blocks)


def gate_up_values(call: MoeCall, tokens: int) -> dict[str, Value]:
    """Template values of stage 1."""
    lanes = tile_lanes(call.H)
    pairs = min(2 if tokens <= 2 else 4, lanes)
    return {
        **_shared_values(call, tokens, call.w1),
        "LANES": lanes,
        "PAIRS": pairs,
        "BLOCK": tile_block(call.H, lanes, 2 * pairs, tokens),
        "WAVES": 4,
    }


def down_values(call: MoeCall, tokens: int) -> dict[str, Value]:
    """Template values of stage 2."""
    lanes = tile_lanes(call.I)
    rows = min(lanes, 2 if tokens <= 2 and lanes <= 4 else 4)
    return {
        **_shared_values(call, tokens, call.w2),
        **_weight_values(call),
        "LANES": lanes,
        "ROWS": rows,
        "BLOCK": tile_block(call.I, lanes, rows, tokens),
        "WAVES": 4 if tokens <= 2 else 8,
    }


def _shared_values(call: MoeCall, tokens: int, matrix: Matrix) -> dict[str, Value]:
    return {
        "TOKENS": tokens,
        "GROUP_SIZE": matrix.group,
        "HAS_ZEROS": matrix.has_zeros,
        **_call_values(call),
    }


def _call_values(call: MoeCall) -> dict[str, Value]:
    return {
        "TOP_K": call.T,
        "HIDDEN": call.H,
        "INTERMEDIATE": call.I,
        "HAS_MAP": call.has_map,
        "ID_TYPE": call.id_type,
        "ID_STRIDE": call.id_stride,
    }


def _weight_values(call: MoeCall) -> dict[str, Value]:
    return {
        "HAS_RESIDUAL": call.has_residual,
        "WEIGHT_TYPE": call.weight_type,
        "WEIGHT_STRIDE": call.weight_stride,
    }


def _grouped_chunks(call: MoeCall) -> tuple[tuple[int, int, Launch, Launch], ...]:
    pairs: dict[int, tuple[Launch, Launch]] = {}
    chunks = []
    for first in range(0, call.M, MOST_TOKENS):
        count = min(MOST_TOKENS, call.M - first)
        if count not in pairs:
            pairs[count] = _grouped_pair(call, count)
        chunks.append((first, first + count, *pairs[count]))
    return tuple(chunks)


def _grouped_pair(call: MoeCall, count: int) -> tuple[Launch, Launch]:
    tokens = next(tile for tile in TOKEN_TILES if tile >= count)
    one, two = gate_up_values(call, tokens), down_values(call, tokens)
    channels = int(one["PAIRS"]) * 32 // int(one["LANES"]) * int(one["WAVES"])
    columns = int(two["ROWS"]) * 32 // int(two["LANES"])
    gate_up, down = GATE_UP.specialise(None, **one), DOWN.specialise(None, **two)
    return (
        Launch(gate_up, (-(-call.I // channels), count * call.T), GATE_UP.block_of(one)),
        Launch(down, (call.H // columns,), DOWN.block_of(two)),
    )


def _any_chunks(call: MoeCall) -> tuple[tuple[int, int, Launch, Launch], ...]:
    by_word = all(size % 8 == 0 for size in (call.H, call.I, call.w1.group, call.w2.group))
    values: dict[str, Value] = {
        **_call_values(call),
        **_weight_values(call),
        "HAS_ZEROS": call.w1.has_zeros,
        "HAS_ZEROS_2": call.w2.has_zeros,
        "GROUP_1": call.w1.group,
        "GROUP_2": call.w2.group,
        "BY_WORD": by_word,
        "CODES_ALIGN": 4 if min(call.w1.align, call.w2.align) >= 4 and by_word else 1,
        "VECTOR_ALIGN": 16 if min(call.x_align, call.act_align) >= 16 and by_word else 2,
    }
    gate_up, down = GATE_UP_ANY.specialise(None, **values), DOWN_ANY.specialise(None, **values)
    chunks = []
    for first in range(0, call.M, _MOST_TOKENS_ANY):
        last = min(first + _MOST_TOKENS_ANY, call.M)
        chunks.append(
            (
                first,
                last,
                Launch(gate_up, (-(-call.I // 8), call.T, last - first), 256),
                Launch(down, (-(-call.H // 8), last - first), 256),
            )
        )
    return tuple(chunks)
