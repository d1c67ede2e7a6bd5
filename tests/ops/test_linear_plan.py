"""The choice of the int4 decode kernel: a pure function of sizes and layouts."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from rdna_jit.formats import quantize_int4
from rdna_jit.ops import _dense_int4
from rdna_jit.ops._dense_int4 import DECODE, Int4Call, choose, row_tile
from rdna_jit.ops.linear import gptq_gemm

# (N, K) of layers of models that people run.
LAYERS = [
    (14336, 5120), (5120, 6144), (34816, 5120), (5120, 17408), (5120, 4352), (8704, 5120),
    (2560, 2560), (1536, 2560), (2560, 1536), (512, 2560), (320, 2560), (2560, 160), (4, 10240),
    (6144, 4096), (4096, 12288), (4096, 14336), (384, 384), (1536, 384), (384, 1536),
]  # fmt: skip


def call(M: int, N: int, K: int, group: int = 128, **changes: object) -> Int4Call:
    settings = {"shuffled": True, "zeros": "packed" if N % 8 == 0 else "none", **changes}
    layout = {"x_stride": K, "w_stride": N, "z_stride": N // 8, "s_stride": N, "out_stride": N}
    return Int4Call(M, N, K, group, **{**layout, **settings})


@pytest.mark.parametrize("M, tile", [
    (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 8), (24, 8), (25, 16),
    (32, 16), (33, 8), (512, 16),
])  # fmt: skip
def test_row_tile(M, tile):
    chosen, candidates = row_tile(M)
    assert chosen == tile
    assert [c.kernel for c in candidates if c.taken] == [f"M_TILE={tile}"]
    assert all(c.reason for c in candidates)


@pytest.mark.parametrize("N, K", LAYERS)
@pytest.mark.parametrize("M", [1, 4, 8, 16, 32, 100])
@pytest.mark.parametrize("group", [32, 64, 128, None])
def test_choices_are_legal_and_fill_the_chip(M, N, K, group):
    group = group if group and K % group == 0 else K
    choice = choose(call(M, N, K, group))
    values = choice.values
    DECODE.source().check(values)  # every value is declared legal
    step_k = 8 * values["STEP_ROWS"]
    assert K % step_k == 0 and (group % step_k == 0 or step_k % group == 0)
    assert values["WAVES"] <= K // step_k
    slab = values["M_TILE"] * 32 * values["COLS"] * 4
    assert values["WAVES"] * slab <= 65536
    assert choice.grid[0] * 32 * values["COLS"] >= N
    if N >= 36 * 32:
        assert choice.grid[0] >= 36


def test_waves_share_k_evenly():
    for steps in range(1, 400):
        for tile in (1, 16):
            waves = _dense_int4.waves_per_workgroup(steps, tile, 2, 16, True)
            longest = -(-steps // waves)
            assert longest * waves <= 1.34 * steps, (steps, waves)


def test_misaligned_and_odd_rows_get_narrower_loads():
    assert choose(call(1, 4096, 512)).values["COLS"] == 2
    assert choose(call(1, 4096, 512, w_align=4)).values["COLS"] == 1
    assert choose(call(1, 4097, 512)).values["COLS"] == 1
    staged = choose(call(2, 4096, 512, x_align=2))
    assert not staged.values["X_SCALAR"] and staged.values["X_ALIGN"] == 2


def test_the_row_stride_of_a_single_row_makes_no_new_kernel():
    assert choose(call(1, 64, 512, x_stride=4096)).values == choose(call(1, 64, 512)).values


def test_explain_says_what_runs_and_why():
    weight = quantize_int4(torch.randn(64, 256))
    text = str(rdna_jit.explain(gptq_gemm, torch.randn(28, 256).half(), weight))
    assert "gptq_gemm(M=28, N=64, K=256, G=128) runs w4a16_decode" in text
    assert "M_TILE=16" in text and "28 rows run as 2 chunks of 16" in text
    assert "COLS=2: 1 workgroups would leave processors idle" in text


def test_the_log_names_the_kernel():
    weight = quantize_int4(torch.randn(64, 256))
    rdna_jit.dispatch_log(clear=True)
    gptq_gemm(torch.randn(0, 256).half(), weight)
    assert [d.kernel for d in rdna_jit.dispatch_log()] == ["none"]


def test_compiled_for_a_large_batch_still_chooses_by_the_real_one():
    weight = quantize_int4(torch.randn(64, 256))

    def layer(x: torch.Tensor) -> torch.Tensor:
        return gptq_gemm(x, weight)

    compiled = torch.compile(layer, backend="eager", dynamic=True)
    x = torch.randn(512, 256).half()
    torch._dynamo.mark_dynamic(x, 0)
    assert compiled(x).shape == (512, 64)
    rdna_jit.dispatch_log(clear=True)
    compiled(torch.randn(1, 256).half())
    assert rdna_jit.dispatch_log()[-1].values["M_TILE"] == 1
