"""`awq_gemm`: int4 weights in the order of AWQ checkpoints, without repacking."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.ops._contract import check_no_overlap, check_results, check_tensor, reject
from rdna_jit.ops._declared import FLAG, RESULT, SCALES, WORDS, X, strides
from rdna_jit.ops._dense_cost import (
    PROCESSORS,
    decode_clocks,
    decode_limit,
    per_call,
    tile_ends_first,
)
from rdna_jit.ops._dense_int4 import Int4Call
from rdna_jit.ops._dense_tile import (
    INT4_TILE,
    TILE_KERNELS,
    int4_tile,
    launch_tiles,
    plan_int4,
    refuses_int4,
)
from rdna_jit.ops._int4_contract import check_scales, describe
from rdna_jit.ops._op import public_op
from rdna_jit.ops._switches import prefer
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Value

Tensor = torch.Tensor
_HALF, _INT = torch.float16, torch.int32
# Vector instructions per weight of a tile of rows, decoding included.
TILE_COST = {1: 1.75, 2: 2.25, 4: 3.25, 8: 5.25, 16: 9.25}
MOST_ROWS = max(TILE_COST)
_X_WAIT_CLOCKS = 21  # per row of x and block of K
_MOST_UNIT = 128  # of K
_WORKGROUPS_WANTED = 36  # the workgroup processors of the largest chip

DECODE = KernelSpec(
    name="awq_decode",
    file="awq_decode.hip",
    entry="awq_decode",
    parameters=(
        X,
        WORDS,
        Parameter("zeros", "const u32*", align=4),
        SCALES,
        *RESULT,
    ),
    template={
        "N": range(8, 1 << 30, 8),
        "K": range(2, 1 << 30, 2),
        "GROUP": range(2, 1 << 30, 2),
        "M_TILE": tuple(TILE_COST),
        "COLS": (2, 4),
        "WAVES": range(1, 33),
        "UNIT": range(2, _MOST_UNIT + 1, 2),
        "BLOCK": (2, 4),
        "X_SCALAR": FLAG,
        "HAS_BIAS": FLAG,
        **strides("X", "W", "Z", "S", "OUT"),
        "OUT_ALIGN": (2, 4, 8),
    },
    block=lambda values: int(values["WAVES"]) * 32,
)


def choose(call: Int4Call) -> tuple[dict[str, Value], tuple[int, int], tuple[Candidate, ...]]:
    """Template values, grid and reasons of the decode kernel for a call with M, N >= 1."""
    tile = _row_tile(call.M)
    wide = call.N >= 128 * _WORKGROUPS_WANTED
    cols = 4 if wide and tile <= 4 else 2
    unit = k_per_unit(call.K, call.group, _most_unit(call, tile))
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "GROUP": call.group,
        "M_TILE": tile,
        "COLS": cols,
        "WAVES": _waves(call.K // unit, 16 if tile < 16 else 12),
        "UNIT": unit,
        "BLOCK": 4 if tile <= 4 else 2,
        "X_SCALAR": call.x_align >= 4,
        "HAS_BIAS": call.has_bias,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride,
        "Z_STRIDE": call.z_stride,
        "S_STRIDE": call.s_stride,
        "OUT_STRIDE": call.out_stride if call.M > 1 else call.N,
        "OUT_ALIGN": min(call.out_align, 2 * cols),
    }
    groups = -(-call.N // (32 * cols))
    reason = f"{groups} workgroups of {32 * cols} columns, {8 // cols} lanes to a word"
    columns = Candidate(f"COLS={cols}", True, reason)
    return values, (groups, -(-call.M // tile)), (columns,)


def _waves(units: int, most: int) -> int:
    """Waves that split K: as many as give even shares. 12 of 16 rows leave LDS for a neighbour."""

    def cost(waves: int) -> tuple[float, int]:
        uneven = -(-units // waves) * waves / units
        return max(uneven, 1.05), -waves  # shares more uneven cost more than fewer waves do

    return min(range(1, min(units, most) + 1), key=cost)


def _most_unit(call: Int4Call, tile: int) -> int:
    """K per unit at most, so that no register spills: less with x in vector registers, and less of
    several groups for 16 rows, or for 4 and 8 where groups are no whole octets."""
    if call.x_align < 4:
        return 32
    octets = call.group % 8 == 0
    if call.group > 64 or tile < 4 or (tile < 16 and octets):
        return _MOST_UNIT
    return call.group if tile == 16 and not octets else 64


def k_per_unit(K: int, group: int, most: int) -> int:
    """K that a wave takes at a time: groups that divide K, or an even divisor of one group."""
    if group > most:
        return max(d for d in range(2, most + 1, 2) if group % d == 0)
    groups = K // group
    return group * max(n for n in range(1, most // group + 1) if groups % n == 0)


def _row_tile(M: int) -> int:
    """Rows of x per workgroup: the tile that needs the fewest instructions for M rows."""
    return min(TILE_COST, key=lambda tile: (-(-M // tile) * TILE_COST[tile], -tile))


def _plan(
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Plan:
    op = "awq_gemm"
    M, K = check_tensor(op, "x", x, _HALF, (None, None)).shape
    check_tensor(op, "qweight", qweight, _INT, (None, None), x.device)
    if qweight.shape[0] != K:
        hint = "qweight holds 8 columns of one row of K per word"
        if qweight.shape[0] * 8 == K:
            hint = "this looks like GPTQ's form: gptq_gemm takes it"
        reject(op, "qweight", f"{K} rows for K = {K}", qweight.shape[0], hint)
    N = qweight.shape[1] * 8
    groups, group = check_scales(op, x, scales, N)
    if group % 2 or group < (16 if groups > 1 else 2):
        hint = "a matrix with one group may have any even K"
        reject(op, "scales", "groups of an even number of rows, at least 16", group, hint)
    check_tensor(op, "qzeros", qzeros, _INT, (groups, N // 8), x.device)
    check_results(op, M, N, x, bias, out)
    shape = {"M": M, "N": N, "K": K, "G": group}
    if not M or not N:
        return Plan(op, "none", shape=shape, extra=(M, N), notes=("nothing to compute",))
    call = describe(x, qweight, qzeros, scales, bias, out, group, shuffled=True)
    kernel, candidates = _kernel(op, call)
    if kernel == INT4_TILE.name:
        return plan_int4(op, call, candidates, awq=True)
    values, grid, columns = choose(call)
    launch = Launch(DECODE.specialise(None, **values), grid, DECODE.block_of(values))
    notes: tuple[str, ...] = ()
    if grid[1] > 1:
        notes = (f"{M} rows run as {grid[1]} chunks; each chunk reads the weights again",)
    return Plan(op, kernel, values, (launch,), (*candidates, *columns), notes, shape, extra=(M, N))


def _kernel(op: str, call: Int4Call) -> tuple[str, tuple[Candidate, ...]]:
    """The kernel that ends first by the estimates, and why not the others."""
    refusal = refuses_int4(call, awq=True)
    if call.K % 8 or (call.group % 32 and call.group != call.K):
        refusal = "takes K a multiple of 8, groups a multiple of 32"
    decode = _decode_clocks(call)
    tile = 0.0 if refusal else int4_tile(call)[1].clocks
    better = not refusal and call.M > MOST_ROWS and tile_ends_first(call.M, tile, decode)
    able = (DECODE.name,) if refusal else (DECODE.name, INT4_TILE.name)
    chosen, switched = prefer(op, INT4_TILE.name if better else DECODE.name, able)
    repacked = "formats.pack_awq once, then gptq_gemm: fewer instructions for few rows"
    return chosen, switched or (
        Candidate(
            DECODE.name,
            chosen == DECODE.name,
            per_call(decode, call.M) + decode_limit(call.M),
        ),
        Candidate(INT4_TILE.name, chosen == INT4_TILE.name, refusal or per_call(tile, call.M)),
        Candidate("w4a16_decode", False, repacked),
    )


def _decode_clocks(call: Int4Call) -> float:
    """The estimate of the decode kernel: its waves wait for x, row by row, in each block of K."""
    values, (groups, chunks), _ = choose(call)
    rows, waves = int(values["M_TILE"]), int(values["WAVES"])
    blocks = call.K / (int(values["BLOCK"]) * waves)
    slab = waves * rows * 128 * int(values["COLS"])  # of LDS
    together = max(1, min(48 // waves, (128 << 10) // slab))  # workgroups of a processor
    turns = -(-groups * chunks // PROCESSORS)
    wait = -(-turns // together) * blocks * rows * _X_WAIT_CLOCKS
    return decode_clocks(
        call.N * call.K, call.N * call.K / 2, chunks * TILE_COST[rows], groups * chunks, chunks,
        wait=wait,
    )  # fmt: skip


def _fake(x: Tensor, qweight: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], qweight.shape[1] * 8))


@public_op(
    "awq_gemm(Tensor x, Tensor qweight, Tensor qzeros, Tensor scales, *, Tensor? bias=None) "
    "-> Tensor",
    plan=_plan,
    fake=_fake,
)
def awq_gemm(
    plan: Plan,
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`y[m, n] = fp16(sum_k x[m, k] * (q[k, n] - z[g, n]) * scales[g, n] + bias[n])`.

    gptq_gemm for the tensors of an AWQ checkpoint as they are: x fp16 `[M, K]`; qweight int32
    `[K, N/8]` and qzeros int32 `[K/G, N/8]`, whose words hold 8 columns in the order 0 2 4 6 1 3 5
    7, zeros literal (0 means 0); scales fp16 `[K/G, N]`; bias fp16 `[N]`; returns fp16 `[M, N]`,
    `out` when given. G, K divided by the rows of `scales`, is even and at least 16, or K. Last
    dimensions must be contiguous; rows may be strided and misaligned (x on odd multiples of 2
    bytes is served more slowly).

    For few rows of x, formats.pack_awq and gptq_gemm need 7 % fewer instructions at M = 1, 2 % at
    8. Any M is served; above 16 rows on tiles where G is a multiple of 32, else in chunks of rows
    that read the weights again. Rows of a batch may differ in the last bit from the same row
    alone. Raises ContractError naming the tensor.
    """
    if out is None:
        out = x.new_empty(plan.extra)
    else:
        inputs = {"x": x, "qweight": qweight, "qzeros": qzeros, "scales": scales, "bias": bias}
        check_no_overlap("awq_gemm", out, inputs)
    if plan.kernel in TILE_KERNELS:
        launch_tiles(plan, (x, qweight, qzeros, scales, None), bias, out)
        return out
    for launch in plan.launches:
        launch(x, qweight, qzeros, scales, bias, out, plan.extra[0])
    return out
