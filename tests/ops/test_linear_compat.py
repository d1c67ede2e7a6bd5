"""The vLLM forks' names: layouts, switches, and what is kept between calls."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, config, formats
from rdna_jit.ops import linear, linear_compat
from tests.ops.int4_data import Layer
from tests.ops.test_gemv_values import assert_close, codes, random, scales

Tensor = torch.Tensor
WIDE = torch.float64
M, N, K, G = 3, 24, 256, 128


def weight() -> Tensor:
    return random(N, K, seed=1, by=0.05)


def filled(M: int = M) -> Tensor:
    return torch.full((M, N), 7.0).half()


def fp8_operands(group: int) -> tuple[Tensor, Tensor, Tensor]:
    """K-major codes and scales, and the exact matrix `[N, K]`."""
    block = (1, group) if group else None
    w, scale = formats.quantize_fp8(weight(), "e4m3", block or "channel")
    scale = scale.half().float()
    exact = formats.dequantize_fp8(w, scale, block, dtype=WIDE)
    return formats.fp8_to_k_major(w), scale.reshape(N, -1).half().t().contiguous(), exact


@pytest.mark.parametrize("rows", [8, 9, 12, 15, 16])
@pytest.mark.parametrize("m16", [False, True])
def test_nine_to_fifteen_rows_run_as_eight_and_the_rest_without_m16(rows, m16):
    x, w, q, s = random(rows, 64), random(40, 64, seed=1), codes(40, 64), scales(40)
    rdna_jit.dispatch_log(clear=True)
    with config.scope(decode_m16=m16):
        assert linear_compat.decode_rows() == (16 if m16 else 8)
        f16 = linear_compat.gemv_f16_rdna2(x, w)
        i8 = linear_compat.gemv_i8_rdna2(x, q, s)
    ran = [dispatch.shape["M"] for dispatch in rdna_jit.dispatch_log()]
    assert ran == ([rows] * 2 if m16 or rows in (8, 16) else [8, rows - 8] * 2)
    assert torch.equal(f16, linear.gemv_f16(x, w)) and torch.equal(i8, linear.gemv_i8(x, q, s))


@pytest.mark.parametrize("group", [0, G])
def test_fp8_weights_k_major(group):
    b_q, b_scales, exact = fp8_operands(group)
    x, c = random(M, K), filled()
    for given in (b_scales, b_scales[0] if not group else b_scales):
        assert linear_compat.gemm_w8a16_fp8_dense(x, b_q, given, c, group) is None
        assert_close(c, x, exact)  # written, not added to


@pytest.mark.parametrize("groups", [1, 2])
def test_fp8_activations(groups):
    b_q, b_scales, exact = fp8_operands(G)
    x, x_scale = formats.quantize_fp8(random(M, K), "e4m3", (1, G) if groups > 1 else "channel")
    c = filled()
    args = (x.view(torch.uint8), x_scale, b_q, b_scales, c, G, groups)
    linear_compat.gemm_w8a8_fp8_dense(*args)
    exact_x = formats.dequantize_fp8(x, x_scale, (1, G) if groups > 1 else None, dtype=WIDE)
    assert_close(c, exact_x, exact)


def test_channel_scales_with_a_group_size_never_step_past_their_row():
    b_q, b_scales, exact = fp8_operands(0)
    x, c = random(M, K), filled()
    linear_compat.gemm_w8a16_fp8_dense(x, b_q, b_scales[0], c, G)
    assert_close(c, x, exact)


def test_mxfp4_words_k_major():
    w, scale = formats.quantize_mxfp4(weight())
    exact = formats.dequantize_mxfp4(w, scale, WIDE)
    words, turned = formats.mxfp4_to_k_major(w, scale)
    x, c = random(M, K), filled()
    for form in (words, words.view(torch.uint8)):
        linear_compat.mxfp4_gemm_rdna2(x, c, form, turned, M, N, K)
        assert_close(c, x, exact)
    with pytest.raises(ContractError, match=r"words: .*checkpoint bytes transposed"):
        linear_compat.mxfp4_gemm_rdna2(x, c, w.t().contiguous(), turned, M, N, K)
    with pytest.raises(ContractError, match="size_k: expected 256, as the tensors have it, got 64"):
        linear_compat.mxfp4_gemm_rdna2(x, c, words, turned, M, N, 64)


def test_a_turned_weight_is_kept_until_it_or_its_scales_change(monkeypatch):
    made = []
    real = linear_compat._turn_fp8
    monkeypatch.setattr(linear_compat, "_turn_fp8", lambda *a: made.append(1) or real(*a))
    b_q, b_scales, exact = fp8_operands(G)
    x, c = random(M, K), filled()
    for _ in range(3):
        linear_compat.gemm_w8a16_fp8_dense(x, b_q, b_scales, c, G)
    assert len(made) == 1
    b_scales.mul_(2)
    linear_compat.gemm_w8a16_fp8_dense(x, b_q, b_scales, c, G)
    assert_close(c, x, 2 * exact)
    b_q.zero_()
    linear_compat.gemm_w8a16_fp8_dense(x, b_q, b_scales, c, G)
    assert len(made) == 3 and not c.any()
    linear_compat.gemm_w8a16_fp8_dense(x, b_q, b_scales.clone(), c, G)
    assert len(made) == 4


@pytest.mark.parametrize("v2", [False, True])
def test_int4_words_are_shuffled_and_empty_tensors_stand_for_none(v2):
    layer = Layer.random(K, N, 64, low=1, high=16)
    x, none = random(M, K), torch.empty(0, dtype=torch.int32)
    words, zeros = layer.words(True), layer.packed_zeros(0 if v2 else 1)
    y = linear_compat.gptq_gemm_rdna2(x, words, zeros, layer.scales, none, v2)
    assert_close(y, x, layer.weights().T)
    offset = 0 if v2 else 1
    y = linear_compat.w4a8_gemm_rdna2(x, words, zeros, layer.scales, None, v2)
    want = linear.w4a8_gemm(x, words, zeros, layer.scales, zero_offset=offset, shuffled=True)
    assert torch.equal(y, want)
    with pytest.raises(ContractError, match="b_g_idx: expected none"):
        g_idx = torch.arange(K, dtype=torch.int32)
        linear_compat.w4a8_gemm_rdna2(x, words, zeros, layer.scales, g_idx, v2)


def test_quantised_activations_come_in_tiles_of_eight_rows():
    rows, group = 11, 64
    x = random(rows, K)
    a_i8 = torch.full((2, K // 8, 8, 8), 99, dtype=torch.int8)
    a_scale, a_sum = torch.full((2, K // group, 8), 9.0), torch.full((2, K // group, 8), 9).int()
    assert linear_compat.w4a8_act_quant_rdna2(x, group, a_i8, a_scale, a_sum) is a_i8
    code, scale, total = linear.quantize_int8_grouped(x, group)
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    for row, octet, byte in ((0, 0, 1), (7, 31, 6), (10, 5, 3)):
        assert a_i8[row // 8, octet, row % 8, byte] == code[row, 8 * octet + order[byte]]
    assert a_scale[1, 3, 2] == scale[10, 3] and a_sum[1, 3, 2] == total[10, 3]
    assert not a_i8[1, :, 3:].any() and not a_scale[1, :, 3:].any() and not a_sum[1, :, 3:].any()


def ran(call, *args: Tensor) -> tuple[str, Tensor]:
    rdna_jit.dispatch_log(clear=True)
    y = call(*args)
    return rdna_jit.dispatch_log()[-1].kernel, y


@pytest.mark.parametrize(
    "on, m16, rows, held, kernel",
    [
        (False, False, 4, True, "gemv_f16"),
        (False, False, 12, True, "torch.matmul"),
        (False, True, 12, True, "gemv_f16"),
        (False, False, 4, False, "gemv_i8"),  # nothing else is left
        (True, False, 4, True, "gemv_i8"),
        (True, False, 12, True, "torch.matmul"),
        (True, True, 12, True, "gemv_i8"),
        (True, True, 17, False, "torch.matmul"),
    ],
)
def test_dense_layers_follow_the_switches(on, m16, rows, held, kernel):
    x, w, bias = random(rows, 64), random(40, 64, seed=1), random(40, seed=2)
    q, s = formats.make_int8_shadow(w)
    with config.scope(dense_int8=on, decode_m16=m16):
        given = w if held else w[:0]
        name, y = ran(linear_compat.rdna_dense_gemm, x.reshape(rows, 1, 64), given, q, s, bias)
    assert name == kernel and y.shape == (rows, 1, 40)
    shadow = kernel == "gemv_i8" or not held
    used = formats.dequantize_i8(q, s, dtype=WIDE) if shadow else w.double()
    want = x.double() @ used.T + bias.double()
    assert (y[:, 0].double() - want).norm() <= 5e-4 * want.norm()


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a, b, s, None, G), "c: expected a ten"),
        (lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a, b, s, filled(), 64), "b_scales: ex"),
        (
            lambda a, b, s: linear_compat.gemm_w8a8_fp8_dense(
                a.byte(), torch.ones(M), b, s, filled(), G, 2
            ),
            r"a_scale: expected shape \[3, 2\], got \[3\]",
        ),
        (
            lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a.float(), b, s, filled(), G),
            "x: expected torch.float16",
        ),
        (lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a, None, s, filled(), G), "b_q: exp"),
        (lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a, b[0], s, filled(), G), "b_q: exp"),
        (lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a, b, None, filled(), G), "b_scales:"),
        (lambda a, b, s: linear_compat.gemm_w8a16_fp8_dense(a, b, s, filled(), "G"), "group_size"),
        (lambda a, b, s: linear_compat.gemm_w8a8_fp8_dense(None, s, b, s, filled(), G), "a_q: exp"),
        (lambda a, b, s: linear_compat.gemm_w8a8_fp8_dense(b, None, b, s, filled(), G), "a_scale"),
        (lambda a, b, s: linear_compat.gemv_f16_rdna2(a, None), "gemv_f16: w: expected"),
        (lambda a, b, s: linear_compat.gemv_i8_rdna2(None, b, s), "gemv_i8: x: expected"),
        (lambda a, b, s: linear_compat.mxfp4_gemm_rdna2(a, a, None, s, 1, 1, 1), "b_q_weight: e"),
        (lambda a, b, s: linear_compat.w4a8_act_quant_rdna2(a, G, a, a, a), "a_i8: expected torch"),
        (lambda a, b, s: linear_compat.w4a8_act_quant_rdna2(a, G, b[0].char(), a, a), "a_i8: exp"),
        (lambda a, b, s: linear_compat.rdna_dense_gemm(a[0, 0], b, b, s), "x: expected a tensor"),
    ],
)
def test_refusals_name_the_argument(call, says):
    b_q, b_scales, _ = fp8_operands(G)
    with pytest.raises(ContractError, match=says):
        call(random(M, K), b_q, b_scales)
