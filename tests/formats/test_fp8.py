"""FP8: codes against the definition, quantisers, scales of every kind, and back."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, formats

CODES = torch.arange(256, dtype=torch.uint8)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def value_of(code: int, exponent_bits: int, bias: int) -> float:
    """By the definition; NaN and infinities aside."""
    fraction_bits = 7 - exponent_bits
    exponent, fraction = (
        code >> fraction_bits & (1 << exponent_bits) - 1,
        code & (1 << fraction_bits) - 1,
    )
    size = fraction / 2**fraction_bits + (exponent > 0)
    return (-1) ** (code >> 7) * size * 2.0 ** (max(exponent, 1) - bias)


@pytest.mark.parametrize("fmt, bits, bias", [("e4m3", 4, 7), ("e5m2", 5, 15)])
def test_every_code_decodes_by_the_definition(fmt, bits, bias):
    got = formats.decode_fp8(CODES, fmt, torch.float64)
    for code in range(256):
        special = code & 0x7F == 0x7F if fmt == "e4m3" else code & 0x7F >= 0x7C
        if not special:
            assert float(got[code]) == value_of(code, bits, bias), hex(code)
    assert bool(got[0x7F].isnan()) and bool(got[0xFF].isnan())
    assert torch.equal(got[0x80].signbit(), torch.tensor(True))
    assert fmt == "e4m3" or bool(got[0x7C].isposinf())


def encode_by_rule(x: torch.Tensor) -> torch.Tensor:
    """e4m3 by integer arithmetic on fp32 bits: nearest, ties to even, saturating."""
    size = x.abs()
    bits = size.view(torch.int32).long()
    small = (size + 2.0**14).view(torch.int32).long() - (0x8C << 23)
    usual = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - 960
    code = torch.where(size < 2.0**-6, small, usual.clamp(max=0x7E))
    code = torch.where(size >= 448, 0x7E, code)
    return (code | torch.where(x.signbit(), 0x80, 0)).to(torch.uint8)


def test_encoding_is_to_nearest_even_and_saturates():
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    g = torch.Generator().manual_seed(0)
    wide = torch.randint(-(2**31), 2**31, (1 << 18,), generator=g).to(torch.int32)
    for x in (halves.float(), wide.view(torch.float32)):
        x = x[~x.isnan()]
        got = formats.encode_e4m3(x)
        assert got.dtype == E4M3 and torch.equal(got.view(torch.uint8), encode_by_rule(x))
    assert bool(formats.encode_e4m3(torch.tensor([torch.nan])).float().isnan())
    top = formats.encode_fp8(torch.tensor([1e9, -torch.inf, 61440.0]), "e5m2").float()
    assert top.tolist() == [57344.0, -57344.0, 57344.0]


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_every_finite_code_survives_a_round_trip(fmt):
    values = formats.decode_fp8(CODES, fmt, torch.float32)
    finite = values.isfinite()
    back = formats.encode_fp8(values, fmt).view(torch.uint8)
    assert torch.equal(back[finite], CODES[finite])


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("scale", ["tensor", "channel", (16, 32), (5, 24), (100, 100)])
def test_quantised_weights_are_within_half_a_step(fmt, scale):
    w = torch.randn(37, 72, generator=torch.Generator().manual_seed(1)) * 0.05
    w[:, 30:] *= 40
    w[3] = 0
    codes, scales = formats.quantize_fp8(w, fmt, scale)
    block = scale if isinstance(scale, tuple) else None
    shape = {"tensor": (1,), "channel": (37,)}.get(str(scale))
    if block:
        shape = (-(-37 // block[0]), -(-72 // block[1]))
    assert scales.shape == shape and scales.dtype == torch.float32
    back = formats.dequantize_fp8(codes, scales, block, dtype=torch.float64)
    step = 2.0**-4 if fmt == "e4m3" else 2.0**-3
    least = 2.0**-10 if fmt == "e4m3" else 2.0**-17
    wide = formats.dequantize_fp8(torch.ones(37, 72).to(E4M3), scales, block, dtype=torch.float64)
    assert bool(((back - w).abs() <= w.abs() * step * 1.001 + wide * least).all())
    assert formats.check_fp8(codes) == fmt and not back[3].any()


def test_dequantise_rounds_once_and_takes_every_kind_of_scale():
    codes = CODES[:224].reshape(8, 28).repeat(1, 2)
    exact = formats.decode_fp8(codes & 0x77, "e4m3", torch.float64)
    codes = codes & 0x77
    g = torch.Generator().manual_seed(2)
    for shape, block in [((), None), ((1,), None), ((8,), None), ((8, 1), None), ((3, 4), (3, 16))]:
        scale = torch.rand(shape, generator=g) + 0.01
        got = formats.dequantize_fp8(codes, scale, block, fmt="e4m3")
        want = torch.empty(8, 56, dtype=torch.float64)
        for n in range(8):
            for k in range(56):
                at = (n // 3, k // 16) if block else (n, 0)[: len(shape)]
                at = (0,) if shape == (1,) else at
                want[n, k] = exact[n, k] * scale.double()[at]
        assert torch.equal(got, want.half())


def test_block_scales_expand_to_k_major_rows_and_back():
    scale = torch.arange(12.0).reshape(3, 4)
    wide = formats.expand_block_scales(scale, (16, 128), 40)
    assert wide.shape == (4, 40)
    assert wide[2, 15] == scale[0, 2] and wide[2, 16] == scale[1, 2] and wide[3, 39] == scale[2, 3]
    assert torch.equal(formats.collapse_block_scales(wide, (16, 128)), scale)
    wide[2, 3] += 1
    with pytest.raises(ContractError, match="16 equal columns per block"):
        formats.collapse_block_scales(wide, (16, 128))


def test_k_major_bytes_round_trip():
    codes = CODES.reshape(8, 32).view(E5M2)
    turned = formats.fp8_to_k_major(codes)
    assert turned.shape == (32, 8) and turned.dtype == torch.uint8 and turned[5, 3] == 3 * 32 + 5
    back = formats.fp8_from_k_major(turned, "e5m2")
    assert back.dtype == E5M2 and torch.equal(back.view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize(
    "codes, fmt",
    [
        (torch.tensor([0x7F], dtype=torch.uint8), "e4m3"),
        (torch.tensor([0xFF], dtype=torch.uint8).view(E4M3), None),
        (torch.tensor([0x7C], dtype=torch.uint8), "e5m2"),
        (torch.tensor([0xFD], dtype=torch.uint8), "e5m2"),
    ],
)
def test_codes_that_are_no_numbers_are_found(codes, fmt):
    with pytest.raises(ContractError, match="w: expected finite codes, got 1 of 1"):
        formats.check_fp8(codes, fmt)
    assert formats.check_fp8(torch.tensor([0x7B], dtype=torch.uint8), "e5m2") == "e5m2"
    assert formats.check_fp8(torch.tensor([0x7E, 0xFE], dtype=torch.uint8), "e4m3fn") == "e4m3"


ONES = torch.ones(8, 64).to(E4M3)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: formats.check_fp8(ONES.float().to(torch.float8_e4m3fnuz)), "w: .*fnuz"),
        (lambda: formats.check_fp8(ONES, "e5m2"), "fmt: expected 'e4m3', which w is"),
        (lambda: formats.check_fp8(ONES.view(torch.uint8)), "fmt: .*beside a uint8 w, got None"),
        (lambda: formats.check_fp8(ONES.half()), "w: expected float8_e4m3fn.*got torch.float16"),
        (lambda: formats.check_fp8(ONES, "e3m4"), "fmt: expected 'e4m3' or 'e5m2', got 'e3m4'"),
        (lambda: formats.encode_e4m3(torch.ones(2).double()), "x: expected fp32"),
        (lambda: formats.quantize_fp8(torch.ones(8)), "w: expected a float matrix"),
        (lambda: formats.quantize_fp8(torch.full((2, 8), torch.inf)), "w: expected finite"),
        (lambda: formats.quantize_fp8(torch.ones(2, 8), scale="row"), "scale: expected 'tensor'"),
        (lambda: formats.quantize_fp8(torch.ones(2, 8), scale=(0, 8)), "block: expected two pos"),
        (
            lambda: formats.dequantize_fp8(ONES, torch.ones(7)),
            r"scale: expected shape \[1\], \[8\]",
        ),
        (lambda: formats.dequantize_fp8(ONES, torch.ones(1, 2)), "pass block="),
        (lambda: formats.dequantize_fp8(ONES, torch.ones(8), (4, 32)), "leave block out"),
        (lambda: formats.dequantize_fp8(ONES, torch.ones(2, 3), (4, 32)), r"shape \[2, 2\], as"),
        (lambda: formats.dequantize_fp8(ONES, torch.ones(8).bfloat16()), "fp32 or fp16 scales"),
    ],
)
def test_refusals_name_the_argument(make, says):
    with pytest.raises(ContractError, match=says):
        make()
