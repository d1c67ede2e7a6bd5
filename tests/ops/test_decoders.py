"""The kernels' decoders of fp8 and MXFP4 over every code, alone and through dot2."""

from __future__ import annotations

import itertools

import pytest
import torch

from rdna_jit import Template, emulator
from rdna_jit.code_object import CodeObject
from tests.ops.clang import compile_with_clang

Tensor = torch.Tensor

# out[i] = the four pairs of word i; dots[i] = each of their eight numbers, taken out by dot2.
DECODE = Template(
    """
constexpr int FORMAT = ${FORMAT};
#include "common/dot.hip"
#include "common/fp8.hip"
#include "common/mxfp4.hip"
KERNEL __launch_bounds__(32) void decode(const u32* __restrict in, u32* __restrict out,
                                         float* __restrict dots) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 32 + __builtin_amdgcn_workitem_id_x();
  u32 pairs[4] = {};
  if constexpr (FORMAT == 0) e4m3_decode(in[i], pairs[0], pairs[1]);
  if constexpr (FORMAT == 1) e4m3_decode<true>(in[i], pairs[0], pairs[1]);
  if constexpr (FORMAT == 2) e5m2_decode(in[i], pairs[0], pairs[1]);
  if constexpr (FORMAT == 3) e2m1_decode(in[i], pairs);
  if constexpr (FORMAT == 4) pairs[0] = bits<u32>(e8m0_scale(in[i]));
  for (int j = 0; j < 4; ++j) {
    out[i * 4 + j] = pairs[j];
    dots[i * 8 + j * 2] = dot2(0x00003C00u, pairs[j], 0.0f);
    dots[i * 8 + j * 2 + 1] = dot2(0x3C000000u, pairs[j], 0.0f);
  }
}
""",
    name="decode",
    values={"FORMAT": range(5)},
)
E4M3, E4M3_NAN, E5M2, E2M1, E8M0 = range(5)
MODES = [
    {"dot2": dot2, "dot2_flush": flush}
    for dot2, flush in itertools.product(("chain", "exact", "gfx11"), (False, True))
]


