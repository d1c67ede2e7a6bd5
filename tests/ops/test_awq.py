"""awq_gemm on words packed here by the definition of AWQ's order, against float64."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from benchmarks.awq import BOUNDS, measure
from rdna_jit import ContractError, emulator, formats
from rdna_jit.code_object import CodeObject
from rdna_jit.kernel import Kernel
from rdna_jit.ops._awq import DECODE, choose, k_per_unit
from rdna_jit.ops._dense_int4 import Int4Call
from rdna_jit.ops.linear import awq_gemm, gptq_gemm
from tests.ops.clang import compile_with_clang
from tests.ops.int4_data import Layer, activations, assert_close

COLUMN_OF_SLOT = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(values: torch.Tensor) -> torch.Tensor:
    """`[rows, N]` of 0..15 as int32 `[rows, N/8]`."""
    words = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for slot, column in enumerate(COLUMN_OF_SLOT):
        words |= values[:, column::8] << (4 * slot)
    return words.to(torch.int32)


def multiply(x: torch.Tensor, layer: Layer, **changes: object) -> torch.Tensor:
    arguments = {
        "x": x,
        "qweight": packed(layer.codes),
        "qzeros": packed(layer.zeros),
        "scales": layer.scales,
        **changes,
    }
    return awq_gemm(**arguments)


# M, N, K, G, bias
CALLS = [
    (1, 2312, 64, 32, False),  # ragged last workgroup
    (2, 24, 96, 48, True),  # groups that are no multiple of 32
    (3, 8, 128, 64, False),  # the row tile's halves overlap
    (1, 4616, 32, 16, True),  # four columns per lane, ragged
    (4, 4608, 64, 64, False),
    (5, 40, 256, 128, True),
    (8, 64, 36, 18, False),  # groups of two octets and a pair
    (11, 32, 60, 30, False),  # rows that end in three pairs
    (16, 72, 320, 320, True),  # one group, units that are part of it
    (1, 16, 20, 20, False),  # ends in two pairs
    (2, 8, 2, 2, False),
    (17, 64, 64, 16, True),  # chunks of 8 rows: the tile takes groups of 32
    (53, 136, 128, 32, True),  # the tile
    (2, 8, 8704, 128, False),  # 17 * 512
]


@pytest.mark.parametrize("M, N, K, G, bias", CALLS)
def test_awq_gemm(M, N, K, G, bias):
    layer, x = Layer.random(K, N, G), activations(M, K)
    out = torch.full((M, N), torch.nan).half()
    assert multiply(x, layer, bias=layer.bias if bias else None, out=out) is out
    assert_close(out, x, layer, bias=bias)


@pytest.mark.parametrize("M", [1, 8, 53])
def test_every_column_meets_its_own_codes_zero_and_scale(M):
    """Columns of one word that differ in everything: any other order gives other values."""
    layer, x = Layer.random(64, 16, 32), activations(M, 64)
    layer.codes = (torch.arange(16) % 8 + torch.arange(64)[:, None] % 9)[:, :]
    layer.zeros = torch.arange(16).expand(2, 16).clone()
    layer.scales = (2.0 ** -(torch.arange(16) % 8).float()).expand(2, 16).half().clone()
    assert_close(multiply(x, layer), x, layer)
    natural = torch.zeros(64, 2, dtype=torch.int64)
    for slot in range(8):
        natural |= layer.codes[:, slot::8] << (4 * slot)
    wrong = multiply(x, layer, qweight=natural.to(torch.int32))
    assert (wrong.double() - x.double() @ layer.weights()).norm() > 0.1 * wrong.double().norm()


@pytest.mark.parametrize("M", [1, 53])
def test_a_zero_of_0_is_0_and_not_16(M):
    layer, x = Layer.random(64, 16, 32, low=0, high=1), activations(M, 64)
    assert_close(multiply(x, layer), x, layer)


@pytest.mark.parametrize("M", [2, 53])
def test_codes_equal_to_the_zero_give_exactly_zero(M):
    for zero in (0, 7, 15):
        layer = Layer.random(64, 16, 32)
        layer.codes[:], layer.zeros[:] = zero, zero
        assert torch.equal(multiply(activations(M, 64) * 1e4, layer), torch.zeros(M, 16).half())


def test_the_same_values_as_the_repacked_weight():
    layer, x = Layer.random(256, 64, 64), activations(3, 256)
    weight = formats.pack_awq(packed(layer.codes), packed(layer.zeros), layer.scales)
    assert_close(multiply(x, layer), x, layer)
    assert_close(gptq_gemm(x, weight), x, layer)


@pytest.mark.parametrize("shift", [1, 2])
@pytest.mark.parametrize("M", [3, 53])
def test_views_strided_and_misaligned(M, shift):
    layer = Layer.random(64, 48, 32)
    x = activations(M, 72)[:, shift : shift + 64]

    def inside(t: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(t.shape[0], t.shape[1] + 3, dtype=t.dtype)
        wide[:, 1:-2] = t
        return wide[:, 1:-2]

    out = torch.full((M, 51), torch.nan).half()
    words, zeros, scales = map(inside, (packed(layer.codes), packed(layer.zeros), layer.scales))
    y = multiply(x, layer, qweight=words, qzeros=zeros, scales=scales, out=out[:, 1:49])
    assert_close(y, x, layer)
    assert bool(out[:, [0, 49, 50]].isnan().all())


def test_extreme_activations():
    layer, x = Layer.random(64, 16, 32), activations(2, 64)
    layer.scales *= 2.0**-8
    x[0, ::2], x[0, 1::4] = 65504.0, -65504.0
    x[1] = torch.arange(64) * 2.0**-24  # all subnormal
    assert_close(multiply(x, layer), x, layer)


@pytest.mark.parametrize("mode", ["chain", "exact", "gfx11"])
def test_every_model_of_dot2_and_no_finding_of_the_checks(mode):
    layer, x = Layer.random(256, 40, 32), activations(3, 256)
    checks = emulator.checks(races=True, uninitialised=True)
    with emulator.modes(dot2=mode, dot2_flush=True), checks:
        assert_close(multiply(x, layer), x, layer)


def test_runs_repeat_bit_for_bit():
    layer, x = Layer.random(512, 40, 32), activations(5, 512)
    first = multiply(x, layer)
    for order in (False, True):
        with emulator.modes(descending=order):
            assert torch.equal(multiply(x, layer), first)


def test_rows_beyond_four_gigabytes(tmp_path):
    numpy = pytest.importorskip("numpy")
    layer, x = Layer.random(32, 8, 32), activations(2, 32)

    def far_rows(t: torch.Tensor, stride: int) -> torch.Tensor:
        """The same rows, `stride` elements apart in a sparse file."""
        elements = (t.shape[0] - 1) * stride + t.shape[1]
        kind = str(t.dtype).removeprefix("torch.")
        file = numpy.memmap(tmp_path / kind, dtype=kind, mode="w+", shape=(elements,))
        return torch.from_numpy(file).as_strided(t.shape, (stride, 1)).copy_(t)

    y = multiply(far_rows(x, 5 << 29), layer, qweight=far_rows(packed(layer.codes), 3 << 26))
    assert_close(y, x, layer)


def test_torch_op_its_out_overload_and_empty_batches():
    layer, x = Layer.random(64, 16, 32), activations(1, 64)
    args = (x, packed(layer.codes), packed(layer.zeros), layer.scales)
    plain = multiply(x, layer)
    assert torch.equal(torch.ops.rdna_jit.awq_gemm(*args), plain)
    out = torch.full_like(plain, torch.nan)
    torch.ops.rdna_jit.awq_gemm.out(*args, out=out)
    assert torch.equal(out, plain)
    assert multiply(x[:0], layer).shape == (0, 16)


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("x", activations(2, 64).bfloat16(), r"call x.half\(\)"),
        ("x", activations(2, 60), "qweight: expected 60 rows for K = 60, got 64"),
        ("qweight", torch.zeros(8, 16, dtype=torch.int32), "gptq_gemm takes it"),
        ("qweight", torch.zeros(64, 2), "qweight: expected torch.int32"),
        ("qzeros", None, "qzeros: expected a torch.int32 tensor"),
        ("qzeros", torch.zeros(2, 16, dtype=torch.int32), r"qzeros: expected shape \[2, 2\]"),
        ("scales", torch.ones(3, 16).half(), "rows that divide K = 64"),
        ("scales", torch.ones(8, 16).half(), "at least 16, got 8"),
        ("scales", torch.ones(2, 8).half(), r"scales: expected shape \[any, 16\]"),
        ("bias", torch.ones(17).half(), r"bias: expected shape \[16\]"),
        ("out", torch.ones(2, 16), "make it with dtype"),
        ("out", torch.ones(1, 16).half().expand(2, 16), "rows apart from each other"),
    ],
)
def test_awq_gemm_refuses(name, value, says):
    layer = Layer.random(64, 16, 32)
    with pytest.raises(ContractError, match=says):
        multiply(**{"x": activations(2, 64), "layer": layer, name: value})


def test_an_odd_number_of_rows_is_refused():
    layer, x = Layer.random(63, 16, 63), activations(2, 63)
    with pytest.raises(ContractError, match="an even number of rows"):
        multiply(x, layer)


def test_out_may_not_overlap_x():
    x = activations(2, 64)
    with pytest.raises(ContractError, match="overlaps x"):
        multiply(x, Layer.random(64, 16, 32), out=x[:, :16])


def test_explain_names_the_faster_layout():
    layer = Layer.random(64, 16, 32)
    args = (packed(layer.codes), packed(layer.zeros), layer.scales)
    text = str(rdna_jit.explain(awq_gemm, activations(1, 64), *args))
    assert "runs awq_decode" in text and "formats.pack_awq once, then gptq_gemm" in text
    text = str(rdna_jit.explain(awq_gemm, activations(53, 64), *args))
    assert "runs dense_tile" in text


def call(M: int, N: int, K: int, group: int, **changes: object) -> Int4Call:
    layout = {"x_stride": K, "w_stride": N // 8, "z_stride": N // 8, "s_stride": N}
    settings = {"shuffled": True, "zeros": "packed", "out_stride": N, **layout, **changes}
    return Int4Call(M, N, K, group, **settings)


@pytest.mark.parametrize("M", [1, 4, 8, 16])
@pytest.mark.parametrize("N, K", [(5120, 5120), (1536, 2560), (384, 384), (8704, 5120), (8, 96)])
@pytest.mark.parametrize("group", [16, 32, 128, None])
def test_choices_are_legal(M, N, K, group):
    group = group if group and K % group == 0 else K
    values, grid, _ = choose(call(M, N, K, group))
    DECODE.source().check(values)
    assert K % values["UNIT"] == 0 and values["WAVES"] <= K // values["UNIT"]
    assert values["WAVES"] * values["M_TILE"] * values["COLS"] * 128 <= 65536
    assert grid[0] * 32 * values["COLS"] >= N
    if N >= 36 * 64:
        assert grid[0] >= 36


def test_units_are_groups_or_part_of_one():
    assert [k_per_unit(4096, g, 128) for g in (16, 32, 64, 128, 256, 4096)] == [128] * 6
    assert k_per_unit(96, 48, 128) == 96 and k_per_unit(36, 18, 128) == 36
    assert k_per_unit(320, 320, 128) == 80 and k_per_unit(10, 10, 128) == 10
    assert k_per_unit(4096, 32, 64) == 64 and k_per_unit(36, 18, 18) == 18
    assert k_per_unit(48, 48, 32) == 24


def spills(code_object: CodeObject) -> tuple[int, int, int]:
    (info,) = code_object.kernels.values()
    found = info.resources
    return found.vgpr_spills, found.sgpr_spills, found.scratch_bytes


def kernel(M: int, N: int, K: int, group: int, **changes: object) -> Kernel:
    return DECODE.specialise(None, **choose(call(M, N, K, group, **changes))[0])


def test_a_second_compiler_takes_the_source(tmp_path):
    made = kernel(8, 2560, 1536, 128)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["gfx1010", "gfx1012"])
def test_chips_without_dot_instructions_take_mixed_fma(arch):
    isa = DECODE.specialise(arch, **choose(call(2, 64, 256, 128))[0]).isa()
    assert ("v_dot2" in isa) == (arch == "gfx1012")
    assert "v_fma_mix_f32" in isa or arch == "gfx1012"


FORMS = [{}, {"has_bias": True}, {"x_align": 2}, {"w_stride": 1 << 30}]


@pytest.mark.slow
@pytest.mark.parametrize("M", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("K, group", [
    (1536, 16), (1536, 32), (1536, 48), (1536, 128), (1536, 1536), (60, 30), (240, 30), (36, 18),
    (22, 22),
])  # fmt: skip
@pytest.mark.parametrize("N", [2560, 5120])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_nothing_spills_in_any_form_and_compiler(M, N, K, group, form, tmp_path):
    made = kernel(M, N, K, group, **form)
    assert spills(CodeObject(made.code_object)) == (0, 0, 0)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


@pytest.mark.parametrize("M, N", [(4, 4616), (8, 2560)])
def test_several_odd_groups_stay_in_registers(M, N):
    assert spills(CodeObject(kernel(M, N, 240, 30).code_object)) == (0, 0, 0)


@pytest.mark.parametrize("M, group", [(1, 128), (8, 128)])
def test_counters_are_within_the_budget(M, group):
    row = measure(2560, 1536, group, M, "V620")
    assert row.valu_per_weight <= BOUNDS[group, M] and row.spills == 0
    assert row.rel_l2 <= 5e-4 and row.max_norm <= 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("N, K", [(4096, 2560), (5120, 5120)])
@pytest.mark.parametrize("group, M", BOUNDS)
def test_counters_of_every_budget(N, K, group, M):
    row = measure(N, K, group, M, "V620")
    assert row.valu_per_weight <= BOUNDS[group, M] and row.spills == 0
    assert row.rel_l2 <= 5e-4
    if M <= 4 and row.touched_mb > 8:
        assert row.time_us <= 1.25 * row.floor_us
