"""Tensor-parallel parts: concatenated or added they are the whole; what cannot be cut says so."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, QuantizedLinear
from tests.layers.packing import Codes, activations, generator

N, K = 64, 640
WEIGHT = torch.randn(N, K, generator=generator(0))
BIAS = torch.randn(N, generator=generator(1)).half()
WHOLE = {
    "int4": {"group_size": 32},
    "int4 symmetric": {"format": "int4", "group_size": 128, "symmetric": True},
    "awq": {"group_size": 64},
    "int8": {},
    "int8 groups": {"format": "int8", "group_size": 128},
    "fp8": {},
    "fp8 tensor": {"format": "fp8", "scale": "tensor"},
    "fp8 blocks": {"format": "fp8", "scale": (32, 128)},
    "mxfp4": {},
    "f16": {},
}


def made(name: str) -> QuantizedLinear:
    return QuantizedLinear.quantize(WEIGHT, bias=BIAS, **{"format": name, **WHOLE[name]})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("size", (1, 2, 4))
def test_parts_are_the_whole(name, size):
    layer = made(name)
    for dim in (0, 1):
        parts = [layer.slice(dim, rank, size) for rank in range(size)]
        weight = torch.cat([part.dequantize(torch.float64) for part in parts], dim)
        assert torch.equal(weight, layer.dequantize(torch.float64))
        assert all(t.is_contiguous() for part in parts for t in part.tensors.values())
    columns = [layer.slice(0, rank, size) for rank in range(size)]
    assert torch.equal(torch.cat([part.bias for part in columns]), BIAS)


@pytest.mark.parametrize("name", ("int4", "int8"))
def test_parts_compute_the_whole(name):
    layer, x = made(name), activations(2, K)
    y = layer(x)
    columns = [layer.slice(0, rank, 2)(x) for rank in range(2)]
    assert torch.allclose(torch.cat(columns, 1).float(), y.float(), atol=2e-3, rtol=2e-3)
    share = K // 4
    parts = [layer.slice(1, rank, 4) for rank in range(4)]
    total = sum(
        part(x[:, rank * share : (rank + 1) * share]).double() for rank, part in enumerate(parts)
    )
    assert [part.bias is not None for part in parts] == [True, False, False, False]
    want = x.double() @ layer.dequantize(torch.float64).t() + BIAS.double()
    assert (total - want).norm() < 5e-4 * want.norm()


def test_groups_that_a_cut_would_split_are_subdivided():
    layer = made("int4 symmetric")  # 640 / 4 = 160 rows against groups of 128
    part = layer.slice(1, 1, 4)
    assert (part.in_features, part.group_size) == (160, 32)
    assert part.scales.shape == (5, N)
    assert layer.slice(1, 0, 5).group_size == 128
    assert made("int8 groups").slice(1, 3, 4).group_size == 32


def test_blocks_that_a_cut_would_split_become_smaller():
    layer = made("fp8 blocks")
    assert layer.slice(0, 1, 4).form.block == (16, 128)
    assert layer.slice(1, 3, 4).form.block == (32, 32)
    assert layer.slice(1, 3, 5).form.block == (32, 128)
    odd = QuantizedLinear.quantize(WEIGHT[:, :320], "fp8", scale=(48, 128))  # blocks in part
    parts = [odd.slice(0, rank, 2) for rank in range(2)]
    assert [part.form.block for part in parts] == [(16, 128), (16, 128)]
    assert torch.equal(torch.cat([p.dequantize() for p in parts]), odd.dequantize())


def test_act_order_is_cut_along_outputs_only():
    codes = Codes.random(N, K, 64, act_order=True)
    layer = QuantizedLinear.from_gptq(**codes.gptq())
    parts = [layer.slice(0, rank, 2).dequantize(torch.float64) for rank in range(2)]
    assert torch.equal(torch.cat(parts), codes.weight())
    with pytest.raises(ContractError, match="act-order weight cannot be cut along its inputs"):
        layer.slice(1, 0, 2)
    assert torch.equal(layer.slice(1, 0, 1).dequantize(torch.float64), codes.weight())


@pytest.mark.parametrize(
    "name, dim, rank, size, says",
    [
        ("int4", 0, 0, 3, "outputs that divide into parts of a multiple of 8, got 64 in 3 parts"),
        ("int4", 0, 0, 16, "64 in 16 parts; use another number of ranks"),
        ("int4", 1, 0, 8, r"multiples of 32 rows, got rows 0..80 of K = 640 in groups of 32"),
        ("int8", 1, 0, 7, "inputs that divide into parts of a multiple of 8, got 640 in 7"),
        ("mxfp4", 1, 0, 8, "inputs that divide into parts of a multiple of 32, got 640 in 8"),
        ("fp8 blocks", 1, 0, 8, r"multiples of 32 inputs, got inputs 0..80 in blocks of 128"),
        ("int8", 2, 0, 2, r"dim: expected 0 \(outputs\) or 1 \(inputs\), got 2"),
        ("int8", 0, 2, 2, r"rank: expected 0..1, got 2"),
    ],
)
def test_what_cannot_be_cut(name, dim, rank, size, says):
    with pytest.raises(ContractError, match=says):
        made(name).slice(dim, rank, size)


def test_one_group_over_the_whole_of_k_is_cut_anywhere():
    layer = QuantizedLinear.quantize(WEIGHT, "int4", -1)
    part = layer.slice(1, 1, 8)
    assert (part.in_features, part.group_size) == (80, 80)
    x = activations(1, 80)
    want = x.double() @ part.dequantize(torch.float64).t()
    assert (part(x).double() - want).norm() < 5e-4 * want.norm()
