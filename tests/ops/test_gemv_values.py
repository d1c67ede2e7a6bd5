"""Values of the dense fp16 and int8 ops against float64, over shapes, views and edge numbers."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import emulator
from rdna_jit.formats import make_int8_shadow
from rdna_jit.ops.linear import dense_gemm_int8, gemv_f16, gemv_i8

Tensor = torch.Tensor


def random(*shape: int, seed: int = 0, by: float = 0.25) -> Tensor:
    return (by * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).half()


def codes(N: int, K: int) -> Tensor:
    """All of -128..127."""
    g = torch.Generator().manual_seed(N * 7 + K)
    return torch.randint(-128, 128, (N, K), generator=g, dtype=torch.int8)


def scales(N: int, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(N)
    return (2e-4 + 1e-3 * torch.rand(N, generator=g)).to(dtype)


def assert_close(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None) -> None:
    """y within the rounding of fp16 and of fp32 sums; w is exact, in float64."""
    x64 = x.double()
    want = x64 @ w.T + (0 if bias is None else bias.double())
    slack = want.abs() * 2.0**-11 + 2.0**-24 + (x64.abs() @ w.abs().T) * 2.0**-20
    assert y.dtype == torch.float16 and y.shape == want.shape
    error = (y.double() - want).abs()
    assert bool((error <= slack).all()), f"worst excess {(error - slack).max():.3g}"
    assert error.norm() <= 5e-4 * want.norm() + want.numel() ** 0.5 * 2.0**-25


def poisoned(M: int, N: int) -> Tensor:
    return torch.full((M, N), torch.nan).half()


# Numbers of columns around whole workgroups, K around whole chunks and steps.
F16 = [
    (1, 2310, 136, False),  # four rows per lane, the last workgroup begins earlier
    (2, 1153, 72, True),
    (3, 300, 1024, True),
    (5, 3, 8, False),  # fewer rows than a wave holds
    pytest.param(8, 577, 64, False, marks=pytest.mark.slow),
    pytest.param(9, 580, 64, True, marks=pytest.mark.slow),
    (17, 33, 128, True),  # two tiles
    pytest.param(32, 6, 640, False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("M, N, K, bias", F16)
def test_gemv_f16(M, N, K, bias):
    x, w = random(M, K), random(N, K, seed=1, by=0.05)
    b = random(N, seed=2) if bias else None
    out = poisoned(M, N)
    assert gemv_f16(x, w, b, out=out) is out
    assert_close(out, x, w.double(), b)


I8 = [
    (1, 2310, 144, torch.float16, False),
    (2, 1153, 80, torch.float32, True),
    (3, 300, 1040, torch.float32, True),
    (4, 2, 16, torch.float16, False),
    (8, 577, 256, torch.float32, False),
    (9, 40, 24, torch.float16, True),  # K is no multiple of 16
    pytest.param(16, 580, 136, torch.float32, True, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("M, N, K, dtype, bias", I8)
def test_gemv_i8(M, N, K, dtype, bias):
    x, w, s = random(M, K), codes(N, K), scales(N, dtype)
    b = random(N, seed=2) if bias else None
    out = poisoned(M, N)
    assert gemv_i8(x, w, s, b, out=out) is out
    assert_close(out, x, w.double() * s.double()[:, None], b)


def test_every_int8_code_is_exact():
    w = torch.arange(-128, 128).to(torch.int8).reshape(16, 16)
    y = gemv_i8(torch.eye(16).half(), w, torch.ones(16))
    assert torch.equal(y, w.T.half())


def inside(t: Tensor, shift: int) -> Tensor:
    """The same rows, `shift` elements into wider ones."""
    wide = torch.zeros(t.shape[0], t.shape[1] + 2 * shift + 1, dtype=t.dtype)
    wide[:, shift : shift + t.shape[1]] = t
    return wide[:, shift : shift + t.shape[1]]


@pytest.mark.parametrize("shift", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_misaligned_rows_and_strided_results(shift):
    x, w = random(3, 64), random(41, 64, seed=1)
    out = poisoned(3, 47)
    y = gemv_f16(inside(x, shift), inside(w, shift), out=out[:, 2:43])
    assert_close(y, x, w.double())
    assert bool(out[:, [0, 1, 43, 44, 45, 46]].isnan().all())
    q, s = codes(41, 64), scales(41)
    y = gemv_i8(inside(x, shift), inside(q, shift), s)
    assert_close(y, x, q.double() * s.double()[:, None])


def test_extreme_numbers():
    x, w = random(2, 64), random(8, 64, seed=1, by=2.0**-7)
    x[0, ::2], x[0, 1::4] = 65504.0, -65504.0
    x[1] = 2.0**-14  # the smallest normal number
    assert_close(gemv_f16(x, w), x, w.double())
    q = codes(8, 64)
    q[0], q[1] = -128, 127
    s = torch.full((8,), 2.0**-12)
    assert_close(gemv_i8(x, q, s), x, q.double() * 2.0**-12)
    assert torch.equal(gemv_i8(x, q * 0, s), torch.zeros(2, 8).half())
    x[0] = torch.inf
    assert bool(gemv_f16(x, w.abs() + 1)[0].isinf().all())


@pytest.mark.parametrize("M", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_rows_have_the_bits_that_they_have_alone(M):
    x, w = random(M, 1040), random(40, 1040, seed=1)
    q, s = codes(40, 1040), scales(40)
    assert gemv_f16.batch_invariant and gemv_i8.batch_invariant
    assert torch.equal(gemv_f16(x, w)[M - 1 :], gemv_f16(x[M - 1 :], w))
    assert torch.equal(gemv_i8(x, q, s)[M - 1 :], gemv_i8(x[M - 1 :], q, s))


@pytest.mark.parametrize("mode", ["gfx11", pytest.param("exact", marks=pytest.mark.slow)])
def test_every_model_of_dot2_and_no_finding_of_the_checks(mode):
    x, q, s = random(3, 528), codes(301, 528), scales(301)
    checks = emulator.checks(races=True, uninitialised=True)
    with emulator.modes(dot2=mode, dot2_flush=True), checks:
        assert_close(gemv_i8(x, q, s), x, q.double() * s.double()[:, None])


def test_runs_repeat_bit_for_bit_and_change_no_input():
    x, q, s = random(3, 1040), codes(40, 1040), scales(40)
    before = [t.clone() for t in (x, q, s)]
    first = gemv_i8(x, q, s)
    kept = first.clone()
    for order in (False, True):
        out = poisoned(3, 40)
        with emulator.modes(descending=order):
            gemv_i8(x, q, s, out=out)
        assert torch.equal(out.view(torch.int16), kept.view(torch.int16))
    assert torch.equal(first, kept)
    assert all(torch.equal(a, b) for a, b in zip((x, q, s), before, strict=True))


@pytest.mark.parametrize("op, kind", [(gemv_f16, torch.float16), (gemv_i8, torch.int8)])
def test_rows_beyond_four_gigabytes(tmp_path, op, kind):
    numpy = pytest.importorskip("numpy")
    x, w = random(2, 32), (codes(5, 32) if kind == torch.int8 else random(5, 32, seed=1))
    stride = 5 << 28
    name, shape = str(kind).removeprefix("torch."), (4 * stride + 32,)
    memory = numpy.memmap(tmp_path / "far", dtype=name, mode="w+", shape=shape)
    far = torch.from_numpy(memory).as_strided((5, 32), (stride, 1)).copy_(w)
    scale = (torch.ones(5),) if kind == torch.int8 else ()
    assert_close(op(x, far, *scale), x, w.double())


def test_empty_batch_and_no_columns():
    assert gemv_f16(random(0, 64), random(8, 64)).shape == (0, 8)
    assert gemv_f16(random(2, 64), random(0, 64)).shape == (2, 0)
    assert gemv_i8(random(0, 64), codes(8, 64), scales(8)).shape == (0, 8)
    assert dense_gemm_int8(random(0, 64), random(0), codes(8, 64), scales(8)).shape == (0, 8)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("M", [4, 16, 17, 64])
def test_dense_gemm_int8(M, held):
    x, w, b = random(M, 128), random(70, 128, seed=1), random(70, seed=2)
    q, s = make_int8_shadow(w)
    out = poisoned(M, 70)
    assert dense_gemm_int8(x, w if held else w[:0], q, s, b, out=out) is out
    if M <= 16:
        assert torch.equal(out, gemv_i8(x, q, s, b))
        return
    used = w.double() if held else q.double() * s.double()[:, None]
    want = x.double() @ used.T + b.double()
    assert (out.double() - want).norm() <= 5e-4 * want.norm()


def test_a_released_weight_is_rebuilt_in_chunks_of_rows():
    w = random(8192 + 5, 16, seed=1)
    q, s = make_int8_shadow(w)
    x = random(17, 16)
    y = dense_gemm_int8(x, torch.empty(0), q, s)
    want = x.double() @ (q.double() * s.double()[:, None]).T
    assert (y.double() - want).norm() <= 5e-4 * want.norm()


def test_torch_ops_and_their_out_overloads():
    x, w = random(2, 64), random(9, 64, seed=1)
    q, s = make_int8_shadow(w)
    ops = torch.ops.rdna_jit
    for op, function, args in (
        (ops.gemv_f16, gemv_f16, (x, w)),
        (ops.gemv_i8, gemv_i8, (x, q, s)),
        (ops.dense_gemm_int8, dense_gemm_int8, (x, w, q, s)),
    ):
        plain = function(*args)
        assert torch.equal(op(*args), plain)
        out = torch.full_like(plain, torch.nan)
        op.out(*args, out=out)
        assert torch.equal(out, plain)
