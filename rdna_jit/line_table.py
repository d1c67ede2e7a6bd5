"""Line tables: from an instruction's address to the source line it was compiled from.

Decodes the line-number program of DWARF 4 and 5 (section .debug_line).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .elf import Elf

if TYPE_CHECKING:
    from .inline_sites import InlineSites

# DW_LNS_*: standard opcodes; DW_LNE_*: extended ones; DW_LNCT_*: what a file entry holds.
EXTENDED, COPY, ADVANCE_PC, ADVANCE_LINE, SET_FILE = 0, 1, 2, 3, 4
CONST_ADD_PC, FIXED_ADVANCE_PC = 8, 9
END_SEQUENCE, SET_ADDRESS = 1, 2
LNCT_PATH, LNCT_DIRECTORY = 1, 2


class SourceLine(NamedTuple):
    """A place in the source; `line` counts from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class LineTable:
    """Ranges of addresses with their source line, in order of address.

    `rows` holds (first address, source line or None); a row ends where the next one starts. What
    the compiler's own headers define counts as the line that calls it, as far as that is known.
    """

    def __init__(
        self, rows: Sequence[tuple[int, SourceLine | None]], elf: Elf | None = None
    ) -> None:
        self.rows = tuple(rows)
        self._starts = [address for address, _ in self.rows]
        self._elf = elf

    @classmethod
    def from_elf(cls, elf: Elf) -> LineTable:
        """The table of a file; empty when it has none or one in a form not known here."""
        try:
            rows = list(_decode(elf))
        except (ValueError, LookupError, ArithmeticError, struct.error):
            rows = []
        # Stable: at equal addresses a sequence's end comes before the next one's start.
        rows.sort(key=lambda row: (row[0], row[1] is not None))
        return cls(rows, elf)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def get(self, address: int) -> SourceLine | None:
        """Source line of the instruction at `address`, None when unknown."""
        index = bisect_right(self._starts, address) - 1
        place = self.rows[index][1] if index >= 0 else None
        if place is None or not place.file.startswith("/"):
            return place
        return self._inlined.caller(address) or self._written[index] or place

    @cached_property
    def _written(self) -> list[SourceLine | None]:
        """For every row, the last place up to it that is no header's."""
        last, places = None, []
        for start, place in self.rows:
            if place is None or not place.file.startswith("/"):
                last = place
            else:
                last = self._inlined.caller(start) or last
            places.append(last)
        return places

    @cached_property
    def _inlined(self) -> InlineSites:
        from .inline_sites import InlineSites

        return InlineSites(self._elf)


class Reader:
    """Numbers and strings of a DWARF section, in order."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def fixed(self, layout: str) -> int:
        (value,) = struct.unpack_from("<" + layout, self.data, self.position)
        self.position += struct.calcsize("<" + layout)
        return value  # type: ignore[no-any-return]

    def unsigned(self) -> int:
        """ULEB128."""
        value = shift = 0
        while True:
            byte = self.fixed("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        """SLEB128."""
        start = self.position
        value = self.unsigned()
        bits = 7 * (self.position - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.position)
        text = self.data[self.position : end].decode(errors="replace")
        self.position = end + 1
        return text

    def skip(self, count: int) -> int:
        self.position += count
        return 0


def _string_at(section: bytes) -> Callable[[Reader], str]:
    return lambda reader: Reader(section, reader.fixed("I")).string()


def _forms(elf: Elf) -> dict[int, Callable[[Reader], int | str]]:
    """Readers of the DW_FORM_* that compilers use in file tables."""
    return {
        0x08: Reader.string,
        0x0E: _string_at(elf.content(".debug_str")),
        0x1F: _string_at(elf.content(".debug_line_str")),
        0x0B: lambda reader: reader.fixed("B"),
        0x05: lambda reader: reader.fixed("H"),
        0x06: lambda reader: reader.fixed("I"),
        0x0F: Reader.unsigned,
        0x1E: lambda reader: reader.skip(16),
    }


def _decode(elf: Elf) -> Iterator[tuple[int, SourceLine | None]]:
    section = elf.content(".debug_line")
    reader = Reader(section)
    while reader.position < len(section):
        length = reader.fixed("I")
        if length >= 0xFFFFFFF0:
            raise ValueError("64-bit DWARF")
        end = reader.position + length
        yield from _unit(reader, end, elf)
        reader.position = end


class Header(NamedTuple):
    """What a unit's line-number program needs: how special opcodes advance, and the files."""

    step: int
    line_base: int
    line_range: int
    opcode_base: int
    operand_counts: list[int]
    files: list[str]


