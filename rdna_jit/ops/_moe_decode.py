"""Which MoE decode kernels serve a call, with which template values, and why.

Pure functions of sizes, strides and alignments: no tensor content, no device access.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rdna_jit.dispatch import Candidate, Launch
from rdna_jit.ops._declared import FLAG, sizes
from rdna_jit.ops._moe_contract import STORED, Matrix
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Legal, Value

TOKEN_TILES = (1, 2, 4, 8, 16)
MOST_TOKENS = max(TOKEN_TILES)  # of one launch pair; more run in chunks
MOST_SHARED = 2  # tokens up to which the shared expert is fused
MOST_TOP_K = 32  # of the grouped kernels
_MOST_TOKENS_ANY = 32768  # grid limit of the plain kernels
# Weights of one 16-byte load, and vector instructions for them per row: decode, dot, scale, x.
_CHUNKS = {
    "int4": (32, 57), "mxfp4": (32, 70), "i8": (16, 31), "e4m3": (16, 38), "e5m2": (16, 19),
    "f16": (8, 6),
}  # fmt: skip
_SIZES = range(1, 1 << 24)
_LANES = (1, 2, 4, 8, 16, 32)

GROUPED, ANY = "moe_grouped", "moe_any"

_ROUTING = (
    Parameter("topk_ids", "const Id*", align=4),
    Parameter("expert_map", "const i32*", align=4),
)
_GATE_UP = (
    Parameter("x", "const f16*", align=2),
    Parameter("w1", "const void*"),
    Parameter("scales", "const void*"),
    Parameter("zeros", "const u8*"),
    *_ROUTING,
    Parameter("act", "f16*", "scratch", align=2),
)
_DOWN = (
    Parameter("act", "const f16*", align=2),
    Parameter("w2", "const void*"),
    Parameter("scales", "const void*"),
    Parameter("zeros", "const u8*"),
    *_ROUTING,
    Parameter("topk_weights", "const RouterWeight*", align=2),
    Parameter("residual", "const f16*", align=2),
    Parameter("out", "f16*", "out", align=2),
)


_EPILOGUE = sizes("limit", "alpha", ctype="float")
_STRIDES = (
    *sizes("weights_expert", "scales_expert", "zeros_expert", ctype="long long"),
    *sizes("weights_row", "scales_row", "zeros_row"),
)
_SCALE_BYTES = (0, 1, 2, 4)
_SHARED: dict[str, Legal] = {
    "FORMAT": tuple(STORED),
    "TOP_K": _SIZES,
    "HIDDEN": _SIZES,
    "INTERMEDIATE": _SIZES,
    "HAS_ZEROS": FLAG,
    "HAS_MAP": FLAG,
    "ID_TYPE": ("int", "long long"),
    "ID_STRIDE": range(1 << 24),
}
_WEIGHTS: dict[str, Legal] = {
    "HAS_RESIDUAL": FLAG,
    "WEIGHT_TYPE": ("float", "_Float16"),
    "WEIGHT_STRIDE": range(1 << 24),
}
_ACTIVATION: dict[str, Legal] = {
    "ACTIVATION": ("silu", "gelu", "gelu_tanh", "swiglu"),
    "CLAMPED": FLAG,
}
_TILE: dict[str, Legal] = {
    "TOKENS": TOKEN_TILES,
    "GROUP_SIZE": _SIZES,
    "SCALE_ROWS": _SIZES,
    "SCALE_BYTES": _SCALE_BYTES,
    "LANES": _LANES,
    "BLOCK": range(1, 25),
    "WAVES": (1, 2, 4, 8, 16),
    "SHARED": range(0, 1 << 24, 16),
    "SHARED_SCALE_BYTES": (2, 4),
    "SHARED_LANES": _LANES,
    "SHARED_BLOCK": range(1, 25),
}
GATE_UP = KernelSpec(
    name="moe_gate_up",
    file="moe_gate_up.hip",
    entry="moe_gate_up",
    parameters=(
        *_GATE_UP,
        Parameter("shared_w1", "const void*"),
        Parameter("shared_scales", "const void*"),
        Parameter("shared_gate", "const f16*"),
        Parameter("shared_act", "f16*", "scratch"),
        *sizes("num_tokens", "num_experts", "num_ids", "x_stride"),
        *_EPILOGUE,
    ),
    template={
        **_SHARED,
        **_TILE,
        **_ACTIVATION,
        "PAIRS": (1, 2, 4),
        "SHARED_PAIRS": (1, 2, 4),
        "SHARED_GATED": FLAG,
    },
    block=lambda values: int(values["WAVES"]) * 32,
)
DOWN = KernelSpec(
    name="moe_down",
    file="moe_down.hip",
    entry="moe_down",
    parameters=(
        *_DOWN,
        Parameter("shared_act", "const f16*"),
        Parameter("shared_w2", "const void*"),
        Parameter("shared_scales", "const void*"),
        Parameter("shared_out", "f16*", "out"),
        *sizes("num_tokens", "num_experts", "num_ids", "residual_stride", "out_stride"),
    ),
    template={**_SHARED, **_WEIGHTS, **_TILE, "ROWS": (1, 2, 4), "SHARED_APART": FLAG},
    block=lambda values: int(values["WAVES"]) * 32,
)
_ANY_VALUES: dict[str, Legal] = {
    **_SHARED,
    **_WEIGHTS,
    **_ACTIVATION,
    "GROUP_1": _SIZES,
    "GROUP_2": _SIZES,
    "SCALE_ROWS_1": _SIZES,
    "SCALE_ROWS_2": _SIZES,
    "SCALE_BYTES_1": _SCALE_BYTES,
    "SCALE_BYTES_2": _SCALE_BYTES,
    "HAS_ZEROS_2": FLAG,
    "BY_OCTET": FLAG,
    "WEIGHTS_ALIGN": (1, 4),
    "VECTOR_ALIGN": (2, 16),
}
GATE_UP_ANY = KernelSpec(
    name="moe_gate_up_any",
    file="moe_generic.hip",
    entry="moe_gate_up_any",
    parameters=(
        *_GATE_UP,
        *sizes("num_experts", "num_ids", "x_stride"),
        *_EPILOGUE,
        *_STRIDES,
    ),
    template=_ANY_VALUES,
    block=256,
)
DOWN_ANY = KernelSpec(
    name="moe_down_any",
    file="moe_generic.hip",
    entry="moe_down_any",
    parameters=(
        *_DOWN,
        *sizes("num_experts", "num_ids", "residual_stride", "out_stride"),
        *_STRIDES,
    ),
    template=_ANY_VALUES,
    block=256,
)


class Shared(NamedTuple):
    """A shared expert that may be fused: its intermediate size, the bytes of a scale, whether a
    gate scales it, whether its result goes to a tensor of its own, and why it cannot be fused."""

    I: int  # noqa: E741
    scale_bytes: int
    gated: bool
    apart: bool
    reason: str


@dataclass(frozen=True)
class MoeCall:
    """A MoE decode call: sizes, strides in elements, alignments in bytes."""

    M: int
    T: int
    H: int
    I: int  # noqa: E741
    E: int
    format: str
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
    activation: str = "silu"
    clamped: bool = False
    shared: Shared | None = None


@dataclass(frozen=True)
class Choice:
    """Kernel pairs for the chunks of a batch."""

    kernel: str
    chunks: tuple[tuple[int, int, Launch, Launch], ...]  # first and last token, gate_up, down
    candidates: tuple[Candidate, ...]
    fallback: str = ""
    fused: bool = False  # the shared expert, in the pair

    @property
    def values(self) -> dict[str, Value]:
        """Template values of the first pair, the stage in front of those that differ."""
        gate_up, down = (launch.kernel.values for launch in self.chunks[0][2:])
        merged: dict[str, Value] = dict(gate_up)
        for name, value in down.items():
            if merged.setdefault(name, value) != value:
                merged[f"{name}_2"] = value
        return merged


def choose(call: MoeCall, variant: str, disabling: str = "") -> Choice:
    """The kernels for a call with M >= 1: the grouped pair where its contract holds and no setting
    is `disabling` it."""
    reason = ungrouped_reason(call)
    if disabling:
        reason = f"{disabling} names it"
    if variant == "v1" or reason:
        asked = "variant='v1' asks for the plain kernels" if variant == "v1" else reason
        candidates = (Candidate(GROUPED, False, asked), Candidate(ANY, True, "takes everything"))
        return Choice(ANY, _any_chunks(call), candidates, reason if variant != "v1" else "")
    fused = call.shared is not None and not call.shared.reason
    candidates = (Candidate(GROUPED, True, "shapes, strides and alignments fit"),
                  Candidate(ANY, False, "slower"))  # fmt: skip
    return Choice(GROUPED, _grouped_chunks(call), candidates, fused=fused)


def ungrouped_reason(call: MoeCall) -> str:
    """Why the grouped kernels cannot serve the call; empty when they can."""
    chunk = _CHUNKS[call.format][0]
    sides = ((call.w1, call.H), (call.w2, call.I))
    cut = any(m.group % chunk and m.group < K for m, K in sides)
    rows = any(m.scale_rows > 1 and m.scale_rows % 32 for m, _ in sides)
    checks = (
        (call.T > MOST_TOP_K, f"top-k {call.T} is above {MOST_TOP_K}"),
        (call.H % 32 or call.I % 32, f"H {call.H} or I {call.I} is no multiple of 32"),
        (cut, f"the group size is no multiple of {chunk}"),
        (rows, "a block of scales has no multiple of 32 rows"),
        (not (call.w1.dense and call.w2.dense), "the weights' rows or experts are strided"),
        (call.w1.base_align < 16 or call.w2.base_align < 16, "the weights are not 16-byte aligned"),
        (call.x_align < 16, "rows of hidden_states are not 16-byte aligned"),
        (call.act_align < 16, "the workspace is not 16-byte aligned"),
        (
            max(call.row_strides) >= 1 << 27 or call.T * call.I >= 1 << 27,
            "offsets of rows need more than 32 bits",
        ),
        (call.E * max(2 * call.I, call.H) >= 1 << 31 or call.E > 1 << 16, "too many experts"),
    )
    return next((reason for fails, reason in checks if fails), "")


def _lane_cost(K: int, format: str, lanes: int) -> float:
    """Vector instructions per chunk and row, idle lanes and the reduction over lanes included."""
    chunk, cost = _CHUNKS[format]
    chunks = K // chunk
    rounds = -(-chunks // lanes)
    steps = lanes.bit_length() - 1 + (lanes == 32)
    return lanes * (rounds * cost + steps) / chunks


def tile_lanes(K: int, format: str, among: tuple[int, ...] = _LANES) -> int:
    """Lanes that share a row: the most that cost at most 3 % over the cheapest."""
    best = min(_lane_cost(K, format, n) for n in among)
    return max(n for n in among if _lane_cost(K, format, n) <= 1.03 * best)


def tile_block(K: int, format: str, lanes: int, rows: int, tokens: int) -> int:
    """Rounds whose loads a wave issues together: for one token up to 24 loads per lane, in even
    blocks; for several one round, whose code is repeated for 1 to 4 tokens."""
    if tokens > 1:
        return 1
    rounds = -(-K // (_CHUNKS[format][0] * lanes))
    blocks = -(-rounds // (24 // rows))
    return -(-rounds // blocks)


def gate_up_values(call: MoeCall, tokens: int) -> dict[str, Value]:
    """Template values of stage 1."""
    lanes = tile_lanes(call.H, call.format)
    pairs = min(2 if tokens <= 2 else 4, lanes)
    values: dict[str, Value] = {
        **_shared_values(call, tokens, call.w1),
        **_activation_values(call),
        "LANES": lanes,
        "PAIRS": pairs,
        "BLOCK": tile_block(call.H, call.format, lanes, 2 * pairs, tokens),
        "WAVES": 4,
        **_NO_SHARED,
        "SHARED_PAIRS": 1,
        "SHARED_GATED": False,
    }
    shared = _fused(call)
    if shared:
        lanes = tile_lanes(call.H, "i8", (8, 16, 32))
        pairs = 2
        values |= {
            **_fused_values(shared),
            "SHARED_LANES": lanes,
            "SHARED_PAIRS": pairs,
            "SHARED_BLOCK": tile_block(call.H, "i8", lanes, 2 * pairs, tokens),
            "SHARED_GATED": shared.gated,
        }
    return values


def down_values(call: MoeCall, tokens: int) -> dict[str, Value]:
    """Template values of stage 2."""
    lanes = tile_lanes(call.I, call.format)
    rows = min(lanes, 2 if tokens <= 2 and lanes <= 4 else 4)
    values: dict[str, Value] = {
        **_shared_values(call, tokens, call.w2),
        **_weight_values(call),
        "LANES": lanes,
        "ROWS": rows,
        "BLOCK": tile_block(call.I, call.format, lanes, rows, tokens),
        "WAVES": 4 if tokens <= 2 else 8,
        **_NO_SHARED,
        "SHARED_APART": False,
    }
    shared = _fused(call)
    if shared:
        tile = rows * 32 // lanes
        fitting = tuple(n for n in _LANES if tile * n % 32 == 0 and tile * n <= 32 * 8)
        lanes = tile_lanes(shared.I, "i8", fitting)
        values |= {
            **_fused_values(shared),
            "SHARED_LANES": lanes,
            "SHARED_BLOCK": tile_block(shared.I, "i8", lanes, tile * lanes // 32, tokens),
            "SHARED_APART": shared.apart,
        }
    return values


_NO_SHARED: dict[str, Value] = {
    "SHARED": 0, "SHARED_SCALE_BYTES": 2, "SHARED_LANES": 32, "SHARED_BLOCK": 1,
}  # fmt: skip


def _fused(call: MoeCall) -> Shared | None:
    return None if call.shared is None or call.shared.reason else call.shared


def _fused_values(shared: Shared) -> dict[str, Value]:
    return {"SHARED": shared.I, "SHARED_SCALE_BYTES": shared.scale_bytes}


def _shared_values(call: MoeCall, tokens: int, matrix: Matrix) -> dict[str, Value]:
    return {
        "TOKENS": tokens,
        "GROUP_SIZE": matrix.group,
        "SCALE_ROWS": matrix.scale_rows,
        "SCALE_BYTES": matrix.scale_bytes,
        "HAS_ZEROS": matrix.has_zeros,
        **_call_values(call),
    }


def _call_values(call: MoeCall) -> dict[str, Value]:
    return {
        "FORMAT": call.format,
        "TOP_K": call.T,
        "HIDDEN": call.H,
        "INTERMEDIATE": call.I,
        "HAS_MAP": call.has_map,
        "ID_TYPE": call.id_type,
        "ID_STRIDE": call.id_stride,
    }


def _activation_values(call: MoeCall) -> dict[str, Value]:
    return {"ACTIVATION": call.activation, "CLAMPED": call.clamped}


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
    width, slices = -(-call.I // channels), count * call.T
    if one["SHARED"]:
        shared = int(one["SHARED_PAIRS"]) * 32 // int(one["SHARED_LANES"])
        waves = int(one["SHARED"]) // shared + 1  # the last for the factors
        width, slices = max(width, -(-waves // int(one["WAVES"]))), slices + 1
    gate_up, down = GATE_UP.specialise(None, **one), DOWN.specialise(None, **two)
    return (
        Launch(gate_up, (width, slices), GATE_UP.block_of(one)),
        Launch(down, (call.H // columns,), DOWN.block_of(two)),
    )


def _any_chunks(call: MoeCall) -> tuple[tuple[int, int, Launch, Launch], ...]:
    sides = ((call.w1, call.H), (call.w2, call.I))
    by_octet = all(K % 8 == 0 and (m.group % 8 == 0 or m.group >= K) for m, K in sides)
    values: dict[str, Value] = {
        **_call_values(call),
        **_weight_values(call),
        **_activation_values(call),
        "HAS_ZEROS": call.w1.has_zeros,
        "HAS_ZEROS_2": call.w2.has_zeros,
        "BY_OCTET": by_octet,
        "WEIGHTS_ALIGN": 4 if min(call.w1.align, call.w2.align) >= 4 and by_octet else 1,
        "VECTOR_ALIGN": 16 if min(call.x_align, call.act_align) >= 16 and by_octet else 2,
    }
    for i, (matrix, _) in enumerate(sides, 1):
        values[f"GROUP_{i}"] = matrix.group
        values[f"SCALE_ROWS_{i}"] = matrix.scale_rows
        values[f"SCALE_BYTES_{i}"] = matrix.scale_bytes
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
