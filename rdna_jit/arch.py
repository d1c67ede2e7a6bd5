"""The gfx10 family: what each chip can do, and how an arch name is chosen."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache

from .config import config
from .errors import ContractError, UnsupportedArchError

DEFAULT = "gfx1030"


@dataclass(frozen=True)
class Arch:
    """Capabilities and limits of one architecture, all for wave32.

    `dot2` is v_dot2_f32_f16, `dot4` and `dot8` the int8 and int4 dot products. Registers count
    32-bit registers of one lane; `vgprs_per_simd` is what all waves of a SIMD share, allocated in
    steps of `vgpr_granule`. LDS is in bytes.
    """

    name: str
    chips: str
    dot2: bool
    dot4: bool
    dot8: bool
    max_waves_per_simd: int
    vgpr_granule: int
    vgprs_per_simd: int = 1024
    max_vgprs: int = 256
    max_sgprs: int = 106
    wavefront_size: int = 32
    max_workgroup_size: int = 1024
    simds_per_cu: int = 2
    lds_max_workgroup: int = 65536
    lds_granule: int = 512
    lds_banks: int = 32

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional instruction groups, as kernel declarations require them."""
        return frozenset(flag for flag in ("dot2", "dot4", "dot8") if getattr(self, flag))

    def waves_per_simd(self, vgprs: int) -> int:
        """Waves that fit on one SIMD by registers alone."""
        granules = max(1, -(-vgprs // self.vgpr_granule))
        return min(self.max_waves_per_simd, self.vgprs_per_simd // (granules * self.vgpr_granule))


def _rdna1(name: str, chips: str, dot: bool) -> Arch:
    return Arch(name, chips, dot, dot, dot, max_waves_per_simd=20, vgpr_granule=8)


def _rdna2(name: str, chips: str) -> Arch:
    return Arch(name, chips, True, True, True, max_waves_per_simd=16, vgpr_granule=16)


ARCHS: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        _rdna1("gfx1010", "Navi 10: RX 5600/5700", dot=False),
        _rdna1("gfx1011", "Navi 12: Pro V520, Pro 5600M", dot=True),
        _rdna1("gfx1012", "Navi 14: RX 5300/5500", dot=True),
        _rdna1("gfx1013", "Cyan Skillfish: BC-250", dot=False),
        _rdna2("gfx1030", "Navi 21: Pro V620/W6800, RX 6800/6900/6950"),
        _rdna2("gfx1031", "Navi 22: RX 6700/6750"),
        _rdna2("gfx1032", "Navi 23: RX 6600/6650, Pro W6600"),
        _rdna2("gfx1033", "Van Gogh: Steam Deck"),
        _rdna2("gfx1034", "Navi 24: RX 6400/6500, Pro W6400"),
        _rdna2("gfx1035", "Rembrandt: Radeon 660M/680M"),
        _rdna2("gfx1036", "Raphael, Mendocino: integrated graphics"),
    )
}


def get(name: str) -> Arch:
    """The arch of that name; feature suffixes such as ":xnack-" are ignored.

    UnsupportedArchError lists the known names.
    """
    arch = ARCHS.get(str(name).split(":")[0].strip().lower())
    if arch is None:
        raise UnsupportedArchError(
            f"unknown architecture {name!r}; known are {', '.join(ARCHS)}. "
            "Use one of these names (RDNA_JIT_ARCH or arch=)",
            arch=str(name),
            known=tuple(ARCHS),
        )
    return arch


@cache
def note_missing_dots(name: str) -> None:
    """Say once per arch that our kernels run without dot instructions there."""
    if not get(name).dot2:
        logging.getLogger("rdna_jit").warning(
            f"{name} has no dot instructions: kernels take mixed-precision FMAs, at half the rate"
        )


def from_version(version: str) -> Arch:
    """The arch of a version such as "10.3.0", the form of HSA_OVERRIDE_GFX_VERSION."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ContractError(
            f"HSA_OVERRIDE_GFX_VERSION={version!r} is not of the form MAJOR.MINOR.STEPPING, "
            "such as 10.3.0. Change or unset it",
            name="HSA_OVERRIDE_GFX_VERSION",
            expected="MAJOR.MINOR.STEPPING",
            got=version,
        )
    major, minor, stepping = (int(part) for part in version.split("."))
    return get(f"gfx{major}{minor:x}{stepping:x}")


def override() -> Arch | None:
    """The arch that HSA_OVERRIDE_GFX_VERSION makes every GPU of this process report, if set."""
    version = config.hsa_override
    return None if version is None else from_version(version)


def choose() -> tuple[Arch, str]:
    """The arch to emulate or cross-compile for, and the variable or rule that decided it."""
    if config.arch is not None:
        return get(config.arch), "RDNA_JIT_ARCH"
    overriding = override()
    if overriding is not None:
        return overriding, "HSA_OVERRIDE_GFX_VERSION"
    return ARCHS[DEFAULT], "default"
