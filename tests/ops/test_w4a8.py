"""int8 activations in groups and their product with int4 weights, against integer arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.w4a8 import BOUNDS, measure
from rdna_jit import ContractError, config, emulator
from rdna_jit.code_object import CodeObject
from rdna_jit.kernel import Kernel
from rdna_jit.ops._w4a8 import QUANTIZE, TILE
from rdna_jit.ops.linear import quantize_int8_grouped, w4a8_gemm
from tests.ops.clang import compile_with_clang
from tests.ops.int4_data import Layer, activations

Quantised = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def quantised(x: torch.Tensor, group: int) -> Quantised:
    """The definition in numpy's float32: codes, scale, sums."""
    values = x.numpy().astype(np.float32).reshape(x.shape[0], -1, group)
    absmax = np.abs(values).max(-1)
    scale = absmax / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(absmax > 0, np.float32(127) / absmax, np.float32(0))
    codes = np.clip(np.rint(values * inverse[..., None]), -128, 127).astype(np.int8)
    sums = codes.sum(-1, dtype=np.int32)
    return tuple(map(torch.from_numpy, (codes.reshape(x.shape), scale, sums)))  # type: ignore[return-value]


def same(got: Quantised, want: Quantised) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("M, K, G", [
    (5, 512, 32), (3, 512, 64), (2, 512, 128), (9, 64, 8), (3, 192, 96), (2, 640, 640),
    (3, 5120, 5120), (1, 8704, 8704), (2, 40, 40), (200, 128, 128),
])  # fmt: skip
def test_codes_scales_and_sums_have_the_bits_of_float32(M, K, G):
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(K)).half()
    with emulator.checks(races=True, uninitialised=True):
        got = quantize_int8_grouped(x, G)
    assert same(got, quantised(x, G))


def test_codes_of_rows_at_the_edges():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(8, 128, generator=g).half()
    x[0] = 0
    x[1, 5] = 65504  # all others round to 0
    x[2] = torch.randint(1, 1024, (128,), generator=g) * 2.0**-24  # subnormal
    x[3] = 2.0**-24
    x[4] = torch.arange(128) - 64 + 0.5  # ties, with the largest value 127
    x[4, 0] = 127
    x[5] = -65504
    x[6, 1:] = 0
    x[7] = -0.0
    got = quantize_int8_grouped(x, 64)
    assert same(got, quantised(x, 64))
    assert int(got[0].max()) == 127 and int(got[0].min()) == -127


def test_codes_of_every_largest_value():
    """Both divisions and the product round to nearest for every finite fp16 as the maximum."""
    largest = torch.arange(1, 0x7C00, 7, dtype=torch.int16).view(torch.float16)
    share = torch.rand(len(largest), 8, generator=torch.Generator().manual_seed(3))
    x = (largest[:, None].float() * (2 * share - 1)).half()
    x[:, 3] = largest
    assert same(quantize_int8_grouped(x, 8), quantised(x, 8))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_group_without_a_largest_value_has_no_scale(bad):
    x = activations(2, 128)
    x[0, 70] = bad
    codes, scale, sums = quantize_int8_grouped(x, 64)
    assert bool(scale[0, 1].isnan()) and int(sums[0, 1]) == 0 and not codes[0, 64:].any()
    x[0, 70] = 0
    want = quantised(x, 64)
    assert torch.equal(codes[0, :64], want[0][0, :64]) and torch.equal(codes[1], want[0][1])


@pytest.mark.parametrize("shift", [1, 2, 4])
def test_codes_of_views(shift):
    x = activations(4, 136)[::2, shift : shift + 128]
    assert same(quantize_int8_grouped(x, 32), quantised(x, 32))


@pytest.mark.parametrize("group", [0, 4, 12, 48, 256, 32.0, None])
def test_group_sizes_that_are_refused(group):
    with pytest.raises(ContractError, match="group_size"):
        quantize_int8_grouped(activations(1, 128), group)


