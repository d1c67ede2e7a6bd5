"""The tiled kernels for many rows of x: which one serves a call, how the grid splits K, and why.

Pure functions of sizes, strides and alignments. An op plans a call above its decode limit with
`plan_int4(op, Int4Call)` or `plan_rows(op, GemvCall)`, which return a finished Plan (`Plan.extra`
is the result's shape (M, N)), and runs it with

    launch_tiles(plan, operands, bias, out)

where `operands` are the kernel's leading parameters: (x, qweight, zeros, scales, perm) of int4
words, (x, w, scale, x_scale) of row formats, None for what the call does not have. A plan is a
tile plan when `plan.kernel in TILE_KERNELS`. Where the grid splits K, launch_tiles allocates the
fp32 partial sums beside `out`, and a second launch adds them up in a fixed order.

A row of x in a batch may differ in the last bit from the same row alone: the split of K depends on
M. Two runs give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.ops._declared import FLAG, RESULT, SCALES, SUMS_OR_RESULT, WORDS, X, strides
from rdna_jit.ops._dense_cost import (
    PROCESSORS,
    decode_clocks,
    decode_limit,
    memory_clocks,
    per_call,
    tile_ends_first,
)
from rdna_jit.ops._dense_gemv import BITS, GemvCall
from rdna_jit.ops._dense_int4 import TILE_COST, Int4Call, columns_per_lane
from rdna_jit.ops._dense_int4 import row_tile as decode_tile
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Legal, Value

STEP = 32  # of K
COLUMNS = 128  # per workgroup
ROW_TILES = (16, 32, 64)
_SHARED: dict[str, Legal] = {
    "N": range(1, 1 << 30),
    "K": range(8, 1 << 30, 8),
    "ROWS": ROW_TILES,
    "SPLIT": FLAG,
    "HAS_BIAS": FLAG,
    **strides("X", "W", "OUT"),
    "OUT_ALIGN": (2, 4, 8),
}

INT4_TILE = KernelSpec(
    name="dense_tile",
    file="dense_tile.hip",
    entry="dense_tile",
    parameters=(
        X,
        WORDS,
        Parameter("zeros", "const void*"),
        SCALES,
        Parameter("perm", "const i32*", align=4),
        *SUMS_OR_RESULT,
        Parameter("slice", "i32", "size"),
    ),
    template={
        **_SHARED,
        "GROUP": range(8, 1 << 30, 8),
        "ORDER": (0, 1, 2),
        "ZEROS": (0, 1, 2),
        "ZERO_OFFSET": (0, 1),
        "HAS_PERM": FLAG,
        **strides("Z", "S"),
        "X_ALIGN": (2, 4, 8, 16),
        "S_ALIGN": (2, 4, 8),
    },
    block=lambda values: int(values["ROWS"]) * 4,
)

ROWS_TILE = KernelSpec(
    name="dense_tile_rows",
    file="dense_tile_rows.hip",
    entry="dense_tile_rows",
    parameters=(
        Parameter("x", "const void*"),
        Parameter("w", "const void*"),
        Parameter("scale", "const void*"),
        Parameter("x_scale", "const float*", align=4),
        *SUMS_OR_RESULT,
        Parameter("slice", "i32", "size"),
    ),
    template={
        **_SHARED,
        "FORMAT": tuple(BITS),
        "X_FORMAT": ("f16", "e4m3", "e5m2"),
        "NAN_CODES": FLAG,
        "GROUP": range(0, 1 << 30),
        "SCALE_BYTES": (0, 1, 2, 4),
        "SCALE_ROWS": range(1, 1 << 30),
        "SCALE_GROUPS": FLAG,
        "X_SCALES": FLAG,
        "X_SCALE_GROUPS": FLAG,
        "SCALE_STRIDE": range(1 << 30),
        **strides("X_SCALE"),
        "X_ALIGN": (1, 2, 4, 8, 16),
        "W_ALIGN": (1, 2, 4, 8, 16),
    },
    block=lambda values: int(values["ROWS"]) * 4,
)

COMBINE = KernelSpec(
    name="split_combine",
    file="split_combine.hip",
    entry="split_combine",
    parameters=(
        Parameter("parts", "const float*", align=16),
        *RESULT,
    ),
    template={
        "N": range(1, 1 << 30),
        "SPLITS": range(2, 65),
        "HAS_BIAS": FLAG,
        "STRIDE": range(4, 1 << 30, 4),
        **strides("OUT"),
        "OUT_ALIGN": (2, 4, 8),
    },
    block=256,
)

TILE_KERNELS = frozenset({INT4_TILE.name, ROWS_TILE.name})


@dataclass(frozen=True)
class Split:
    """How a grid of tiles shares K: steps of 32 per workgroup, workgroups along K, and the estimate
    in clocks of a processor that decided."""

    slice: int
    splits: int
    clocks: float = 0.0


@dataclass(frozen=True)
class TileLaunch(Launch):
    """The launch of a tile kernel, whose last argument, the steps of a slice of K, is the plan's:
    a template value would mean a kernel per number of rows."""

    slice: int = 0

    def __call__(self, *args: object) -> None:
        self.kernel.launch(self.grid, self.block, *args, self.slice)


def tile_cost(M: int, K: int, group: int, decode: float = 2.0) -> float:
    """Vector instructions per weight for M rows: dots and scales for each eight rows begun, and
    `decode`, about 2 (fp16: PLAIN), to decode a weight and write it to LDS, once per tile."""
    scales = 1 / group if group < K else 0.0
    rows = next((rows for rows in ROW_TILES if rows >= M), ROW_TILES[-1])
    return -(-M // 8) * 8 * (0.5 + scales) + decode * -(-M // rows)


PLAIN = 0.35  # of tile_cost, for weights that need no decoding

# What a workgroup needs per step of 32 K: clocks of a processor's four vector units, per row and to
# decode the weights, and per row of one of its two LDS.
_VECTOR_CLOCKS = 19.2
_DECODE_CLOCKS = 48
_LDS_CLOCKS = 25.0
# And what its waves wait for the loads of a step, by rows of a tile: more where fewer waves fetch
# the 128 columns, and where each column is a line of its own.
_WAIT_CLOCKS = {
    4: {16: 900, 32: 800, 64: 800},
    8: {16: 2000, 32: 1200, 64: 900},
    16: {16: 3700, 32: 2000, 64: 1000},
}
_RESIDENT = {16: 5, 32: 5, 64: 3}  # workgroups of a processor that wait at the same time
_EDGE_STEPS = 2  # what the begin and end of a slice take
_BYTES_PER_CLOCK = 230  # of memory
_LAUNCH_CLOCKS = 6200
# Not every number, since each is a kernel that adds them up.
_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)


@dataclass(frozen=True)
class Stored:
    """What the weights are to the memory: bits of one, and whether rows lie along K, each with a
    line of its own."""

    bits: int = 4
    rows: bool = False

    @property
    def waits(self) -> dict[int, int]:
        """Clocks that a step waits, by rows of a tile."""
        return _WAIT_CLOCKS[max(self.bits, 8) if self.rows else 4]


def split_of(
    M: int, N: int, K: int, group_steps: int, rows: int, stored: Stored | None = None
) -> Split:
    """The split of K that ends first: more workgroups balance the processors and wait for memory
    together, and more partial sums have to be written and read again. `group_steps`: steps under
    one scale, 0 for any; `rows`: of a tile; without `stored` nothing waits for memory."""
    row_tiles, steps = -(-M // rows), -(-K // STEP)
    tiles = row_tiles * -(-N // COLUMNS)
    full = -(-M // 8) * 8 / row_tiles  # rows of a tile, on average, whose waves multiply
    unit = min(group_steps, 4) or 1
    units = -(-steps // unit)

    def clocks(splits: int) -> float:
        turns = -(-tiles * splits // PROCESSORS)
        vector = turns * (_VECTOR_CLOCKS * full + _DECODE_CLOCKS)
        work = max(vector, -(-turns // 2) * _LDS_CLOCKS * full)
        if stored:
            work = max(work, -(-turns // _RESIDENT[rows]) * stored.waits[rows])
        time = work * (-(-units // splits) * unit + _EDGE_STEPS)
        if stored:
            time = max(time, memory_clocks(N * K * stored.bits / 8, tiles * splits))
        if splits > 1:
            time += M * N * (4 * splits + 2) / _BYTES_PER_CLOCK + _LAUNCH_CLOCKS
        return time

    best = min((n for n in _SPLITS if n <= units), key=clocks)
    length = -(-units // best) * unit
    return Split(length, -(-steps // length), clocks(best))


def choose_tile(
    M: int, N: int, K: int, group_steps: int, stored: Stored | None = None
) -> tuple[int, Split]:
    """Rows of x per workgroup, and the split of K. The smallest tile that holds all rows, or 64:
    fewer tiles decode the weights less often. 32 where the processors are balanced so much better
    that the launch ends earlier."""
    rows = next((rows for rows in ROW_TILES if rows >= M), ROW_TILES[-1])
    split = split_of(M, N, K, group_steps, rows, stored)
    if rows == ROW_TILES[-1]:
        smaller = split_of(M, N, K, group_steps, 32, stored)
        if smaller.clocks < 0.95 * split.clocks:
            return 32, smaller
    return rows, split


def int4_tile(call: Int4Call) -> tuple[int, Split]:
    """Rows of a tile and split of an int4 call."""
    group_steps = 0 if call.group == call.K else call.group // STEP
    return choose_tile(call.M, call.N, call.K, group_steps, Stored())


def rows_tile(call: GemvCall) -> tuple[int, Split]:
    """Rows of a tile and split of a call on w `[N, K]`."""
    stored = Stored(BITS[call.format], rows=True)
    return choose_tile(call.M, call.N, call.K, call.group // STEP, stored)


def choose_int4(call: Int4Call, awq: bool = False) -> tuple[dict[str, Value], Split]:
    """Template values of the int4 tile for a call with M >= 1 and N >= 1."""
    rows, split = int4_tile(call)
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "GROUP": call.group,
        "ROWS": rows,
        "SPLIT": split.splits > 1,
        "ORDER": 2 if awq else int(call.shuffled),
        "ZEROS": ("none", "packed", "bytes").index(call.zeros),
        "ZERO_OFFSET": call.zero_offset if call.zeros == "packed" else 0,
        "HAS_PERM": call.has_perm,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride,
        "Z_STRIDE": call.z_stride if call.zeros != "none" else 0,
        "S_STRIDE": call.s_stride,
        "X_ALIGN": call.x_align,
        "S_ALIGN": min(call.s_align, 8),
        **_output_values(call.N, call.has_bias, call.out_stride, call.out_align, split),
    }
    return values, split


def refuses_int4(call: Int4Call, awq: bool = False) -> str:
    """Why the int4 tile cannot serve the call; empty when it can."""
    if call.x_stride >= 1 << 25 or call.w_stride >= 1 << (25 if awq else 28):
        return "rows are too far apart for 32-bit offsets"
    return ""


def beats_decode(call: Int4Call) -> tuple[bool, tuple[Candidate, ...]]:
    """Whether the tile ends before chunks of the decode kernel do; both estimates."""
    rows, _ = decode_tile(call.M)
    chunks, (cols, _) = -(-call.M // rows), columns_per_lane(call)
    weights, instructions = call.N * call.K, chunks * TILE_COST[rows]
    groups = -(-call.N // (32 * cols)) * chunks
    decode = decode_clocks(weights, weights / 2, instructions, groups, chunks)
    tile, refusal = int4_tile(call)[1].clocks, refuses_int4(call)
    taken = not refusal and tile_ends_first(call.M, tile, decode)
    reason = f"{per_call(decode, call.M)}, as {chunks} chunks of {rows}{decode_limit(call.M)}"
    return taken, (
        Candidate("w4a16_decode", not taken, reason),
        Candidate(INT4_TILE.name, taken, refusal or per_call(tile, call.M)),
    )


def plan_int4(
    op: str, call: Int4Call, candidates: tuple[Candidate, ...] = (), *, awq: bool = False
) -> Plan:
    """The plan of an int4 call that refuses_int4 accepts.

    `awq`: words `[K, N/8]` and zeros `[K/G, N/8]` as AWQ stores them; `call.w_stride` is then that
    of these words, `call.zeros` "packed" or "none", `call.shuffled` says nothing.
    """
    values, split = choose_int4(call, awq)
    shape = {"M": call.M, "N": call.N, "K": call.K, "G": call.group}
    return _plan(op, INT4_TILE, values, split, shape, call, call.out_align, candidates)


def refuses_rows(call: GemvCall) -> str:
    """Why the tile of row formats cannot serve the call; empty when it can."""
    scales = -(-call.N // call.scale_rows) * call.scale_stride * call.scale_bytes
    weights = call.w_stride * call.N * max(BITS[call.format], 8) // 8  # of mxfp4 bytes
    if call.x_stride >= 1 << 25 or max(weights, scales) >= 1 << 32:
        return "rows are too far apart for 32-bit offsets"
    if call.group % STEP:
        return f"groups of {call.group} along K are no multiple of {STEP}"
    return ""


def plan_rows(
    op: str, call: GemvCall, out_align: int = 2, candidates: tuple[Candidate, ...] = ()
) -> Plan:
    """The plan of a call on w `[N, K]` that refuses_rows accepts.

    `out_align`: what the result's rows start on a multiple of, in bytes.
    """
    values, split = choose_rows(call, out_align)
    shape = {"M": call.M, "N": call.N, "K": call.K}
    if call.group:
        shape["G"] = call.group
    return _plan(op, ROWS_TILE, values, split, shape, call, out_align, candidates)


def choose_rows(call: GemvCall, out_align: int = 2) -> tuple[dict[str, Value], Split]:
    """Template values of the row format tile for a call with M >= 1 and N >= 1."""
    rows, split = rows_tile(call)
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "FORMAT": call.format,
        "X_FORMAT": call.x_format,
        "NAN_CODES": call.nan_codes,
        "ROWS": rows,
        "SPLIT": split.splits > 1,
        "GROUP": call.group,
        "SCALE_BYTES": call.scale_bytes,
        "SCALE_ROWS": min(call.scale_rows, call.N),
        "SCALE_GROUPS": call.scale_groups,
        "X_SCALES": call.x_scales,
        "X_SCALE_GROUPS": call.x_scale_groups,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride,
        "SCALE_STRIDE": call.scale_stride,
        "X_SCALE_STRIDE": call.x_scale_stride,
        "X_ALIGN": call.x_align,
        "W_ALIGN": call.w_align,
        **_output_values(call.N, call.has_bias, call.out_stride, out_align, split),
    }
    return values, split


def launch_tiles(
    plan: Plan, operands: tuple[object, ...], bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Run a plan of plan_int4 or plan_rows."""
    run_split(plan.launches, operands, bias, out)


