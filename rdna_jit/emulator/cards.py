"""Cards the model knows, and where each figure comes from."""

from __future__ import annotations

from dataclasses import dataclass

from rdna_jit.errors import ContractError


@dataclass(frozen=True)
class Card:
    """One card. Bandwidths in GB/s as kernels reach them, clock in GHz under load, sizes in MB."""

    name: str
    arch: str
    compute_units: int
    clock_ghz: float
    read_gbs: float
    write_gbs: float
    l2_gbs: float
    infinity_cache_mb: int
    source: str

    @property
    def simds(self) -> int:
        return 2 * self.compute_units

    @property
    def fp32_tflops(self) -> float:
        """Peak of fp32 FMA at one instruction per clock and SIMD."""
        return self.simds * 32 * 2 * self.clock_ghz / 1e3

    @property
    def dot2_tflops(self) -> float:
        return 2 * self.fp32_tflops

    @property
    def dot4_tops(self) -> float:
        return 4 * self.fp32_tflops


# What a stream of 2 GiB reached on a V620, as shares of the 512 GB/s that its memory could give.
_READ_SHARE = 506 / 512
_WRITE_SHARE = 447 / 512
# L2 hits on a V620: 9,340 GB/s over 72 compute units at 2.45 GHz, about 53 bytes per clock each.
_L2_BYTES_PER_CLOCK = 9340 / (72 * 2.45)


def _public(
    name: str, arch: str, compute_units: int, clock_ghz: float, peak_gbs: float, cache_mb: int
) -> Card:
    """A card by its data sheet, with the shares of peak that were measured on the V620."""
    return Card(
        name,
        arch,
        compute_units,
        clock_ghz,
        read_gbs=peak_gbs * _READ_SHARE,
        write_gbs=peak_gbs * _WRITE_SHARE,
        l2_gbs=_L2_BYTES_PER_CLOCK * compute_units * clock_ghz,
        infinity_cache_mb=cache_mb,
        source="data sheet (boost clock, bus width); shares of peak as on the V620",
    )


CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        Card(
            "V620", "gfx1030", 72, 2.4, read_gbs=506, write_gbs=447, l2_gbs=9340,
            infinity_cache_mb=128,
            source="owners' measurements of one card at 232 W, clock about 2.45 GHz",
        ),
        _public("RX6800", "gfx1030", 60, 2.105, 512, 128),
        _public("RX6800XT", "gfx1030", 72, 2.25, 512, 128),
        _public("RX6900XT", "gfx1030", 80, 2.25, 512, 128),
        _public("RX6700XT", "gfx1031", 40, 2.581, 384, 96),
        _public("RX6600XT", "gfx1032", 32, 2.589, 256, 32),
    )
}  # fmt: skip


def card(name: str | Card) -> Card:
    """A card by name, in any case and with blanks; ContractError with the list for others."""
    if isinstance(name, Card):
        return name
    wanted = name.replace(" ", "").upper()
    if wanted not in CARDS:
        raise ContractError(
            f"no card {name!r}; known cards are {', '.join(CARDS)}", name="card", got=name
        )
    return CARDS[wanted]
