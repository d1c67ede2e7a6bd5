"""K-sequential int4 expert weights."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError
from rdna_jit.formats import moe, pack_int4


def random_codes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_even_codes_are_low_nibbles():
    packed = moe.pack_codes(torch.tensor([[1, 2, 3, 15, 0, 4, 5, 6]], dtype=torch.uint8))
    assert packed.tolist() == [[0x21, 0xF3, 0x40, 0x65]]
    assert packed.view(torch.int32).item() == 0x6540F321


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_codes_round_trip(dtype):
    codes = random_codes(2, 3, 16)
    assert torch.equal(moe.unpack_codes(moe.pack_codes(codes).view(dtype)), codes)


def test_zeros_round_trip():
    zeros = random_codes(2, 6, 5)
    packed = moe.pack_zeros(zeros)
    assert packed.shape == (2, 3, 5) and torch.equal(packed[0, 1] & 15, zeros[0, 2])
    assert torch.equal(moe.unpack_zeros(packed), zeros)


def test_dequantize():
    codes, zeros = random_codes(2, 4, 64), random_codes(2, 4, 2)
    scales = torch.rand(2, 4, 2).half()
    got = moe.dequantize(moe.pack_codes(codes), scales, moe.pack_zeros(zeros), torch.float64)
    for e, r, k in ((0, 0, 0), (1, 3, 63), (0, 2, 31), (1, 1, 32)):
        q, z, s = int(codes[e, r, k]), int(zeros[e, r, k // 32]), float(scales[e, r, k // 32])
        assert got[e, r, k] == (q - z) * s
    plain = moe.dequantize(moe.pack_codes(codes), scales, dtype=torch.float64)
    assert plain[1, 2, 40] == (int(codes[1, 2, 40]) - 8) * float(scales[1, 2, 1])


def test_finer_groups_mean_the_same():
    codes, scales = moe.pack_codes(random_codes(1, 4, 256)), torch.rand(1, 4, 2).half()
    zeros = moe.pack_zeros(random_codes(1, 4, 2))
    finer = moe.split_groups(scales, zeros, 4)
    assert finer[0].shape == (1, 4, 8)
    assert torch.equal(moe.dequantize(codes, *finer), moe.dequantize(codes, scales, zeros))


@pytest.mark.parametrize("zero_offset", [0, 1])
def test_from_gptq(zero_offset):
    codes, stored = random_codes(64, 8), random_codes(2, 8).clamp(max=14)
    scales = torch.rand(2, 8).half()
    w, row_scales, zeros = moe.from_gptq(
        pack_int4(codes), scales, pack_int4(stored, dim=1), zero_offset=zero_offset
    )
    got = moe.dequantize(w[None], row_scales[None], zeros[None], torch.float64)[0]
    want = (codes.double() - (stored.double() + zero_offset).repeat_interleave(32, 0)) * (
        scales.double().repeat_interleave(32, 0)
    )
    assert torch.equal(got, want.t())
    assert moe.from_gptq(pack_int4(codes), scales)[2] is None


def test_zero_point_16_is_refused():
    stored = torch.full((2, 8), 15, dtype=torch.uint8)
    with pytest.raises(ContractError, match=r"zeros: expected 0..15, got 16..16"):
        moe.from_gptq(
            pack_int4(random_codes(64, 8)), torch.rand(2, 8).half(), pack_int4(stored, dim=1)
        )


def test_odd_sizes_are_refused():
    with pytest.raises(ContractError, match="odd number of 3"):
        moe.pack_codes(random_codes(1, 2, 3))
    with pytest.raises(ContractError, match="odd number of 5"):
        moe.pack_zeros(random_codes(1, 5, 2))
