"""Each constructor on tensors packed by the format's definition, against float64."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, QuantizedLinear
from tests.layers.packing import (
    Codes,
    activations,
    assert_computes,
    fp8_bytes,
    generator,
    mxfp4_bytes,
    pack,
)

N, K, G = 40, 192, 64
BIAS = torch.randn(N, generator=generator(5)).half()


def test_awq_in_groups_of_16_keeps_its_words():
    codes = Codes.random(N, K, 16)
    layer = QuantizedLinear.from_awq(**codes.awq())
    assert layer.format == "awq"
    assert_computes(layer, codes.weight())
    assert QuantizedLinear.from_awq(**codes.awq(), repack=True).format == "int4"


@pytest.mark.parametrize("group", (16, 48))
def test_int4_in_small_groups_takes_awqs_order(group):
    codes = Codes.random(N, K, group)
    packed = codes.compressed_tensors()
    del packed["weight_shape"]
    for layer in (
        QuantizedLinear.from_gptq(**codes.gptq(1)),
        QuantizedLinear.from_compressed_tensors(**packed),
    ):
        assert layer.format == "awq"
        assert_computes(layer, codes.weight())


@pytest.mark.parametrize("version", (1, 2))
@pytest.mark.parametrize("act_order", (False, True))
@pytest.mark.parametrize("bits", (4, 8))
def test_gptq(version, act_order, bits):
    codes = Codes.random(N, K, G, bits=bits, act_order=act_order)
    tensors = codes.gptq(version)
    layer = QuantizedLinear.from_gptq(**tensors, version=version, bits=bits, bias=BIAS)
    assert layer.form.act_order is act_order and layer.form.zeros
    if bits == 4:
        assert_computes(layer, codes.weight(), BIAS)
    else:  # no kernel has 8-bit zero points: torch.matmul on fp16 weights
        assert torch.equal(layer.dequantize(torch.float64), codes.weight())
        assert_matmul(layer, codes.weight(), BIAS)


@pytest.mark.parametrize("act_order", (False, True))
def test_symmetric_gptq_without_zeros(act_order):
    codes = Codes.random(N, K, G, symmetric=True, act_order=act_order)
    layer = QuantizedLinear.from_gptq(qzeros=None, **codes.gptq(zeros=False))
    assert not layer.form.zeros
    assert_computes(layer, codes.weight())


@pytest.mark.parametrize("group", (K, G))
def test_symmetric_8_bit_codes_become_int8(group):
    codes = Codes.random(N, K, group, bits=8, symmetric=True)
    layer = QuantizedLinear.from_gptq(**codes.gptq(), bits=8)
    assert (layer.format, layer.form.zeros) == ("i8", False)
    assert layer.form.scale == ("channel" if group == K else "group")
    assert_computes(layer, codes.weight())


def test_act_order_of_int8_is_undone():
    codes = Codes.random(N, K, K, bits=8, symmetric=True)
    rows = torch.randperm(K, generator=generator(3))
    layer = QuantizedLinear.from_gptq(**codes.gptq(), bits=8)
    form = type(layer.form)(**{**layer.form.__dict__, "act_order": True})
    permuted = QuantizedLinear.of(form, {**layer.tensors, "perm": rows.int()}, None)
    assert_computes(permuted, codes.weight()[:, torch.argsort(rows)])


@pytest.mark.parametrize("repack", (True, False))
def test_awq(repack):
    codes = Codes.random(N, K, G)
    layer = QuantizedLinear.from_awq(**codes.awq(), repack=repack, bias=BIAS)
    assert layer.format == ("int4" if repack else "awq")
    assert_computes(layer, codes.weight(), BIAS)


@pytest.mark.parametrize("zeros", (True, False))
@pytest.mark.parametrize("act_order", (False, True))
def test_compressed_tensors(zeros, act_order):
    codes = Codes.random(N, K, G, symmetric=not zeros, act_order=act_order)
    tensors = codes.compressed_tensors(zeros)
    del tensors["weight_shape"]
    layer = QuantizedLinear.from_compressed_tensors(**tensors, bias=BIAS)
    assert_computes(layer, codes.weight(), BIAS)


@pytest.mark.parametrize("zeros", (True, False))
def test_8_bit_compressed_tensors(zeros):
    codes = Codes.random(N, K, K, bits=8, symmetric=not zeros)
    tensors = codes.compressed_tensors(zeros)
    del tensors["weight_shape"]
    layer = QuantizedLinear.from_compressed_tensors(**tensors, bits=8, bias=BIAS)
    assert layer.form.zeros is zeros
    check = assert_matmul if zeros else assert_computes
    check(layer, codes.weight(), BIAS)


@pytest.mark.parametrize("shape", ((), (N, 1), (N, K // G)))
def test_int8(shape):
    g = generator(7)
    weight = torch.randint(-128, 128, (N, K), generator=g).to(torch.int8)
    scale = 0.001 + 0.01 * torch.rand(shape, generator=g)
    layer = QuantizedLinear.from_int8(weight, scale, bias=BIAS)
    columns = scale.numel() // N if scale.numel() >= N else 1
    wide = scale.double().reshape(-1, columns).repeat_interleave(K // columns, 1)
    want = weight.double() * wide
    assert_computes(layer, want, BIAS)


@pytest.mark.parametrize("fmt", ("e4m3", pytest.param("e5m2", marks=pytest.mark.slow)))
@pytest.mark.parametrize("kind", ("tensor", "channel", "column", "block", "small block"))
def test_fp8(fmt, kind):
    n, k = (40, 192) if kind != "block" else (136, 264)
    bits, value = fp8_bytes(fmt, n, k)
    shape = {
        "tensor": (), "channel": (n,), "column": (n, 1), "block": (2, 3), "small block": (3, 6),
    }[kind]  # fmt: skip
    bn, bk = {"block": (128, 128), "small block": (16, 32)}.get(kind, (1, k))
    scale = (0.5 + torch.rand(shape, generator=generator(9))) / (448 if fmt == "e4m3" else 57344)
    given = {"block": (16, 32)} if kind == "small block" else {}
    name = "weight_scale_inv" if "block" in kind else "weight_scale"
    codes = bits.view({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[fmt])
    bias = torch.randn(n, generator=generator(5)).half()
    layer = QuantizedLinear.from_fp8(codes, **{name: scale}, **given, bias=bias)
    wide = scale.double().reshape(-1, shape[1] if len(shape) == 2 else 1)
    if shape:
        wide = wide.repeat_interleave(bn, 0)[:n].repeat_interleave(bk, 1)[:, :k]
    assert layer.form.block == (None if "block" not in kind else (bn, bk))
    assert_computes(layer, value * wide, bias)
    again = QuantizedLinear.from_fp8(bits, **{name: scale}, **given, fmt=fmt)
    assert torch.equal(again.dequantize(torch.float64), value * wide)


def test_mxfp4():
    codes, scale, value = mxfp4_bytes(N, K)
    assert_computes(QuantizedLinear.from_mxfp4(codes, scale, bias=BIAS), value, BIAS)
    e8m0 = scale.view(torch.float8_e8m0fnu)
    layer = QuantizedLinear.from_mxfp4(codes.view(N, K // 32, 16), e8m0)
    assert torch.equal(layer.dequantize(torch.float64), value)


def test_float():
    weight = torch.randn(N, K, generator=generator(2)).bfloat16()
    layer = QuantizedLinear.from_float(weight, bias=BIAS)
    assert layer.weight.dtype == torch.float16
    assert_computes(layer, weight.double(), BIAS)


@pytest.mark.parametrize(
    "format, options, step",
    [
        ("gptq", {"group_size": 32}, 1 / 15),
        ("int4", {"group_size": 64, "symmetric": True}, 1 / 7),
        ("int4", {"group_size": -1}, 1 / 15),
        ("awq", {"group_size": 32}, 1 / 15),
        ("int8", {}, 1 / 127),
        ("int8", {"group_size": 64}, 1 / 127),
        ("fp8", {}, 2.0**-4),
        ("fp8", {"scale": "tensor"}, 2.0**-4),
        ("fp8", {"scale": (16, 64)}, 2.0**-4),
        ("e5m2", {}, 2.0**-3),
        ("mxfp4", {}, 1 / 4),
        ("f16", {}, 2.0**-11),
    ],
)
def test_quantize(format, options, step):
    weight = torch.randn(N, K, generator=generator(4))
    layer = QuantizedLinear.quantize(weight, format, bias=BIAS, **options)
    # Half a step of the widest range there is, and what rounding the scale adds.
    widest = 2 * weight.abs().max() * step
    worst = (layer.dequantize(torch.float64) - weight).abs().max()
    assert worst <= 0.55 * widest
    assert layer(activations(2, K)).shape == (2, N)


def assert_matmul(layer, weight, bias):
    """As assert_computes, for weights that are rounded to fp16 first."""
    x = activations(3, weight.shape[1])
    want = x.double() @ weight.t() + bias.double()
    error = (layer(x).double() - want).norm() / want.norm()
    assert error < 1e-3
    assert not torch.isnan(error)


W4 = Codes.random(N, K, G)
BAD = [
    ("gptq", {"qweight": W4.gptq()["qweight"].long()}, "qweight: expected torch.int32"),
    ("gptq", {"scales": W4.scales[:, :-8]}, r"scales: expected shape \[K/G, 40\] with K = 192"),
    ("gptq", {"qzeros": W4.gptq()["qzeros"][:1]}, r"qzeros: expected shape \[3, 5\]"),
    ("gptq", {"g_idx": torch.zeros(8, dtype=torch.int32)}, "g_idx: expected 192 entries, got 8"),
    ("gptq", {"version": 3}, r"version: expected 1 \(zeros stored less one\)"),
    ("gptq", {"bits": 3}, "bits: expected 4 or 8, got 3"),
    ("gptq", {"bias": torch.zeros(N + 1)}, r"bias: expected shape \[40\], got \[41\]"),
    ("gptq", W4.awq(), "these words look like AWQ's: use from_awq"),
    ("awq", W4.gptq(), "these words look like GPTQ's: use from_gptq"),
    ("awq", {"qzeros": W4.awq()["qzeros"][:, :1]}, r"qzeros: expected shape \[3, 5\]"),
    ("compressed_tensors", {"bits": 2}, "bits: expected 4 or 8"),
    (
        "compressed_tensors",
        {"weight_scale": torch.ones(N, 5)},
        r"weight_scale: expected shape \[40, K/G\]",
    ),
    (
        "compressed_tensors",
        {"weight_zero_point": pack(W4.zeros, 4, 1)},
        r"weight_zero_point: expected shape \[5, 3\]",
    ),
    (
        "compressed_tensors",
        {"weight_scale": torch.full((N, 3), 1e-12)},
        "120 of 120 do not fit fp16",
    ),
]


@pytest.mark.parametrize("name, change, says", BAD)
def test_what_does_not_fit_is_named(name, change, says):
    tensors = getattr(Codes.random(N, K, G), name)()
    tensors.pop("weight_shape", None)
    with pytest.raises(ContractError, match=says):
        getattr(QuantizedLinear, f"from_{name}")(**{**tensors, **change})


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: QuantizedLinear.quantize(torch.ones(N, K), "int5"), "format: expected one of"),
        (
            lambda: QuantizedLinear.quantize(torch.ones(K), "int4"),
            r"weight: expected a float matrix",
        ),
        (
            lambda: QuantizedLinear.quantize(torch.ones(N, K), "awq", 32, symmetric=True),
            "AWQ always stores zeros",
        ),
        (lambda: QuantizedLinear.quantize(torch.ones(N, K), "int8", 80), "a divisor of K = 192"),
        (
            lambda: QuantizedLinear.from_float(torch.full((8, 8), 1e6)),
            "finite values that fit fp16",
        ),
        (
            lambda: QuantizedLinear.from_int8(torch.zeros(8, 8), torch.ones(8)),
            "expected torch.int8",
        ),
        (
            lambda: QuantizedLinear.from_int8(torch.zeros(8, 8).to(torch.int8), torch.ones(3)),
            r"weight_scale: expected shape \[1\], \[8\]",
        ),
        (
            lambda: QuantizedLinear.from_fp8(
                torch.full((8, 8), torch.nan).to(torch.float8_e5m2), torch.ones(1)
            ),
            "w: expected finite codes, got 64 of 64 that are not",
        ),
        (
            lambda: QuantizedLinear.from_fp8(
                torch.zeros(8, 8).to(torch.float8_e4m3fnuz), torch.ones(1)
            ),
            "expected OCP float8",
        ),
        (
            lambda: QuantizedLinear.from_fp8(
                torch.zeros(8, 8).to(torch.float8_e5m2), torch.ones(2, 2)
            ),
            r"expected shape \[1\], \[8\], \[8, 1\] or \[1, 1\], got \[2, 2\]; say block=",
        ),
        (
            lambda: QuantizedLinear.from_fp8(torch.zeros(8, 8).to(torch.float8_e5m2)),
            "weight_scale or weight_scale_inv, got 0 of them",
        ),
        (
            lambda: QuantizedLinear.from_mxfp4(
                torch.zeros(8, 16).byte(), torch.full((8, 1), 255).byte()
            ),
            "bytes 0..254, got 8 of 255",
        ),
        (
            lambda: QuantizedLinear.quantize(torch.ones(8, 64), "fp8", 32),
            "group_size: expected None",
        ),
        (
            lambda: QuantizedLinear.quantize(torch.ones(8, 64), "mxfp4", 16),
            "group_size: expected 32",
        ),
        (lambda: QuantizedLinear(60, 8, "int8"), "in_features: expected a multiple of 8, got 60"),
        (lambda: QuantizedLinear(64, 8, "int4", 48), "group_size: expected a divisor"),
    ],
)
def test_bad_requests(call, says):
    with pytest.raises(ContractError, match=says):
        call()


def test_columns_that_packed_zeros_cannot_have_are_refused():
    codes = Codes.random(64, K, G)
    t = codes.gptq()
    cut = {"qweight": t["qweight"][:, :60], "qzeros": t["qzeros"][:, :7]}
    with pytest.raises(ContractError, match="qweight: expected a multiple of 8 columns"):
        QuantizedLinear.from_gptq(**cut, scales=t["scales"][:, :60])
    with pytest.raises(ContractError, match="scales: expected a tensor"):
        QuantizedLinear.from_gptq(**(t | {"scales": None}))
    with pytest.raises(ContractError, match="g_idx: expected a tensor"):
        QuantizedLinear.from_gptq(**(t | {"g_idx": [0] * K}))
    packed = codes.compressed_tensors()
    del packed["weight_shape"]
    for scale in (None, packed["weight_scale"][None]):
        with pytest.raises(ContractError, match="weight_scale: expected"):
            QuantizedLinear.from_compressed_tensors(**(packed | {"weight_scale": scale}))
    packed |= {name: packed[name][:60] for name in ("weight_packed", "weight_scale")}
    packed["weight_zero_point"] = packed["weight_zero_point"][:7]
    with pytest.raises(ContractError, match="weight_packed: expected a multiple of 8 columns"):
        QuantizedLinear.from_compressed_tensors(**packed)
