"""RDNA_JIT_FORCE_KERNEL and the disabled kernels inside an op."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import config
from rdna_jit.formats import quantize_int4
from rdna_jit.ops._switches import prefer
from rdna_jit.ops.linear import gptq_gemm

WEIGHT = quantize_int4(torch.randn(64, 256, generator=torch.Generator().manual_seed(0)))


def plan(rows: int):
    return gptq_gemm.plan(torch.ones(rows, 256).half(), WEIGHT)


@pytest.mark.parametrize("setting", ("own_disabled_kernels", "disabled_kernels"))
def test_a_disabled_kernel_gives_way(setting):
    assert [plan(rows).kernel for rows in (1, 64)] == ["w4a16_decode", "dense_tile"]
    with config.scope(**{setting: ("dense_tile",)}):
        found = plan(64)
        assert [plan(1).kernel, found.kernel] == ["w4a16_decode"] * 2
        reasons = {c.kernel: (c.taken, c.reason) for c in found.candidates}
        assert reasons["dense_tile"][0] is False
        assert "names dense_tile" in reasons["dense_tile"][1]
    with config.scope(**{setting: ("w4a16_decode",)}):
        assert [plan(rows).kernel for rows in (1, 64)] == ["dense_tile"] * 2


def test_a_forced_kernel_is_taken():
    with config.scope(force_kernel="gptq_gemm:dense_tile"):
        assert plan(1).kernel == "dense_tile"
        x = torch.randn(1, 256, generator=torch.Generator().manual_seed(1)).half()
        forced = gptq_gemm(x, WEIGHT)
    with config.scope(force_kernel="w4a16_gemv:dense_tile,gptq_gemm:w4a16_decode"):
        assert plan(64).kernel == "w4a16_decode"
    want = x.double() @ WEIGHT.dequantize(torch.float64)
    assert (forced.double() - want).norm() < 5e-4 * want.norm()


def test_an_op_serves_its_call_whatever_is_disabled():
    with config.scope(own_disabled_kernels=("w4a16_decode", "dense_tile")):
        assert plan(1).kernel == "w4a16_decode"
    with config.scope(force_kernel="gptq_gemm:dense_tile"):
        assert prefer("gptq_gemm", "a", ("a",)) == ("a", ())
