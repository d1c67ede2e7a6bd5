"""Reader for 64-bit little-endian ELF files: code objects, and the toolchain's own libraries."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_DYNSYM = 2, 4, 8, 11
PT_LOAD, PT_NOTE = 1, 4
STT_FUNC = 2
NT_GNU_BUILD_ID = 3


class Section(NamedTuple):
    name: str
    type: int
    address: int
    offset: int
    size: int
    link: int


class Segment(NamedTuple):
    """A program header; `va` and the sizes are in bytes."""

    type: int
    flags: int
    offset: int
    va: int
    file_size: int
    mem_size: int


class Symbol(NamedTuple):
    name: str
    va: int
    size: int
    type: int


class Relocation(NamedTuple):
    """A dynamic relocation: the 8 bytes at `va` get `symbol`'s address (0: none) + `addend`."""

    va: int
    type: int
    symbol: int
    addend: int


class Elf:
    """One file's headers. ValueError when it is not a 64-bit little-endian ELF file.

    `data` may be a memory map: only what is asked for is read.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.data = data
        self.abi_version = data[8]
        (self.machine,) = struct.unpack_from("<H", data, 18)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        (start,) = struct.unpack_from("<Q", self.data, 32)
        stride, count = struct.unpack_from("<HH", self.data, 54)
        rows = (struct.unpack_from("<IIQQQQQ", self.data, start + stride * i) for i in range(count))
        return tuple(
            Segment(kind, flags, offset, va, file_size, mem_size)
            for kind, flags, offset, va, _, file_size, mem_size in rows
        )

    @cached_property
    def sections(self) -> dict[str, Section]:
        (start,) = struct.unpack_from("<Q", self.data, 40)
        stride, count, names_index = struct.unpack_from("<HHH", self.data, 58)
        rows = [struct.unpack_from("<IIQQQQI", self.data, start + stride * i) for i in range(count)]
        if not rows:
            return {}
        names = rows[names_index][4]
        sections = (
            Section(self._string(names + name), kind, address, offset, size, link)
            for name, kind, _, address, offset, size, link in rows
        )
        return {section.name: section for section in sections}

    def content(self, name: str) -> bytes:
        """Bytes of a section; empty when there is no such section."""
        section = self.sections.get(name)
        if section is None or section.type == SHT_NOBITS:
            return b""
        return self.data[section.offset : section.offset + section.size]

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """Named symbols of both symbol tables."""
        tables = [s for s in self.sections.values() if s.type in (SHT_SYMTAB, SHT_DYNSYM)]
        symbols = (symbol for table in tables for symbol in self._symbols(table))
        return {symbol.name: symbol for symbol in symbols if symbol.name}

    @cached_property
    def relocations(self) -> tuple[Relocation, ...]:
        result = []
        tables = list(self.sections.values())
        for section in (s for s in tables if s.type == SHT_RELA):
            symbols = list(self._symbols(tables[section.link]))
            for offset in range(section.offset, section.offset + section.size, 24):
                va, info, addend = struct.unpack_from("<QQq", self.data, offset)
                value = symbols[info >> 32].va if info >> 32 else 0
                result.append(Relocation(va, info & 0xFFFFFFFF, value, addend))
        return tuple(result)

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(owner, type, content) of every note."""
        for segment in self.segments:
            if segment.type != PT_NOTE:
                continue
            position, end = segment.offset, segment.offset + segment.file_size
            while position + 12 <= end:
                name_size, size, kind = struct.unpack_from("<III", self.data, position)
                name = position + 12
                start = name + (name_size + 3 & ~3)
                owner = self.data[name : name + name_size].rstrip(b"\0")
                yield owner, kind, self.data[start : start + size]
                position = start + (size + 3 & ~3)

    def build_id(self) -> str:
        """The linker's build id in hex; empty when there is none."""
        for owner, kind, content in self.notes():
            if owner == b"GNU" and kind == NT_GNU_BUILD_ID:
                return content.hex()
        return ""

    def _symbols(self, table: Section) -> Iterator[Symbol]:
        names = list(self.sections.values())[table.link].offset
        for offset in range(table.offset, table.offset + table.size, 24):
            name, info, _, _, va, size = struct.unpack_from("<IBBHQQ", self.data, offset)
            yield Symbol(self._string(names + name), va, size, info & 15)

    def _string(self, offset: int) -> str:
        return self.data[offset : self.data.find(b"\0", offset)].decode(errors="replace")
