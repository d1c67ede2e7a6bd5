"""from_checkpoint: formats told by names and dtypes, and what is said when they cannot be."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, QuantizedLinear
from tests.layers.packing import Codes, fp8_bytes, mxfp4_bytes

N, K, G = 16, 128, 32
PREFIX = "model.layers.3.mlp.down_proj"


def file(tensors: dict[str, torch.Tensor], bias: bool = True) -> dict[str, torch.Tensor]:
    """A checkpoint that has other layers too."""
    entries = {f"{PREFIX}.{name}": t for name, t in tensors.items()}
    if bias:
        entries[f"{PREFIX}.bias"] = torch.arange(N).half()
    return {**entries, f"{PREFIX}2.weight": torch.ones(3, 3), "norm.weight": torch.ones(4)}


CASES = {
    "gptq": (Codes.random(N, K, G), lambda c: c.gptq(), "int4"),
    "gptq act-order": (Codes.random(N, K, G, act_order=True), lambda c: c.gptq(), "int4"),
    "gptq 8 bits": (Codes.random(N, K, G, bits=8), lambda c: c.gptq(), "i8"),
    "awq": (Codes.random(N, K, G), lambda c: c.awq(), None),
    "compressed-tensors": (Codes.random(N, K, G), lambda c: c.compressed_tensors(), "int4"),
    "compressed-tensors act-order": (
        Codes.random(N, K, G, act_order=True), lambda c: c.compressed_tensors(), "int4",
    ),
    "compressed-tensors symmetric 8 bits": (
        Codes.random(N, K, G, bits=8, symmetric=True), lambda c: c.compressed_tensors(False), "i8",
    ),
    "compressed-tensors 8 bits": (
        Codes.random(N, K, G, bits=8), lambda c: c.compressed_tensors(), "i8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dot", ("", "."))
def test_a_format_is_recognised(name, dot):
    codes, make, format = CASES[name]
    layer = QuantizedLinear.from_checkpoint(file(make(codes)), PREFIX + dot)
    assert format is None or layer.format == format
    assert torch.equal(layer.dequantize(torch.float64), codes.weight())
    assert torch.equal(layer.bias, torch.arange(N).half())


def test_only_the_layers_own_entries_are_read():
    class Lazy(dict):
        def __getitem__(self, name):
            assert name.startswith(PREFIX + ".")
            return super().__getitem__(name)

        def items(self):
            raise AssertionError("reads everything")

    codes = Codes.random(N, K, G)
    layer = QuantizedLinear.from_checkpoint(Lazy(file(codes.gptq())), PREFIX)
    assert torch.equal(layer.dequantize(torch.float64), codes.weight())


def test_float_and_int8_weights_and_no_prefix():
    weight = torch.randn(N, K)
    layer = QuantizedLinear.from_checkpoint({"weight": weight})
    assert (layer.format, layer.bias) == ("f16", None)
    codes = torch.randint(-128, 128, (N, K)).to(torch.int8)
    layer = QuantizedLinear.from_checkpoint({"weight": codes, "weight_scale": torch.ones(N, 1)})
    assert layer.format == "i8" and torch.equal(layer.dequantize(), codes.half())


@pytest.mark.parametrize("scale", ("weight_scale", "weight_scale_inv"))
@pytest.mark.parametrize("static", (False, True))
def test_fp8(scale, static):
    bits, value = fp8_bytes("e4m3", N, K)
    tensors = {"weight": bits.view(torch.float8_e4m3fn), scale: torch.full((1, 1), 0.5)}
    if static:
        tensors["input_scale"] = torch.tensor(0.25)
    layer = QuantizedLinear.from_checkpoint(file(tensors), PREFIX)
    assert (layer.format, layer.form.input_scale) == ("e4m3", static)
    assert torch.equal(layer.dequantize(torch.float64), 0.5 * value)


@pytest.mark.parametrize(
    "names",
    [
        ("weight", "weight_scale"),
        ("weight_packed", "weight_scale"),
        ("weight_blocks", "weight_scales"),
        ("blocks", "scales"),
    ],
)
def test_mxfp4(names):
    codes, scale, value = mxfp4_bytes(N, K)
    layer = QuantizedLinear.from_checkpoint(
        file(dict(zip(names, (codes, scale), strict=True))), PREFIX
    )
    assert layer.format == "mxfp4"
    assert torch.equal(layer.dequantize(torch.float64), value)


@pytest.mark.parametrize("version", (1, 2))
def test_symmetric_gptq_tells_its_version(version):
    codes = Codes.random(N, K, G, symmetric=True)
    layer = QuantizedLinear.from_checkpoint(codes.gptq(version))
    assert torch.equal(layer.dequantize(torch.float64), codes.weight())


def test_a_given_version_of_gptq_is_used():
    codes = Codes.random(N, K, G)
    layer = QuantizedLinear.from_checkpoint(codes.gptq(2), gptq_version=2)
    assert torch.equal(layer.dequantize(torch.float64), codes.weight())


@pytest.mark.parametrize(
    "tensors, says",
    [
        ({}, "got nothing; pass the layer's prefix"),
        ({"weight": torch.zeros(2, 2).to(torch.int32)}, r"got weight int32\[2, 2\]"),
        (
            {"weight": torch.zeros(2, 2).to(torch.float8_e5m2), "input_scale": torch.ones(1)},
            "expected weight_scale or weight_scale_inv, got neither",
        ),
        (
            {"weight": torch.zeros(2, 2), "weight_odd": torch.zeros(1)},
            r"got weight float32\[2, 2\], weight_odd float32\[1\]; from_gptq",
        ),
        (
            {
                "weight_packed": torch.zeros(2, 8, dtype=torch.uint8),
                "weight_scale": torch.zeros(2, 1),
                "weight_global_scale": torch.zeros(1),
            },
            "NVFP4 is not served",
        ),
    ],
)
def test_what_is_not_recognised_is_listed(tensors, says):
    with pytest.raises(ContractError, match=says):
        QuantizedLinear.from_checkpoint(tensors)
