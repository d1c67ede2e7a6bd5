"""Checkpoint tensors packed here by the definition of each format, and the weights they mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor
AWQ_SLOT = (0, 4, 1, 5, 2, 6, 3, 7)  # of column j in its word


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pack(codes: Tensor, bits: int, dim: int, slots: tuple[int, ...] | None = None) -> Tensor:
    """Neighbouring codes along `dim` into int32 words, code j in slot `slots[j]`."""
    count = 32 // bits
    moved = codes.movedim(dim, -1).long()
    words = torch.zeros(*moved.shape[:-1], moved.shape[-1] // count, dtype=torch.int64)
    for j in range(count):
        slot = slots[j] if slots else j
        words |= moved[..., j::count] << (bits * slot)
    return words.to(torch.int32).movedim(-1, dim).contiguous()


@dataclass
class Codes:
    """Integer codes `[K, N]`, zeros and scales `[K/G, N]`, the group of each row."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    groups: Tensor
    bits: int

    @staticmethod
    def random(
        N: int,
        K: int,
        G: int,
        *,
        bits: int = 4,
        symmetric: bool = False,
        act_order: bool = False,
        seed: int = 0,
    ) -> Codes:
        g, most = generator(seed), 1 << bits
        zeros = torch.randint(1, most, (K // G, N), generator=g)
        groups = torch.arange(K) // G
        return Codes(
            torch.randint(0, most, (K, N), generator=g),
            torch.full_like(zeros, most // 2) if symmetric else zeros,
            (0.01 + 0.05 * torch.rand(K // G, N, generator=g)).half(),
            groups[torch.randperm(K, generator=g)] if act_order else groups,
            bits,
        )

    def weight(self) -> Tensor:
        """float64 `[N, K]`."""
        difference = (self.codes - self.zeros[self.groups]).double()
        return (difference * self.scales.double()[self.groups]).t()

    def gptq(self, version: int = 1, zeros: bool = True) -> dict[str, Tensor]:
        tensors = {"qweight": pack(self.codes, self.bits, 0), "scales": self.scales}
        if zeros:
            tensors["qzeros"] = pack(self.zeros - (2 - version), self.bits, 1)
        if not torch.equal(self.groups, self.groups.sort().values):
            tensors["g_idx"] = self.groups.int()
        return tensors

    def awq(self) -> dict[str, Tensor]:
        return {
            "qweight": pack(self.codes, 4, 1, AWQ_SLOT),
            "qzeros": pack(self.zeros, 4, 1, AWQ_SLOT),
            "scales": self.scales,
        }

    def compressed_tensors(self, zeros: bool = True) -> dict[str, Tensor]:
        K, N = self.codes.shape
        tensors = {
            "weight_packed": pack(self.codes.t(), self.bits, 1),
            "weight_scale": self.scales.t().contiguous().bfloat16(),
            "weight_shape": torch.tensor([N, K]),
        }
        self.scales = tensors["weight_scale"].half().t()
        if zeros:
            tensors["weight_zero_point"] = pack(self.zeros.t(), self.bits, 0)
        if not torch.equal(self.groups, self.groups.sort().values):
            tensors["weight_g_idx"] = self.groups.int()
        return tensors


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def fp8_bytes(fmt: str, N: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random finite codes uint8 `[N, K]` and the float64 numbers that they mean."""
    bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[fmt]
    last = {"e4m3": 0x7F, "e5m2": 0x7C}[fmt]
    magnitude = torch.randint(0, last, (N, K), generator=generator(seed))
    sign = torch.randint(0, 2, (N, K), generator=generator(seed + 1))
    exponent, fraction = magnitude >> bits, (magnitude & (1 << bits) - 1).double() / (1 << bits)
    normal = torch.ldexp(1 + fraction, exponent - bias)
    subnormal = torch.ldexp(fraction, torch.full_like(exponent, 1 - bias))
    value = torch.where(exponent > 0, normal, subnormal) * (1 - 2 * sign)
    return (magnitude | sign << 7).to(torch.uint8), value


def mxfp4_bytes(N: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Codes uint8 `[N, K/2]`, scales uint8 `[N, K/32]`, and the float64 weights `[N, K]`."""
    g = generator(seed)
    codes = torch.randint(0, 16, (N, K), generator=g)
    scale = torch.randint(117, 124, (N, K // 32), generator=g)
    table = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=torch.float64)
    value = table[codes] * torch.ldexp(
        torch.ones(N, K // 32).double(), scale - 127
    ).repeat_interleave(32, 1)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return packed, scale.to(torch.uint8), value


def activations(*shape: int, seed: int = 1) -> Tensor:
    return (0.25 * torch.randn(shape, generator=generator(seed))).half()


def assert_computes(layer, weight: Tensor, bias: Tensor | None = None, *, rows: int = 3) -> None:
    """The layer against float64 on the weights `[N, K]`, and its own dequantised ones."""
    assert torch.equal(layer.dequantize(torch.float64), weight)
    x = activations(rows, weight.shape[1])
    want = x.double() @ weight.t() + (0 if bias is None else bias.double())
    y = layer(x)
    assert y.dtype == torch.float16 and y.shape == want.shape
    # The result's rounding; fp32 sums in any order; dot2 may take subnormals of x as 0.
    terms = x.double().abs() @ weight.abs().t()
    small = torch.where(x.abs() < 2.0**-14, x.double().abs(), 0) @ weight.abs().t()
    slack = want.abs() * 2.0**-11 + 2.0**-24 + terms * 2.0**-20 + small
    excess = (y.double() - want).abs() - slack
    assert bool((excess <= 0).all()), f"worst excess {excess.max():.3g}"