def _unit(reader: Reader, end: int, elf: Elf) -> Iterator[tuple[int, SourceLine | None]]:
    """Rows of one compile unit."""
    yield from _run(reader, end, read_header(reader, elf))


def read_header(reader: Reader, elf: Elf) -> Header:
    """A unit's header, from behind its length on; leaves the reader at the program."""
    version = reader.fixed("H")
    if version not in (4, 5):
        raise ValueError(f"DWARF version {version}")
    if version == 5:
        reader.skip(2)  # address size, segment selector size
    program = reader.fixed("I")
    program += reader.position
    step = reader.fixed("B")
    reader.skip(2)  # operations per instruction, default of is_stmt
    line_base, line_range, opcode_base = reader.fixed("b"), reader.fixed("B"), reader.fixed("B")
    operand_counts = [0] + [reader.fixed("B") for _ in range(opcode_base - 1)]
    files = _files_v5(reader, elf) if version == 5 else _files_v4(reader)
    reader.position = program
    return Header(step, line_base, line_range, opcode_base, operand_counts, files)


def _run(reader: Reader, end: int, header: Header) -> Iterator[tuple[int, SourceLine | None]]:
    """Rows that a line-number program makes: (address, None) where a sequence ends."""
    step, line_base, line_range, opcode_base, operand_counts, files = header
    address, file, line = 0, 1, 1
    current: SourceLine | None = None
    while reader.position < end:
        opcode = reader.fixed("B")
        if opcode >= opcode_base:
            address += (opcode - opcode_base) // line_range * step
            line += line_base + (opcode - opcode_base) % line_range
        elif opcode == ADVANCE_PC:
            address += reader.unsigned() * step
        elif opcode == ADVANCE_LINE:
            line += reader.signed()
        elif opcode == SET_FILE:
            file = reader.unsigned()
        elif opcode == CONST_ADD_PC:
            address += (255 - opcode_base) // line_range * step
        elif opcode == FIXED_ADVANCE_PC:
            address += reader.fixed("H")
        elif opcode == EXTENDED:
            following = reader.unsigned() + reader.position
            extended = reader.fixed("B")
            if extended == SET_ADDRESS:
                address = reader.fixed("Q")
            elif extended == END_SEQUENCE:
                yield address, None
                address, file, line, current = 0, 1, 1, None
            reader.position = following
        elif opcode != COPY:
            for _ in range(operand_counts[opcode]):
                reader.unsigned()
        if opcode >= opcode_base or opcode == COPY:
            # Line 0 marks code of no line in particular: it stays with the line before it.
            current = SourceLine(files[file], line) if line > 0 else current
            yield address, current


def _files_v4(reader: Reader) -> list[str]:
    directories = [""]
    while name := reader.string():
        directories.append(name)
    files = [""]
    while name := reader.string():
        directory = directories[reader.unsigned()]
        reader.unsigned()  # time of modification
        reader.unsigned()  # size
        files.append(_join(directory, name))
    return files


def _files_v5(reader: Reader, elf: Elf) -> list[str]:
    forms = _forms(elf)

    def entries() -> list[dict[int, int | str]]:
        layout = [(reader.unsigned(), reader.unsigned()) for _ in range(reader.fixed("B"))]
        return [
            {content: forms[form](reader) for content, form in layout}
            for _ in range(reader.unsigned())
        ]

    directories = [str(entry[LNCT_PATH]) for entry in entries()]
    return [
        _join(directories[int(entry.get(LNCT_DIRECTORY, 0))], str(entry[LNCT_PATH]))
        for entry in entries()
    ]


def _join(directory: str, name: str) -> str:
    if name.startswith("/") or directory in ("", "."):
        return name
    return f"{directory}/{name}"
