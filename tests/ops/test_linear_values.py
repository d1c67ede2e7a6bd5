"""Values of the int4 linear ops against float64, over the forms of the weights."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import emulator
from rdna_jit.errors import ContractError
from rdna_jit.formats import pack_gptq
from rdna_jit.ops.linear import gptq_gemm, w4a16_gemv
from tests.ops.int4_data import Layer, activations, assert_close

# M, N, K, G, shuffled, zeros ("none" or the offset of packed ones), bias
GPTQ = [
    (1, 2312, 64, 32, True, 1, False),  # two columns per lane, ragged last workgroup
    (2, 24, 96, 32, False, 0, True),
    (3, 8, 128, 64, True, "none", False),  # the row tile's halves overlap
    (5, 40, 256, 128, False, 1, True),
    (8, 2304, 128, 128, True, 1, True),
    (11, 32, 192, 96, False, 1, False),
    (17, 64, 128, 32, True, 0, False),  # chunks of 8 rows
    (28, 32, 64, 32, False, 1, True),  # chunks of 16 rows, the last overlaps
    (1, 16, 320, 320, True, 1, False),  # one group, steps that are part of it
    (9, 16, 40, 40, True, 0, False),
    (2, 8, 8, 8, False, 1, False),
    (4, 32, 2176, 64, True, 1, False),  # 17 steps: uneven shares
]


@pytest.mark.parametrize("M, N, K, G, shuffled, zeros, bias", GPTQ)
def test_gptq_gemm(M, N, K, G, shuffled, zeros, bias):
    offset = 0 if zeros == "none" else zeros
    low, high = (8, 9) if zeros == "none" else (offset, 16 + offset)
    layer = Layer.random(K, N, G, low=low, high=high)
    x = activations(M, K)
    y = gptq_gemm(
        x,
        layer.words(shuffled),
        None if zeros == "none" else layer.packed_zeros(offset),
        layer.scales,
        zero_offset=offset,
        shuffled=shuffled,
        bias=layer.bias if bias else None,
    )
    assert_close(y, x, layer, bias=bias)


@pytest.mark.parametrize("M, N, zeros", [(1, 37, True), (4, 8, False), (2, 2306, True)])
def test_w4a16_gemv_serves_every_column_count(M, N, zeros):
    layer = Layer.random(64, N, 32, low=0 if zeros else 8, high=256 if zeros else 9)
    x = activations(M, 64)
    stored = layer.zeros.to(torch.uint8) if zeros else None
    y = w4a16_gemv(x, layer.words(False), layer.scales, stored, group_size=32, bias=layer.bias)
    assert_close(y, x, layer, bias=True)


def act_order_layer(K: int = 192, N: int = 40, G: int = 32) -> Layer:
    layer = Layer.random(K, N, G, low=1, high=17)
    layer.groups = layer.groups[torch.randperm(K, generator=torch.Generator().manual_seed(5))]
    return layer


@pytest.mark.parametrize("M", [1, 6])
def test_act_order_in_checkpoint_order(M):
    layer, x = act_order_layer(), activations(M, 192)
    g_idx = layer.groups.to(torch.int32)
    args = (layer.words(False), layer.packed_zeros(1), layer.scales)
    y = gptq_gemm(x, *args, g_idx, zero_offset=1, shuffled=False, bias=layer.bias)
    assert_close(y, x, layer, bias=True)


@pytest.mark.parametrize("M", [1, 6])
def test_act_order_packed_once(M):
    layer, x = act_order_layer(), activations(M, 192)
    g_idx = layer.groups.to(torch.int32)
    args = (layer.packed_zeros(1), layer.scales)
    weight = pack_gptq(layer.words(False), *args, g_idx, zero_offset=1)
    y = gptq_gemm(x, weight)
    assert_close(y, x, layer)
    # Both the order of rows and the checkpoint's g_idx say the same about shuffled words.
    for order in (weight.perm, g_idx):
        again = gptq_gemm(x, weight.qweight, *args, order, zero_offset=1, shuffled=True)
        assert torch.equal(again, y)
        op = torch.ops.rdna_jit.gptq_gemm
        assert torch.equal(op(x, weight.qweight, *args, order, zero_offset=1, shuffled=True), y)


def test_a_g_idx_in_order_is_no_act_order():
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(1, 64)
    args = (x, layer.words(False), layer.packed_zeros(1), layer.scales)
    plain = gptq_gemm(*args, zero_offset=1, shuffled=False)
    g_idx = layer.groups.to(torch.int32)
    assert torch.equal(gptq_gemm(*args, g_idx, zero_offset=1, shuffled=False), plain)
    plan = gptq_gemm.plan(*args, g_idx, zero_offset=1, shuffled=False)
    assert plan.kernel == "w4a16_decode"
    g_idx[0], g_idx[63] = 1, 0  # the content changed, so it is looked at again
    plan = gptq_gemm.plan(*args, g_idx, zero_offset=1, shuffled=False)
    assert plan.kernel == "w4a16_act_order"


def test_a_g_idx_is_in_order_for_its_own_number_of_groups_only():
    layer, x = Layer.random(64, 16, 32), activations(1, 64)
    g_idx = layer.groups.to(torch.int32)
    words, one = layer.words(False), layer.scales[:1]
    gptq_gemm(x, words, None, layer.scales, g_idx, zero_offset=0, shuffled=False)
    with pytest.raises(ContractError, match=r"g_idx: expected groups 0..0, got values 0..1"):
        gptq_gemm(x, words, None, one, g_idx, zero_offset=0, shuffled=False)


@pytest.mark.parametrize("shift", [1, 2])
def test_rows_of_views_strided_and_misaligned(shift):
    layer = Layer.random(64, 48, 32, low=1, high=17)
    x = activations(3, 64 + 8)[:, shift : shift + 64]

    def inside(t: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(t.shape[0], t.shape[1] + 3, dtype=t.dtype)
        wide[:, 1:-2] = t
        return wide[:, 1:-2]

    out = torch.full((3, 51), torch.nan).half()
    y = gptq_gemm(
        x,
        inside(layer.words(True)),
        inside(layer.packed_zeros(1)),
        inside(layer.scales),
        zero_offset=1,
        shuffled=True,
        out=out[:, 1:49],
    )
    assert y.data_ptr() == out[:, 1:].data_ptr()
    assert_close(y, x, layer)
    assert bool(out[:, [0, 49, 50]].isnan().all())


def test_codes_equal_to_the_zero_give_exactly_zero():
    for zero in (1, 7, 15):
        layer = Layer.random(64, 16, 32)
        layer.codes[:] = zero
        layer.zeros[:] = zero
        args = (layer.words(True), layer.packed_zeros(1), layer.scales)
        y = gptq_gemm(activations(2, 64) * 1e4, *args, zero_offset=1, shuffled=True)
        assert torch.equal(y, torch.zeros(2, 16).half())


def test_extreme_activations():
    layer = Layer.random(64, 16, 32, low=1, high=17)
    layer.scales *= 2.0**-8
    x = activations(2, 64)
    x[0, ::2], x[0, 1::4] = 65504.0, -65504.0
    x[1] = torch.arange(64) * 2.0**-24  # all subnormal
    args = (layer.words(True), layer.packed_zeros(1), layer.scales)
    assert_close(gptq_gemm(x, *args, zero_offset=1, shuffled=True), x, layer)


@pytest.mark.parametrize("mode", ["chain", "exact", "gfx11"])
def test_every_model_of_dot2_and_no_finding_of_the_checks(mode):
    layer, x = Layer.random(128, 40, 32, low=1, high=17), activations(3, 128)
    args = (x, layer.words(True), layer.packed_zeros(1), layer.scales)
    checks = emulator.checks(races=True, uninitialised=True)
    with emulator.modes(dot2=mode, dot2_flush=True), checks:
        assert_close(gptq_gemm(*args, zero_offset=1, shuffled=True), x, layer)


def test_runs_repeat_bit_for_bit_and_write_everything():
    layer, x = Layer.random(256, 40, 32, low=1, high=17), activations(5, 256)
    args = (x, layer.words(True), layer.packed_zeros(1), layer.scales)
    before = [t.clone() for t in args]
    first = gptq_gemm(*args, zero_offset=1, shuffled=True)
    kept = first.clone()
    for order in (False, True):
        out = torch.full((5, 40), torch.nan).half()
        with emulator.modes(descending=order):
            assert gptq_gemm(*args, zero_offset=1, shuffled=True, out=out) is out
        assert torch.equal(out.view(torch.int16), kept.view(torch.int16))
    assert torch.equal(first, kept), "a later call changed an earlier result"
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


def test_rows_beyond_four_gigabytes(tmp_path):
    numpy = pytest.importorskip("numpy")
    layer, x = Layer.random(32, 8, 32, low=1, high=17), activations(2, 32)

    def far_rows(t: torch.Tensor, stride: int) -> torch.Tensor:
        """The same rows, `stride` elements apart in a sparse file."""
        elements = (t.shape[0] - 1) * stride + t.shape[1]
        file = tmp_path / f"{t.dtype}"
        shape, kind = (elements,), str(t.dtype).removeprefix("torch.")
        sparse = torch.from_numpy(numpy.memmap(file, dtype=kind, mode="w+", shape=shape))
        return sparse.as_strided(t.shape, (stride, 1)).copy_(t)

    words = far_rows(layer.words(True), 3 << 28)
    far_x = far_rows(x, 5 << 29)
    args = (words, layer.packed_zeros(1), layer.scales)
    assert_close(gptq_gemm(far_x, *args, zero_offset=1, shuffled=True), x, layer)


def test_empty_batch_and_no_columns():
    layer = Layer.random(64, 16, 32, low=1, high=17)
    args = (layer.words(True), layer.packed_zeros(1), layer.scales)
    y = gptq_gemm(activations(0, 64), *args, zero_offset=1, shuffled=True)
    assert y.shape == (0, 16)
    nothing = [t[:, :0] for t in args]
    assert gptq_gemm(activations(2, 64), *nothing, zero_offset=1, shuffled=True).shape == (2, 0)


def test_torch_op_and_its_out_overload():
    layer, x = Layer.random(64, 16, 32, low=1, high=17), activations(1, 64)
    args = (x, layer.words(True), layer.packed_zeros(1), layer.scales)
    plain = gptq_gemm(*args, zero_offset=1, shuffled=True)
    op = torch.ops.rdna_jit.gptq_gemm
    assert torch.equal(op(*args, zero_offset=1, shuffled=True), plain)
    out = torch.full_like(plain, torch.nan)
    op.out(*args, zero_offset=1, shuffled=True, out=out)
    assert torch.equal(out, plain)
