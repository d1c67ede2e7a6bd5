"""What the host keeps of a translation, to run it and to explain a run."""

from __future__ import annotations

from typing import Literal, NamedTuple

Space = Literal["global", "scalar", "lds", "flat", "scratch"]
Access = Literal["load", "store", "atomic"]


class Site(NamedTuple):
    """One static memory access: its instruction, bytes per lane, address space and direction."""

    pc: int
    nbytes: int
    space: Space
    access: Access

    @property
    def alignment(self) -> int:
        """What the aligned mode of the hardware asks of the address; see `Checks`."""
        if self.space != "lds" and self.access != "atomic":
            return min(self.nbytes, 4)
        return 16 if self.nbytes == 12 else self.nbytes


class Block:
    """A basic block: its address, the number of its instructions, and what they count as."""

    __slots__ = ("counts", "instructions", "pc")

    def __init__(
        self, pc: int, instructions: int = 0, counts: dict[str, int] | None = None
    ) -> None:
        self.pc = pc
        self.instructions = instructions
        self.counts = counts if counts is not None else {}
