"""Template values of the decode kernel for weights stored along K, and why.

Pure functions of sizes, strides and alignments: no tensor content, no device access. What decides
the order of the sums (lanes, unroll, waves) depends on the weight alone, never on M, so a row has
the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from rdna_jit.dispatch import Candidate
from rdna_jit.ops._declared import FLAG, RESULT, strides
from rdna_jit.ops._dense_cost import decode_clocks
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Legal, Value

ROW_TILES = (1, 2, 4, 8, 16)
MOST_ROWS = {"gemv_f16": 32, "gemv_i8": 16}
BITS = {"f16": 16, "i8": 8, "e4m3": 8, "e5m2": 8, "mxfp4": 4}
FP8 = ("e4m3", "e5m2")
# Vector instructions that decode a weight.
_DECODE = {"f16": 0.0, "i8": 1.25, "e4m3": 2.0, "e5m2": 0.5, "mxfp4": 1.5}
# Enough workgroups for the 36 workgroup processors of the largest chip, twice over.
_WORKGROUPS_WANTED = 72
_WAVES_WANTED = 1152  # with one row per lane; more rows keep more loads in flight
MOST_SCALE_STRIDE = 1 << 25
_MOST_TILES = 2  # of x that share weights as neighbours
_LANES = 8  # times 16 bytes: a cache line


def _template(formats: tuple[str, ...]) -> Mapping[str, Legal]:
    plain = formats == ("f16",)
    groups = (False,) if plain else (False, True)
    x_scales = groups if formats == FP8 else (False,)
    scale_bytes = {"f16": (0,), "i8": (2, 4), "e4m3": (2, 4), "mxfp4": (1,)}[formats[0]]
    return {
        "N": range(1, 1 << 30),
        "K": range(8, 1 << 29, 8),
        "FORMAT": formats,
        "X_FORMAT": ("f16", *FP8) if formats == FP8 else ("f16",),
        "NAN_CODES": (False, True) if formats == FP8 else (False,),
        "M_TILE": ROW_TILES,
        "M_TILES": range(1, _MOST_TILES + 1),
        "LANES": (8, 32),
        "ROWS_PER_LANE": (1, 2, 4),
        "UNIT": tuple(unit for unit in (8, 16, 32) if unit * BITS[formats[0]] <= 128),
        "UNROLL": (1, 2, 4),
        "WAVES": range(1, 17),
        "GROUP": (0,) if plain else range(0, 1 << 29, 8),
        "SCALE_BYTES": scale_bytes,
        "SCALE_ROWS": range(1, 1 << 30),
        "SCALE_GROUPS": groups,
        "X_SCALES": x_scales,
        "X_SCALE_GROUPS": x_scales,
        "HAS_BIAS": FLAG,
        **strides("X", "W", "OUT"),
        "SCALE_STRIDE": range(MOST_SCALE_STRIDE),
        "X_SCALE_STRIDE": range(MOST_SCALE_STRIDE),
        "X_ALIGN": (1, 2, 4, 8, 16) if formats == FP8 else (2, 4, 8, 16),
        "W_ALIGN": (2, 4, 8, 16) if plain else (1, 2, 4, 8, 16),
    }


def _spec(name: str, *formats: str) -> KernelSpec:
    return KernelSpec(
        name=name,
        file="dense_gemv.hip",
        entry="dense_gemv",
        parameters=(
            Parameter("x", "const void*"),
            Parameter("w", "const void*"),
            Parameter("scale", "const void*"),
            Parameter("x_scale", "const float*", align=4),
            *RESULT,
        ),
        template=_template(formats),
        block=lambda values: int(values["WAVES"]) * 32,
    )


GEMV_F16 = _spec("gemv_f16", "f16")
GEMV_I8 = _spec("gemv_i8", "i8")
GEMV_FP8 = _spec("gemv_fp8", *FP8)
GEMV_MXFP4 = _spec("gemv_mxfp4", "mxfp4")
_SPECS = {"f16": GEMV_F16, "i8": GEMV_I8, "e4m3": GEMV_FP8, "e5m2": GEMV_FP8, "mxfp4": GEMV_MXFP4}


@dataclass(frozen=True)
class GemvCall:
    """A call on w `[N, K]`: sizes, scales, row strides (elements; of mxfp4 bytes), alignments.

    `group`: weights along K that share a scale, 0 where all do. `scale_rows`: rows of w that share
    one. `scale_groups`, `x_scale_groups`: which of the two operands has its scales per group.
    """

    M: int
    N: int
    K: int
    format: str = "f16"
    x_format: str = "f16"
    nan_codes: bool = False
    group: int = 0
    scale_bytes: int = 0  # 0: no scale, 1: e8m0, 2: fp16, 4: fp32
    scale_rows: int = 1
    scale_groups: bool = False
    x_scales: bool = False
    x_scale_groups: bool = False
    has_bias: bool = False
    x_stride: int = 0
    w_stride: int = 0
    scale_stride: int = 1
    x_scale_stride: int = 0
    out_stride: int = 0
    x_align: int = 16
    w_align: int = 16

    @property
    def spec(self) -> KernelSpec:
        return _SPECS[self.format]


@dataclass(frozen=True)
class GemvChoice:
    values: dict[str, Value]
    grid: tuple[int, ...]
    candidates: tuple[Candidate, ...]


def choose(call: GemvCall) -> GemvChoice:
    """Template values, workgroups and reasons for a call with M >= 1 and N >= 1."""
    tile = row_tile(call)
    tiles = -(-call.M // tile)
    side_by_side = tiles if tiles <= _MOST_TILES else 1
    unit, unit_reason = _unit(call)
    packed = call.format == "mxfp4"  # two weights per element of w
    lanes = _lanes(call)
    rows, rows_reason = rows_per_lane(call.N, lanes)
    # A load of mxfp4 holds 32 weights; scales of x per group take scalar registers.
    unroll = (2 if rows == 4 else 4) // (2 if packed or call.x_scale_groups else 1)
    groups = -(-call.N // (rows * 32 // lanes))
    # Fewer loads in flight want more waves.
    streams = max(1, groups * rows * 2 // (3 if packed else 2))
    steps = call.K // (unroll * lanes * unit)
    waves = waves_per_workgroup(steps, streams)
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "FORMAT": call.format,
        "X_FORMAT": call.x_format,
        "NAN_CODES": call.nan_codes,
        "M_TILE": tile,
        "M_TILES": side_by_side,
        "LANES": lanes,
        "ROWS_PER_LANE": rows,
        "UNIT": unit,
        "UNROLL": unroll,
        "WAVES": waves,
        "GROUP": call.group,
        "SCALE_BYTES": call.scale_bytes,
        "SCALE_ROWS": call.scale_rows,
        "SCALE_GROUPS": call.scale_groups,
        "X_SCALES": call.x_scales,
        "X_SCALE_GROUPS": call.x_scale_groups,
        "HAS_BIAS": call.has_bias,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride if call.N > 1 else call.K // (2 if packed else 1),
        "SCALE_STRIDE": call.scale_stride,
        "X_SCALE_STRIDE": call.x_scale_stride if call.M > 1 else 0,
        "OUT_STRIDE": call.out_stride if call.M > 1 else call.N,
        "X_ALIGN": min(call.x_align, 8 if call.x_format in FP8 else 16),
        "W_ALIGN": min(call.w_align, unit * BITS[call.format] // 8),
    }
    reason = f"the smallest tile for {call.M} rows"
    if tiles > 1:
        reason = f"{call.M} rows run as {tiles} tiles; each reads the weights"
    tile_reasons = [
        Candidate(f"M_TILE={t}", t == tile, reason if t == tile else _not_taken(t, call.M))
        for t in ROW_TILES
    ]
    grid = (groups * tiles,) if tiles <= _MOST_TILES else (groups, tiles)
    return GemvChoice(values, grid, (*tile_reasons, rows_reason, unit_reason))


def row_tile(call: GemvCall) -> int:
    """Rows of x per workgroup: the smallest tile for all rows. At most 8 where x has scales per
    group: the addresses of 16 rows' scales would spill."""
    most = 8 if call.x_scale_groups else ROW_TILES[-1]
    return min(next((t for t in ROW_TILES if t >= call.M), most), most)


