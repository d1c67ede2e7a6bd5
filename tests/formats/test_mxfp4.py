"""MXFP4: codes and scales against the definition, quantisers, and both layouts."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, formats

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def random(N: int, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(N + K)
    codes = torch.randint(0, 256, (N, K // 2), generator=g, dtype=torch.uint8)
    return codes, torch.randint(90, 141, (N, K // 32), generator=g, dtype=torch.uint8)


def test_codes_3_4_and_6_are_one_and_a_half_two_and_four():
    got = formats.decode_e2m1(torch.arange(16), torch.float64)
    assert torch.equal(got, torch.cat([VALUES, -VALUES]))
    assert got[8].signbit()


def test_scales_are_powers_of_two():
    got = formats.decode_e8m0(torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8))
    assert got[:4].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127] and got[4].isnan()


@pytest.mark.parametrize(
    "number, value",
    [(0.25, 0), (0.26, 0.5), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (5.1, 6),
     (1e9, 6), (0, 0)],
)  # fmt: skip
def test_encoding_is_to_nearest_even(number, value):
    for sign in (1, -1):
        code = formats.encode_e2m1(torch.tensor([sign * float(number)]))
        assert float(formats.decode_e2m1(code)) == sign * value
    table = formats.decode_e2m1(torch.arange(16), torch.float32)
    assert torch.equal(formats.encode_e2m1(table), torch.arange(16, dtype=torch.uint8))


def test_low_nibbles_are_even_k_and_every_block_has_its_own_scale():
    w, scale = random(3, 96)
    got = formats.dequantize_mxfp4(w, scale, torch.float64)
    for n in range(3):
        for k in range(96):
            code = int(w[n, k // 2]) >> 4 * (k % 2) & 15
            value = float(VALUES[code & 7]) * (-1) ** (code >> 3)
            assert got[n, k] == value * 2.0 ** (int(scale[n, k // 32]) - 127)


@pytest.mark.parametrize("rule, most", [("floor", 0.25), ("ceil", 0.2)])
def test_quantised_weights(rule, most):
    w = torch.randn(5, 160, generator=torch.Generator().manual_seed(3))
    w[1, :32] = 0
    w[2] *= 2.0**-100
    codes, scale = formats.quantize_mxfp4(w, rule=rule)
    back = formats.dequantize_mxfp4(codes, scale, torch.float64)
    largest = w.reshape(5, 5, 32).abs().amax(-1).repeat_interleave(32, 1)
    # "floor" cuts numbers below 8 off to 6; of those that "ceil" takes, 5 loses most.
    assert bool(((back - w).abs() <= largest * most).all()) and not back[1, :32].any()
    exponent = torch.floor(torch.log2(largest[0, ::32].double())).int() - 2
    if rule == "floor":
        assert torch.equal(scale[0].int() - 127, exponent)
    else:
        assert bool((largest[0, ::32] <= 6 * torch.exp2(scale[0].double() - 127)).all())
    exact = torch.tensor([[6.0, 0.5, -3.0, 4.0] * 8])
    back = formats.dequantize_mxfp4(*formats.quantize_mxfp4(exact, rule=rule), torch.float32)
    assert torch.equal(back, exact)


def test_k_major_words_round_trip():
    w, scale = random(6, 64)
    words, turned = formats.mxfp4_to_k_major(w, scale)
    assert words.shape == (8, 6) and words.dtype == torch.int32 and turned.shape == (2, 6)
    for k in (0, 7, 8, 63):
        code = int(w[4, k // 2]) >> 4 * (k % 2) & 15
        assert int(words[k // 8, 4]) >> 4 * (k % 8) & 15 == code
    for form in (words, words.view(torch.uint8)):
        back, back_scale = formats.mxfp4_from_k_major(form, turned)
        assert torch.equal(back, w) and torch.equal(back_scale, scale)


def test_transposed_bytes_are_not_words():
    w, scale = random(6, 64)
    with pytest.raises(ContractError, match="checkpoint bytes transposed"):
        formats.mxfp4_from_k_major(w.t().contiguous(), scale.t().contiguous())


W, SCALE = random(4, 64)
NAN = SCALE.clone()
NAN[1, 1] = 255


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: formats.check_mxfp4(W, NAN), "scale: expected bytes 0..254, got 1 of 255"),
        (lambda: formats.check_mxfp4(W, SCALE.t()), r"scale: expected shape \[4, 2\].*K-major"),
        (
            lambda: formats.check_mxfp4(W[:, :24], SCALE),
            "w: expected K a multiple of 32, got K = 48",
        ),
        (lambda: formats.check_mxfp4(W.int(), SCALE), "w: expected codes uint8"),
        (lambda: formats.check_mxfp4(W, SCALE.int()), "scale: expected e8m0 scales"),
        (lambda: formats.mxfp4_from_k_major(W.float(), SCALE), "words: expected int32 words"),
        (
            lambda: formats.mxfp4_from_k_major(torch.zeros(8, 5).int(), SCALE.t()),
            r"words: expected shape \[8, 4\], as scale",
        ),
        (lambda: formats.quantize_mxfp4(torch.ones(2, 48)), "w: expected K a multiple of 32"),
        (lambda: formats.quantize_mxfp4(torch.full((1, 32), torch.nan)), "w: expected finite"),
        (lambda: formats.quantize_mxfp4(torch.ones(1, 32), rule="up"), "rule: expected 'floor'"),
    ],
)
def test_refusals_name_the_argument(make, says):
    with pytest.raises(ContractError, match=says):
        make()
    formats.check_mxfp4(W, SCALE)
