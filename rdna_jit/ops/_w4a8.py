"""`quantize_int8_grouped` and `w4a8_gemm`: int4 weights times activations rounded to int8."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.device import device
from rdna_jit.dispatch import Candidate, Launch, Plan
from rdna_jit.ops._contract import (
    alignment,
    check_no_overlap,
    check_results,
    check_tensor,
    out_alignment,
    reject,
    row_stride,
)
from rdna_jit.ops._declared import FLAG, SCALES, SUMS_OR_RESULT, WORDS, X, strides
from rdna_jit.ops._dense_tile import COLUMNS, combine_launch, run_split, split_of, sums_stride
from rdna_jit.ops._int4_contract import check_order, check_scales, check_words, check_zeros
from rdna_jit.ops._op import public_op
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Value

Tensor = torch.Tensor
_HALF, _INT = torch.float16, torch.int32
_MOST_GROUP = 65535  # a group's sum of codes fits 24 bits

QUANTIZE = KernelSpec(
    name="quantize_int8",
    file="quantize_int8.hip",
    entry="quantize_int8",
    parameters=(
        X,
        Parameter("codes", "u8*", "out", align=8),
        Parameter("scale", "float*", "out", align=4),
        Parameter("sums", "i32*", "out", align=4),
        Parameter("count", "u32", "size"),
    ),
    template={
        "K": range(8, 1 << 30, 8),
        "GROUP": range(8, 1 << 16, 8),
        "ORDER": (0, 1, 2),
        "TEAM": tuple(1 << i for i in range(11)),
        "BLOCK": (256, 512, 1024),
        **strides("X"),
        "CODE_STRIDE": range(8, 1 << 30, 8),
        "X_ALIGN": (2, 4, 8, 16),
    },
    block=lambda values: int(values["BLOCK"]),
)

TILE = KernelSpec(
    name="w4a8_tile",
    file="w4a8_tile.hip",
    entry="w4a8_tile",
    parameters=(
        Parameter("codes", "const u8*", align=16),
        Parameter("x_scale", "const float*", align=4),
        Parameter("x_sum", "const i32*", align=4),
        WORDS,
        Parameter("zeros", "const u32*", align=4),
        SCALES,
        *SUMS_OR_RESULT,
    ),
    template={
        "N": range(1, 1 << 30),
        "K": range(8, 1 << 30, 8),
        "GROUP": range(8, 1 << 16, 8),
        "WAVES": (4, 8),
        "STEP": (32, 64),
        "SLICE": range(1, 1 << 25),
        "HAS_ZEROS": FLAG,
        "ZERO_OFFSET": (0, 1),
        "HAS_BIAS": FLAG,
        "CODE_STRIDE": range(16, 1 << 26, 16),  # 64 rows within 32 bits
        **strides("W", "Z", "S", "OUT"),
    },
    block=lambda values: int(values["WAVES"]) * 32,
    requires=frozenset({"dot4"}),
)


def _quantize_launch(x: Tensor, group: int, order: int, code_stride: int) -> Launch:
    """The launch that quantises x `[M, K]`, with codes in `order` (see the kernel)."""
    M, K = x.shape
    stored = (code_stride if group == K else group) // 8
    team = min(1024, 1 << (stored.bit_length() - 1))
    block = max(256, team)
    values: dict[str, Value] = {
        "K": K,
        "GROUP": group,
        "ORDER": order,
        "TEAM": team,
        "BLOCK": block,
        "X_STRIDE": row_stride(x),
        "CODE_STRIDE": code_stride,
        "X_ALIGN": alignment(x, 16),
    }
    groups = M * (K // group)
    return Launch(QUANTIZE.specialise(None, **values), -(-groups * team // block), block)


def _plan_quantize(x: Tensor, group_size: int) -> Plan:
    op = "quantize_int8_grouped"
    M, K = check_tensor(op, "x", x, _HALF, (None, None)).shape
    if type(group_size) is not int:
        reject(op, "group_size", "an integer", repr(group_size), "-1 is the whole of K")
    group = K if group_size == -1 else group_size
    if group <= 0 or group % 8 or group > _MOST_GROUP or K % group:
        hint = "-1 is all of it"
        reject(op, "group_size", f"a multiple of 8 up to {_MOST_GROUP} that divides K = {K}",
               group_size, hint)  # fmt: skip
    shape = {"M": M, "K": K, "G": group}
    if not M or not K:
        return Plan(
            op, "none", shape=shape, extra=(M, K, K // group), notes=("nothing to compute",)
        )
    launch = _quantize_launch(x, group, 0, K)
    return Plan(
        op, QUANTIZE.name, launch.kernel.values, (launch,),
        (Candidate(QUANTIZE.name, True, "takes everything"),), shape=shape,
        extra=(M, K, K // group),
    )  # fmt: skip


def _quantized(x: Tensor, K: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    M = x.shape[0]
    return (
        x.new_empty((M, K), dtype=torch.int8),
        x.new_empty((M, groups), dtype=torch.float32),
        x.new_empty((M, groups), dtype=_INT),
    )


def _fake_quantize(x: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    K = x.shape[1]
    return _quantized(x, K, 1 if group_size == -1 else K // group_size)


@public_op(
    "quantize_int8_grouped(Tensor x, int group_size) -> (Tensor, Tensor, Tensor)",
    plan=_plan_quantize,
    fake=_fake_quantize,
    batch_invariant=True,
)
def quantize_int8_grouped(plan: Plan, x: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of x as int8 codes with one scale per group of `group_size` neighbours.

    x fp16 `[M, K]`, rows may be strided and misaligned; `group_size` a multiple of 8 that divides
    K, or -1 for all of K (up to 65535). Returns codes int8 `[M, K]`, scale fp32 `[M, K/G]` and
    sums int32 `[M, K/G]`, so that x is about code * scale and sums are the codes' of each group.

    Per group, in fp32: scale = absmax / 127, inverse = 127 / absmax (0 where absmax is 0), code =
    x * inverse rounded half to even, -127..127. A group that holds an infinity or NaN has scale
    NaN, codes 0 and sum 0. Raises ContractError naming the argument.
    """
    M, K, groups = plan.extra
    result = _quantized(x, K, groups)
    for launch in plan.launches:
        launch(x, *result, M * groups)
    return result


