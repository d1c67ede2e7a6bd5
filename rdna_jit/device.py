"""The device that the next launch uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """`backend` is "hip" or "emulator"; `index` counts as torch does (0 on the emulator)."""

    arch: str
    backend: str
    name: str
    compute_units: int
    index: int

    def __str__(self) -> str:
        return f"{self.name} ({self.arch}, {self.compute_units} CUs, {self.backend}:{self.index})"


def device(index: int | None = None) -> Device:
    """The current device of the backend in use (`RDNA_JIT_BACKEND`), or device `index`."""
    from rdna_jit import runtime

    return runtime.current().device(index)
