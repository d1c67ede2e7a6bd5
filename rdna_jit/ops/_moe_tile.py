"""Which tile kernels serve a MoE call with many tokens, with which template values, and why not.

Pure functions of sizes, strides and alignments: no tensor content, no device access.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdna_jit.dispatch import Launch
from rdna_jit.ops._declared import FLAG, sizes
from rdna_jit.ops._moe_contract import STORED, Matrix
from rdna_jit.ops._moe_routing import ALIGN, MOST_EXPERTS_ALIGN, align_capacity, align_waves
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Legal, Value

TILE_ROWS = (32, 64)  # slots of a block
COLUMNS, CHANNELS = 128, 64  # of a workgroup
TILE_K = 32
MOST_PARTIAL = 512 << 20  # bytes of partial sums; more tokens run in chunks
_MOST_BLOCKS = 65535  # of a grid
_SIZES = range(1, 1 << 24)
_ALIGNS = (1, 2, 4, 8, 16)

_WEIGHTS: dict[str, Legal] = {
    "FORMAT": tuple(STORED),
    "HIDDEN": _SIZES,
    "INTERMEDIATE": _SIZES,
    "GROUP_SIZE": _SIZES,
    "SCALE_ROWS": _SIZES,
    "SCALE_BYTES": (0, 1, 2, 4),
    "HAS_ZEROS": FLAG,
    "ROWS": TILE_ROWS,
    "W_ALIGN": _ALIGNS,
}
_ROUTER: dict[str, Legal] = {
    "WEIGHT_TYPE": ("float", "_Float16"),
    "WEIGHT_STRIDE": range(1 << 24),
}
_EPILOGUE: dict[str, Legal] = {
    "ACTIVATION": ("silu", "gelu", "gelu_tanh", "swiglu"),
    "CLAMPED": FLAG,
    "WEIGHT_ON_INPUT": FLAG,
}


def _matrix(name: str) -> tuple[Parameter, ...]:
    return (
        Parameter(name, "const void*"),
        Parameter("scales", "const void*"),
        Parameter("zeros", "const u8*"),
    )


_BLOCKS = (
    Parameter("sorted", "const i32*", align=4),
    Parameter("block_experts", "const i32*", align=4),
    Parameter("num_rows", "const i32*", align=4),
)
GATE_UP = KernelSpec(
    name="moe_tile_gate_up",
    file="moe_tile_gate_up.hip",
    entry="moe_tile_gate_up",
    parameters=(
        Parameter("x", "const f16*", align=2),
        *_matrix("w1"),
        *_BLOCKS,
        Parameter("topk_weights", "const RouterWeight*", align=2),
        Parameter("act", "f16*", "scratch", align=16),
        *sizes("num_slots", "num_experts"),
        *sizes("limit", "alpha", ctype="float"),
    ),
    template={
        **_WEIGHTS,
        **_ROUTER,
        **_EPILOGUE,
        "TOP_K": _SIZES,
        "X_STRIDE": range(1 << 24),
        "X_ALIGN": _ALIGNS,
    },
    block=lambda values: int(values["ROWS"]) * 4,
)
DOWN = KernelSpec(
    name="moe_tile_down",
    file="moe_tile_down.hip",
    entry="moe_tile_down",
    parameters=(
        Parameter("act", "const f16*", align=16),
        *_matrix("w2"),
        *_BLOCKS,
        Parameter("partial", "float*", "scratch", align=16),
        *sizes("num_slots", "num_experts"),
    ),
    template=_WEIGHTS,
    block=lambda values: int(values["ROWS"]) * 4,
)
_W4A8: dict[str, Legal] = {
    "HIDDEN": _SIZES,
    "INTERMEDIATE": _SIZES,
    "GROUP_SIZE": range(32, 1 << 16, 32),
    "ACT_GROUP": (32, 64),
    "HAS_ZEROS": FLAG,
    "ROWS": TILE_ROWS,
}
_CODES = (
    Parameter("codes", "const u8*", align=16),
    Parameter("x_scale", "const float*", align=4),
    Parameter("x_sum", "const i32*", align=4),
)
GATE_UP_W4A8 = KernelSpec(
    name="moe_w4a8_gate_up",
    file="moe_w4a8_gate_up.hip",
    entry="moe_w4a8_gate_up",
    parameters=(
        *_CODES,
        *_matrix("w1"),
        *_BLOCKS,
        Parameter("topk_weights", "const RouterWeight*", align=2),
        Parameter("act_codes", "u8*", "scratch", align=16),
        Parameter("act_scale", "float*", "scratch", align=4),
        Parameter("act_sum", "i32*", "scratch", align=4),
        *sizes("num_slots", "num_experts"),
        *sizes("limit", "alpha", ctype="float"),
    ),
    template={
        **_W4A8,
        **_ROUTER,
        **_EPILOGUE,
        "TOP_K": _SIZES,
        "STEP": (32, 64),
    },
    block=lambda values: int(values["ROWS"]) * 4,
    requires=frozenset({"dot4"}),
)
DOWN_W4A8 = KernelSpec(
    name="moe_w4a8_down",
    file="moe_w4a8_down.hip",
    entry="moe_w4a8_down",
    parameters=(
        *_CODES,
        *_matrix("w2"),
        *_BLOCKS,
        Parameter("partial", "float*", "scratch", align=16),
        *sizes("num_slots", "num_experts"),
    ),
    template=_W4A8,
    block=lambda values: int(values["ROWS"]) * 4,
    requires=frozenset({"dot4"}),
)
COMBINE = KernelSpec(
    name="moe_combine",
    file="moe_combine.hip",
    entry="moe_combine",
    parameters=(
        Parameter("partial", "const float*", align=16),
        Parameter("topk_ids", "const Id*", align=4),
        Parameter("expert_map", "const i32*", align=4),
        Parameter("topk_weights", "const RouterWeight*", align=2),
        Parameter("residual", "const f16*", align=2),
        Parameter("out", "f16*", "out", align=2),
        *sizes("num_experts", "num_ids"),
        *sizes("residual_stride", "out_stride", ctype="long long"),
    ),
    template={
        **_ROUTER,
        "TOP_K": _SIZES,
        "HIDDEN": _SIZES,
        "WEIGHTED": FLAG,
        "HAS_RESIDUAL": FLAG,
        "HAS_MAP": FLAG,
        "ID_TYPE": ("int", "long long"),
        "ID_STRIDE": range(1 << 24),
        "RESIDUAL_ALIGN": _ALIGNS,
        "OUT_ALIGN": _ALIGNS,
    },
    block=256,
)


@dataclass(frozen=True)
class TileCall:
    """A MoE call with many tokens: sizes, strides in elements, alignments in bytes. `num_ids`: what
    ids may name, the global experts where there is a map."""

    M: int
    T: int
    H: int
    I: int  # noqa: E741
    E: int
    num_ids: int
    format: str
    w1: Matrix
    w2: Matrix
    id_type: str
    id_stride: int
    weight_type: str
    weight_stride: int
    has_map: bool
    has_residual: bool
    x_stride: int
    aligns: tuple[int, int, int]  # of rows of hidden_states, residual, out
    activation: str
    clamped: bool
    weight_on_input: bool


@dataclass(frozen=True)
class Chunk:
    """Launches for tokens first..last, and sizes of what they hand on to each other."""

    first: int
    last: int
    rows: int
    blocks: int
    align: Launch
    gate_up: Launch
    down: Launch
    combine: Launch


def tiled_reason(call: TileCall) -> str:
    """Why the tile kernels cannot serve the call; empty when they can."""
    stored_bits = {"f16": 16, "int4": 4, "mxfp4": 4}.get(call.format, 8)
    tokens = chunk_tokens(call)
    checks = (
        (call.H % 8 or call.I % 8, f"H {call.H} or I {call.I} is no multiple of 8"),
        (not (call.w1.dense and call.w2.dense), "the weights' rows or experts are strided"),
        (
            any(
                m.group % TILE_K and m.group < K for m, K in ((call.w1, call.H), (call.w2, call.I))
            ),
            "the group size is no multiple of 32",
        ),
        (call.num_ids > MOST_EXPERTS_ALIGN, f"more than {MOST_EXPERTS_ALIGN} experts"),
        (2 * call.I * call.H * stored_bits // 8 >= 1 << 32, "an expert has 4 GB or more"),
        (tokens * call.x_stride >= 1 << 31, "hidden_states spans 4 GB or more"),
        (call.x_stride >= 1 << 24, "rows of hidden_states are too far apart"),
        (
            tokens * max(call.id_stride, call.weight_stride) >= 1 << 29,
            "topk_ids or topk_weights span 4 GB or more",
        ),
    )
    return next((reason for fails, reason in checks if fails), "")


def w4a8_reason(call: TileCall) -> str:
    """Why the tiles of int8 activations cannot serve the call; empty when they can."""
    group = call.w1.group
    checks = (
        (call.format != "int4", f"format {call.format} is not int4"),
        (group % 32 or group >= 1 << 16, f"the group size {group} is no multiple of 32"),
        (call.w2.group != group, "w1 and w2 have groups of different sizes"),
        (min(call.w1.align, call.w2.align) < 16, "the weights are not 16-byte aligned"),
        (chunk_tokens(call) * call.T * max(call.H, call.I) >= 1 << 32, "codes span 4 GB or more"),
    )
    return next((reason for fails, reason in checks if fails), "")


def act_group(call: TileCall) -> int:
    """Activations between the products that share a scale."""
    return 64 if call.w1.group % 64 == 0 else 32


def chunk_tokens(call: TileCall) -> int:
    """Tokens of a chunk: what the partial sums' limit and the grid leave."""
    by_bytes = max(MOST_PARTIAL // (call.T * max(call.H, call.I) * 4), 64)
    # blocks <= slots / rows + experts
    by_grid = (_MOST_BLOCKS - call.num_ids - 1) * min(TILE_ROWS) // call.T
    return max(1, min(call.M, by_bytes, by_grid, _MOST_BLOCKS))


def block_rows(slots: int, num_ids: int) -> int:
    """Slots of a block. Waves whose rows are padding cost little, so large blocks, which decode
    the weights once, serve every expert that has more slots than a small block."""
    return 32 if slots / num_ids <= 32 else 64


def plan_chunks(call: TileCall, rows: int | None = None, w4a8: bool = False) -> tuple[Chunk, ...]:
    """The launches of a call with M >= 1, chunk by chunk."""
    size = chunk_tokens(call)
    rows = rows or block_rows(call.M * call.T, call.num_ids)
    made: dict[int, Chunk] = {}
    chunks = []
    for first in range(0, call.M, size):
        tokens = min(size, call.M - first)
        if tokens not in made:
            made[tokens] = _chunk(call, tokens, rows, w4a8)
        chunks.append(replace(made[tokens], first=first, last=first + tokens))
    return tuple(chunks)


def _chunk(call: TileCall, tokens: int, rows: int, w4a8: bool) -> Chunk:
    slots = tokens * call.T
    padded, blocks = align_capacity(slots, rows, call.num_ids, True)
    align: dict[str, Value] = {
        "NUM_EXPERTS": call.num_ids,
        "BLOCK_SIZE": rows,
        "TOP_K": 1 if call.id_stride == call.T else call.T,
        "ID_STRIDE": 1 if call.id_stride == call.T else call.id_stride,
        "ID_TYPE": call.id_type,
        "HAS_MAP": call.has_map,
        "DROP_INVALID": call.has_map,
        "HAS_INVERSE": False,
        "WAVES": align_waves(slots, call.num_ids),
    }
    router: dict[str, Value] = {
        "WEIGHT_TYPE": call.weight_type,
        "WEIGHT_STRIDE": call.weight_stride,
    }
    gate_up: dict[str, Value] = {
        **router,
        "TOP_K": call.T,
        "ACTIVATION": call.activation,
        "CLAMPED": call.clamped,
        "WEIGHT_ON_INPUT": call.weight_on_input,
    }
    if w4a8:
        shared: dict[str, Value] = {
            "HIDDEN": call.H,
            "INTERMEDIATE": call.I,
            "GROUP_SIZE": call.w1.group,
            "ACT_GROUP": act_group(call),
            "ROWS": rows,
        }
        gate_up |= {**shared, "HAS_ZEROS": call.w1.has_zeros, "STEP": act_group(call)}
        down: dict[str, Value] = {**shared, "HAS_ZEROS": call.w2.has_zeros}
        one, two = GATE_UP_W4A8.specialise(None, **gate_up), DOWN_W4A8.specialise(None, **down)
    else:
        gate_up |= {
            **_weight_values(call, call.w1, rows),
            "X_STRIDE": call.x_stride,
            "X_ALIGN": call.aligns[0],
        }
        down = _weight_values(call, call.w2, rows)
        one, two = GATE_UP.specialise(None, **gate_up), DOWN.specialise(None, **down)
    combine: dict[str, Value] = {
        **router,
        "TOP_K": call.T,
        "HIDDEN": call.H,
        "WEIGHTED": not call.weight_on_input,
        "HAS_RESIDUAL": call.has_residual,
        "HAS_MAP": call.has_map,
        "ID_TYPE": call.id_type,
        "ID_STRIDE": call.id_stride,
        "RESIDUAL_ALIGN": call.aligns[1],
        "OUT_ALIGN": call.aligns[2],
    }
    # Blocks of this rank's experts come first, also where a map names others beyond E.
    grid = min(blocks, align_capacity(slots, rows, call.E, True)[1])
    return Chunk(
        0, tokens, padded, blocks,
        Launch(ALIGN.specialise(None, **align), 1, ALIGN.block_of(align)),
        Launch(one, (-(-call.I // CHANNELS), grid), rows * 4),
        Launch(two, (-(-call.H // COLUMNS), grid), rows * 4),
        Launch(COMBINE.specialise(None, **combine), (-(-call.H // 1024), tokens), 256),
    )  # fmt: skip


def _weight_values(call: TileCall, matrix: Matrix, rows: int) -> dict[str, Value]:
    return {
        "FORMAT": call.format,
        "HIDDEN": call.H,
        "INTERMEDIATE": call.I,
        "GROUP_SIZE": matrix.group,
        "SCALE_ROWS": matrix.scale_rows,
        "SCALE_BYTES": matrix.scale_bytes,
        "HAS_ZEROS": matrix.has_zeros,
        "ROWS": rows,
        "W_ALIGN": matrix.align,
    }
