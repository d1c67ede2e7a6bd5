"""Random int4 layers, packed here by the definition of the formats, and their float64 result."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

# Bit of code j (its row is 8 r + j) in a word.
BIT = {
    False: [4 * j for j in range(8)],  # natural
    True: [4 * (j // 2) + 16 * (j % 2) for j in range(8)],  # shuffled
}


@dataclass
class Layer:
    """An int4 matrix `[K, N]` as codes, zeros and scales per group, and the group of each row."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor
    groups: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @staticmethod
    def random(K: int, N: int, group: int, seed: int = 0, *, low: int = 0, high: int = 16) -> Layer:
        """Codes over all of 0..15, zeros in low..high - 1."""
        g = torch.Generator().manual_seed(seed)
        codes = torch.randint(0, 16, (K, N), generator=g)
        zeros = torch.randint(low, high, (K // group, N), generator=g)
        scales = (0.01 + 0.05 * torch.rand((K // group, N), generator=g)).half()
        bias = torch.randn(N, generator=g).half()
        return Layer(codes, zeros, scales, bias, torch.arange(K) // group)

    def words(self, shuffled: bool) -> torch.Tensor:
        """int32 `[K/8, N]`."""
        packed = torch.zeros(self.codes.shape[0] // 8, self.codes.shape[1], dtype=torch.int64)
        for j in range(8):
            packed |= self.codes[j::8] << BIT[shuffled][j]
        return packed.to(torch.int32)

    def packed_zeros(self, offset: int) -> torch.Tensor:
        """int32 `[K/G, N/8]`."""
        packed = torch.zeros(self.zeros.shape[0], self.zeros.shape[1] // 8, dtype=torch.int64)
        for j in range(8):
            packed |= (self.zeros[:, j::8] - offset) << (4 * j)
        return packed.to(torch.int32)

    def weights(self) -> torch.Tensor:
        """float64 `[K, N]`."""
        difference = (self.codes - self.zeros[self.groups]).double()
        return difference * self.scales.double()[self.groups]


def activations(M: int, K: int, seed: int = 1) -> torch.Tensor:
    """fp16 `[M, K]`."""
    return (0.25 * torch.randn(M, K, generator=torch.Generator().manual_seed(seed))).half()


def assert_close(y: torch.Tensor, x: torch.Tensor, layer: Layer, *, bias: bool = False) -> None:
    """y within the rounding of fp16 and of fp32 sums in any order, and of dot2's subnormals."""
    w, x64 = layer.weights(), x.double()
    want = x64 @ w + (layer.bias.double() if bias else 0)
    terms = x64.abs() @ w.abs()
    flushed = torch.where(x64.abs() < 2.0**-14, x64.abs(), 0) @ w.abs()
    slack = want.abs() * 2.0**-11 + 2.0**-24 + terms * 2.0**-20 + flushed
    assert y.dtype == torch.float16 and y.shape == want.shape
    error = (y.double() - want).abs()
    assert bool((error <= slack).all()), f"worst excess {(error - slack).max():.3g}"
    assert torch.linalg.norm(error) <= 5e-4 * torch.linalg.norm(want) + flushed.norm()
    assert error.max() <= 2e-3 * want.abs().max() + flushed.max()
