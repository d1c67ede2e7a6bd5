"""QuantizedLinear as a torch module: shapes, state, casts, copies, compiled graphs."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, QuantizedLinear
from tests.layers.packing import activations, generator

N, K = 24, 128
WEIGHT = torch.randn(N, K, generator=generator(0))
BIAS = torch.randn(N, generator=generator(1)).half()
SLOW = pytest.mark.slow
FORMATS = ("gptq", "awq", "int8", "fp8", "mxfp4", "f16")


def made(format: str, **options) -> QuantizedLinear:
    return QuantizedLinear.quantize(WEIGHT, format, bias=BIAS, **options)


@pytest.mark.parametrize(
    "format",
    ("gptq", "int8", *(pytest.param(f, marks=SLOW) for f in ("awq", "fp8", "mxfp4", "f16"))),
)
def test_leading_dimensions_come_back(format):
    layer, x = made(format), activations(2, 3, K)
    y = layer(x)
    assert y.shape == (2, 3, N)
    assert torch.equal(y.view(6, N), layer(x.view(6, K)))
    assert layer(x[0, 0]).shape == (N,)
    assert layer(x[:0]).shape == (0, 3, N)
    assert torch.equal(layer(torch.cat([x, x], -1)[..., :K]), y)  # rows of a wider matrix


@pytest.mark.parametrize("format", FORMATS)
def test_a_state_dict_makes_the_same_layer(format):
    layer, x = made(format), activations(2, K)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert torch.equal(QuantizedLinear.from_state_dict(state)(x), layer(x))
    empty = QuantizedLinear(K, N, format, layer.group_size or None, bias=True,
                            **{"zeros": True} if format == "gptq" else {})  # fmt: skip
    empty.load_state_dict(state)
    assert torch.equal(empty(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_a_state_of_another_form_is_refused():
    one, other = made("gptq", group_size=32), QuantizedLinear(K, N, "gptq", 64, zeros=True)
    with pytest.raises(ContractError, match="expected a layer of the form"):
        other.load_state_dict(one.state_dict(), strict=False)
    state = {f"layer.{name}": t for name, t in one.state_dict().items()}
    assert QuantizedLinear.from_state_dict(state, "layer.").group_size == 32
    with pytest.raises(ContractError, match="an entry '_extra_state'"):
        QuantizedLinear.from_state_dict(state)


def test_zero_offsets_come_with_the_state():
    from tests.layers.packing import Codes

    codes = Codes.random(N, K, 32)
    layer = QuantizedLinear.from_gptq(**codes.gptq(1))
    empty = QuantizedLinear(K, N, "gptq", 32, zeros=True)
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty.dequantize(torch.float64), codes.weight())


@pytest.mark.parametrize("format", FORMATS)
def test_casts_leave_the_format_alone(format):
    layer = made(format)
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    for cast in (torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.double):
        cast(layer)
    layer.to("cpu", torch.float32)
    for name, t in layer.state_dict().items():
        assert t.dtype == before[name].dtype
        assert torch.equal(t.view(torch.uint8), before[name].view(torch.uint8))
    assert layer.to("meta").tensors.popitem()[1].device.type == "meta"


def test_what_a_layer_says_of_itself():
    layer = made("gptq", group_size=64)
    text = repr(layer)
    assert "in_features=128, out_features=24, int4, group 64, zeros, bias=True" in text
    assert "kernels: RDNA2W4A16LinearKernel, " in text
    assert layer.nbytes == 24 * 64 + 2 * (24 * 2 + 12) + 2 * 24
    assert f"{layer.nbytes} bytes" in text


def test_bad_activations():
    layer = made("gptq")
    for x, says in (
        (torch.ones(2, K), "x: expected torch.float16, got torch.float32; call x.half()"),
        (activations(2, K + 8), r"x: expected shape \[..., 128\], got \[2, 136\]"),
        (activations(2, 2, K + 8), r"x: expected shape \[..., 128\]"),
        (activations(2, K).requires_grad_(), "the layer is for inference"),
        (activations(2, K).to("meta"), "x: expected a tensor on cpu"),
    ):
        with pytest.raises(ContractError, match=says):
            layer(x)
    with torch.no_grad():
        assert layer(activations(2, K).requires_grad_()).shape == (2, N)


@pytest.mark.parametrize(
    "format, kernel", (("gptq", "w4a16_decode"), pytest.param("int8", "gemv_i8", marks=SLOW))
)
def test_a_graph_traced_for_many_rows_decodes_one_row(format, kernel):
    layer = made(format)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    x = activations(64, K)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))
        assert torch.equal(compiled(x.view(4, 16, K)).view(64, N), layer(x))
        rdna_jit.dispatch_log(clear=True)
        y = compiled(x[:1])
    (entry,) = rdna_jit.dispatch_log()
    assert (entry.kernel, entry.shape["M"]) == (kernel, 1)
    assert entry.values["M_TILE"] == 1
    assert torch.equal(y, layer(x[:1]))


def test_torchs_own_checks_of_the_registration():
    layer = made("gptq")
    arguments = (activations(2, K), list(layer.tensors.values()), layer.bias, layer.form.text)
    torch.library.opcheck(torch.ops.rdna_jit.quantized_linear.default, arguments)
