"""Instructions that move data between lanes, and between lanes and scalar registers.

Their meaning is a function of the whole wave, so each is written out as a `LaneForm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.emulator.oracle.dpp import ROW
from tests.emulator.oracle.forms import LANES, MASK_OUT, Outcome, Wave
from tests.emulator.oracle.table import Row
from tests.emulator.oracle.types import B32, B64, DEFAULT_MODE, U32, Mode

ONES = 0xFFFFFFFF
SCALAR_RESULT = f"s{MASK_OUT}"


@dataclass(frozen=True)
class LaneForm:
    """A text and what it does to a wave, with `Form`'s interface. `instruction` is the line that is
    tested, the first unless stated."""

    row: Row
    text: str
    meaning: Callable[[Wave], Outcome]
    writes_mask: bool = False
    mask_register: str = SCALAR_RESULT
    instruction: str = ""

    def __post_init__(self) -> None:
        if not self.instruction:
            object.__setattr__(self, "instruction", self.text.partition("\n")[0])

    @property
    def mnemonic(self) -> str:
        return self.row.name

    @property
    def arch(self) -> str:
        return self.row.arch

    def evaluate(self, wave: Wave, mode: Mode = DEFAULT_MODE) -> Outcome:
        return self.meaning(wave)


def active(wave: Wave, lane: int) -> bool:
    return bool(wave.exec_mask >> lane & 1)


def column(wave: Wave, k: int) -> list[int]:
    return [value & ONES for value in wave.sources[k]]


def _vector(name: str, operands: str, of_lane: Callable[[Wave, int], int | None]) -> LaneForm:
    """A result per active lane; None leaves the lane as it was."""

    def meaning(wave: Wave) -> Outcome:
        values = [of_lane(wave, lane) if active(wave, lane) else None for lane in LANES]
        return Outcome([[] if value is None else [(0, 32, value & ONES)] for value in values])

    text = f"{name} {operands}"
    if name.startswith("ds_"):
        text += "\ns_waitcnt lgkmcnt(0)"
    return LaneForm(Row(name, B32, (U32, U32, U32), meaning), text, meaning)


def _to_scalar(name: str, operands: str, value: Callable[[Wave], int]) -> LaneForm:
    def meaning(wave: Wave) -> Outcome:
        bits = value(wave)
        return Outcome([[] for _ in LANES], [bits >> lane & 1 for lane in LANES])

    return LaneForm(
        Row(name, B32, (U32, U32, U32), meaning, result="mask"),
        f"{name} {SCALAR_RESULT}, {operands}",
        meaning,
        writes_mask=True,
    )


# Reads and writes of one lane. EXEC matters to readfirstlane only.


def _first_lane(wave: Wave) -> int:
    lane = next((lane for lane in LANES if active(wave, lane)), 0)
    return column(wave, 0)[lane]


def _write_lane(
    operands: str, value: Callable[[Wave], int], lane: Callable[[Wave], int]
) -> LaneForm:
    def meaning(wave: Wave) -> Outcome:
        target = lane(wave) & 31
        return Outcome([[(0, 32, value(wave) & ONES)] if k == target else [] for k in LANES])

    return LaneForm(
        Row("v_writelane_b32", B32, (U32, U32, U32), meaning),
        f"v_writelane_b32 v24, {operands}",
        meaning,
    )


def _one_lane() -> Iterator[LaneForm]:
    yield _to_scalar("v_readfirstlane_b32", "v10", _first_lane)
    yield _to_scalar(
        "v_readlane_b32", "v10, s16", lambda wave: column(wave, 0)[wave.scalars[1] & 31]
    )
    for lane in (0, 7, 31, 40):
        yield _to_scalar(
            "v_readlane_b32", f"v10, {lane}", lambda wave, k=lane: column(wave, 0)[k & 31]
        )
    yield _write_lane("s14, s16", lambda wave: wave.scalars[0], lambda wave: wave.scalars[1])
    yield _write_lane("-5, s16", lambda wave: -5, lambda wave: wave.scalars[1])
    yield _write_lane("s14, 9", lambda wave: wave.scalars[0], lambda wave: 9)


def _swap() -> LaneForm:
    def meaning(wave: Wave) -> Outcome:
        def swapped(old: int) -> int:
            return (old & ONES) << 32 | old >> 32 & ONES

        return Outcome(
            [[(0, 64, swapped(wave.old[lane]))] if active(wave, lane) else [] for lane in LANES]
        )

    return LaneForm(
        Row("v_swap_b32", B64, (U32, U32, U32), meaning), "v_swap_b32 v24, v25", meaning
    )


# Counting lanes below one's own.


def _below_low(wave: Wave, mask: int, base: int, lane: int) -> int:
    return (mask & (1 << lane) - 1).bit_count() + base


def _counts() -> Iterator[LaneForm]:
    yield _vector(
        "v_mbcnt_lo_u32_b32",
        "v24, v10, v12",
        lambda wave, lane: _below_low(wave, column(wave, 0)[lane], column(wave, 1)[lane], lane),
    )
    yield _vector(
        "v_mbcnt_lo_u32_b32", "v24, -1, 0", lambda wave, lane: _below_low(wave, ONES, 0, lane)
    )
    yield _vector(
        "v_mbcnt_lo_u32_b32",
        "v24, s14, v12",
        lambda wave, lane: _below_low(wave, wave.scalars[0] & ONES, column(wave, 1)[lane], lane),
    )
    # In a wave of 32 no lane is above the first 32, so the high half counts nothing.
    yield _vector("v_mbcnt_hi_u32_b32", "v24, v10, v12", lambda wave, lane: column(wave, 1)[lane])
    yield _vector("v_mbcnt_hi_u32_b32", "v24, -1, v12", lambda wave, lane: column(wave, 1)[lane])


# Permutations within rows of 16.


def _permlane(name: str, fetch: bool, bound: bool, constant: int | None = None) -> LaneForm:
    def of_lane(wave: Wave, lane: int) -> int | None:
        low, high = (wave.scalars[k] & ONES if constant is None else constant for k in (1, 2))
        place = (high << 32 | low) >> 4 * (lane % ROW) & 15
        row = lane // ROW ^ (name == "v_permlanex16_b32")
        source = row * ROW + place
        if fetch or active(wave, source):
            return column(wave, 0)[source]
        return 0 if bound else None

    flags = f" op_sel:[{int(fetch)},{int(bound)}]" if fetch or bound else ""
    selectors = "s16, s18" if constant is None else f"{constant}, {constant}"
    return _vector(name, f"v24, v10, {selectors}{flags}", of_lane)


def _permlanes() -> Iterator[LaneForm]:
    for name in ("v_permlane16_b32", "v_permlanex16_b32"):
        for fetch in (False, True):
            for bound in (False, True):
                yield _permlane(name, fetch, bound)
        yield _permlane(name, False, True, 33)


# LDS hardware used as a crossbar.


def _bpermute(offset: int) -> LaneForm:
    def of_lane(wave: Wave, lane: int) -> int:
        source = column(wave, 0)[lane] + offset >> 2 & 31
        return column(wave, 1)[source] if active(wave, source) else 0

    return _vector("ds_bpermute_b32", f"v24, v10, v12 offset:{offset}", of_lane)


def _permute(offset: int) -> LaneForm:
    def of_lane(wave: Wave, lane: int) -> int:
        value = 0
        for source in LANES:  # the highest lane wins
            if active(wave, source) and column(wave, 0)[source] + offset >> 2 & 31 == lane:
                value = column(wave, 1)[source]
        return value

    return _vector("ds_permute_b32", f"v24, v10, v12 offset:{offset}", of_lane)


def _swizzle(offset: int) -> LaneForm:
    def of_lane(wave: Wave, lane: int) -> int:
        if offset & 0x8000:
            source = lane // 4 * 4 + (offset >> 2 * (lane % 4) & 3)
        else:
            source = (lane & offset | offset >> 5) ^ offset >> 10
            source &= 31
        return column(wave, 0)[source] if active(wave, source) else 0

    return _vector("ds_swizzle_b32", f"v24, v10 offset:{offset}", of_lane)


# Registers chosen by M0.


def _indexed() -> Iterator[LaneForm]:
    def vector(name: str, m0: int, pick: Callable[[Wave, int], int], place: int) -> LaneForm:
        def meaning(wave: Wave) -> Outcome:
            return Outcome(
                [
                    [(32 * place, 32, pick(wave, lane) & ONES)] if active(wave, lane) else []
                    for lane in LANES
                ]
            )

        instruction = f"{name} v24, v10"
        return LaneForm(
            Row(name, B32, (U32, U32, U32), meaning),
            f"s_mov_b32 m0, {m0}\n{instruction}",
            meaning,
            instruction=instruction,
        )

    def scalar(name: str, operands: str, m0: int, source: Callable[[Wave], int]) -> LaneForm:
        form = _to_scalar(name, "", source)
        instruction = f"{name} {operands}"
        return replace(form, text=f"s_mov_b32 m0, {m0}\n{instruction}", instruction=instruction)

    yield vector("v_movrels_b32", 1, lambda wave, lane: wave.sources[0][lane] >> 32, 0)
    yield vector("v_movrels_b32", 2, lambda wave, lane: wave.sources[1][lane], 0)
    yield vector("v_movreld_b32", 2, lambda wave, lane: wave.sources[0][lane], 2)
    yield vector("v_movrelsd_b32", 1, lambda wave, lane: wave.sources[0][lane] >> 32, 1)
    yield scalar("s_movrels_b32", "s30, s14", 1, lambda wave: wave.scalars[0] >> 32)
    yield scalar("s_movreld_b32", "s28, s14", 2, lambda wave: wave.scalars[0])
    yield scalar("s_movrels_b64", "s[30:31], s[14:15]", 2, lambda wave: wave.scalars[1])
    yield scalar("s_movreld_b64", "s[28:29], s[14:15]", 2, lambda wave: wave.scalars[0])


# Operands with names of their own.


def _named() -> Iterator[LaneForm]:
    carry = "s_mov_b32 m0, s13\n"  # every form starts with the wave's carry mask in VCC and s13

    def vector(operand: str, value: Callable[[Wave], int]) -> LaneForm:
        form = _vector("v_mov_b32", f"v24, {operand}", lambda wave, lane: value(wave))
        return replace(form, text=carry + form.text)

    def scalar(operand: str, value: Callable[[Wave], int], before: str = carry) -> LaneForm:
        form = _to_scalar("s_mov_b32", operand, value)
        return replace(form, text=before + form.text)

    yield vector("vcc_lo", lambda wave: wave.carry)
    yield vector("exec_lo", lambda wave: wave.exec_mask)
    yield vector("m0", lambda wave: wave.carry)
    yield vector("0.15915494", lambda wave: 0x3E22F983)
    yield scalar("vcc_lo", lambda wave: wave.carry)
    yield scalar("exec_lo", lambda wave: wave.exec_mask)
    yield scalar("m0", lambda wave: wave.carry)
    yield scalar("null", lambda wave: 0)
    yield scalar("src_vccz", lambda wave: int(wave.carry == 0))
    yield scalar("src_execz", lambda wave: int(wave.exec_mask == 0))
    yield scalar("src_vccz", lambda wave: 1, "s_mov_b32 vcc_lo, 0\n")
    for equal in (0, 1):
        yield scalar("src_scc", lambda wave, e=equal: e, f"s_cmp_eq_u32 {equal}, 1\n")
    # A result that nobody wants, and masks that land in VCC.
    yield replace(
        _to_scalar("s_add_u32", "", lambda wave: int(wave.scalars[0] & ONES != 0)),
        text="s_add_u32 null, s14, -1\ns_cselect_b32 s30, 1, 0",
        instruction="s_add_u32 null, s14, -1",
    )
    yield replace(
        _to_scalar("s_and_b32", "", lambda wave: wave.carry & wave.exec_mask),
        text="s_and_b32 vcc_lo, vcc_lo, exec_lo\ns_mov_b32 s30, vcc_lo",
        instruction="s_and_b32 vcc_lo, vcc_lo, exec_lo",
    )


def lane_forms() -> list[LaneForm]:
    """Every form of every lane instruction."""
    forms: list[LaneForm] = [
        *_one_lane(),
        _swap(),
        *_counts(),
        *_permlanes(),
        *_indexed(),
        *_named(),
    ]
    forms += [build(offset) for build in (_bpermute, _permute) for offset in (0, 4, 60)]
    quad = (0x8000 | 0b00011011, 0x8000 | 0b01010000)
    bits = (
        and_mask | or_mask << 5 | xor_mask << 10
        for and_mask, or_mask, xor_mask in (
            (31, 0, 1),
            (31, 0, 16),
            (0, 5, 0),
            (28, 3, 9),
            (16, 0, 31),
            (31, 0, 0),
        )
    )
    return forms + [_swizzle(offset) for offset in (*quad, *bits)]