def rounded(x: torch.Tensor, group: int) -> torch.Tensor:
    """float64 values that the codes of x stand for."""
    codes, scale, _ = quantised(x, group)
    return (codes.double().view(x.shape[0], -1, group) * scale.double()[..., None]).flatten(1)


def multiply(
    x: torch.Tensor, layer: Layer, shuffled: bool = True, zeros: int | str = 1, **changes: object
) -> torch.Tensor:
    """w4a8_gemm; zeros: the offset of packed ones, or "none"."""
    arguments = {
        "x": x,
        "qweight": layer.words(bool(shuffled)),
        "qzeros": None if zeros == "none" else layer.packed_zeros(zeros),
        "scales": layer.scales,
        "zero_offset": 0 if zeros == "none" else zeros,
        "shuffled": shuffled,
        **changes,
    }
    return w4a8_gemm(**arguments)


# M, N, K, G, shuffled, zeros ("none" or the offset of packed ones), bias
CALLS = [
    (33, 128, 256, 128, True, 1, False),  # K over the grid
    (5, 64, 256, 32, False, 0, True),
    (70, 264, 128, 64, True, 1, True),  # ragged rows and columns
    (40, 136, 96, 96, False, 0, False),  # one group, padded to 128
    (1, 24, 40, 40, True, 1, False),
    (20, 128, 384, 96, True, 1, True),  # steps of 32, three to a group
    (16, 37, 64, 32, True, "none", True),  # any N without packed zeros
    (64, 128, 160, 32, False, 1, False),
    (3, 8, 8704, 128, True, 0, False),  # 17 * 512: no power of two splits it
    (2, 8, 8704, 8704, True, 1, False),
]


@pytest.mark.parametrize("M, N, K, G, shuffled, zeros, bias", CALLS)
def test_w4a8_gemm(M, N, K, G, shuffled, zeros, bias):
    offset = 0 if zeros == "none" else zeros
    low, high = (8, 9) if zeros == "none" else (offset, 16 + offset)
    layer, x = Layer.random(K, N, G, low=low, high=high), activations(M, K)
    out = torch.full((M, N), torch.nan).half()
    biased = layer.bias if bias else None
    assert multiply(x, layer, shuffled, zeros, bias=biased, out=out) is out
    shift = layer.bias.double() if bias else 0
    want = rounded(x, G) @ layer.weights() + shift
    error = (out.double() - want).abs()
    terms = rounded(x, G).abs() @ layer.weights().abs()
    assert bool((error <= want.abs() * 2.0**-11 + 2.0**-24 + terms * 2.0**-20).all())
    assert error.norm() <= 5e-4 * want.norm()
    exact = x.double() @ layer.weights() + shift
    assert (out.double() - exact).norm() <= 1e-2 * exact.norm()


@pytest.mark.parametrize("K, G", [(128, 128), (64, 64), (512, 512)])
def test_one_group_has_the_bits_of_integer_arithmetic(K, G):
    layer, x = Layer.random(K, 40, G, low=1, high=17), activations(37, K)
    codes, scale, _ = quantised(x, G)
    dots = codes.int().numpy() @ (layer.codes - layer.zeros[layer.groups]).int().numpy()
    factors = scale.numpy() * layer.scales.float().numpy()
    want = torch.from_numpy(factors * dots.astype(np.float32)).half()
    assert torch.equal(multiply(x, layer), want)


def test_the_order_of_codes_matters():
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(2, 64)
    right = multiply(x, layer, True)
    assert torch.equal(multiply(x, layer, False), right)
    wrong = multiply(x, layer, True, qweight=layer.words(False))
    assert (wrong.double() - right.double()).norm() > 0.2 * right.double().norm()


def test_codes_equal_to_the_zero_give_exactly_zero():
    for zero in (1, 15):
        layer = Layer.random(128, 16, 32)
        layer.codes[:], layer.zeros[:] = zero, zero
        assert torch.equal(multiply(activations(2, 128) * 1e4, layer), torch.zeros(2, 16).half())


