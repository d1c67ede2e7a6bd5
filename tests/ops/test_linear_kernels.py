"""The int4 kernels as compiled: registers, spills, instruction budgets, other targets."""

from __future__ import annotations

import pytest
import torch

from benchmarks.dense import BOUNDS, SHAPES, measure, realistic
from rdna_jit.code_object import CodeObject
from rdna_jit.formats import quantize_int4
from rdna_jit.kernel import Kernel
from rdna_jit.ops import _act_order
from rdna_jit.ops._dense_int4 import DECODE, choose
from rdna_jit.ops.linear import gptq_gemm
from tests.ops.clang import compile_with_clang
from tests.ops.test_linear_plan import LAYERS, call

FORMS = [
    {},
    {"shuffled": False, "has_bias": True},
    {"zeros": "bytes", "shuffled": False},
    {"zeros": "none"},
    {"has_perm": True},
    {"x_align": 2, "shuffled": False},
]


def kernel(M: int, N: int, K: int, group: int, arch: str | None = None, **form: object) -> Kernel:
    return DECODE.specialise(arch, **choose(call(M, N, K, group, **form)).values)


def spills(code_object: CodeObject) -> tuple[int, int, int]:
    (info,) = code_object.kernels.values()
    found = info.resources
    return found.vgpr_spills, found.sgpr_spills, found.scratch_bytes


@pytest.mark.parametrize("M, group", [(1, 128), (8, 32)])
def test_counters_are_within_the_budget(M, group):
    row = measure(realistic(2560, 1536, group), M, "V620")
    assert row.valu_per_weight <= BOUNDS[group, M]
    assert row.spills == 0
    assert row.load_bytes == 8
    assert row.workgroups >= 36
    assert row.requested_mb <= 1.6 * row.touched_mb
    assert row.rel_l2 <= 5e-4 and row.max_norm <= 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("N, K", SHAPES)
@pytest.mark.parametrize("group, M", BOUNDS)
def test_counters_of_every_budget(N, K, group, M):
    row = measure(realistic(N, K, group), M, "V620")
    assert row.valu_per_weight <= BOUNDS[group, M]
    assert row.spills == 0 and row.rel_l2 <= 5e-4 and row.max_norm <= 2e-3
    if M <= 4 and row.touched_mb > 8:
        assert row.time_us <= 1.25 * row.floor_us


@pytest.mark.slow
@pytest.mark.parametrize("N, K", LAYERS)
@pytest.mark.parametrize("M", [1, 4, 8, 16])
@pytest.mark.parametrize("group", [32, 128, None])
def test_nothing_spills_on_real_layers(M, N, K, group):
    group = group if group and K % group == 0 else K
    assert spills(CodeObject(kernel(M, N, K, group).code_object)) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("M", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("group", [32, 96, 128, 1536])
def test_nothing_spills_in_any_form_and_compiler(M, group, form, tmp_path):
    made = kernel(M, 2560, 1536, group, **form)
    assert spills(CodeObject(made.code_object)) == (0, 0, 0)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


def test_a_second_compiler_takes_the_source(tmp_path):
    made = kernel(8, 2560, 1536, 128)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["gfx1010", "gfx1012"])
def test_chips_without_dot_instructions_take_mixed_fma(arch):
    isa = kernel(2, 64, 256, 128, arch).isa()
    assert ("v_dot2" in isa) == (arch == "gfx1012")
    assert ("v_fma_mix_f32" in isa or "v_fma_mix" in isa) or arch == "gfx1012"


def test_act_order_kernel_neither_spills_nor_calls():
    values = _act_order.choose(call(8, 64, 256, 32, shuffled=False)).values
    code_object = CodeObject(_act_order.ACT_ORDER.specialise(None, **values).code_object)
    assert spills(code_object) == (0, 0, 0)


def test_equal_calls_share_one_kernel():
    weight, x = quantize_int4(torch.randn(64, 256)), torch.randn(2, 256).half()
    first = gptq_gemm.plan(x, weight).launches[0].kernel
    other = quantize_int4(torch.randn(64, 256))
    assert gptq_gemm.plan(x.clone(), other).launches[0].kernel is first
