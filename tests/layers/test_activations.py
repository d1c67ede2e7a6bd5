"""Layers that may round x to 8 bits: which class runs, and values by the rounding's definition."""

from __future__ import annotations

import copy

import pytest
import torch

from rdna_jit import ContractError, QuantizedLinear
from tests.layers.packing import Codes, activations, fp8_bytes, generator

N, K, G = 40, 192, 64
BIAS = torch.randn(N, generator=generator(5)).half()


def rounding(layer: QuantizedLinear) -> QuantizedLinear:
    """The layer, which may round x to 8 bits from here on."""
    layer.activation_bits = 8
    return layer


def taken(layer: QuantizedLinear, rows: int) -> str:
    plan = layer.plan(activations(rows, layer.in_features))
    return next(c.kernel for c in plan.candidates if c.taken)


def assert_near(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """y against float64 on x as it was rounded, within the result's rounding and fp32 sums."""
    want = x @ weight.t() + BIAS.double()
    slack = want.abs() * 2.0**-11 + 2.0**-24 + (x.abs() @ weight.abs().t()) * 2.0**-19
    excess = (y.double() - want).abs() - slack
    assert bool((excess <= 0).all()), f"worst excess {excess.max():.3g}"


@pytest.mark.parametrize("symmetric", (False, pytest.param(True, marks=pytest.mark.slow)))
def test_int4(symmetric):
    codes = Codes.random(N, K, G, symmetric=symmetric)
    given = codes.gptq(zeros=not symmetric)
    layer = QuantizedLinear.from_gptq(**{"qzeros": None, **given}, bias=BIAS)
    rounded = rounding(copy.copy(layer))
    assert (layer.activation_bits, rounded.activation_bits) == (16, 8)
    assert rounded.qweight.data_ptr() == layer.qweight.data_ptr()
    assert "8-bit activations" in repr(rounded)
    assert taken(layer, 33) == "RDNA2W4A16LinearKernel"
    assert [taken(rounded, rows) for rows in (32, 33)] == [
        "RDNA2W4A16LinearKernel", "RDNA2W4A8LinearKernel",
    ]  # fmt: skip
    x = activations(33, K)
    groups = x.float().unflatten(1, (K // G, G))
    largest = groups.abs().amax(2, keepdim=True)
    steps = (groups * (127 / largest)).round()
    seen = (steps.double() * (largest / 127).double()).flatten(1)
    assert_near(rounded(x), seen, codes.weight())
    assert (rounded(x) - layer(x)).abs().max() > 0
    assert torch.equal(rounded(x[:32]), layer(x[:32]))


def test_act_order_keeps_fp16_activations():
    codes = Codes.random(N, K, G, act_order=True)
    layer = rounding(QuantizedLinear.from_gptq(**codes.gptq()))
    assert taken(layer, 64) == "RDNA2W4A16LinearKernel"


@pytest.mark.parametrize("static", (False, True))
@pytest.mark.parametrize("rows", (1, pytest.param(40, marks=pytest.mark.slow)))
def test_fp8(static, rows):
    bits, value = fp8_bytes("e4m3", N, K)
    scale = 0.001 * (1 + torch.rand(N, generator=generator(3)))
    given = {"input_scale": torch.tensor(0.01)} if static else {}
    layer = rounding(
        QuantizedLinear.from_fp8(bits.view(torch.float8_e4m3fn), scale, **given, bias=BIAS)
    )
    assert taken(layer, rows) == "RDNA2W8A8FP8LinearKernel"
    x = activations(rows, K)
    x[-1] *= 10  # rows of different size; above 4.48 the static scale saturates
    largest = x.float().abs().amax(1, keepdim=True)
    step = torch.tensor(0.01) if static else largest / 448
    seen = (x.float() / step).clamp(-448, 448).to(torch.float8_e4m3fn).double() * step.double()
    assert_near(layer(x), seen, value * scale.double()[:, None])


def test_a_row_of_zeros():
    bits, _ = fp8_bytes("e4m3", N, K)
    layer = rounding(
        QuantizedLinear.from_fp8(bits.view(torch.float8_e4m3fn), torch.ones(1), bias=BIAS)
    )
    assert torch.equal(layer(torch.zeros(2, K).half()), BIAS.expand(2, N))


def test_other_widths_are_refused():
    layer = QuantizedLinear.quantize(torch.ones(8, 64), "int4", 32)
    with pytest.raises(ContractError, match="activation_bits: expected 8 or 16, got 4"):
        layer.activation_bits = 4
