"""Which lane feeds which under DPP16, DPP8 and permlane."""

from __future__ import annotations

from dataclasses import dataclass

ROW = 16
ZERO, SKIP = "zero", "skip"  # the source reads as zero; the lane is not written

Source = int | str


@dataclass(frozen=True)
class Dpp:
    """A DPP modifier. `control` is a DPP16 control such as "row_shl:1", or "dpp8:[...]"."""

    control: str
    row_mask: int = 0xF
    bank_mask: int = 0xF
    bound_ctrl: bool = False
    fetch_inactive: bool = False

    @property
    def eight(self) -> bool:
        return self.control.startswith("dpp8")

    @property
    def text(self) -> str:
        fetch = " fi:1" if self.fetch_inactive else ""
        if self.eight:
            return self.control + fetch
        bound = " bound_ctrl:1" if self.bound_ctrl else ""
        masks = f" row_mask:{self.row_mask:#x} bank_mask:{self.bank_mask:#x}"
        return self.control + masks + bound + fetch

    def sources(self, exec_mask: int) -> list[Source]:
        """For each of 32 lanes the lane that it reads, ZERO or SKIP."""
        return [self._source(lane, exec_mask) for lane in range(32)]

    def _source(self, lane: int, exec_mask: int) -> Source:
        if self.eight:
            source = lane // 8 * 8 + selector(self.control)[lane % 8]
            return source if self.fetch_inactive or exec_mask >> source & 1 else ZERO
        row, position = divmod(lane, ROW)
        if not self.row_mask >> row & 1 or not self.bank_mask >> position // 4 & 1:
            return SKIP
        place = row_place(self.control, position)
        if place is not None:
            source = row * ROW + place
            if self.fetch_inactive or exec_mask >> source & 1:
                return source
        return ZERO if self.bound_ctrl else SKIP


def selector(control: str) -> list[int]:
    return [int(n) for n in control.partition("[")[2].rstrip("]").split(",")]


def row_place(control: str, position: int) -> int | None:
    """The position within the row that a position reads; None outside of the row."""
    name, _, argument = control.partition(":")
    if name == "quad_perm":
        return position // 4 * 4 + selector(control)[position % 4]
    if name == "row_mirror":
        return 15 - position
    if name == "row_half_mirror":
        return position // 8 * 8 + 7 - position % 8
    n = int(argument)
    if name == "row_share":
        return n
    if name == "row_xmask":
        return position ^ n
    if name == "row_ror":
        return (position - n) % ROW
    place = position + n if name == "row_shl" else position - n
    return place if 0 <= place < ROW else None


CONTROLS = (
    "quad_perm:[0,1,2,3]", "quad_perm:[3,2,1,0]", "quad_perm:[1,1,3,0]",
    *(f"{name}:{n}" for name in ("row_shl", "row_shr", "row_ror") for n in (1, 2, 7, 8, 15)),
    "row_mirror", "row_half_mirror",
    *(f"{name}:{n}" for name in ("row_share", "row_xmask") for n in (0, 1, 5, 8, 15)),
    "dpp8:[7,6,5,4,3,2,1,0]", "dpp8:[1,0,3,2,5,4,7,6]", "dpp8:[5,5,0,2,7,7,1,3]",
)  # fmt: skip
