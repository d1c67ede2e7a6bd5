"""Loads and stores of LDS, global, flat and scratch addresses, one 16-byte slot per lane.

A form fills every lane's slot, executes the instruction under EXEC and reads the slot back. The
result's low 64 bits are the returned register, the high ones the slot's first 8 bytes; forms
wider than that show either the register or the slot alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.emulator.oracle.forms import LANES, Outcome, Wave
from tests.emulator.oracle.lanes import LaneForm, active
from tests.emulator.oracle.table import Row, registers
from tests.emulator.oracle.types import B32, B64, Anything, Part, Type

SLOT = 16
# Registers of the probe kernels: slot addresses, see harness.
LDS_ADDRESS, GLOBAL_OFFSET, FLAT_ADDRESS, MEMORY = "v3", "v4", "v[6:7]", "s[10:11]"


@dataclass(frozen=True)
class Space:
    """An address space: its prefix, the text of an address operand, and what fills a slot."""

    prefix: str
    fill: str
    read: str
    wait: str

    def address(self, offset: int) -> tuple[str, str]:
        """The address operand, and what follows the data operand."""
        tail = f" offset:{offset}" if offset else ""
        if self.prefix == "ds":
            return LDS_ADDRESS, tail
        if self.prefix == "flat":
            return FLAT_ADDRESS, tail
        return GLOBAL_OFFSET, f", {MEMORY}{tail}"


LDS = Space("ds", "ds_write_b128 v3, v[14:17]", "ds_read_b128 {}, v3", "s_waitcnt lgkmcnt(0)")
GLOBAL = Space(
    "global",
    "global_store_dwordx4 v4, v[14:17], s[10:11]",
    "global_load_dwordx4 {}, v4, s[10:11]",
    "s_waitcnt vmcnt(0)\ns_waitcnt_vscnt null, 0",
)
FLAT = replace(GLOBAL, prefix="flat", wait=GLOBAL.wait + "\ns_waitcnt lgkmcnt(0)")
SPACES = (LDS, GLOBAL, FLAT)
SCRATCH = Space(
    "buffer",
    "buffer_store_dwordx4 v[14:17], off, s[36:39], 0",
    "buffer_load_dwordx4 {}, off, s[36:39], 0",
    GLOBAL.wait,
)


# What an instruction does to one lane: (slot bytes as an integer, data0, data1, old register) ->
# (fields of the register, new slot or None where it is unknown).
Effect = Callable[[int, int, int, int], tuple[list[Part], "int | list[Part]"]]


def form(
    space: Space, name: str, instruction: str, effect: Effect, of: Type, show: str = "both"
) -> LaneForm:
    """show: "both", or the "register" or "slot" alone in 128 bits."""
    back = {"both": "v[28:31]", "register": "", "slot": "v[24:27]"}[show]
    read = f"{space.read.format(back)}\n{space.wait}" if back else ""
    move = "v_mov_b32_e32 v26, v28\nv_mov_b32_e32 v27, v29" if show == "both" else ""
    text = "\n".join(
        line
        for line in (
            "s_mov_b32 exec_lo, -1",
            space.fill,
            space.wait,
            "s_mov_b32 exec_lo, s12",
            instruction,
            space.wait,
            "s_mov_b32 exec_lo, -1",
            read,
            move,
        )
        if line
    )

    def meaning(wave: Wave) -> Outcome:
        fields = []
        for lane in LANES:
            slot, register, after = wave.sources[2][lane], [], wave.sources[2][lane]
            if active(wave, lane):
                register, after = effect(
                    slot, wave.sources[0][lane], wave.sources[1][lane], wave.old[lane]
                )
            if show == "register":
                fields.append(register)
                continue
            memory = [(0, 128, after)] if isinstance(after, int) else after
            if show == "both":
                memory = (
                    [(64, 64, after & (1 << 64) - 1)]
                    if isinstance(after, int)
                    else [(offset + 64, width, value) for offset, width, value in after]
                )
            fields.append(memory if show == "slot" else register + memory)
        return Outcome(fields)

    return LaneForm(
        Row(name, of, (of, of, Type("b", 128)), meaning), text, meaning, instruction=instruction
    )


# Loads.


def _load(width: int, signed: bool, offset: int) -> Effect:
    def effect(slot: int, _a: int, _b: int, _old: int) -> tuple[list[Part], int]:
        value = slot >> 8 * offset & (1 << width) - 1
        if signed and value >> (width - 1):
            value -= 1 << width
        return [(0, max(width, 32), value & (1 << max(width, 32)) - 1)], slot

    return effect


def _load_half(width: int, signed: bool, offset: int, high: bool) -> Effect:
    """A d16 load writes one half of the register and keeps the other."""

    def effect(slot: int, _a: int, _b: int, _old: int) -> tuple[list[Part], int]:
        value = slot >> 8 * offset & (1 << width) - 1
        if signed and value >> (width - 1):
            value -= 1 << width
        return [(16 * high, 16, value & 0xFFFF)], slot

    return effect


NARROW = {
    "ds": (("u8", 8, False), ("i8", 8, True), ("u16", 16, False), ("i16", 16, True)),
    "": (("ubyte", 8, False), ("sbyte", 8, True), ("ushort", 16, False), ("sshort", 16, True)),
}
HALVES = {
    "ds": (("u8_d16", 8, False), ("i8_d16", 8, True), ("u16_d16", 16, False)),
    "": (("ubyte_d16", 8, False), ("sbyte_d16", 8, True), ("short_d16", 16, False)),
}
WHOLE = {
    "ds": (("b32", 32), ("b64", 64), ("b96", 96), ("b128", 128)),
    "": (("dword", 32), ("dwordx2", 64), ("dwordx3", 96), ("dwordx4", 128)),
}


def _loads(space: Space) -> Iterator[LaneForm]:
    ds = space.prefix == "ds"
    stem, kind = ("ds_read_", "ds") if ds else (f"{space.prefix}_load_", "")
    for suffix, width, signed in NARROW[kind]:
        for offset in (0, 2 if width == 16 else 3):
            address, tail = space.address(offset)
            yield form(
                space,
                stem + suffix,
                f"{stem}{suffix} v24, {_joined(address, tail)}",
                _load(width, signed, offset),
                B32,
            )
    for suffix, width, signed in HALVES[kind]:
        for high in (False, True):
            address, tail = space.address(4)
            name = stem + suffix + "_hi" * high
            yield form(
                space,
                name,
                f"{name} v24, {_joined(address, tail)}",
                _load_half(width, signed, 4, high),
                B32,
            )
    for suffix, width in WHOLE[kind]:
        offset = 0 if width > 64 else 8
        address, tail = space.address(offset)
        target = registers(24, Type("b", width))
        show = "both" if width <= 64 else "register"
        yield form(
            space,
            stem + suffix,
            f"{stem}{suffix} {target}, {_joined(address, tail)}",
            _load(width, False, offset),
            B32,
            show,
        )


def _joined(address: str, tail: str) -> str:
    """An address operand with no data operand between it and what follows."""
    if not tail.startswith(",") and address == GLOBAL_OFFSET:
        raise ValueError("a global address needs its scalar base")
    return address + tail


# Stores.


def _store(width: int, offset: int, high: bool = False) -> Effect:
    def effect(slot: int, data: int, _b: int, _old: int) -> tuple[list[Part], int]:
        value = (data >> 16 * high) & (1 << width) - 1
        mask = (1 << width) - 1
        return [], slot & ~(mask << 8 * offset) | value << 8 * offset

    return effect


def _stores(space: Space) -> Iterator[LaneForm]:
    ds = space.prefix == "ds"
    stem = "ds_write_" if ds else f"{space.prefix}_store_"
    narrow = (("b8", 8), ("b16", 16)) if ds else (("byte", 8), ("short", 16))
    for suffix, width in narrow:
        for high in (False, True):
            offset = 5 if width == 8 else 6
            address, tail = space.address(offset)
            name = stem + suffix + "_d16_hi" * high
            yield form(
                space, name, f"{name} {address}, v10{tail}", _store(width, offset, high), B32
            )
    for suffix, width in WHOLE["ds" if ds else ""]:
        offset = 0 if width > 64 else 8 if width == 64 else 4
        address, tail = space.address(offset)
        # The wide ones store the old result, the only input of 128 bits besides the slot.
        source = registers(10 if width <= 64 else 18, Type("b", width))
        effect = _store(width, offset) if width <= 64 else _store_old(width)
        yield form(
            space, stem + suffix, f"{stem}{suffix} {address}, {source}{tail}", effect, B64, "slot"
        )


# Instruction prefix, vector address, what follows it (and the data of flat scratch stores), and the
# offset that these add: registers hold 4.
PRIVATE = (
    ("buffer", "off", "s[36:39], 0", 0),
    ("buffer", "v8", "s[36:39], 0 offen", 4),
    ("scratch", "off", "off", 0),
    ("scratch", "v8", "off", 4),
    ("scratch", "off", "s40", 4),
)


def _scratch() -> Iterator[LaneForm]:
    """Buffer instructions with a scratch descriptor, and flat scratch."""
    for stem, address, rest, base in PRIVATE:

        def text(name: str, data: str, at: int, p: tuple = (stem, address, rest, base)) -> str:
            stem, address, rest, base = p
            first, second = data, address
            if stem == "scratch" and "_store_" in name:
                first, second = address, data
            return f"{name} {first}, {second}, {rest} offset:{at - base}"

        for suffix, width, signed in NARROW[""]:
            name, at = f"{stem}_load_{suffix}", 6 if width == 16 else 7
            yield form(SCRATCH, name, text(name, "v24", at), _load(width, signed, at), B32)
        for suffix, width, signed in HALVES[""]:
            for high in (False, True):
                name = f"{stem}_load_{suffix}{'_hi' * high}"
                yield form(
                    SCRATCH,
                    name,
                    text(name, "v24", 4),
                    _load_half(width, signed, 4, high),
                    B32,
                )
        for suffix, width in (("byte", 8), ("short", 16)):
            for high in (False, True):
                name, at = f"{stem}_store_{suffix}{'_d16_hi' * high}", 14 if width == 16 else 13
                yield form(
                    SCRATCH, name, text(name, "v10", at), _store(width, at, high), B32, "slot"
                )
        for suffix, width in WHOLE[""]:
            at = 4 if width < 128 else 0
            if at < base:
                continue
            name, of = f"{stem}_load_{suffix}", Type("b", width)
            yield form(
                SCRATCH,
                name,
                text(name, registers(24, of), at),
                _load(width, False, at),
                B32,
                "both" if width <= 64 else "register",
            )
            name = f"{stem}_store_{suffix}"
            yield form(
                SCRATCH,
                name,
                text(name, registers(18, of), at),
                _store_old(width, at),
                B64,
                "slot",
            )


def _store_old(width: int, offset: int = 0) -> Effect:
    mask = (1 << width) - 1
    return lambda slot, a, b, old: ([], slot & ~(mask << 8 * offset) | (old & mask) << 8 * offset)


# LDS accesses of two places. Offsets count elements, or 64 of them in the st64 forms.


def _pairs() -> Iterator[LaneForm]:
    for suffix, width in (("b32", 32), ("b64", 64)):
        mask, count = (1 << width) - 1, 128 // width
        first, second = (1, 3) if count == 4 else (1, 0)
        places = f"offset0:{first} offset1:{second}"

        def read(
            slot: int,
            _a: int,
            _b: int,
            _old: int,
            w: int = width,
            x: int = first,
            y: int = second,
            m: int = mask,
        ) -> tuple[list[Part], int]:
            return [(0, 2 * w, slot >> w * x & m | (slot >> w * y & m) << w)], slot

        def write(
            slot: int,
            a: int,
            b: int,
            _old: int,
            w: int = width,
            x: int = first,
            y: int = second,
            m: int = mask,
        ) -> tuple[list[Part], int]:
            slot = slot & ~(m << w * x) | (a & m) << w * x
            return [], slot & ~(m << w * y) | (b & m) << w * y

        target = registers(24, Type("b", 2 * width))
        a, b = (registers(k, Type("b", width)) for k in (10, 12))
        yield form(
            LDS,
            f"ds_read2_{suffix}",
            f"ds_read2_{suffix} {target}, v3 {places}",
            read,
            B32,
            "both" if width == 32 else "register",
        )
        yield form(
            LDS,
            f"ds_write2_{suffix}",
            f"ds_write2_{suffix} v3, {a}, {b} {places}",
            write,
            Type("b", width),
            "slot",
        )
    yield from _strided()


def _strided() -> Iterator[LaneForm]:
    """read2st64 and write2st64: the second place is the slot of a lane further on."""
    for suffix, width in (("b32", 32), ("b64", 64)):
        mask, step = (1 << width) - 1, 64 * width // 8 // SLOT

        def read(wave: Wave, w: int = width, m: int = mask, s: int = step) -> Outcome:
            fields: list[list[Part]] = []
            for lane in LANES:
                far = wave.sources[2][lane + s] & m if lane + s < 32 else Anything()
                here = [(0, w, wave.sources[2][lane] & m), (w, w, far)]
                fields.append(here if active(wave, lane) else [])
            return Outcome(fields)

        def write(wave: Wave, w: int = width, m: int = mask, s: int = step) -> Outcome:
            slots = list(wave.sources[2])
            for lane in LANES:
                if active(wave, lane):
                    slots[lane] = slots[lane] & ~m | wave.sources[0][lane] & m
            for lane in LANES:
                if active(wave, lane) and lane + s < 32:
                    slots[lane + s] = slots[lane + s] & ~m | wave.sources[1][lane] & m
            # Two lanes may write one place, in no order: only what one of them writes is checked.
            twice = {k for k in LANES if active(wave, k) and k >= s and active(wave, k - s)}
            return Outcome([[(0, 128, Anything() if k in twice else slots[k])] for k in LANES])

        a, b = (registers(k, Type("b", width)) for k in (10, 12))
        target = registers(24, Type("b", 2 * width))
        yield _whole_wave(
            f"ds_read2st64_{suffix}", f"ds_read2st64_{suffix} {target}, v3 offset1:1", read, False
        )
        yield _whole_wave(
            f"ds_write2st64_{suffix}", f"ds_write2st64_{suffix} v3, {a}, {b} offset1:1", write, True
        )


def _whole_wave(
    name: str, instruction: str, meaning: Callable[[Wave], Outcome], slot: bool
) -> LaneForm:
    written = form(LDS, name, instruction, lambda *x: ([], 0), B32, "slot" if slot else "register")
    return replace(written, row=replace(written.row, meaning=meaning), meaning=meaning)


def access_forms() -> list[LaneForm]:
    """Every form of every load and store that has a slot to work on."""
    forms: list[LaneForm] = []
    for space in SPACES:
        forms += [*_loads(space), *_stores(space)]
    return [*forms, *_scratch(), *_pairs()]
