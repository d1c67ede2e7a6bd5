"""Bad input to the int4 linear ops: an error that names the tensor, or the way that still works."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, formats
from rdna_jit.ops.linear import gptq_gemm, w4a16_gemv

M, N, K, G = 2, 16, 64, 32


def gptq(**changes):
    arguments = {
        "x": torch.ones(M, K).half(),
        "qweight": torch.zeros(K // 8, N, dtype=torch.int32),
        "qzeros": torch.zeros(K // G, N // 8, dtype=torch.int32),
        "scales": torch.ones(K // G, N).half(),
        "zero_offset": 1,
        "shuffled": True,
        **changes,
    }
    return gptq_gemm(**arguments)


def gemv(**changes):
    arguments = {
        "x": torch.ones(M, K).half(),
        "qweight": torch.zeros(K // 8, N, dtype=torch.int32),
        "scales": torch.ones(K // G, N).half(),
        "zeros": torch.full((K // G, N), 8, dtype=torch.uint8),
        "group_size": G,
        **changes,
    }
    return w4a16_gemv(**arguments)


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def halves(*shape: int) -> torch.Tensor:
    return torch.ones(shape).half()


BAD_GPTQ = [
    # the argument, its bad value, what the message says
    ("x", halves(M, K).bfloat16(), r"x: expected torch.float16, got torch.bfloat16; call x.half()"),
    ("x", torch.ones(M, K), r"call x.half\(\)"),
    ("x", None, "x: expected a torch.float16 tensor"),
    ("x", halves(K), r"expected shape \[any, any\], got \[64\]"),
    ("x", halves(K, M).t(), "contiguous last dimension"),
    ("x", halves(M, K - 4), "K a positive multiple of 8"),
    ("x", halves(M, 2 * K), "qweight: expected 16 rows for K = 128, got 8"),
    ("qweight", ints(K, N // 8), "awq_to_gptq"),
    ("qweight", ints(K // 8, N).to(torch.int64), "qweight: expected torch.int32"),
    ("qweight", ints(N, K // 8).t(), "qweight: expected a contiguous last dimension"),
    ("qweight", ints(K // 8, N).to("meta"), "qweight: expected a tensor on cpu, as x, got meta"),
    ("qzeros", ints(K // G, N), r"qzeros: expected shape \[2, 2\]"),
    ("qzeros", torch.zeros(K // G, N, dtype=torch.uint8), "qzeros: expected torch.int32"),
    ("scales", None, "scales: expected a torch.float16 tensor"),
    ("scales", halves(3, N), "scales: expected rows that divide K = 64 into groups, got 3"),
    ("scales", halves(4, N), "groups of a multiple of 32 rows, got 16"),
    ("scales", halves(K // G, N + 8), r"scales: expected shape \[any, 16\]"),
    ("scales", halves(K // G, N).bfloat16(), r"call scales.half\(\)"),
    ("bias", halves(N + 1), r"bias: expected shape \[16\]"),
    ("zero_offset", 2, "zero_offset: expected 0 or 1, got 2"),
    ("zero_offset", None, "zero_offset: expected 0 or 1, got None; 1 for GPTQ v1"),
    ("shuffled", None, "shuffled: expected True or False"),
    ("g_idx", ints(K + 8), r"g_idx: expected shape \[64\]"),
    ("qweight", None, "qweight: expected a torch.int32 tensor"),
    ("g_idx", [0] * K, "g_idx: expected a torch.int32 tensor"),
    ("g_idx", ints(K).long(), "g_idx: expected torch.int32"),
    ("g_idx", ints(K) + 2, "g_idx: expected groups 0..1, got values 2..2"),
    ("g_idx", ints(K), "groups that gptq_shuffle cannot sort"),
    ("out", halves(M + 1, N), r"out: expected shape \[2, 16\]"),
    ("out", torch.ones(M, N), r"out: expected torch.float16"),
    ("out", halves(1, N).expand(M, N), "rows apart from each other"),
]


@pytest.mark.parametrize("name, value, says", BAD_GPTQ, ids=lambda v: v if type(v) is str else "")
def test_gptq_gemm_refuses(name, value, says):
    with pytest.raises(ContractError, match=says) as caught:
        gptq(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert "gptq_gemm" in str(caught.value)


def test_an_order_of_rows_is_no_checkpoint_g_idx():
    order = torch.arange(K - 1, -1, -1, dtype=torch.int32)
    with pytest.raises(ContractError, match="shuffled=True for such weights"):
        gptq(g_idx=order, shuffled=False)


def test_packed_zeros_need_whole_words_of_columns():
    with pytest.raises(ContractError, match="multiple of 8 columns"):
        gptq(qweight=ints(K // 8, 12), scales=halves(K // G, 12), qzeros=ints(K // G, 1))


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("group_size", 48, "group_size: expected a divisor of K = 64"),
        ("group_size", 0, "group_size: expected a divisor"),
        ("group_size", 16, "groups of a multiple of 32 rows, got 16"),
        ("group_size", 64, r"scales: expected shape \[1, 16\]"),
        ("zeros", ints(K // G, N), "zeros: expected torch.uint8"),
        ("zeros", torch.zeros(K // G, N // 2, dtype=torch.uint8), r"zeros: expected shape \[2, 16"),
        ("x", halves(M, K).bfloat16(), r"call x.half\(\)"),
    ],
)
def test_w4a16_gemv_refuses(name, value, says):
    with pytest.raises(ContractError, match=says):
        gemv(**{name: value})


def test_out_may_not_overlap_an_input():
    x = halves(M, K)
    with pytest.raises(ContractError, match="out: expected memory apart from x"):
        gptq(x=x, out=x[:, :N])
    scales = halves(K // G, N)
    with pytest.raises(ContractError, match="overlaps scales"):
        gptq(scales=scales, out=scales)
    with pytest.raises(ContractError, match="overlaps zeros"):
        zeros = torch.full((2 * M, N), 8, dtype=torch.uint8)
        gemv(zeros=zeros[: K // G], out=zeros.view(torch.float16).view(M, N))


def test_out_may_be_other_columns_of_the_same_buffer():
    buffer = halves(M, K + N)
    assert gptq(x=buffer[:, :K], out=buffer[:, K:]).data_ptr() == buffer[:, K:].data_ptr()


def test_qzeros_may_be_left_out_and_then_the_offset_too():
    y = gptq(qzeros=None, zero_offset=None)
    assert torch.equal(y, torch.full((M, N), -8.0 * K).half())


@pytest.mark.parametrize("size", [None, 32.0, "32"])
def test_a_group_size_is_an_integer(size):
    with pytest.raises(ContractError, match="group_size"):
        gemv(group_size=size)


@pytest.mark.parametrize("name", ["qzeros", "scales", "g_idx", "zero_offset"])
def test_nothing_may_stand_beside_a_packed_weight(name):
    weight = formats.quantize_int4(torch.randn(N, K), G)
    x = halves(M, K)
    gptq_gemm(x, weight)
    beside = {"qzeros": weight.qzeros, "scales": weight.scales, "g_idx": ints(K), "zero_offset": 0}
    with pytest.raises(ContractError, match=name):
        gptq_gemm(x, weight, **{name: beside[name]})


def test_advice_about_out_does_not_lose_the_result():
    with pytest.raises(ContractError, match="make it with dtype"):
        gptq(out=torch.empty(M, N))
