"""Values of the fp8, MXFP4 and grouped int8 ops against float64: formats, scales, views, faults of
other kernels by name."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from rdna_jit import emulator, formats
from rdna_jit.ops.linear import (
    dense_gemm_int8,
    fp8_w8a8_gemm,
    fp8_w8a16_gemm,
    gemv_i8,
    mxfp4_gemm,
)
from tests.ops.test_gemv_values import assert_close, inside, poisoned, random

Tensor = torch.Tensor
WIDE = torch.float64
slow = pytest.mark.slow


def fp8(N: int, K: int, fmt: str = "e4m3") -> Tensor:
    """Every finite code, in torch's float8 type."""
    g = torch.Generator().manual_seed(N * 3 + K)
    codes = torch.randint(0, 256, (N, K), generator=g, dtype=torch.uint8)
    magnitude = (codes & 127).clamp(max=126 if fmt == "e4m3" else 123)
    return ((codes & 128) | magnitude).view(formats.fp8.DTYPES[fmt])


def positive(*shape: int, by: float = 2.0**-10) -> Tensor:
    """fp32 scales, no two the same."""
    g = torch.Generator().manual_seed(sum(shape))
    return by * (0.5 + torch.rand(shape, generator=g))


def mxfp4(N: int, K: int, low: int = 110, high: int = 128) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(N + K)
    codes = torch.randint(0, 256, (N, K // 2), generator=g, dtype=torch.uint8)
    return codes, torch.randint(low, high, (N, K // 32), generator=g, dtype=torch.uint8)


# Kinds of scales: of the tensor, of the channel, or a block (rows, columns).
W8A16 = [
    (1, 2310, 144, "e4m3", "tensor"),
    (2, 300, 1040, "e5m2", "channel"),
    (3, 1200, 200, "e4m3", (128, 128)),  # partial blocks, 8-byte loads
    (8, 72, 256, "e4m3", (8, 128)),
    (5, 41, 520, "e5m2", (1, 40)),  # groups that lanes do not share
    pytest.param(4, 1200, 512, "e4m3", (128, 128), marks=slow),  # one scalar load per chunk
    pytest.param(16, 1153, 136, "e4m3", (3, 24), marks=slow),
    pytest.param(9, 577, 1032, "e5m2", (5, 64), marks=slow),
    pytest.param(16, 640, 2048, "e4m3", (64, 1024), marks=slow),  # groups of several steps
]


def kinds(scale: object, N: int, K: int) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Shape of the scales, and the block that the op is told."""
    if isinstance(scale, tuple):
        return (-(-N // scale[0]), -(-K // scale[1])), scale
    return ((1,) if scale == "tensor" else (N,)), None


@pytest.mark.parametrize("M, N, K, fmt, kind", W8A16)
def test_fp8_w8a16(M, N, K, fmt, kind):
    x, w, bias = random(M, K, by=2.0**-4), fp8(N, K, fmt), random(N, seed=3)
    shape, block = kinds(kind, N, K)
    scale = positive(*shape, by=2.0**-10 if fmt == "e4m3" else 2.0**-17)
    out = poisoned(M, N)
    assert fp8_w8a16_gemm(x, w, scale, block=block, bias=bias, out=out) is out
    exact = formats.dequantize_fp8(w, scale, block, dtype=WIDE)
    assert_close(out, x, exact, bias)


W8A8 = [
    (1, 300, 144, "tensor", "tensor"),
    (3, 72, 256, "channel", "token"),
    (2, 1200, 200, (128, 128), 128),
    (4, 41, 240, "channel", 40),  # groups of x alone
    pytest.param(9, 1200, 512, (128, 128), 128, marks=slow),
    pytest.param(16, 70, 384, (3, 24), 24, marks=slow),
    pytest.param(8, 1153, 136, (16, 64), "token", marks=slow),
]


@pytest.mark.parametrize("M, N, K, kind, x_kind", W8A8)
def test_fp8_w8a8(M, N, K, kind, x_kind):
    x, w = fp8(M, K, "e5m2" if M == 3 else "e4m3"), fp8(N, K)
    shape, block = kinds(kind, N, K)
    scale = positive(*shape)
    groups = (M, -(-K // x_kind)) if isinstance(x_kind, int) else (M if x_kind == "token" else 1,)
    x_scale = positive(*groups, by=2.0**-3 if M != 3 else 2.0**-9)
    x_block = (1, x_kind) if isinstance(x_kind, int) else None
    exact = formats.dequantize_fp8(x, x_scale, x_block, dtype=WIDE)
    out = poisoned(M, N)
    assert fp8_w8a8_gemm(x, x_scale, w, scale, block=block, out=out) is out
    assert_close(out, exact, formats.dequantize_fp8(w, scale, block, dtype=WIDE))


MXFP4 = [
    (1, 2310, 160),
    (3, 41, 32),
    (2, 300, 1056),
    pytest.param(8, 1153, 512, marks=slow),
    pytest.param(16, 577, 288, marks=slow),
]


@pytest.mark.parametrize("M, N, K", MXFP4)
def test_mxfp4(M, N, K):
    x, (w, scale), bias = random(M, K), mxfp4(N, K), random(N, seed=3)
    out = poisoned(M, N)
    assert mxfp4_gemm(x, w, scale, bias=bias, out=out) is out
    assert_close(out, x, formats.dequantize_mxfp4(w, scale, WIDE), bias)


@pytest.mark.parametrize("M, G, dtype", [(1, 128, torch.float16), (3, 8, torch.float32)])
def test_int8_with_a_scale_per_group(M, G, dtype):
    x, w = random(M, 384), random(300, 384, seed=1, by=0.05)
    codes, scale = formats.quantize_int8(w, G, scale_dtype=dtype)
    exact = formats.dequantize_i8(codes, scale, dtype=WIDE)
    assert_close(gemv_i8(x, codes, scale), x, exact)
    assert torch.equal(dense_gemm_int8(x, w[:0], codes, scale), gemv_i8(x, codes, scale))
    many = random(20, 384)
    y = dense_gemm_int8(many, w[:0], codes, scale)
    want = many.double() @ exact.T
    assert (y.double() - want).norm() <= 5e-4 * want.norm()


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_every_fp8_code_is_exact_with_the_binade_of_256_and_subnormals(fmt):
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 127) > (0x7E if fmt == "e4m3" else 0x7B)] = 0
    w = codes.reshape(16, 16)
    want = formats.decode_fp8(w, fmt)
    x = torch.eye(16).half()
    for mode in ({}, {"dot2": "exact", "dot2_flush": True}):
        with emulator.modes(**mode):
            y = fp8_w8a16_gemm(x, w, torch.ones(1), fmt=fmt)
        assert torch.equal(y, want.T)
    if fmt == "e4m3":  # as activations too
        ones = torch.ones(16, 16).mul(torch.eye(16)).to(torch.float8_e4m3fn)
        y = fp8_w8a8_gemm(w.view(torch.float8_e4m3fn), torch.ones(1), ones, torch.ones(1))
        assert torch.equal(y, want)


@pytest.mark.parametrize("M", [1, pytest.param(53, marks=slow)])  # 53: in the tiles
def test_nan_codes_of_weights_count_as_480_unless_they_are_kept(M):
    x, w = torch.ones(M, 64).half(), torch.zeros(20, 64, dtype=torch.uint8)
    w[3, 5], w[7, 60] = 0x7F, 0xFF
    one = torch.ones(1)
    y = fp8_w8a16_gemm(x, w, one, fmt="e4m3")
    assert y[0, 3] == 480 and y[0, 7] == -480 and y.count_nonzero() == 2 * M
    kept = fp8_w8a16_gemm(x, w, one, fmt="e4m3", propagate_nan=True)
    assert kept.isnan().nonzero().tolist() == [[m, n] for m in range(M) for n in (3, 7)]
    infinite = torch.zeros(20, 64, dtype=torch.uint8)
    infinite[2, 1], infinite[4, 2] = 0x7C, 0x7E
    y = fp8_w8a16_gemm(x, infinite, one, fmt="e5m2")
    assert y[0, 2].isinf() and y[0, 4].isnan()


@pytest.mark.parametrize("M", [3, pytest.param(53, marks=slow)])
def test_nan_activations_stay_nan_in_their_row(M):
    x = torch.full((M, 64), 0x38, dtype=torch.uint8)
    x[1, 9] = 0xFF
    ones = torch.ones(20, 64).to(torch.float8_e4m3fn)
    y = fp8_w8a8_gemm(x, torch.ones(1), ones, torch.ones(1), fmt="e4m3")
    assert bool(y[1].isnan().all()) and torch.equal(y[[0, 2]], torch.full((2, 20), 64.0).half())


def test_large_activation_scales_do_not_overflow_on_the_way():
    x = torch.full((2, 64), 448.0).to(torch.float8_e4m3fn)  # times 1000: beyond fp16
    w = torch.full((20, 64), 2.0).to(torch.float8_e4m3fn)
    y = fp8_w8a8_gemm(x, torch.tensor([1000.0, 1e-7]), w, torch.full((20,), 1e-4))
    want = 64 * 448 * 2 * 1e-4 * torch.tensor([[1000.0], [1e-7]], dtype=WIDE)
    assert torch.allclose(y.double(), want.expand(2, 20), rtol=2.0**-10, atol=2.0**-24)


def test_channel_scales_beside_groups_are_read_per_row():
    """A kernel that steps through groups must not step through scales that have none; reads beyond
    them are found by the emulator."""
    x, w = fp8(2, 256), fp8(40, 256)
    x_scale, scale = positive(2, 2), positive(40, 1)
    y = fp8_w8a8_gemm(x, x_scale, w, scale, block=None)
    exact = formats.dequantize_fp8(x, x_scale, (1, 128), dtype=WIDE)
    assert_close(y, exact, formats.dequantize_fp8(w, scale, dtype=WIDE))


def test_mxfp4_scales_differ_per_column_and_block_from_the_smallest_to_the_largest():
    scale = torch.tensor([1, 90, 127, 140, 200, 254, 0, 113], dtype=torch.uint8)
    codes = torch.full((8, 64), 0x77, dtype=torch.uint8)  # 6 everywhere
    for big in (1.0, 65504.0):
        x = torch.zeros(4, 128).half()
        for block in range(4):  # one block at a time
            x[block, 32 * block : 32 * block + 32] = big
        w_scale = torch.stack([scale.roll(n)[:4] for n in range(8)])
        y = mxfp4_gemm(x, codes, w_scale)
        want = 32 * 6 * big * torch.exp2(w_scale.double().T - 127)
        assert torch.equal(y, want.half())


def test_mxfp4_codes_3_4_and_6_decode_right():
    codes = (torch.arange(16) | torch.arange(16) << 4).to(torch.uint8)[:, None].repeat(1, 16)
    x = torch.zeros(1, 32).half()
    x[0, 7] = 1
    y = mxfp4_gemm(x, codes, torch.full((16, 1), 127, dtype=torch.uint8))
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert y[0].tolist() == [*values, *(-v for v in values)]


@pytest.mark.parametrize("shift", [1, pytest.param(4, marks=slow)])
def test_misaligned_rows_and_strided_results(shift):
    out = poisoned(3, 47)
    x, w, scale = random(3, 64), fp8(41, 64), positive(41)
    wide = inside(w.view(torch.uint8), shift)
    y = fp8_w8a16_gemm(inside(x, shift), wide, scale, fmt="e4m3", out=out[:, 2:43])
    assert_close(y, x, formats.dequantize_fp8(w, scale, dtype=WIDE))
    assert bool(out[:, [0, 1, 43, 44, 45, 46]].isnan().all())
    codes, stored = mxfp4(41, 64)
    y = mxfp4_gemm(inside(x, shift), inside(codes, shift), inside(stored, shift))
    assert_close(y, x, formats.dequantize_mxfp4(codes, stored, WIDE))
    q = fp8(3, 64)
    strided = inside(positive(3, 2), 1)
    y = fp8_w8a8_gemm(
        inside(q.view(torch.uint8), shift), strided, w, positive(3, 2), fmt="e4m3", block=(16, 32)
    )
    exact = formats.dequantize_fp8(q, strided, (1, 32), dtype=WIDE)
    assert_close(y, exact, formats.dequantize_fp8(w, positive(3, 2), (16, 32), dtype=WIDE))


def test_scales_may_be_columns_of_a_wider_matrix_fp16_or_one_number():
    x, w = random(2, 64), fp8(41, 64)
    column = positive(41, 5)[:, 2:3]
    assert_close(fp8_w8a16_gemm(x, w, column), x, formats.dequantize_fp8(w, column, dtype=WIDE))
    for scale in (positive(41).half(), torch.tensor(0.01), torch.full((1, 1), 0.01)):
        exact = formats.dequantize_fp8(w, scale, dtype=WIDE)
        assert_close(fp8_w8a16_gemm(x, w, scale), x, exact)


@pytest.mark.parametrize("mode", ["gfx11", pytest.param("exact", marks=slow)])
def test_every_model_of_dot2_and_no_finding_of_the_checks(mode):
    checks = emulator.checks(races=True, uninitialised=True)
    with emulator.modes(dot2=mode, dot2_flush=True), checks:
        x, w, scale = random(3, 528), fp8(301, 528), positive(3, 5)
        y = fp8_w8a16_gemm(x, w, scale, block=(128, 128))
        assert_close(y, x, formats.dequantize_fp8(w, scale, (128, 128), dtype=WIDE))
        x, (w, scale) = random(3, 544), mxfp4(301, 544)
        y = mxfp4_gemm(x, w, scale)
        assert_close(y, x, formats.dequantize_mxfp4(w, scale, WIDE))


def test_runs_repeat_bit_for_bit_and_rows_have_the_bits_that_they_have_alone():
    x, w, scale = random(4, 1040), fp8(1200, 1040), positive(10, 9)
    first = fp8_w8a16_gemm(x, w, scale, block=(128, 128))
    with emulator.modes(descending=True):
        again = fp8_w8a16_gemm(x, w, scale, block=(128, 128))
    assert torch.equal(first, again)
    assert torch.equal(fp8_w8a16_gemm(x[3:], w, scale, block=(128, 128)), first[3:])
    x, (w, scale) = random(4, 512), mxfp4(1200, 512)
    assert torch.equal(mxfp4_gemm(x, w, scale)[3:], mxfp4_gemm(x[3:], w, scale))


def test_more_rows_run_in_tiles_or_in_chunks():
    M, N, K = 53, 150, 256
    x, w, scale = random(M, K), fp8(N, K), positive(2, 2)
    rdna_jit.dispatch_log(clear=True)
    y = fp8_w8a16_gemm(x, w, scale, block=(128, 128))
    assert_close(y, x, formats.dequantize_fp8(w, scale, (128, 128), dtype=WIDE))
    narrow = positive(2, 11)  # groups of 24, which the tiles do not take
    y = fp8_w8a16_gemm(x, w, narrow, block=(128, 24))
    assert_close(y, x, formats.dequantize_fp8(w, narrow, (128, 24), dtype=WIDE))
    codes, stored = mxfp4(N, K)
    assert_close(mxfp4_gemm(x, codes, stored), x, formats.dequantize_mxfp4(codes, stored, WIDE))
    q, q_scale = fp8(M, K), positive(M, 2)
    y = fp8_w8a8_gemm(q, q_scale, w, scale, block=(128, 128))
    exact = formats.dequantize_fp8(q, q_scale, (1, 128), dtype=WIDE)
    assert_close(y, exact, formats.dequantize_fp8(w, scale, (128, 128), dtype=WIDE))
    kernels = [dispatch.kernel for dispatch in rdna_jit.dispatch_log()]
    tile = "dense_tile_rows"
    assert kernels == [tile, "gemv_fp8", tile, tile]


def test_empty_batch_no_columns_and_torch_ops():
    w, scale = fp8(9, 64), positive(9)
    assert fp8_w8a16_gemm(random(0, 64), w, scale).shape == (0, 9)
    for x_scale in (torch.ones(1), torch.ones(0), torch.ones(0, 1)):
        assert fp8_w8a8_gemm(fp8(0, 64), x_scale, w, scale).shape == (0, 9)
    assert mxfp4_gemm(random(2, 64), *mxfp4(0, 64)).shape == (2, 0)
    x, q = random(2, 64), fp8(2, 64)
    ops = torch.ops.rdna_jit
    for op, function, args in (
        (ops.fp8_w8a16_gemm, fp8_w8a16_gemm, (x, w, scale)),
        (ops.fp8_w8a8_gemm, fp8_w8a8_gemm, (q, torch.ones(1), w, scale)),
        (ops.mxfp4_gemm, mxfp4_gemm, (x, *mxfp4(9, 64))),
    ):
        plain = function(*args)
        assert plain.dtype == torch.float16 and torch.equal(op(*args), plain)
        out = torch.full_like(plain, torch.nan)
        op.out(*args, out=out)
        assert torch.equal(out, plain)
