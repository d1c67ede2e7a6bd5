"""f16_gemm and int8_gemm: the decode kernel for few rows, the tile above, the same contract."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, formats
from rdna_jit.ops.linear import f16_gemm, gemv_f16, gemv_i8, int8_gemm
from tests.ops.test_gemv_values import assert_close, inside, poisoned, random

slow = pytest.mark.slow
SHAPES = [(1, 41, 136), (17, 132, 264), (70, 300, 328), pytest.param(130, 257, 2056, marks=slow)]


def kernel() -> str:
    return rdna_jit.dispatch_log()[-1].kernel


@pytest.mark.parametrize("M, N, K", SHAPES)
@pytest.mark.parametrize("bias", (False, True))
def test_f16_gemm(M, N, K, bias):
    x, w = random(M, K), random(N, K, seed=1, by=0.05)
    b = random(N, seed=3) if bias else None
    out = poisoned(M, N)
    assert f16_gemm(x, w, bias=b, out=out) is out
    assert kernel() == ("gemv_f16" if M < 49 else "dense_tile_rows")
    assert_close(out, x, w.double(), b)
    assert torch.equal(f16_gemm(x, w, bias=b), out)
    if M == 1:
        assert torch.equal(gemv_f16(x, w, b), out)


@pytest.mark.parametrize("M, N, K", SHAPES)
@pytest.mark.parametrize("group", (0, 8), ids=("per output", "in 8 groups"))
def test_int8_gemm(M, N, K, group):
    K = -(-K // 256) * 256 if group else K
    x, w, b = random(M, K), random(N, K, seed=1, by=0.05), random(N, seed=3)
    dtype = torch.float16 if M == 17 else torch.float32
    if group:
        codes, scale = formats.quantize_int8(w, K // group, scale_dtype=dtype)
    else:
        codes, scale = formats.make_int8_shadow(w, scale_dtype=dtype)
    out = poisoned(M, N)
    assert int8_gemm(x, codes, scale, bias=b, out=out) is out
    assert kernel() == ("gemv_i8" if M < 49 else "dense_tile_rows")
    assert_close(out, x, formats.dequantize_i8(codes, scale, dtype=torch.float64), b)
    assert torch.equal(int8_gemm(x, codes, scale, bias=b), out)
    if M == 1:
        assert torch.equal(gemv_i8(x, codes, scale, b), out)


def test_misaligned_and_strided_rows():
    x, w = inside(random(20, 136), 1), inside(random(41, 136, seed=1, by=0.05), 3)
    out = torch.full((20, 64), torch.nan).half()[:, 3:44]
    f16_gemm(x, w, out=out)
    assert_close(out, x, w.double())


def test_nothing_to_compute_and_torch_ops():
    x, w = random(20, 64), random(16, 64, seed=1)
    assert f16_gemm(x[:0], w).shape == (0, 16)
    assert int8_gemm(x, w[:0].to(torch.int8), torch.ones(0)).shape == (20, 0)
    assert torch.equal(torch.ops.rdna_jit.f16_gemm(x, w), f16_gemm(x, w))
    torch.library.opcheck(torch.ops.rdna_jit.f16_gemm.default, (x, w))
    codes, scale = formats.make_int8_shadow(w)
    torch.library.opcheck(torch.ops.rdna_jit.int8_gemm.default, (x, codes, scale))


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: f16_gemm(torch.ones(2, 64), random(8, 64)), r"f16_gemm: x: .* call x.half\(\)"),
        (lambda: f16_gemm(random(2, 64), random(8, 72)), r"w: expected shape \[any, 64\]"),
        (lambda: f16_gemm(random(2, 60), random(8, 60)), "K a positive multiple of 8"),
        (
            lambda: int8_gemm(random(2, 64), random(8, 64), torch.ones(8)),
            "int8_gemm: w_i8: expected torch.int8",
        ),
        (
            lambda: int8_gemm(random(2, 64), torch.ones(8, 64).to(torch.int8), torch.ones(9)),
            r"scale: expected shape \[8\]",
        ),
        (
            lambda: f16_gemm(random(2, 64), random(8, 64), out=random(2, 9)),
            r"out: expected shape \[2, 8\]",
        ),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ContractError, match=says):
        call()


def test_explain_compares_the_kernels():
    text = str(rdna_jit.explain(f16_gemm, random(70, 64), random(8, 64)))
    assert "runs dense_tile_rows" in text and " us for 70 rows by the estimate" in text
