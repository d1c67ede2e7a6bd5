"""Bad input to the fp8, MXFP4 and grouped int8 ops, the choice of kernels, and compiled kernels."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rdna_jit
from benchmarks.gemv import FORMS, describe
from rdna_jit import ContractError, config
from rdna_jit.code_object import CodeObject
from rdna_jit.kernel import Kernel
from rdna_jit.ops._dense_gemv import GemvCall, choose
from rdna_jit.ops.linear import fp8_w8a8_gemm, fp8_w8a16_gemm, gemv_i8, mxfp4_gemm
from tests.ops.clang import compile_with_clang
from tests.ops.test_gemv_contract import spills

M, N, K = 2, 16, 64


def halves(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


def bytes_(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.uint8)


def fp8(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to(torch.float8_e4m3fn)


A16 = {"x": halves(M, K), "w_fp8": fp8(N, K), "w_scale": torch.ones(N)}
BLOCKS = {**A16, "w_scale": torch.ones(2, 2), "block": (8, 32)}
A8 = {"x_fp8": fp8(M, K), "x_scale": torch.ones(M), "w_fp8": fp8(N, K), "w_scale": torch.ones(N)}
MX = {"x": halves(M, K), "w_e2m1": bytes_(N, K // 2), "w_e8m0": bytes_(N, K // 32)}
I8 = {"x": halves(M, K), "w_i8": bytes_(N, K).to(torch.int8), "scale": torch.ones(N, 2)}
fnuz = torch.float8_e4m3fnuz
BAD = [
    # op, its good arguments, the argument, its bad value, what the message says
    (fp8_w8a16_gemm, A16, "x", halves(M, K).bfloat16(), r"expected torch.float16.*x.half\(\)"),
    (fp8_w8a16_gemm, A16, "x", fp8(M, K), "expected torch.float16"),
    (fp8_w8a16_gemm, A16, "w_fp8", torch.ones(N, K).to(fnuz), "OCP float8.*fnuz"),
    (fp8_w8a16_gemm, A16, "w_fp8", halves(N, K), "float8_e4m3fn, float8_e5m2 or uint8"),
    (fp8_w8a16_gemm, A16, "w_fp8", None, "a float8 tensor, got None"),
    (fp8_w8a16_gemm, A16, "w_fp8", fp8(K, N), r"shape \[any, 64\], got \[64, 16\]"),
    (fp8_w8a16_gemm, A16, "w_fp8", fp8(K, N).t(), "a contiguous last dimension"),
    (fp8_w8a16_gemm, A16, "w_fp8", fp8(N, K).to("meta"), "on cpu, as x"),
    (fp8_w8a16_gemm, A16, "fmt", "e5m2", "'e4m3', which w_fp8 is"),
    (fp8_w8a16_gemm, A16, "fmt", "e3m4", "'e4m3' or 'e5m2'"),
    (fp8_w8a16_gemm, {**A16, "w_fp8": bytes_(N, K)}, "fmt", None, "beside a uint8 w_fp8"),
    (fp8_w8a16_gemm, A16, "w_scale", torch.ones(N + 1), r"\[1\], \[16\] or \[16, 1\]"),
    (fp8_w8a16_gemm, A16, "w_scale", torch.ones(2, 2), "pass block="),
    (fp8_w8a16_gemm, A16, "w_scale", torch.ones(N).bfloat16(), "fp32 or fp16 scales"),
    (fp8_w8a16_gemm, A16, "w_scale", torch.ones(N, device="meta"), "on cpu, as w_fp8"),
    (fp8_w8a16_gemm, A16, "bias", torch.ones(N), r"call bias.half\(\)"),
    (fp8_w8a16_gemm, A16, "out", halves(M, N + 1), r"shape \[2, 16\]"),
    (fp8_w8a16_gemm, BLOCKS, "w_scale", torch.ones(N), "leave block out"),
    (fp8_w8a16_gemm, BLOCKS, "w_scale", torch.ones(2, 3), r"\[2, 2\], as blocks of \(8, 32\)"),
    (fp8_w8a16_gemm, BLOCKS, "w_scale", torch.ones(2, 2).t(), "a contiguous last dimension"),
    (fp8_w8a16_gemm, {**BLOCKS, "w_scale": torch.ones(2, 6)}, "block", (8, 12), "multiple of 8"),
    (fp8_w8a16_gemm, BLOCKS, "block", (8, 0), "two positive integers"),
    (fp8_w8a16_gemm, BLOCKS, "block", 32, "two positive integers"),
    (fp8_w8a8_gemm, A8, "x_fp8", halves(M, K), "float8_e4m3fn, float8_e5m2 or uint8"),
    (fp8_w8a8_gemm, A8, "x_fp8", torch.ones(M, K).to(fnuz), "OCP float8"),
    (fp8_w8a8_gemm, A8, "x_scale", torch.ones(M).half(), "fp32 scales, got torch.float16"),
    (fp8_w8a8_gemm, A8, "x_scale", torch.ones(3), r"\[1\], \[2\] or \[2, K / G\], got \[3\]"),
    (fp8_w8a8_gemm, A8, "x_scale", torch.ones(M, 3), r"got \[2, 3\]"),
    (fp8_w8a8_gemm, A8, "x_scale", torch.ones(M, 16), "groups of a multiple of 8"),
    (
        fp8_w8a8_gemm,
        {**A8, "w_scale": torch.ones(2, 2), "block": (8, 32)},
        "x_scale",
        torch.ones(M, 4),
        r"\[2, 2\], got \[2, 4\]; blocks of x are those of w",
    ),
    (mxfp4_gemm, MX, "x", halves(M, 48), "K a positive multiple of 32, got K = 48"),
    (mxfp4_gemm, MX, "w_e2m1", bytes_(K // 2, N), r"\[any, 32\], got \[32, 16\]; .*transposed"),
    (mxfp4_gemm, MX, "w_e2m1", bytes_(N, K // 2).int(), "torch.uint8"),
    (mxfp4_gemm, MX, "w_e8m0", bytes_(N, 1), r"shape \[16, 2\]"),
    (mxfp4_gemm, MX, "w_e8m0", torch.ones(N, 2), "e8m0 scales"),
    (mxfp4_gemm, MX, "w_e8m0", None, "a tensor, got None"),
    (gemv_i8, I8, "scale", torch.ones(N, 3), "columns that divide K = 64 into groups, got 3"),
    (gemv_i8, I8, "scale", torch.ones(N, 16), "a group holds a multiple of 8"),
    (gemv_i8, I8, "scale", torch.ones(N + 1, 2), r"shape \[16, any\]"),
]  # fmt: skip


@pytest.mark.parametrize("op, good, name, value, says", BAD)
def test_refusals_name_op_and_argument(op, good, name, value, says):
    with pytest.raises(ContractError, match=says) as caught:
        op(**{**good, name: value})
    assert str(caught.value).startswith(f"{op.__name__}: {name}: ")


def test_rows_of_scales_may_not_be_too_far_apart():
    far = torch.empty((1 << 25) + 1).as_strided((2, 1), (1 << 25, 1))  # never touched
    for op, good in ((fp8_w8a16_gemm, A16), (fp8_w8a8_gemm, A8)):
        with pytest.raises(ContractError, match="w_scale: expected rows less than 33554432 el"):
            op.plan(**{**good, "w_fp8": fp8(2, K), "w_scale": far})


def test_far_rows_of_weights_are_served_by_all_lanes():
    for form, stride, lanes in (
        ("e4m3", (1 << 29) - 8, 8), ("e4m3", 1 << 29, 32), ("mxfp4", (1 << 29) - 8, 8),
        ("mxfp4", 1 << 29, 32), ("f16", 1 << 28, 32),
    ):  # fmt: skip
        call = dataclasses.replace(describe(form, N, K, M), w_stride=stride)
        values = choose(call).values
        assert values["LANES"] == lanes
        call.spec.source().check(values)
        call.spec.specialise("gfx1030", **values).compile()


def test_a_result_may_not_overlap_an_operand():
    codes = bytes_(N, K)
    with pytest.raises(ContractError, match="out: expected memory apart from w_e2m1"):
        mxfp4_gemm(MX["x"], codes[:, :32], MX["w_e8m0"], out=codes.view(torch.float16)[:M, :N])


def test_explain_says_which_kernel_and_what_both_cost():
    text = str(rdna_jit.explain(fp8_w8a16_gemm, halves(70, K), A16["w_fp8"], A16["w_scale"]))
    assert "fp8_w8a16_gemm(M=70, N=16, K=64) runs dense_tile_rows" in text
    assert " us for 70 rows by the estimate, 16 at a time" in text
    text = str(rdna_jit.explain(fp8_w8a16_gemm, *list(BLOCKS.values())[:3], block=(8, 32)))
    assert "fp8_w8a16_gemm(M=2, N=16, K=64, G=32) runs gemv_fp8" in text
    with config.scope(force_kernel="mxfp4_gemm:dense_tile_rows"):
        assert "runs dense_tile_rows" in str(rdna_jit.explain(mxfp4_gemm, **MX))
    with config.scope(own_disabled_kernels="dense_tile_rows"):
        text = str(rdna_jit.explain(mxfp4_gemm, **{**MX, "x": halves(99, K)}))
    assert "runs gemv_mxfp4" in text and "RDNA_JIT_DISABLED_KERNELS names dense_tile_rows" in text


def kernel(form: str, rows: int, N: int, K: int, arch: str | None = None) -> Kernel:
    call = describe(form, N, K, rows)
    return call.spec.specialise(arch, **choose(call).values)


CODED = [form for form in FORMS if form not in ("f16", "i8")]


@pytest.mark.parametrize("form", CODED)
@pytest.mark.parametrize("N, K", [(4096, 2560), (640, 2560), (320, 10240), (96, 5120), (3, 32)])
def test_choices_are_legal_and_keep_the_order_for_every_m(form, N, K):
    orders = set()
    for rows in (1, 2, 3, 5, 8, 9, 16, 17, 40):
        call = describe(form, N, K, rows)
        choice = choose(call)
        values, tiles = choice.values, choice.grid[1] if len(choice.grid) > 1 else 1
        call.spec.source().check(values)  # every value is declared legal
        assert values["M_TILE"] * values["M_TILES"] * tiles >= rows
        orders.add(tuple(values[name] for name in ("LANES", "UNIT", "UNROLL", "WAVES")))
    assert len(orders) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", CODED)
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    "N, K", [(4096, 2560), (2560, 1536), (640, 2560), (320, 10240), (33, 384), (1290, 992)]
)
def test_nothing_spills_in_any_compiler(form, rows, N, K, tmp_path):
    made = kernel(form, rows, N, K)
    assert spills(CodeObject(made.code_object)) == (0, 0, 0)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


ODD = {  # scales that lanes do not share evenly, 8-byte loads, misaligned rows
    "scale_bytes": 4, "scale_rows": 3, "scale_groups": True, "group": 24, "scale_stride": 25,
    "x_align": 2, "w_align": 1, "has_bias": True,
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, pytest.param(8, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize("x_format", ["f16", "e4m3"])
def test_odd_groups_and_rows_do_not_spill(rows, x_format, tmp_path):
    more = (
        {"x_scales": True, "x_scale_groups": True, "x_scale_stride": 25}
        if x_format != "f16"
        else {}
    )
    strides = {"x_stride": 600, "w_stride": 601, "out_stride": 1200}
    call = GemvCall(rows, 1200, 600, "e4m3", x_format, nan_codes=True, **ODD, **strides, **more)
    made = call.spec.specialise(None, **choose(call).values)
    assert spills(CodeObject(made.code_object)) == (0, 0, 0)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


@pytest.mark.parametrize("form", ["e4m3 128^2", "mxfp4"])
@pytest.mark.parametrize("arch", ["gfx1010", "gfx1012"])
def test_chips_without_dot_instructions_take_mixed_fma(arch, form):
    isa = kernel(form, 2, 64, 256, arch).isa()
    assert ("v_dot2" in isa) == (arch == "gfx1012")
