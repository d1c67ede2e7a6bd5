"""The tiled kernels for many rows of x: values over formats and shapes, choices, code objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rdna_jit
from benchmarks.gemv import describe
from benchmarks.gemv import measure as measure_decode
from benchmarks.prefill import FORMS, MOST, SHAPES, measure
from rdna_jit import emulator
from rdna_jit.code_object import CodeObject
from rdna_jit.config import config
from rdna_jit.dispatch import Plan
from rdna_jit.formats import pack_gptq
from rdna_jit.ops import _dense_tile, _gemv
from rdna_jit.ops._dense_gemv import GemvCall, decode_cost
from rdna_jit.ops._dense_int4 import Int4Call
from rdna_jit.ops._dense_tile import (
    INT4_TILE,
    ROWS_TILE,
    choose_int4,
    choose_rows,
    choose_tile,
    launch_tiles,
    plan_int4,
    plan_rows,
    split_of,
)
from rdna_jit.ops.linear import gptq_gemm, w4a16_gemv
from tests.ops.clang import compile_with_clang
from tests.ops.int4_data import Layer, activations, assert_close
from tests.ops.test_linear_plan import LAYERS, call

TILED = ("gptq_gemm:dense_tile", "w4a16_gemv:dense_tile", "awq_gemm:dense_tile")
AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]  # of slots 0..7


@pytest.fixture(autouse=True)
def tiles():
    """Also for the few rows that the decode kernels would serve sooner."""
    with config.scope(force_kernel=TILED):
        yield


# M, N, K, G, shuffled, zeros ("none" or the offset of packed ones), bias
GPTQ = [
    (17, 64, 128, 32, True, 0, False),  # two waves of four have rows
    (33, 136, 96, 32, False, 1, True),  # a second tile of 8 columns
    (64, 128, 256, 128, True, 1, True),
    (70, 264, 320, 320, False, "none", False),  # one group, the last of three column tiles ragged
    (100, 8, 40, 40, True, 0, True),  # the second step has 8 of K
    (129, 40, 2176, 64, False, 1, True),  # K is split, a third row tile of one row
    (40, 24, 8, 8, True, 1, False),
    (65, 128, 192, 96, True, 1, False),  # three steps per group
    (20, 72, 1160, 1160, False, 1, True),  # K is split and ends inside a step
]


@pytest.mark.parametrize("M, N, K, G, shuffled, zeros, bias", GPTQ)
def test_gptq_gemm(M, N, K, G, shuffled, zeros, bias):
    offset = 0 if zeros == "none" else zeros
    low, high = (8, 9) if zeros == "none" else (offset, 16 + offset)
    layer = Layer.random(K, N, G, low=low, high=high)
    x, out = activations(M, K), torch.full((M, N), torch.nan).half()
    args = (x, layer.words(shuffled), None if zeros == "none" else layer.packed_zeros(offset))
    settings = {"zero_offset": offset, "shuffled": shuffled, "bias": layer.bias if bias else None}
    y = gptq_gemm(*args, layer.scales, **settings, out=out)
    assert gptq_gemm.plan(*args, layer.scales, **settings).kernel == "dense_tile"
    assert_close(y, x, layer, bias=bias)


@pytest.mark.parametrize("N, zeros", [(37, True), (130, False)])
def test_w4a16_gemv_serves_every_column_count(N, zeros):
    layer = Layer.random(64, N, 32, low=0 if zeros else 8, high=256 if zeros else 9)
    x = activations(18, 64)
    stored = layer.zeros.to(torch.uint8) if zeros else None
    y = w4a16_gemv(x, layer.words(False), layer.scales, stored, group_size=32, bias=layer.bias)
    assert_close(y, x, layer, bias=True)


@pytest.mark.parametrize("K, G", [(192, 32), (72, 72)])
def test_act_order_gathers_columns_of_x(K, G):
    layer, x = Layer.random(K, 40, G, low=1, high=17), activations(35, K)
    layer.groups = layer.groups[torch.randperm(K, generator=torch.Generator().manual_seed(5))]
    args = (layer.words(False), layer.packed_zeros(1), layer.scales)
    weight = pack_gptq(*args, layer.groups.to(torch.int32), zero_offset=1)
    assert_close(gptq_gemm(x, weight, bias=layer.bias), x, layer, bias=True)


def test_rows_of_views_strided_and_misaligned():
    layer = Layer.random(64, 48, 32, low=1, high=17)
    x = activations(20, 64 + 8)[:, 1:65]

    def inside(t: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(t.shape[0], t.shape[1] + 3, dtype=t.dtype)
        wide[:, 1:-2] = t
        return wide[:, 1:-2]

    out = torch.full((20, 51), torch.nan).half()
    args = (inside(layer.words(True)), inside(layer.packed_zeros(1)), inside(layer.scales))
    y = gptq_gemm(x, *args, zero_offset=1, shuffled=True, out=out[:, 1:49])
    assert_close(y, x, layer)
    assert bool(out[:, [0, 49, 50]].isnan().all())


def test_rows_beyond_four_gigabytes(tmp_path):
    numpy = pytest.importorskip("numpy")
    layer, x = Layer.random(96, 8, 32, low=1, high=17), activations(20, 96)

    def far_rows(t: torch.Tensor, stride: int) -> torch.Tensor:
        """The same rows, `stride` elements apart in a sparse file."""
        file, kind = tmp_path / f"{t.dtype}-{stride}", str(t.dtype).removeprefix("torch.")
        shape = ((t.shape[0] - 1) * stride + t.shape[1],)
        sparse = torch.from_numpy(numpy.memmap(file, dtype=kind, mode="w+", shape=shape))
        return sparse.as_strided(t.shape, (stride, 1)).copy_(t)

    words = far_rows(layer.words(True), (1 << 28) - 8)
    far_x = far_rows(x, (1 << 25) - 8)
    out = far_rows(torch.full((20, 8), torch.nan).half(), 1 << 28)
    args = (far_x, words, layer.packed_zeros(1), layer.scales)
    gptq_gemm(*args, zero_offset=1, shuffled=True, out=out)
    assert gptq_gemm.plan(*args, zero_offset=1, shuffled=True).kernel == "dense_tile"
    assert_close(out, x, layer)


def test_codes_equal_to_the_zero_give_exactly_zero():
    layer = Layer.random(64, 16, 32)
    layer.codes[:] = layer.zeros[:] = 7
    args = (layer.words(True), layer.packed_zeros(1), layer.scales)
    y = gptq_gemm(activations(17, 64) * 1e4, *args, zero_offset=1, shuffled=True)
    assert torch.equal(y, torch.zeros(17, 16).half())


def test_extreme_activations():
    layer = Layer.random(64, 16, 32, low=1, high=17)
    layer.scales *= 2.0**-8
    x = activations(17, 64)
    x[0, ::2], x[0, 1::4] = 65504.0, -65504.0
    x[1] = torch.arange(64) * 2.0**-24  # all subnormal
    args = (layer.words(True), layer.packed_zeros(1), layer.scales)
    assert_close(gptq_gemm(x, *args, zero_offset=1, shuffled=True), x, layer)


@pytest.mark.parametrize("mode", ["chain", "exact", "gfx11"])
def test_every_model_of_dot2_and_no_finding_of_the_checks(mode):
    layer, x = Layer.random(1024, 40, 32, low=1, high=17), activations(17, 1024)
    args = (x, layer.words(True), layer.packed_zeros(1), layer.scales)
    checks = emulator.checks(races=True, uninitialised=True)
    with emulator.modes(dot2=mode, dot2_flush=True), checks:
        assert_close(gptq_gemm(*args, zero_offset=1, shuffled=True), x, layer)
    assert len(gptq_gemm.plan(*args, zero_offset=1, shuffled=True).launches) == 2


def test_runs_repeat_bit_for_bit():
    layer, x = Layer.random(1024, 40, 32, low=1, high=17), activations(19, 1024)
    args = (x, layer.words(True), layer.packed_zeros(1), layer.scales)
    before = [t.clone() for t in args]
    first = gptq_gemm(*args, zero_offset=1, shuffled=True)
    with emulator.modes(descending=True):
        second = gptq_gemm(*args, zero_offset=1, shuffled=True)
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


# AWQ's words


def awq_words(values: torch.Tensor) -> torch.Tensor:
    """int32 `[rows, N/8]` of codes `[rows, N]`."""
    packed = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for slot, column in enumerate(AWQ_COLUMNS):
        packed |= values[:, column::8].long() << (4 * slot)
    return packed.to(torch.int32)


@pytest.mark.parametrize("M, N, K, G, zeros, bias", [
    (64, 128, 128, 32, True, False),
    (33, 136, 96, 96, True, True),
    (20, 24, 72, 72, False, False),  # the last step has 8 of K
    (16, 64, 1024, 128, True, True),  # four pairs of rows per thread
])  # fmt: skip
def test_awq_words(M, N, K, G, zeros, bias):
    layer = Layer.random(K, N, G, low=0 if zeros else 8, high=16 if zeros else 9)
    x, out = activations(M, K), torch.full((M, N), torch.nan).half()
    described = call(
        M, N, K, G, zeros="packed" if zeros else "none", w_stride=N // 8, has_bias=bias, out_align=8
    )
    plan = plan_int4("awq", described, awq=True)
    operands = (x, awq_words(layer.codes), awq_words(layer.zeros) if zeros else None, layer.scales)
    with emulator.checks(races=True, uninitialised=True):
        launch_tiles(plan, (*operands, None), layer.bias if bias else None, out)
    assert_close(out, x, layer, bias=bias)


# Formats of rows along K

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def stored(fmt: str, rows: int, K: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A random matrix of every code, as stored and in float64; of e5m2 numbers above 2^-14, since
    dot2 may flush what is below."""
    if fmt == "f16":
        w = (0.05 * torch.randn(rows, K, generator=g)).half()
        return w, w.double()
    codes = torch.randint(0, 256, (rows, K if fmt != "mxfp4" else K // 2), generator=g)
    codes = codes.to(torch.uint8)
    if fmt == "i8":
        return codes.view(torch.int8), codes.view(torch.int8).double()
    if fmt == "mxfp4":
        table = torch.cat([E2M1, -E2M1])
        return codes, table[torch.stack([codes & 15, codes >> 4], 2).long()].reshape(rows, K)
    if fmt == "e5m2":
        codes = torch.randint(0x10, 0x50, (rows, K), generator=g).to(torch.uint8)
        codes |= torch.randint(0, 2, (rows, K), generator=g).to(torch.uint8) << 7
    values = codes.view(FP8[fmt]).double()
    codes[~values.isfinite()] = 0
    return codes, codes.view(FP8[fmt]).double()


def random_scales(kind: str, rows: int, groups: int, g: torch.Generator) -> torch.Tensor:
    if kind == "e8m0":
        return torch.randint(118, 130, (rows, groups), generator=g).to(torch.uint8)
    scale = (0.5 + torch.rand(rows, groups, generator=g)) / 64
    return scale.half() if kind == "f16" else scale


def spread(scale: torch.Tensor, rows: int, columns: int, N: int, K: int) -> torch.Tensor:
    """float64 `[N, K]` of scales for blocks of rows x columns."""
    values = scale.double() if scale.dtype != torch.uint8 else 2.0 ** (scale.double() - 127)
    return values.repeat_interleave(rows, 0)[:N].repeat_interleave(columns, 1)[:, :K]


# M, N, K, format, scales (kind, rows under one, K under one; 0: all), x's format, x's scales, bias
ROWS = [
    (33, 136, 96, "f16", None, "f16", None, True),
    (20, 130, 40, "f16", None, "f16", None, False),  # the last step has 8 of K
    (64, 128, 64, "i8", ("f16", 1, 0), "f16", None, False),
    (70, 130, 256, "i8", ("f32", 1, 64), "f16", None, True),
    (64, 128, 256, "e4m3", ("f32", 128, 128), "f16", None, False),
    (20, 200, 200, "e4m3", ("f16", 64, 128), "f16", None, True),  # ragged blocks, 16-byte rows not
    (65, 72, 128, "e5m2", ("f32", 1 << 20, 0), "f16", None, False),  # one scale for all
    (64, 128, 128, "mxfp4", ("e8m0", 1, 32), "f16", None, False),
    (17, 37, 1056, "mxfp4", ("e8m0", 1, 32), "f16", None, True),  # K is split
    (40, 128, 256, "e4m3", ("f32", 128, 128), "e4m3", "group", True),
    (21, 128, 256, "e4m3", ("f32", 128, 128), "e4m3", "row", False),
    (66, 128, 136, "e4m3", ("f32", 1, 0), "e5m2", "tensor", False),
    (24, 128, 1024, "e4m3", ("f32", 1, 0), "e4m3", "group", False),  # groups of x alone
]


def run_rows(case: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor, Plan]:
    """Result, float64 reference and plan of a case of ROWS."""
    M, N, K, fmt, scales, x_format, x_scales, bias = case
    g = torch.Generator().manual_seed(M * K)
    w, exact = stored(fmt, N, K, g)
    x, x_exact = (activations(M, K), None) if x_format == "f16" else stored(x_format, M, K, g)
    x_exact = x.double() if x_exact is None else x_exact
    settings: dict[str, Any] = {}
    scale = x_scale = None
    if scales is not None:
        kind, rows, group = scales
        scale = random_scales(kind, -(-N // rows), -(-K // (group or K)), g)
        exact = exact * spread(scale, rows, group or K, N, K)
        settings = {
            "scale_bytes": scale.element_size(), "scale_rows": rows, "group": group,
            "scale_groups": group > 0, "scale_stride": scale.shape[1],
        }  # fmt: skip
    if x_scales is not None:
        group = 128 if x_scales == "group" else K
        x_scale = random_scales("f32", 1 if x_scales == "tensor" else M, -(-K // group), g)
        x_exact = x_exact * spread(x_scale, M if x_scales == "tensor" else 1, group, M, K)
        settings |= {"x_scales": True, "x_scale_groups": x_scales == "group"}
        settings |= {"x_scale_stride": 0 if x_scales == "tensor" else x_scale.shape[1]}
        settings["group"] = settings["group"] or group % K
    add = torch.randn(N, generator=g).half() if bias else None
    described = GemvCall(
        M=M, N=N, K=K, format=fmt, x_format=x_format, has_bias=bias, x_stride=K,
        w_stride=w.shape[1], out_stride=N, **settings,
        x_align=min(16, x.element_size() * (K & -K)), w_align=min(16, w.element_size() * (K & -K)),
    )  # fmt: skip
    plan = plan_rows("test", described)
    out = torch.full((M, N), torch.nan).half()
    launch_tiles(plan, (x, w, scale, x_scale), add, out)
    return out, x_exact @ exact.T + (add.double() if bias else 0), plan


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_formats_of_rows(case):
    with emulator.checks(races=True, uninitialised=True):
        y, want, plan = run_rows(case)
    assert plan.kernel == "dense_tile_rows"
    error = (y.double() - want).abs()
    assert error.norm() <= 3e-4 * want.norm()
    assert error.max() <= 1e-3 * want.abs().max()


@pytest.mark.parametrize("mode", ["chain", "exact", "gfx11"])
@pytest.mark.parametrize("case", [ROWS[3], ROWS[4], ROWS[7]], ids=str)
def test_formats_of_rows_under_every_model_of_dot2(case, mode):
    with emulator.modes(dot2=mode, dot2_flush=True, descending=mode == "exact"):
        y, want, _ = run_rows(case)
    assert (y.double() - want).norm() <= 3e-4 * want.norm()


def test_row_formats_repeat_bit_for_bit():
    for case in (ROWS[8], ROWS[9]):
        first, _, _ = run_rows(case)
        with emulator.modes(descending=True):
            second, _, _ = run_rows(case)
        assert torch.equal(first.view(torch.int16), second.view(torch.int16))


def test_a_weight_that_is_no_number_stays_in_its_column():
    w = torch.zeros(64, 40).half()
    w[3, 35], w[7, 2] = torch.nan, torch.inf
    x = torch.ones(20, 40).half()
    described = GemvCall(M=20, N=64, K=40, format="f16", x_stride=40, w_stride=40, out_stride=64)
    out = torch.empty(20, 64).half()
    launch_tiles(plan_rows("test", described), (x, w, None, None), None, out)
    want = torch.zeros(20, 64).half()
    want[:, 3], want[:, 7] = torch.nan, torch.inf
    assert torch.equal(out.isnan(), want.isnan()) and torch.equal(
        out.nan_to_num(), want.nan_to_num()
    )


def one_row_of_weights(codes: torch.Tensor, fmt: str, **settings: Any) -> torch.Tensor:
    """Every code times 1, one by one: the kernel's value of each."""
    N, K = codes.numel(), 32
    w = torch.zeros(N, K, dtype=torch.uint8)
    w[:, 0] = codes
    x = torch.zeros(17, K).half()
    x[:, 0] = 1
    described = GemvCall(
        M=17, N=N, K=K, format=fmt, x_stride=K, w_stride=K, out_stride=N, **settings
    )
    out = torch.empty(17, N).half()
    launch_tiles(plan_rows("test", described), (x, w, None, None), None, out)
    assert torch.equal(out[0].view(torch.int16), out[16].view(torch.int16))
    return out[0]


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_every_fp8_code_is_exact(fmt):
    codes = torch.arange(256).to(torch.uint8)
    got = one_row_of_weights(codes, fmt, nan_codes=fmt == "e4m3")
    want = codes.view(FP8[fmt]).to(torch.float16)
    same = (got == want) | (got.isnan() & want.isnan())
    assert bool(same.all()), codes[~same]
    if fmt == "e4m3":
        plain = one_row_of_weights(codes, fmt)
        assert plain[0x7F] == 480 and plain[0xFF] == -480


def test_every_e8m0_scale_counts_as_it_is():
    K, N = 32, 255
    w = torch.full((N, K // 2), 0x22, dtype=torch.uint8)  # ones
    scale = torch.arange(N).to(torch.uint8)[:, None]
    exponents = torch.arange(N).double() - 127
    for x_value, shown in ((2.0**-10, slice(127, 137)), (1024.0, slice(93, 132))):
        x = torch.zeros(17, K).half()
        x[:, 3] = x_value
        described = GemvCall(
            M=17, N=N, K=K, format="mxfp4", group=32, scale_bytes=1, scale_groups=True,
            scale_stride=1, x_stride=K, w_stride=K // 2, out_stride=N,
        )  # fmt: skip
        out = torch.empty(17, N).half()
        launch_tiles(plan_rows("test", described), (x, w, scale, None), None, out)
        want = (x_value * 2.0**exponents).half()
        assert torch.equal(out[5], want)
        assert bool((want[shown] != 0).all()) and bool(want[shown].isfinite().all())


# Choices


@pytest.mark.parametrize("N, K", LAYERS)
@pytest.mark.parametrize("M", [17, 33, 64, 200, 4096, 70000])
@pytest.mark.parametrize("group", [32, 128, None])
def test_choices_are_legal_and_cover_k(M, N, K, group):
    group = group if group and K % group == 0 else K
    values, split = choose_int4(call(M, N, K, group))
    INT4_TILE.source().check(values)
    steps = -(-K // 32)
    assert (split.splits - 1) * split.slice < steps <= split.splits * split.slice
    plan = plan_int4("test", call(M, N, K, group))
    grid = plan.launches[0].grid
    assert grid[0] * values["ROWS"] >= M and grid[1] * 128 >= N and max(grid[1:]) <= 65535
    if split.splits > 1:
        assert plan.launches[1].grid[0] == M
        parts = split.splits * M * values["OUT_STRIDE"] * 4
        assert parts <= 64 << 20 or parts <= 12 * M * N, "partial sums stay small"


@pytest.mark.parametrize("N, K", [(2560, 1536), (4096, 2560), (5120, 5120), (5120, 17408)])
def test_few_tiles_share_k_to_use_every_processor(N, K):
    split = split_of(64, N, K, 4, 64)
    tiles = -(-N // 128)
    assert split.splits > 1 and tiles * split.splits >= 56
    assert split.slice % 4 == 0, "no group is cut"
    assert split_of(4096, N, K, 4, 64).splits == 1


# The kernel that the model finds faster, where the two differ by more than a tenth: the form, N, K,
# and rows that the decode kernel serves and that the tile does.
FASTER = [
    ("int4", 2560, 1536, (17, 32, 48), (64, 256)),
    ("int4", 4096, 2560, (16, 17, 32), (64,)),
    ("int4", 5120, 17408, (8, 16), (32, 48, 64)),
    ("f16", 4096, 2560, (16, 17, 32), (64,)),
    ("f16", 62080, 2560, (16, 32), (33, 64)),  # more than the last cache holds, read for each 16
    ("i8", 4096, 2560, (16, 17), (64,)),
    ("e4m3 128^2", 4096, 2560, (8, 16), (48, 64)),
    ("w8a8", 2560, 1536, (8, 9), (17, 32)),
    ("w8a8 128^2", 4096, 2560, (1, 8), (9, 16, 17, 32)),
    ("mxfp4", 4096, 2560, (16,), (64,)),
]


@pytest.mark.parametrize("form, N, K, few, many", FASTER)
def test_the_kernel_that_ends_first_is_taken(form, N, K, few, many):
    with config.scope(force_kernel=()):
        for M in (*few, *many):
            if form == "int4":
                described = call(M, N, K, 128)
                tile = M > 16 and _dense_tile.beats_decode(described)[0]
            else:
                chosen, _ = _gemv._choose_kernel("fp8_w8a16_gemm", describe(form, N, K, M))
                tile = chosen == "dense_tile_rows"
            assert tile == (M in many), M


@pytest.mark.slow
@pytest.mark.parametrize("form, M", [("e4m3 128^2", 32), ("w8a8 128^2", 16), ("f16", 32)])
def test_estimates_are_near_the_model(form, M):
    """Both within a quarter of what the emulator's model says of the launches."""
    N, K = 4096, 2560
    described = describe(form, N, K, M)
    decoded, tiled = (
        decode_cost(described) / 2400,
        _dense_tile.rows_tile(described)[1].clocks / 2400,
    )
    assert decoded == pytest.approx(measure_decode(form, N, K, M, "V620").time_us, rel=0.25)
    row = measure(form, N, K, M, "V620")
    assert tiled == pytest.approx(row.time_us + 2.8 * (row.splits > 1), rel=0.25)


def test_the_decode_kernel_serves_up_to_sixteen_rows():
    layer = Layer.random(64, 16, 32, low=1, high=17)
    args = (layer.words(True), layer.packed_zeros(1), layer.scales)

    def why(M: int) -> str:
        x = activations(M, 64)
        return str(rdna_jit.explain(gptq_gemm, x, *args, zero_offset=1, shuffled=True))

    with config.scope(force_kernel=()):
        assert "runs w4a16_decode" in why(16) and "runs dense_tile" in why(49)
        text = why(49)
    assert "not taken w4a16_decode: " in text and " us for 49 rows by the estimate, as " in text


def test_rows_too_far_apart_for_the_tile_run_in_chunks():
    for changes in ({"x_stride": 1 << 25}, {"w_stride": 1 << 28}):
        taken, candidates = _dense_tile.beats_decode(call(20, 64, 256, 128, **changes))
        assert not taken
        reasons = {c.kernel: c.reason for c in candidates}
        assert reasons["dense_tile"] == "rows are too far apart for 32-bit offsets"


def test_what_the_row_format_tile_refuses():
    good = GemvCall(M=64, N=64, K=256, format="e4m3", x_stride=256, w_stride=256, out_stride=64)
    assert _dense_tile.refuses_rows(good) == ""
    for changes, says in (
        ({"group": 48, "scale_groups": True}, "groups of 48 along K are no multiple of 32"),
        ({"w_stride": 1 << 26}, "too far apart"),
        ({"x_stride": 1 << 25}, "too far apart"),
        ({"scale_bytes": 4, "scale_stride": 1 << 24}, "too far apart"),
    ):
        bad = GemvCall(**{**good.__dict__, **changes})
        assert says in _dense_tile.refuses_rows(bad)


def test_a_layer_needs_few_kernels_for_all_numbers_of_rows():
    tiles, sums = set(), set()
    for M in range(17, 3000, 13):
        launches = plan_int4("test", call(M, 5120, 5120, 128)).launches
        tiles.add(launches[0].kernel)
        sums |= {launch.kernel for launch in launches[1:]}
    assert len(tiles) <= 4 and len(sums) <= 8


def test_small_tiles_where_they_balance_the_processors():
    rows, split = choose_tile(256, 2560, 1536, 4)
    assert rows == 32 and split.splits == 1  # 160 workgroups on 36 processors; of 64 rows 80
    assert choose_tile(2048, 5120, 5120, 4)[0] == 64
    assert [choose_tile(M, 2560, 1536, 4)[0] for M in (16, 17, 32)] == [16, 32, 32]


# Code objects


def test_counters_are_within_the_budget():
    row = measure("int4", 2560, 1536, 64, "V620")
    assert row.valu_per_mac <= MOST["int4"] and row.spills == 0
    assert row.bound_by == "valu" and row.rel_l2 <= 3e-4


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("N, K", SHAPES)
@pytest.mark.parametrize("M", [64, 256])
def test_counters_of_every_form(N, K, M, form):
    row = measure(form, N, K, M, "V620", columns=512)
    assert row.valu_per_mac <= MOST[form] and row.spills == 0
    assert row.rel_l2 <= 3e-4


INT4_FORMS: list[dict[str, Any]] = [
    {},
    {"shuffled": False, "zeros": "bytes", "has_bias": True},
    {"zeros": "none", "x_align": 2},
    {"has_perm": True},
    {"awq": True},
]
ROW_FORMS: list[dict[str, Any]] = [
    {"format": "f16"},
    {"format": "i8", "scale_bytes": 2},
    {"format": "i8", "scale_bytes": 4, "group": 128, "scale_groups": True},
    {"format": "e4m3", "scale_bytes": 4, "group": 128, "scale_groups": True, "scale_rows": 128},
    {"format": "e4m3", "scale_bytes": 4, "nan_codes": True, "w_align": 1},
    {"format": "e5m2", "scale_bytes": 4},
    {"format": "mxfp4", "scale_bytes": 1, "group": 32, "scale_groups": True},
    {"format": "e4m3", "scale_bytes": 4, "group": 128, "scale_groups": True, "scale_rows": 128,
     "x_format": "e4m3", "x_scales": True, "x_scale_groups": True, "x_scale_stride": 12},
]  # fmt: skip


def int4_kernel(M: int, N: int, K: int, group: int, *, awq: bool = False, **form: Any) -> Any:
    described: Int4Call = call(M, N, K, group, **form)
    return INT4_TILE.specialise(None, **choose_int4(described, awq)[0])


def rows_kernel(M: int, N: int, K: int, **form: Any) -> Any:
    stride = K // 2 if form["format"] == "mxfp4" else K
    described = GemvCall(
        M=M, N=N, K=K, x_stride=K, w_stride=stride, out_stride=N,
        **{"scale_stride": 1 if not form.get("scale_groups") else K // form["group"], **form},
    )  # fmt: skip
    return ROWS_TILE.specialise(None, **choose_rows(described, 8)[0])


def check_resources(code_object: CodeObject, most_vgprs: int) -> None:
    (info,) = code_object.kernels.values()
    found = info.resources
    assert (found.vgpr_spills, found.sgpr_spills, found.scratch_bytes) == (0, 0, 0)
    assert found.vgprs <= most_vgprs


@pytest.mark.parametrize("group", [32, 128])
def test_the_int4_tile_in_both_compilers(group, tmp_path):
    kernel = int4_kernel(64, 2560, 1536, group)
    check_resources(CodeObject(kernel.code_object), 128)
    check_resources(compile_with_clang(kernel, tmp_path), 128)
    assert "s_swappc" not in kernel.isa()


@pytest.mark.slow
@pytest.mark.parametrize("form", INT4_FORMS, ids=str)
@pytest.mark.parametrize("M", [16, 32, 256])
@pytest.mark.parametrize("N, K, group", [
    (2560, 1536, 32), (2560, 1536, 128), (2560, 1536, 1536), (136, 1192, 1192), (2560, 96, 96),
])  # fmt: skip
def test_nothing_spills_in_any_form_and_compiler(M, N, K, group, form, tmp_path):
    kernel = int4_kernel(M, N, K, group, **form)
    check_resources(CodeObject(kernel.code_object), 176)
    check_resources(compile_with_clang(kernel, tmp_path), 176)


@pytest.mark.slow
@pytest.mark.parametrize("form", ROW_FORMS, ids=str)
@pytest.mark.parametrize("M", [16, 32, 256])
@pytest.mark.parametrize("N, K", [(2560, 1536), (136, 1536)])
def test_no_row_format_spills(M, N, K, form, tmp_path):
    kernel = rows_kernel(M, N, K, **form)
    check_resources(CodeObject(kernel.code_object), 144)
    check_resources(compile_with_clang(kernel, tmp_path), 144)


@pytest.mark.parametrize("arch", ["gfx1010", "gfx1012"])
def test_chips_without_dot_instructions_take_mixed_fma(arch):
    values, _ = choose_int4(call(64, 128, 256, 128))
    isa = INT4_TILE.specialise(arch, **values).isa()
    assert ("v_dot2" in isa) == (arch == "gfx1012")
