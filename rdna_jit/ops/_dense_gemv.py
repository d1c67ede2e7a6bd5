"""Template values of the dense fp16 and int8 decode kernel for a call, and why.

Pure functions of sizes, strides and alignments: no tensor content, no device access. What decides
the order of the sums (lanes, unroll, waves) depends on the weight alone, never on M, so a row has
the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rdna_jit.dispatch import Candidate
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Legal, Value

ROW_TILES = (1, 2, 4, 8, 16)
MOST_ROWS = {"gemv_f16": 32, "gemv_i8": 16}
# Enough workgroups for the 36 workgroup processors of the largest chip, twice over.
_WORKGROUPS_WANTED = 72
_WAVES_WANTED = 1152  # with one row per lane; more rows keep more loads in flight
_MOST_STRIDE = 1 << 40
_LANES = 8  # times 16 bytes: a cache line


def _template(int8: bool) -> Mapping[str, Legal]:
    return {
        "N": range(1, 1 << 30),
        "K": range(8, 1 << 29, 8),
        "INT8": (int8,),
        "M_TILE": ROW_TILES,
        "M_TILES": (1,) if int8 else (1, 2),
        "LANES": (8, 32),
        "ROWS_PER_LANE": (1, 2, 4),
        "UNIT": (8, 16) if int8 else (8,),
        "UNROLL": (2, 4),
        "WAVES": range(1, 17),
        "SCALE_BYTES": (2, 4) if int8 else (0,),
        "HAS_BIAS": (False, True),
        "X_STRIDE": range(_MOST_STRIDE),
        "W_STRIDE": range(_MOST_STRIDE),
        "OUT_STRIDE": range(_MOST_STRIDE),
        "X_ALIGN": (2, 4, 8, 16),
        "W_ALIGN": (1, 2, 4, 8, 16) if int8 else (2, 4, 8, 16),
    }


def _spec(name: str, int8: bool) -> KernelSpec:
    return KernelSpec(
        name=name,
        file="dense_gemv.hip",
        entry="dense_gemv",
        parameters=(
            Parameter("x", "const f16*", align=2),
            Parameter("w", "const void*"),
            Parameter("scale", "const void*"),
            Parameter("bias", "const f16*", align=2),
            Parameter("out", "f16*", "out", align=2),
            Parameter("m", "i32", "size"),
        ),
        template=_template(int8),
        block=lambda values: int(values["WAVES"]) * 32,
    )


GEMV_F16 = _spec("gemv_f16", int8=False)
GEMV_I8 = _spec("gemv_i8", int8=True)


@dataclass(frozen=True)
class GemvCall:
    """A call on w `[N, K]`: sizes, row strides (elements), alignments of the rows (bytes)."""

    M: int
    N: int
    K: int
    scale_bytes: int = 0  # 0: w is fp16; 2 or 4: w is int8
    has_bias: bool = False
    x_stride: int = 0
    w_stride: int = 0
    out_stride: int = 0
    x_align: int = 16
    w_align: int = 16

    @property
    def spec(self) -> KernelSpec:
        return GEMV_I8 if self.scale_bytes else GEMV_F16


def choose(call: GemvCall) -> tuple[dict[str, Value], int, tuple[Candidate, ...]]:
    """Template values, workgroups and reasons for a call with M >= 1 and N >= 1."""
    int8 = call.scale_bytes > 0
    tile = next((t for t in ROW_TILES if t >= call.M), ROW_TILES[-1])
    tiles = -(-call.M // tile)
    unit, unit_reason = _unit(call)
    lanes = _LANES if call.w_stride < 1 << 28 else 32
    rows, rows_reason = rows_per_lane(call.N, lanes)
    unroll = 2 if rows == 4 else 4
    groups = -(-call.N // (rows * 32 // lanes))
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "INT8": int8,
        "M_TILE": tile,
        "M_TILES": tiles,
        "LANES": lanes,
        "ROWS_PER_LANE": rows,
        "UNIT": unit,
        "UNROLL": unroll,
        "WAVES": waves_per_workgroup(call.K // (unroll * lanes * unit), groups * rows),
        "SCALE_BYTES": call.scale_bytes,
        "HAS_BIAS": call.has_bias,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride if call.N > 1 else call.K,
        "OUT_STRIDE": call.out_stride if call.M > 1 else call.N,
        "X_ALIGN": call.x_align,
        "W_ALIGN": min(call.w_align, unit if int8 else 16),
    }
    reason = f"the smallest tile for {call.M} rows"
    if tiles > 1:
        reason = f"{call.M} rows run as {tiles} tiles; each reads the weights"
    tile_reasons = [
        Candidate(f"M_TILE={t}", t == tile, reason if t == tile else _not_taken(t, call.M))
        for t in ROW_TILES
    ]
    return values, groups * tiles, (*tile_reasons, rows_reason, unit_reason)


def _not_taken(tile: int, M: int) -> str:
    return f"too small for {M} rows" if tile < M else f"would repeat rows: {M} fit a smaller tile"


def _unit(call: GemvCall) -> tuple[int, Candidate]:
    """Neighbouring weights per lane and load: 16 bytes where K allows."""
    if not call.scale_bytes:
        return 8, Candidate("UNIT=8", True, "16-byte loads")
    if call.K % 16:
        return 8, Candidate("UNIT=16", False, "K is not a multiple of 16: 8-byte loads")
    return 16, Candidate("UNIT=16", True, "16-byte loads")


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
