"""Which int4 decode kernel serves a dense call, with which template values, and why.

Pure functions of sizes, strides and alignments: no tensor content, no device access.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdna_jit.dispatch import Candidate
from rdna_jit.ops._declared import FLAG, RESULT, SCALES, WORDS, X, strides
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Value

# Rows of x per workgroup, and what a row tile costs: vector instructions per weight, decoding
# included, for the whole tile (docs/linear.md has the measured table).
TILE_COST = {1: 1.625, 2: 2.125, 4: 3.125, 8: 5.125, 16: 9.125}
MOST_ROWS = max(TILE_COST)
# Enough workgroups for the 36 workgroup processors of the largest chip.
_WORKGROUPS_WANTED = 36

DECODE = KernelSpec(
    name="w4a16_decode",
    file="w4a16_decode.hip",
    entry="w4a16_decode",
    parameters=(
        X,
        WORDS,
        Parameter("zeros", "const void*"),
        SCALES,
        Parameter("perm", "const i32*", align=4),
        *RESULT,
    ),
    template={
        "N": range(1, 1 << 30),
        "K": range(8, 1 << 30, 8),
        "GROUP": range(8, 1 << 30, 8),
        "M_TILE": tuple(TILE_COST),
        "COLS": (1, 2),
        "WAVES": range(1, 33),
        "STEP_ROWS": range(1, 17),
        "SHUFFLED": FLAG,
        "ZEROS": (0, 1, 2),
        "ZERO_OFFSET": (0, 1),
        "X_SCALAR": FLAG,
        "HAS_PERM": FLAG,
        "HAS_BIAS": FLAG,
        **strides("X", "W", "Z", "S", "OUT"),
        "X_ALIGN": (2, 4, 8, 16),
        "Z_ALIGN": (1, 2, 4),
        "S_ALIGN": (2, 4),
        "OUT_ALIGN": (2, 4),
    },
    block=lambda values: int(values["WAVES"]) * 32,
)


@dataclass(frozen=True)
class Int4Call:
    """A dense int4 call: sizes, form of the weights, row strides (elements), alignments (bytes)."""

    M: int
    N: int
    K: int
    group: int
    shuffled: bool
    zeros: str  # "none", "packed" or "bytes"
    zero_offset: int = 0
    has_perm: bool = False
    has_bias: bool = False
    x_stride: int = 0
    w_stride: int = 0
    z_stride: int = 0
    s_stride: int = 0
    out_stride: int = 0
    x_align: int = 16
    w_align: int = 16
    z_align: int = 16
    s_align: int = 16
    out_align: int = 16


@dataclass(frozen=True)
class Choice:
    """Template values, grid in workgroups, and the reasons."""

    values: dict[str, Value]
    grid: tuple[int, int]
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()


def choose(call: Int4Call) -> Choice:
    """The kernel for a call with M >= 1 and N >= 1."""
    tile, tile_candidates = row_tile(call.M)
    cols, cols_reason = columns_per_lane(call)
    step_rows = rows_per_step(call.K, call.group, tile)
    steps = call.K // (8 * step_rows)
    scalar = not call.has_perm and call.x_align >= 4
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "GROUP": call.group,
        "M_TILE": tile,
        "COLS": cols,
        "WAVES": waves_per_workgroup(steps, tile, cols, step_rows, scalar),
        "STEP_ROWS": step_rows,
        "SHUFFLED": call.shuffled,
        "ZEROS": ("none", "packed", "bytes").index(call.zeros),
        "ZERO_OFFSET": call.zero_offset if call.zeros == "packed" else 0,
        "X_SCALAR": scalar,
        "HAS_PERM": call.has_perm,
        "HAS_BIAS": call.has_bias,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride,
        "Z_STRIDE": call.z_stride if call.zeros != "none" else 0,
        "S_STRIDE": call.s_stride,
        "OUT_STRIDE": call.out_stride if call.M > 1 else call.N,
        "X_ALIGN": 4 if scalar else min(call.x_align, 16),
        "Z_ALIGN": min(call.z_align, cols),
        "S_ALIGN": min(call.s_align, 2 * cols),
        "OUT_ALIGN": min(call.out_align, 2 * cols),
    }
    grid = (-(-call.N // (32 * cols)), -(-call.M // tile))
    candidates = (*tile_candidates, *_x_candidates(call, scalar), cols_reason)
    return Choice(values, grid, candidates, _notes(call, grid, tile))


def row_tile(M: int) -> tuple[int, list[Candidate]]:
    """Rows per workgroup: the tile that needs the fewest instructions for M rows."""

    def cost(tile: int) -> float:
        return -(-M // tile) * TILE_COST[tile]

    best = min(TILE_COST, key=lambda tile: (cost(tile), -tile))
    candidates = []
    for tile in TILE_COST:
        tiles = -(-M // tile)
        times = f"{tiles} x " if tiles > 1 else ""
        reason = f"{times}{TILE_COST[tile]:g} vector instructions per weight for {M} rows"
        candidates.append(Candidate(f"M_TILE={tile}", tile == best, reason))
    return best, candidates


def columns_per_lane(call: Int4Call) -> tuple[int, Candidate]:
    """Two columns per lane halve the loads and the traffic of x; one fills the chip when N is
    small, and serves odd or misaligned rows."""
    if call.N % 2 or call.w_stride % 2 or call.w_align < 8:
        return 1, Candidate("COLS=2", False, "rows of qweight are odd or not 8-byte aligned")
    workgroups = -(-call.N // 64)
    if workgroups < _WORKGROUPS_WANTED:
        reason = f"{workgroups} workgroups would leave processors idle"
        return 1, Candidate("COLS=2", False, reason)
    return 2, Candidate("COLS=2", True, f"{workgroups} workgroups of 64 columns")


def rows_per_step(K: int, group: int, tile: int) -> int:
    """Word rows whose loads a wave issues together: a divisor of K/8 that is whole groups or a
    part of one. 128 of K where possible; half of it for 16 rows, whose code would not unroll."""
    rows, group_rows = K // 8, group // 8
    most = 8 if tile == 16 else 16
    fitting = [
        d
        for d in range(1, most + 1)
        if rows % d == 0 and (group_rows % d == 0 or d % group_rows == 0)
    ]
    return max(fitting)


def waves_per_workgroup(steps: int, tile: int, cols: int, step_rows: int, scalar: bool) -> int:
    """Waves that split K: as many as give even shares, up to 16 (8 for 16 rows), within LDS."""
    staged = 0 if scalar else step_rows * tile * 16
    slab = max(staged, tile * 32 * cols * 4)
    most = min(steps, 8 if tile == 16 else 16, 65536 // slab)

    def cost(waves: int) -> tuple[float, int]:
        uneven = -(-steps // waves) * waves / steps
        # A share more uneven than this costs more than fewer waves do.
        return (max(uneven, 1.05), -waves)

    return min(range(1, most + 1), key=cost)


def _x_candidates(call: Int4Call, scalar: bool) -> list[Candidate]:
    if scalar:
        return [Candidate("X_SCALAR=True", True, "x is in order and 4-byte aligned")]
    why = "rows of x are permuted" if call.has_perm else "rows of x are not 4-byte aligned"
    return [
        Candidate("X_SCALAR=True", False, why),
        Candidate("X_SCALAR=False", True, "x is staged in LDS by each wave"),
    ]


def _notes(call: Int4Call, grid: tuple[int, int], tile: int) -> tuple[str, ...]:
    if grid[1] == 1:
        return ()
    return (f"{call.M} rows run as {grid[1]} chunks of {tile}; each chunk reads the weights again",)