def test_the_longest_sums_do_not_overflow():
    layer = Layer.random(8704, 8, 8704)
    layer.codes[:], layer.zeros[:], layer.scales[:] = 0, 16, 2.0**-14
    x = torch.ones(2, 8704).half()
    assert torch.equal(multiply(x, layer), torch.full((2, 8), -8704 * 16 * 2.0**-14).half())


@pytest.mark.slow
def test_the_longest_group():
    layer, x = Layer.random(65528, 8, 65528, low=1, high=17), activations(2, 65528)
    x[1] = 1  # the sum of codes is 127 * 65528
    want = rounded(x, 65528) @ layer.weights()
    error = (multiply(x, layer).double() - want).norm()
    assert error <= 5e-4 * want.norm()


def test_a_value_that_is_no_number_spoils_its_own_row_only():
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(3, 64)
    x[1, 40] = float("inf")
    y = multiply(x, layer)
    assert bool(y[1].isnan().all()) and bool(y[[0, 2]].isfinite().all())


def test_views_strided_and_misaligned():
    layer = Layer.random(64, 48, 32, low=1, high=17)
    x = activations(3, 72)[:, 1:65]

    def inside(t: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(t.shape[0], t.shape[1] + 3, dtype=t.dtype)
        wide[:, 1:-2] = t
        return wide[:, 1:-2]

    out = torch.full((3, 51), torch.nan).half()
    words, zeros, scales = map(inside, (layer.words(True), layer.packed_zeros(1), layer.scales))
    multiply(x, layer, qweight=words, qzeros=zeros, scales=scales, out=out[:, 1:49])
    assert torch.equal(out[:, 1:49], multiply(x.contiguous(), layer))
    assert bool(out[:, [0, 49, 50]].isnan().all())


@pytest.mark.parametrize("M, K", [(5, 512), (35, 64)])
def test_runs_repeat_bit_for_bit_and_no_finding_of_the_checks(M, K):
    layer, x = Layer.random(K, 40, 32, low=1, high=17), activations(M, K)
    first = multiply(x, layer)
    for order in (False, True):
        checks = emulator.checks(races=True, uninitialised=True)
        with emulator.modes(descending=order), checks:
            assert torch.equal(multiply(x, layer), first)


def test_rows_beyond_four_gigabytes(tmp_path):
    layer, x = Layer.random(32, 8, 32, low=1, high=17), activations(2, 32)

    def far_rows(t: torch.Tensor, stride: int) -> torch.Tensor:
        """The same rows, `stride` elements apart in a sparse file."""
        elements = (t.shape[0] - 1) * stride + t.shape[1]
        kind = str(t.dtype).removeprefix("torch.")
        file = np.memmap(tmp_path / kind, dtype=kind, mode="w+", shape=(elements,))
        return torch.from_numpy(file).as_strided(t.shape, (stride, 1)).copy_(t)

    y = multiply(far_rows(x, 5 << 29), layer, qweight=far_rows(layer.words(True), 3 << 28))
    assert torch.equal(y, multiply(x, layer))


def test_torch_op_its_out_overload_and_empty_batches():
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(1, 64)
    args = (x, layer.words(True), layer.packed_zeros(1), layer.scales)
    plain = multiply(x, layer)
    op = torch.ops.rdna_jit.w4a8_gemm
    assert torch.equal(op(*args, zero_offset=1, shuffled=True), plain)
    out = torch.full_like(plain, torch.nan)
    op.out(*args, zero_offset=1, shuffled=True, out=out)
    assert torch.equal(out, plain)
    assert multiply(x[:0], layer).shape == (0, 16)
    codes, scale, sums = torch.ops.rdna_jit.quantize_int8_grouped(x[:0], 32)
    assert codes.shape == (0, 64) and scale.shape == sums.shape == (0, 2)


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("x", activations(2, 64).bfloat16(), r"call x.half\(\)"),
        ("x", activations(2, 60), "K a positive multiple of 8"),
        ("qweight", torch.zeros(64, 2, dtype=torch.int32), "awq_to_gptq"),
        ("qzeros", torch.zeros(2, 16, dtype=torch.int32), r"qzeros: expected shape \[2, 2\]"),
        ("scales", torch.ones(4, 16).half(), "groups of a multiple of 32 rows"),
        ("scales", torch.ones(3, 16).half(), "rows that divide K = 64"),
        ("zero_offset", 2, "zero_offset: expected 0 or 1"),
        ("shuffled", None, "shuffled: expected True or False"),
        ("bias", torch.ones(17).half(), r"bias: expected shape \[16\]"),
        ("out", torch.ones(2, 16), "make it with dtype"),
    ],
)
def test_w4a8_gemm_refuses(name, value, says):
    layer = Layer.random(64, 16, 32, low=1, high=17)
    arguments = {"x": activations(2, 64), "layer": layer, name: value}
    with pytest.raises(ContractError, match=says):
        multiply(**arguments)


