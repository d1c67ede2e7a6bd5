"""Int8 shadows: the rule they are made by, and back."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError
from rdna_jit.formats import dequantize_i8, make_int8_shadow


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
