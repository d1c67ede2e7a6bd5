"""Where inlined code was called from: the inlined subroutines of DWARF 5 debug information.

A line table names the innermost place. For code of a compiler's header that is a line nobody wrote;
the calls around it lead to one that somebody did.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .elf import Elf
from .line_table import Reader, SourceLine, read_header

# DW_TAG_*, DW_AT_*, DW_RLE_*: what is used of them.
COMPILE_UNIT, INLINED_SUBROUTINE = 0x11, 0x1D
LOW_PC, HIGH_PC, RANGES, CALL_FILE, CALL_LINE = 0x11, 0x12, 0x55, 0x58, 0x59
STMT_LIST, ADDR_BASE, RNGLISTS_BASE = 0x10, 0x73, 0x74
END_OF_LIST, BASE_ADDRESSX, STARTX_ENDX, STARTX_LENGTH, OFFSET_PAIR = range(5)

# DW_FORM_* by how they are stored: fixed sizes, ULEB128, and those that need more than that.
_FIXED = {
    0x01: "Q", 0x05: "H", 0x06: "I", 0x07: "Q", 0x0B: "B", 0x0C: "B", 0x0E: "I", 0x11: "B",
    0x12: "H", 0x13: "I", 0x17: "I", 0x1F: "I", 0x25: "B", 0x26: "H", 0x28: "I", 0x29: "B",
    0x2A: "H", 0x2C: "I",
}  # fmt: skip
_ULEB = (0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23)
_STRING, _EXPRESSION, _PRESENT, _IMPLICIT, _SIGNED = 0x08, 0x18, 0x19, 0x21, 0x0D
_ADDRX, _RNGLISTX = (0x1B, 0x29, 0x2A, 0x2C), 0x23


class InlineSite(NamedTuple):
    """A range of addresses that a call inlined in `depth` others put there."""

    first: int
    end: int
    depth: int
    call: SourceLine


class InlineSites:
    """The calls of inlined functions that stand outside of headers; none when a code object says
    nothing about them."""

    def __init__(self, elf: Elf | None) -> None:
        try:
            found = list(_units(elf)) if elf is not None else []
        except (ValueError, LookupError, ArithmeticError, struct.error):
            found = []
        written = (site for site in found if not site.call.file.startswith("/"))
        self.sites = sorted(written, key=lambda site: -site.depth)

    def caller(self, address: int) -> SourceLine | None:
        """The innermost call around an address."""
        around = (site.call for site in self.sites if site.first <= address < site.end)
        return next(around, None)


@dataclass
class _Unit:
    """What resolves the indices in a unit's entries."""

    elf: Elf
    low_pc: int
    addr_base: int
    rnglists_base: int
    files: list[str]

    def address(self, index: int) -> int:
        return Reader(self.elf.content(".debug_addr"), self.addr_base + 8 * index).fixed("Q")

    def ranges(self, entry: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """(first, end) of every range of an entry."""
        if LOW_PC in entry:
            form, value = entry[LOW_PC]
            first = self.address(value) if form in _ADDRX else value
            yield first, first + entry[HIGH_PC][1]
        elif RANGES in entry:
            form, value = entry[RANGES]
            lists = self.elf.content(".debug_rnglists")
            if form == _RNGLISTX:
                value = self.rnglists_base + Reader(lists, self.rnglists_base + 4 * value).fixed(
                    "I"
                )
            yield from self._list(Reader(lists, value))

    def _list(self, reader: Reader) -> Iterator[tuple[int, int]]:
        base = self.low_pc
        while (kind := reader.fixed("B")) != END_OF_LIST:
            if kind == BASE_ADDRESSX:
                base = self.address(reader.unsigned())
            elif kind == OFFSET_PAIR:
                yield base + reader.unsigned(), base + reader.unsigned()
            elif kind in (STARTX_ENDX, STARTX_LENGTH):
                first, other = self.address(reader.unsigned()), reader.unsigned()
                yield first, first + other if kind == STARTX_LENGTH else self.address(other)
            else:
                raise ValueError(f"range list entry {kind}")


def _units(elf: Elf) -> Iterator[InlineSite]:
    section = elf.content(".debug_info")
    reader = Reader(section)
    while reader.position < len(section):
        end = reader.fixed("I") + reader.position
        if reader.fixed("H") != 5:
            raise ValueError("only version 5 is read")
        reader.skip(2)  # kind of unit, address size
        declarations = _abbreviations(Reader(elf.content(".debug_abbrev"), reader.fixed("I")))
        yield from _entries(reader, end, declarations, elf)
        reader.position = end


Declaration = tuple[int, bool, list[tuple[int, int, int]]]


def _abbreviations(reader: Reader) -> dict[int, Declaration]:
    """Tag, whether it has children, and (attribute, form, implicit value) by code."""
    found: dict[int, Declaration] = {}
    while code := reader.unsigned():
        tag, children = reader.unsigned(), reader.fixed("B") == 1
        attributes = []
        while (pair := (reader.unsigned(), reader.unsigned())) != (0, 0):
            attributes.append((*pair, reader.signed() if pair[1] == _IMPLICIT else 0))
        found[code] = (tag, children, attributes)
    return found


def _entries(
    reader: Reader, end: int, declarations: dict[int, Declaration], elf: Elf
) -> Iterator[InlineSite]:
    depth, unit = 0, _Unit(elf, 0, 8, 12, [])
    while reader.position < end:
        code = reader.unsigned()
        if code == 0:
            depth -= 1
            continue
        tag, children, attributes = declarations[code]
        entry = {
            name: (form, _value(reader, form, implicit)) for name, form, implicit in attributes
        }
        if tag == COMPILE_UNIT:
            unit = _unit(entry, elf)
        elif tag == INLINED_SUBROUTINE and CALL_LINE in entry:
            call = SourceLine(unit.files[entry[CALL_FILE][1]], entry[CALL_LINE][1])
            for first, last in unit.ranges(entry):
                yield InlineSite(first, last, depth, call)
        depth += children


def _unit(entry: dict[int, tuple[int, int]], elf: Elf) -> _Unit:
    def value(name: int, otherwise: int) -> int:
        return entry.get(name, (0, otherwise))[1]

    line_program = Reader(elf.content(".debug_line"), value(STMT_LIST, 0) + 4)
    files = read_header(line_program, elf).files
    unit = _Unit(elf, 0, value(ADDR_BASE, 8), value(RNGLISTS_BASE, 12), files)
    if LOW_PC in entry:
        form, low = entry[LOW_PC]
        unit.low_pc = unit.address(low) if form in _ADDRX else low
    return unit


def _value(reader: Reader, form: int, implicit: int) -> int:
    """The number that an attribute holds; 0 for what is skipped."""
    if form in _FIXED:
        return int(reader.fixed(_FIXED[form]))
    if form in _ULEB:
        return reader.unsigned()
    if form == _EXPRESSION:
        return reader.skip(reader.unsigned())
    if form == _SIGNED:
        return reader.signed()
    if form == _STRING:
        reader.string()
        return 0
    if form in (_PRESENT, _IMPLICIT):
        return implicit
    raise ValueError(f"form {form:#x}")