def run_split(
    launches: Sequence[Launch],
    operands: tuple[object, ...],
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Run a tile's launch and, where it leaves sums of slices of K, that of combine_launch."""
    tile, M = launches[0], out.shape[0]
    if len(launches) == 1:
        tile(*operands, bias, out, M)
        return
    stride = int(tile.kernel.values["OUT_STRIDE"])
    parts = out.new_empty((tile.grid[2], M, stride), dtype=torch.float32)  # type: ignore[index]
    tile(*operands, None, parts, M)
    launches[1](parts, bias, out, M)


def sums_stride(N: int) -> int:
    """Of a row of partial sums."""
    return -(-N // 4) * 4


def combine_launch(
    M: int, N: int, splits: int, has_bias: bool, out_stride: int, out_align: int
) -> Launch:
    """The launch that adds up the partial sums of `splits` slices."""
    combine = COMBINE.specialise(
        None,
        N=N,
        SPLITS=splits,
        HAS_BIAS=has_bias,
        STRIDE=sums_stride(N),
        OUT_STRIDE=out_stride,
        OUT_ALIGN=min(out_align, 8),
    )
    return Launch(combine, (M, -(-N // 1024)), 256)


def _output_values(
    N: int, has_bias: bool, stride: int, align: int, split: Split
) -> dict[str, Value]:
    """Template values for what a tile stores: fp16 rows, or partial sums."""
    if split.splits > 1:
        return {"HAS_BIAS": False, "OUT_STRIDE": sums_stride(N), "OUT_ALIGN": 8}
    return {"HAS_BIAS": has_bias, "OUT_STRIDE": stride, "OUT_ALIGN": min(align, 8)}


def _plan(
    op: str,
    spec: KernelSpec,
    values: dict[str, Value],
    split: Split,
    shape: dict[str, int],
    call: Int4Call | GemvCall,
    out_align: int,
    candidates: tuple[Candidate, ...],
) -> Plan:
    M, N, rows = call.M, call.N, int(values["ROWS"])
    grid = (-(-M // rows), -(-N // COLUMNS), split.splits)
    kernel = spec.specialise(None, **values)
    launches: list[Launch] = [TileLaunch(kernel, grid, spec.block_of(values), slice=split.slice)]
    notes: tuple[str, ...] = ()
    if split.splits > 1:
        out_stride = call.out_stride if M > 1 else N
        launches.append(combine_launch(M, N, split.splits, call.has_bias, out_stride, out_align))
        notes = (
            f"{grid[0] * grid[1]} tiles share K {split.splits} ways, to use all processors; the "
            f"partial sums take {split.splits * M * int(values['OUT_STRIDE']) * 4 / 1e6:.1f} MB",
        )
    return Plan(op, spec.name, values, tuple(launches), candidates, notes, shape, extra=(M, N))