def decode(kind: int, words: Tensor) -> tuple[Tensor, Tensor]:
    """Words int32 `[n]`, n a multiple of 32, to halves `[n, 8]` and dots fp32 `[n, 8]`."""
    out = torch.full((len(words), 4), -1, dtype=torch.int32)
    dots = torch.full((len(words), 8), torch.nan)
    DECODE.specialise(FORMAT=kind).launch(len(words) // 32, 32, words, out, dots)
    return out.view(torch.float16), dots


def byte_codes() -> tuple[Tensor, Tensor]:
    """All 256 codes at every place of a word, beside different ones: uint8 `[256, 4]`, words."""
    step = torch.arange(256)[:, None]
    codes = ((step + torch.tensor([0, 37, 101, 190])) % 256).to(torch.uint8)
    return codes, codes.view(torch.int32).flatten()


def same(got: Tensor, want: Tensor) -> bool:
    """Equal numbers, NaN for NaN, and zeros of the same sign."""
    got, want = got.double(), want.double()
    nan = want.isnan()
    signs = torch.equal(got.signbit()[~nan], want.signbit()[~nan])
    return signs and torch.equal(got.isnan(), nan) and torch.equal(got[~nan], want[~nan])


def e4m3(codes: Tensor) -> Tensor:
    """By the definition: sign, 4 bits of exponent with bias 7, 3 of fraction, no infinity."""
    c = codes.to(torch.int64)
    exponent, fraction = (c >> 3 & 15).double(), (c & 7).double()
    value = torch.where(
        exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * torch.exp2(exponent - 7)
    )
    value[(c & 127) == 127] = torch.nan
    return torch.where(c >= 128, -value, value)


def test_every_e4m3_code_is_exact_and_normal():
    codes, words = byte_codes()
    want = e4m3(codes)
    assert want[~want.isnan()].abs().max() == 448  # exponent 15 is an ordinary binade
    finite = ~want.isnan()
    halves, _ = decode(E4M3, words)
    got = halves[:, :4].double()
    assert torch.equal(got[finite], want[finite])
    assert torch.equal(got.signbit(), codes >= 128)
    assert torch.equal(got[~finite].abs(), torch.full((8,), 480.0).double())
    size = got.abs()
    assert bool(((size == 0) | (size >= 2.0**-14)).all()), "no fp16 subnormal may reach dot2"


def test_e4m3_can_keep_its_nan():
    codes, words = byte_codes()
    halves, _ = decode(E4M3_NAN, words)
    assert same(halves[:, :4], e4m3(codes))


def test_every_e5m2_code_is_exact():
    codes, words = byte_codes()
    halves, _ = decode(E5M2, words)
    assert same(halves[:, :4], codes.view(torch.float8_e5m2).double())


def test_e5m2_subnormals_are_the_only_fp16_subnormals():
    """What a dot2 that flushes its inputs may drop: at most 3 * 2^-16 a weight, of up to 57344."""
    _, words = byte_codes()
    size = decode(E5M2, words)[0][:, :4].double().abs()
    small = size[(size > 0) & (size < 2.0**-14)].unique()
    assert small.tolist() == [2.0**-16, 2.0**-15, 3 * 2.0**-16]


def test_every_pair_of_e2m1_codes_is_exact():
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    values = torch.cat([table, -table])
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (512, 8), generator=g)
    codes[:256, 3], codes[:256, 4] = torch.arange(256) // 16, torch.arange(256) % 16
    words = (codes << (4 * torch.arange(8))).sum(1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    halves, _ = decode(E2M1, words)
    assert same(halves, values[codes])


def test_every_e8m0_scale_is_exact():
    words = torch.arange(256, dtype=torch.int32)
    got = decode(E8M0, words)[0].view(torch.float32)[:, 0].double()
    assert torch.equal(got[:255], torch.exp2(torch.arange(255).double() - 127))
    assert got[255].isinf()


@pytest.mark.parametrize("kind", [E4M3_NAN, E5M2, E2M1])
@pytest.mark.parametrize("mode", MODES, ids=lambda m: f"{m['dot2']}-{m['dot2_flush']}")
def test_codes_pass_through_every_model_of_dot2(kind, mode):
    _, words = byte_codes()
    count = 8 if kind == E2M1 else 4
    with emulator.modes(**mode):
        halves, dots = decode(kind, words)
    got, want = dots[:, :count].double(), halves[:, :count].double()
    usable = want.isfinite() & want.roll(1, 1).isfinite() & want.roll(-1, 1).isfinite()
    # That of gfx11 cuts negative numbers one unit of the 24th bit too low.
    slack = want.abs() * 2.0**-23 if mode["dot2"] == "gfx11" else want.abs() * 0
    assert bool((got - want).abs()[usable].le(slack[usable]).all())
    assert int(usable.sum()) > 900


@pytest.mark.parametrize("kind, most", [(E4M3, 8), (E4M3_NAN, 12), (E5M2, 2), (E2M1, 12)])
def test_instructions_per_word(kind, most):
    """Beside those of the probe's own addresses, moves and dots."""
    names = ("v_perm", "v_pk", "v_and", "v_or", "v_bfi", "v_xor", "v_lshrrev", "v_lshlrev_b32")
    lines = [line.split() for line in DECODE.specialise(FORMAT=kind).isa().splitlines()]
    used = [w for words in lines for w in words if w.startswith(names)]
    assert len(used) <= most + 3, used


@pytest.mark.parametrize("kind", range(5))
def test_a_second_compiler_takes_the_decoders(kind, tmp_path):
    made = CodeObject(DECODE.specialise(FORMAT=kind).code_object)
    for code_object in (made, compile_with_clang(DECODE.specialise(FORMAT=kind), tmp_path)):
        (info,) = code_object.kernels.values()
        assert info.resources.vgpr_spills == 0