def decode_cost(call: GemvCall) -> float:
    """The clocks of a call (_dense_cost), by its vector instructions per weight and tile: dots, the
    decoding of w and (a quarter, for four rows of w) of x, and scales once per unit."""
    tile = row_tile(call)
    tiles = -(-call.M // tile)
    lanes = _lanes(call)
    rows, _ = rows_per_lane(call.N, lanes)
    x = 1.5 * _DECODE[call.x_format] / rows  # with NaN kept
    scales = 1 / _unit(call)[0] if call.group else 0.0
    per_tile = tile * (0.5 + x + scales) + _DECODE[call.format] + 0.5
    weights, groups = call.N * call.K, -(-call.N // (rows * 32 // lanes))
    passes = 1 if tiles <= _MOST_TILES else tiles
    nbytes = weights * BITS[call.format] / 8
    return decode_clocks(weights, nbytes, tiles * per_tile, groups * tiles, passes)


def _lanes(call: GemvCall) -> int:
    """Lanes that share a row of w: all where rows are too far apart for offsets of a lane."""
    unit_bytes = 1 if call.format == "mxfp4" else BITS[call.format] // 8
    return _LANES if call.w_stride * unit_bytes < 1 << 29 else 32


def _not_taken(tile: int, M: int) -> str:
    return f"too small for {M} rows" if tile < M else f"would repeat rows: {M} fit a smaller tile"


def _unit(call: GemvCall) -> tuple[int, Candidate]:
    """Neighbouring weights per lane and load: 16 bytes where K and the groups allow."""
    most = 128 // BITS[call.format]
    unit = gcd(most, call.K, call.group or most)
    if unit == most:
        return unit, Candidate(f"UNIT={unit}", True, "16-byte loads")
    what = "K is" if call.K % most else "the group is"
    reason = f"{what} not a multiple of {most}: {unit * BITS[call.format] // 8}-byte loads"
    return unit, Candidate(f"UNIT={most}", False, reason)


def rows_per_lane(N: int, lanes: int) -> tuple[int, Candidate]:
    """Four rows read x a quarter as often; fewer where that would leave processors idle."""
    side = 32 // lanes
    for rows in (4, 2):
        groups = -(-N // (rows * side))
        if groups >= _WORKGROUPS_WANTED:
            return rows, Candidate(f"ROWS_PER_LANE={rows}", True, f"{groups} workgroups")
    reason = f"{-(-N // (2 * side))} workgroups would leave processors idle"
    return 1, Candidate("ROWS_PER_LANE=2", False, reason)


def waves_per_workgroup(steps: int, streams: int) -> int:
    """Waves that split K: enough to keep the memory busy, in even shares, each with a step.

    `streams`: workgroups times rows per lane.
    """
    wanted = -(-_WAVES_WANTED // streams)

    def cost(waves: int) -> tuple[float, int]:
        uneven = -(-steps // waves) * waves / steps
        # Shares more uneven than this cost more than fewer waves do.
        return (max(uneven, 1.1) + max(0, wanted - waves) / wanted, waves)

    return min(range(1, min(steps, 16) + 1), key=cost, default=1)