def test_out_may_not_overlap_x():
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(2, 64)
    with pytest.raises(ContractError, match="overlaps x"):
        multiply(x, layer, out=x[:, :16])


def spills(code_object: CodeObject) -> tuple[int, int, int]:
    (info,) = code_object.kernels.values()
    found = info.resources
    return found.vgpr_spills, found.sgpr_spills, found.scratch_bytes


def planned(M: int, N: int, K: int, groups: int, zeros: bool = True) -> tuple[Kernel, ...]:
    """The kernels of a call, of which no tensor is read."""

    half = torch.float16
    plan = w4a8_gemm.plan(
        torch.empty(M, K, dtype=half),
        torch.empty(K // 8, N, dtype=torch.int32),
        torch.empty(groups, N // 8, dtype=torch.int32) if zeros else None,
        torch.empty(groups, N, dtype=half),
        zero_offset=0,
        shuffled=True,
    )
    return tuple(launch.kernel for launch in plan.launches)


@pytest.mark.parametrize("M, K, groups", [(256, 2560, 20), (16, 2560, 80)])
def test_nothing_spills_in_either_compiler(M, K, groups, tmp_path):
    for kernel in planned(M, 2560, K, groups):
        assert spills(CodeObject(kernel.code_object)) == (0, 0, 0)
        assert spills(compile_with_clang(kernel, tmp_path)) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("M", [16, 256])
@pytest.mark.parametrize("K, groups", [(5120, 40), (5120, 160), (5120, 80), (5120, 1), (96, 1)])
@pytest.mark.parametrize("N", [5120, 1000])
@pytest.mark.parametrize("zeros", [True, False])
def test_nothing_spills_in_any_form(M, N, K, groups, zeros, tmp_path):
    for kernel in planned(M, N, K, groups, zeros):
        assert spills(CodeObject(kernel.code_object)) == (0, 0, 0)
        assert spills(compile_with_clang(kernel, tmp_path)) == (0, 0, 0)


def test_the_whole_reduction_length_runs_the_int8_kernel():
    for K in (4352, 8704, 17408):
        names = [kernel.name for kernel in planned(64, 256, K, K // 128)]
        assert names[:2] == [QUANTIZE.name, TILE.name]


def test_chips_without_dot_instructions():
    """They quantise, and refuse the product with a sentence."""
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(2, 64)
    with config.scope(backend="emulator", arch="gfx1010"):
        assert same(quantize_int8_grouped(x, 32), quantised(x, 32))
        with pytest.raises(ContractError, match="v_dot4_i32_i8, got gfx1010; gptq_gemm runs on"):
            multiply(x, layer)


def test_counters_are_within_the_budget():
    row = measure(256, 512, 2560, 128, "V620")
    assert row.valu_per_mac <= BOUNDS[128] and row.spills == 0 and row.vgprs <= 128
    assert row.rel_l2 <= 5e-4 and row.rel_l2_exact <= 1e-2
