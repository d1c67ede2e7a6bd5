"""Every declared kernel against its source and its code objects, on small calls of the ops."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
import torch

import rdna_jit.ops
from rdna_jit import KernelSpec, arch, config
from rdna_jit.dispatch import Plan
from rdna_jit.kernel import Kernel
from rdna_jit.spec import registry
from rdna_jit.tools.probe_questions import LANES, VALUES

N, K, G = 64, 256, 32


def declared() -> dict[str, KernelSpec]:
    for module in pkgutil.iter_modules(rdna_jit.ops.__path__, "rdna_jit.ops."):
        importlib.import_module(module.name)
    return registry()


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def words(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def linear_plans() -> Iterator[Plan]:
    from rdna_jit.ops import linear

    operands = half(2, K), words(K // 8, N), words(K // G, N // 8), half(K // G, N)
    act_order = (torch.arange(K) // G).flip(0).int()
    for g_idx in (None, act_order):
        yield linear.gptq_gemm.plan(*operands, g_idx, zero_offset=1, shuffled=False)
    wide = (half(64, 4 * K), words(K // 2, N), None, half(4 * K // G, N))
    yield linear.gptq_gemm.plan(*wide, zero_offset=0, shuffled=False)  # K is split
    yield linear.w4a8_gemm.plan(*operands, zero_offset=1, shuffled=True)
    awq = words(K, N // 8), words(K // G, N // 8), half(K // G, N)
    yield linear.awq_gemm.plan(half(2, K), *awq)
    yield linear.gemv_f16.plan(half(2, K), half(N, K))
    yield linear.gemv_i8.plan(half(2, K), torch.zeros(N, K, dtype=torch.int8), half(N))
    yield linear.f16_gemm.plan(half(64, K), half(N, K))
    yield linear.int8_gemm.plan(half(64, K), torch.zeros(N, K, dtype=torch.int8), half(N))
    fp8 = torch.zeros(N, K, dtype=torch.float8_e4m3fn)
    for rows in (2, 64):
        yield linear.fp8_w8a16_gemm.plan(half(rows, K), fp8, torch.ones(N))
    e2m1, e8m0 = torch.zeros(N, K // 2, dtype=torch.uint8), torch.zeros(N, K // 32).byte()
    yield linear.mxfp4_gemm.plan(half(2, K), e2m1, e8m0)


def moe_plans() -> Iterator[Plan]:
    from rdna_jit.ops import moe

    experts, top_k = 4, 2
    w1 = torch.zeros(experts, 2 * N, K // 2, dtype=torch.uint8)
    w2 = torch.zeros(experts, K, N // 2, dtype=torch.uint8)
    scales = half(experts, 2 * N, K // G), half(experts, K, N // G)
    routing = torch.zeros(1, top_k), torch.zeros(1, top_k, dtype=torch.int32)
    for variant in ("v1", "v2"):
        yield moe.moe_int4_decode.plan(
            half(1, K), w1, scales[0], w2, scales[1], *routing, group_size=G, variant=variant
        )
    for variant in ("auto", "w4a8"):
        yield moe.moe_tiled.plan(
            half(1, K), w1, scales[0], w2, scales[1], *routing, format="int4", group_size=G,
            variant=variant,
        )  # fmt: skip
    yield moe.moe_align_block_size.plan(routing[1], 4, experts)
    yield moe.topk_router.plan(half(1, experts), top_k)


def kernels() -> dict[str, Kernel]:
    """One kernel per spec, as the ops' plans specialise it; the probe's have no op."""
    with config.scope(backend="emulator"):
        plans = [*linear_plans(), *moe_plans()]
    found = [launch.kernel for plan in plans for launch in plan.launches]
    found += [VALUES.specialise(INSTRUCTION="MAX_F32"), LANES.specialise(MOVE="ROW_SHR")]
    return {kernel.spec.name: kernel for kernel in found}


def test_every_declared_kernel_has_its_file_and_placeholders():
    assert declared()
    for spec in declared().values():
        assert set(spec.source().placeholders) == set(spec.template), spec.name
        assert spec.requires <= arch.get("gfx1030").capabilities
        names = [p.name for p in spec.parameters]
        assert len(set(names)) == len(names), spec.name


def test_the_calls_of_this_file_reach_every_declared_kernel():
    assert kernels().keys() == declared().keys()


# Kernel compares the declaration with the code object's arguments when it compiles.
def test_declarations_agree_with_the_code_objects_of_the_first_target():
    for kernel in kernels().values():
        resources = kernel.program("gfx1030").info.resources
        assert resources.wavefront_size == 32 and resources.vgpr_spills == 0, kernel


@pytest.mark.slow
@pytest.mark.parametrize("name", arch.ARCHS)
def test_declarations_agree_with_the_code_objects_of(name):
    for kernel in kernels().values():
        if not kernel.spec.missing(name):
            assert kernel.program(name).arch == name
