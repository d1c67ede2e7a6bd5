"""Int4 forms: where each code sits, round trips, and the dequantiser against the definition."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, formats
from tests.ops.int4_data import Layer

K, N, G = 128, 24, 32
LAYER = Layer.random(K, N, G, low=1, high=17)
CODES = LAYER.codes.to(torch.uint8)


def nibble(words: torch.Tensor, row: int, column: int, slot: int) -> int:
    return int(words[row, column]) >> (4 * slot) & 15


def test_gptq_words_hold_code_j_at_bit_4j():
    words = formats.pack_int4(CODES)
    assert words.shape == (K // 8, N) and words.dtype == torch.int32
    assert torch.equal(words, LAYER.words(shuffled=False))
    assert nibble(words, 3, 5, 6) == CODES[3 * 8 + 6, 5]
    assert torch.equal(formats.unpack_int4(words), CODES)


def test_shuffled_words_hold_even_codes_in_the_low_half():
    words = formats.gptq_shuffle(LAYER.words(shuffled=False))
    assert torch.equal(words, LAYER.words(shuffled=True))
    assert torch.equal(formats.gptq_unshuffle(words), LAYER.words(shuffled=False))


def test_awq_words_interleave_columns():
    zeros = (LAYER.zeros - 1).to(torch.uint8)
    natural, natural_zeros = formats.pack_int4(CODES), formats.pack_int4(zeros, dim=1)
    words, packed_zeros = formats.gptq_to_awq(natural, natural_zeros)
    assert words.shape == (K, N // 8) and packed_zeros.shape == (K // G, N // 8)
    for slot, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        assert nibble(words, 7, 2, slot) == CODES[7, 16 + column]
        assert nibble(packed_zeros, 1, 2, slot) == zeros[1, 16 + column]
    back, back_zeros = formats.awq_to_gptq(words, packed_zeros)
    assert torch.equal(back, natural) and torch.equal(back_zeros, natural_zeros)


def test_compressed_tensors_keep_the_words_and_turn_the_matrix():
    words, zeros = LAYER.words(False), LAYER.packed_zeros(1)
    packed, scale, zero_point = formats.gptq_to_ct(words, LAYER.scales, zeros)
    assert packed.shape == (N, K // 8) and zero_point.shape == (N // 8, K // G)
    assert nibble(packed, 5, 3, 6) == CODES[3 * 8 + 6, 5]
    back = formats.ct_to_gptq(packed, scale.float(), zero_point)
    assert torch.equal(back[0], words) and torch.equal(back[1], zeros)
    assert torch.equal(back[2], LAYER.scales)
    assert formats.ct_to_gptq(packed, scale)[1] is None


def test_row_layout_round_trip():
    words = LAYER.words(True)
    assert formats.gptq_to_nk(words).shape == (N, K // 8)
    assert torch.equal(formats.nk_to_gptq(formats.gptq_to_nk(words)), words)


@pytest.mark.parametrize("offset", [0, 1])
def test_zeros_round_trip(offset):
    zeros = torch.arange(16, dtype=torch.uint8).repeat(2, 1) + offset
    words = formats.pack_zeros(zeros, offset)
    assert words.shape == (2, 2)
    assert torch.equal(formats.unpack_zeros(words, offset), zeros)


@pytest.mark.parametrize("shuffled", [False, True])
def test_dequantise_is_exact(shuffled):
    args = (LAYER.words(shuffled), LAYER.packed_zeros(1), LAYER.scales)
    w = formats.dequantize_w4(*args, zero_offset=1, shuffled=shuffled, dtype=torch.float64)
    assert torch.equal(w, LAYER.weights())
    half = formats.dequantize_w4(*args, zero_offset=1, shuffled=shuffled)
    assert torch.equal(half, LAYER.weights().half())


def test_act_order_sorts_rows_by_group_and_keeps_their_order():
    g_idx = torch.tensor([1, 0, 1, 0, 0, 1], dtype=torch.int32)
    assert formats.act_order(g_idx, 2).tolist() == [1, 3, 4, 0, 2, 5]
    assert formats.act_order(g_idx.sort().values, 2) is None
    with pytest.raises(ContractError, match="own 3 of the 6 rows"):
        formats.act_order(torch.zeros(6, dtype=torch.int32), 2)


def test_act_order_weights_come_back_in_the_checkpoint_order():
    layer = Layer.random(K, N, G, low=1, high=17)
    layer.groups = layer.groups[torch.randperm(K, generator=torch.Generator().manual_seed(3))]
    g_idx = layer.groups.to(torch.int32)
    args = (layer.words(False), layer.packed_zeros(1), layer.scales, g_idx)
    assert torch.equal(
        formats.dequantize_w4(*args, zero_offset=1, dtype=torch.float64), layer.weights()
    )
    weight = formats.pack_gptq(*args, zero_offset=1)
    assert torch.equal(weight.dequantize(torch.float64), layer.weights())
    assert torch.equal(formats.gptq_unshuffle(weight.qweight, weight.perm), layer.words(False))


def test_pack_awq_and_pack_compressed_tensors_describe_the_same_matrix():
    words, zeros = LAYER.words(False), formats.pack_zeros(LAYER.zeros.clamp(max=15), 0)
    want = formats.pack_gptq(words, zeros, LAYER.scales, zero_offset=0).dequantize()
    awq = formats.pack_awq(*formats.gptq_to_awq(words, zeros), LAYER.scales)
    packed, scale, zero_point = formats.gptq_to_ct(words, LAYER.scales, zeros)
    compressed = formats.pack_compressed_tensors(packed, scale, zero_point)
    assert torch.equal(awq.dequantize(), want)
    assert torch.equal(compressed.dequantize(), want)
    assert (awq.K, awq.N, awq.group_size) == (K, N, G)
    assert repr(awq) == f"Int4Weight(K={K}, N={N}, group_size={G}, zeros)"
    assert awq.nbytes == K * N // 2 + K // G * N * 2 + K // G * N // 2


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, -1])
def test_quantised_weights_are_within_half_a_step(symmetric, group):
    w = torch.randn(N, K, generator=torch.Generator().manual_seed(2))
    weight = formats.quantize_int4(w, group, symmetric=symmetric)
    step = weight.scales.t().double().repeat_interleave(weight.group_size, dim=1)
    error = (weight.dequantize(torch.float64).t() - w.double()).abs()
    # Rounding the zero and, without one, the asymmetric range cost up to half a step more.
    assert bool((error <= 1.05 * step).all())
    assert error.median() <= 0.26 * step.mean()


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: formats.pack_int4(torch.zeros(12, 8)), "axis 0 has 12"),
        (lambda: formats.pack_int4(torch.full((8, 8), 16)), "expected values 0..15"),
        (lambda: formats.pack_zeros(torch.tensor([[16] * 8]), 0), "expected values 0..15"),
        (lambda: formats.unpack_int4(torch.zeros(8, 8)), "expected int32"),
        (lambda: formats.fp16_scales(torch.tensor([1e9])), "do not fit fp16"),
        (lambda: formats.fp16_scales(torch.tensor([1e-9])), "do not fit fp16"),
        (lambda: formats.quantize_int4(torch.zeros(8, 48), 32), "a divisor of K = 48"),
    ],
)
def test_what_a_form_cannot_hold_is_refused(make, says):
    with pytest.raises(ContractError, match=says):
        make()
