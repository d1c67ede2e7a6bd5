"""Int8 shadows: the rule they are made by, and back."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError
from rdna_jit.formats import (
    ct_to_int8,
    dequantize_i8,
    gptq_to_int8,
    int8_to_ct,
    int8_to_gptq,
    make_int8_shadow,
    quantize_int8,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_codes_are_the_nearest_to_the_stored_scale(dtype):
    w = (0.05 * torch.randn(9, 40, generator=torch.Generator().manual_seed(0))).half()
    codes, scale = make_int8_shadow(w, scale_dtype=dtype)
    assert codes.dtype == torch.int8 and scale.dtype == dtype
    exact = w.double().abs().amax(1) / 127
    assert torch.allclose(scale.double(), exact, rtol=2.0**-11, atol=0)
    back = codes.double() * scale.double()[:, None]
    # Half a step, and what the largest weight loses where the scale was rounded down.
    slack = scale.double()[:, None] * (0.5 + 127 * 2.0**-11)
    assert bool(((back - w.double()).abs() <= slack).all())
    assert int(codes.abs().max()) == 127


def test_tiny_and_zero_rows_keep_a_normal_scale():
    w = torch.zeros(3, 8)
    w[1, 0], w[2, 0] = 2.0**-20, 1e-6
    codes, scale = make_int8_shadow(w)
    assert bool((scale == 2.0**-14).all()) and not codes[0].any()
    codes, scale = make_int8_shadow(w, scale_dtype=torch.float32)
    assert codes[1, 0] == 127 and codes[2, 0] == 127
    assert dequantize_i8(codes, scale, dtype=torch.float32)[1, 0] == pytest.approx(2.0**-20)


def test_chunks_of_rows_agree_with_the_whole():
    w = torch.randn(8192 + 3, 4, generator=torch.Generator().manual_seed(1))
    codes, scale = make_int8_shadow(w)
    for rows in (slice(0, 2), slice(8190, 8195)):
        part_codes, part_scale = make_int8_shadow(w[rows])
        assert torch.equal(codes[rows], part_codes) and torch.equal(scale[rows], part_scale)


def test_dequantised_values_are_rounded_once():
    codes = torch.tensor([[-128, 127, 3]], dtype=torch.int8)
    scale = torch.tensor([0.0123])
    want = (codes.double() * scale.double()[:, None]).half()
    assert torch.equal(dequantize_i8(codes, scale), want)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: make_int8_shadow(torch.zeros(8)), "w: expected a float matrix"),
        (lambda: make_int8_shadow(torch.zeros(2, 2).int()), "w: expected a float matrix"),
        (lambda: make_int8_shadow(torch.full((2, 2), torch.inf)), "w: expected finite weights"),
        (lambda: make_int8_shadow(torch.full((2, 2), torch.nan)), "w: expected finite weights"),
        (
            lambda: make_int8_shadow(torch.zeros(2, 2), scale_dtype=torch.int8),
            "scale_dtype: expected float16 or float32",
        ),
        (lambda: dequantize_i8(torch.zeros(2, 2), torch.ones(2)), "w_i8: expected int8"),
        (
            lambda: dequantize_i8(torch.zeros(2, 2, dtype=torch.int8), torch.ones(3)),
            "scale: expected shape",
        ),
    ],
)
def test_refusals_name_the_argument(make, says):
    with pytest.raises(ContractError, match=says):
        make()


@pytest.mark.parametrize("group", [16, 40, -1])
def test_grouped_codes_are_those_of_the_group_alone(group):
    w = torch.randn(5, 80, generator=torch.Generator().manual_seed(4))
    w[2, :16] *= 100
    G = 80 if group == -1 else group
    codes, scale = quantize_int8(w, group, scale_dtype=torch.float32)
    assert codes.shape == w.shape and scale.shape == (5, 80 // G)
    for g in range(80 // G):
        part = slice(g * G, (g + 1) * G)
        alone, alone_scale = make_int8_shadow(w[:, part], scale_dtype=torch.float32)
        assert torch.equal(codes[:, part], alone) and torch.equal(scale[:, g], alone_scale)
    back = dequantize_i8(codes, scale, dtype=torch.float64)
    assert bool(((back - w).abs() <= 0.501 * scale.repeat_interleave(G, 1)).all())


def every_code() -> torch.Tensor:
    return torch.arange(-128, 128).to(torch.int8).reshape(8, 32)


@pytest.mark.parametrize("groups", [1, 4])
def test_packed_compressed_tensors_round_trip(groups):
    codes, scale = every_code(), torch.rand(8, groups)
    packed, stored = int8_to_ct(codes, scale)
    assert packed.shape == (8, 8) and packed.dtype == torch.int32
    assert int(packed[3, 2]) >> 8 & 0xFF == int(codes[3, 9]) + 128
    back, back_scale = ct_to_int8(packed, stored)
    assert torch.equal(back, codes)
    assert torch.equal(back_scale, scale[:, 0] if groups == 1 else scale)


@pytest.mark.parametrize("offset", [0, 1])
def test_symmetric_gptq_round_trip(offset):
    codes, scale = every_code(), torch.rand(8, 4)
    qweight, scales, qzeros = int8_to_gptq(codes, scale, zero_offset=offset)
    assert qweight.shape == (8, 8) and scales.shape == (4, 8) and qzeros.shape == (4, 2)
    assert int(qweight[2, 3]) >> 8 & 0xFF == int(codes[3, 9]) + 128
    back, back_scale = gptq_to_int8(qweight, scales, qzeros, zero_offset=offset)
    assert torch.equal(back, codes) and torch.equal(back_scale, scale)
    assert torch.equal(gptq_to_int8(qweight, scales)[0], codes)
    with pytest.raises(ContractError, match="qzeros: expected zero points of 128"):
        gptq_to_int8(qweight, scales, qzeros, zero_offset=1 - offset)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: quantize_int8(torch.ones(2, 80), 24), "group_size: expected a divisor of K = 80"),
        (lambda: quantize_int8(torch.ones(80), 16), r"w: expected a float matrix \[N, K\]"),
        (
            lambda: ct_to_int8(torch.ones(2, 2), torch.ones(2, 1)),
            "weight_packed: expected an int32",
        ),
        (lambda: gptq_to_int8(torch.ones(2, 2), torch.ones(2, 1)), "qweight: expected an int32"),
        (lambda: int8_to_ct(torch.ones(2, 6).to(torch.int8), torch.ones(2)), "w_i8: .*of 4"),
        (
            lambda: int8_to_gptq(torch.ones(6, 8).to(torch.int8), torch.ones(6)),
            "w_i8: expected N a multiple of 4",
        ),
        (lambda: dequantize_i8(every_code(), torch.ones(8, 5)), r"scale: expected shape \[8\]"),
    ],
)
def test_refusals_of_groups_and_words(make, says):
    with pytest.raises(ContractError, match=says):
        make()