def _plan_w4a8(
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    *,
    zero_offset: int,
    shuffled: bool,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Plan:
    op = "w4a8_gemm"
    M, N, K = check_words(op, x, qweight)
    check_order(op, shuffled)
    groups, group = check_scales(op, x, scales, N)
    if (group % 32 and groups > 1) or group > _MOST_GROUP:
        hint = "a matrix with one group may have any K"
        reject(op, "scales", f"groups of a multiple of 32 rows up to {_MOST_GROUP}", group, hint)
    check_zeros(op, x, qzeros, groups, N, zero_offset)
    check_results(op, M, N, x, bias, out)
    shape = {"M": M, "N": N, "K": K, "G": group}
    if not M or not N:
        return Plan(op, "none", shape=shape, extra=(M, N, 0, 0), notes=("nothing to compute",))
    arch = device().arch
    if TILE.missing(arch):
        reject(op, "x", "a chip with v_dot4_i32_i8", arch, "gptq_gemm runs on every chip")
    out_stride = N if out is None or M == 1 else row_stride(out)
    padded = -(-K // 64) * 64 if groups == 1 else K
    step = 64 if groups == 1 or group % 64 == 0 else 32
    waves = 4 if M <= 32 else 8
    slice_, splits = _split(M, N, K, group, step, 8 * waves)
    values: dict[str, Value] = {
        "N": N,
        "K": K,
        "GROUP": group,
        "WAVES": waves,
        "STEP": step,
        "SLICE": slice_,
        "HAS_ZEROS": qzeros is not None,
        "ZERO_OFFSET": int(zero_offset) if qzeros is not None else 0,
        "HAS_BIAS": bias is not None and splits == 1,
        "CODE_STRIDE": padded,
        "W_STRIDE": row_stride(qweight),
        "Z_STRIDE": row_stride(qzeros) if qzeros is not None else 0,
        "S_STRIDE": row_stride(scales),
        "OUT_STRIDE": out_stride if splits == 1 else sums_stride(N),
    }
    launches = [_quantize_launch(x, group, 1 if shuffled else 2, padded)]
    grid = (-(-M // (8 * waves)), -(-N // COLUMNS), splits)
    launches.append(Launch(TILE.specialise(None, **values), grid, waves * 32))
    notes: tuple[str, ...] = ()
    if splits > 1:
        align = out_alignment(N, out)
        launches.append(combine_launch(M, N, splits, bias is not None, out_stride, align))
        notes = (f"{grid[0] * grid[1]} tiles share K {splits} ways, to use all processors",)
    candidates = (
        Candidate("WAVES=8", waves == 8, f"tiles of 64 rows for {M}"),
        Candidate("WAVES=4", waves == 4, f"tiles of 32 rows for {M}"),
    )
    return Plan(
        op, TILE.name, values, tuple(launches), candidates, notes, shape,
        extra=(M, N, padded, groups),
    )  # fmt: skip


def _split(M: int, N: int, K: int, group: int, step: int, rows: int) -> tuple[int, int]:
    """Steps per workgroup, and workgroups along K: slices are whole groups."""
    groups, group_steps = K // group, -(-group // step)
    wanted = split_of(M, N, K, -(-group // 32), rows).splits
    share = -(-groups // min(wanted, groups))
    return share * group_steps, -(-groups // share)


def _fake_w4a8(x: Tensor, qweight: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], qweight.shape[1]))


@public_op(
    "w4a8_gemm(Tensor x, Tensor qweight, Tensor? qzeros, Tensor scales, *, int zero_offset, "
    "bool shuffled, Tensor? bias=None) -> Tensor",
    plan=_plan_w4a8,
    fake=_fake_w4a8,
)
def w4a8_gemm(
    plan: Plan,
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    *,
    zero_offset: int,
    shuffled: bool,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """gptq_gemm with x rounded to int8 per row and group (see quantize_int8_grouped).

    `y[m, n] = fp16(sum_g x_scale[m, g] * scales[g, n] * sum_k code[m, k] * (q[k, n] - z[g, n]) +
    bias[n])`, integers inside a group, fp32 across groups: about half the instructions of
    gptq_gemm for many rows, at the price of x's rounding. Operands, order of codes and contract as
    gptq_gemm, without act-order, groups up to 65535 rows. Serves any M; meant for M above 32. An
    infinity or NaN in x makes the results of its row NaN. Raises ContractError naming the tensor.
    """
    M, N, padded, groups = plan.extra
    if out is None:
        out = x.new_empty((M, N))
    else:
        inputs = {"x": x, "qweight": qweight, "qzeros": qzeros, "scales": scales, "bias": bias}
        check_no_overlap("w4a8_gemm", out, inputs)
    if not plan.launches:
        return out
    rounded = _quantized(x, padded, groups)
    quantize, *multiply = plan.launches
    quantize(x, *rounded, M * groups)
    run_split(multiply, (*rounded, qweight, qzeros, scales), bias, out)
    return out
