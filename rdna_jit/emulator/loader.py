"""Puts relocatable x86-64 object code into executable memory.

The emulator loads its own cached objects with this instead of LLVM's loader, so that running a
kernel whose translation is in the cache does not import llvmlite at all.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

_SHF_ALLOC = 2
_SHT_RELA, _SHT_SYMTAB, _SHT_NOBITS = 4, 2, 8
_R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_PC64, _R_GOTPCRELX, _R_REX_GOTPCRELX = (
    1, 2, 4, 9, 24, 41, 42,
)  # fmt: skip
_STUB = b"\xff\x25\x00\x00\x00\x00"  # jmp *[rip + 0], followed by the 8-byte target
_SKIPPED = (".eh_frame", ".note", ".comment", ".llvm")


class LoadError(Exception):
    """The object uses something that this loader does not know, or is damaged."""


class _Section(NamedTuple):
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class Image:
    """A loaded object; `symbols` are the addresses of what it defines. Keep it while code runs."""

    def __init__(self, data: bytes, externals: Mapping[str, int]) -> None:
        """`externals` are looked up first, then the C and math libraries."""
        try:
            self._load(data, externals)
        except (struct.error, IndexError, ValueError) as error:
            raise LoadError(f"damaged object: {error}") from None

    def _load(self, data: bytes, externals: Mapping[str, int]) -> None:
        sections = _sections(data)
        places, size = {}, 0
        for index, section in enumerate(sections):
            if section.flags & _SHF_ALLOC and not section.name.startswith(_SKIPPED):
                align = max(section.align, 1)
                size = (size + align - 1) // align * align
                places[index] = size
                size += section.size
        symbols = _symbols(data, sections)
        undefined = [name for name, section, _ in symbols if section == 0 and name]
        stubs = (size + 15) // 16 * 16
        self._memory = mmap.mmap(-1, max(stubs + 16 * len(undefined), 1))
        self._view = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        base = ctypes.addressof(self._view)
        for index, place in places.items():
            section = sections[index]
            if section.type != _SHT_NOBITS:
                self._memory[place : place + section.size] = data[
                    section.offset : section.offset + section.size
                ]
        stub_of = {}
        for n, name in enumerate(undefined):
            stub = _STUB + struct.pack("<Q", _resolve(name, externals))
            place = stubs + 16 * n
            self._memory[place : place + len(stub)] = stub
            stub_of[name] = base + place
        values = [
            stub_of.get(name, 0) if section == 0 else base + places.get(section, 0) + value
            for name, section, value in symbols
        ]
        self._relocate(data, sections, places, symbols, values, base)
        self.symbols = {
            name: value
            for (name, section, _), value in zip(symbols, values, strict=True)
            if name and section in places
        }
        _make_executable(base, len(self._memory))

    def _relocate(
        self,
        data: bytes,
        sections: list[_Section],
        places: dict[int, int],
        symbols: list[tuple[str, int, int]],
        values: list[int],
        base: int,
    ) -> None:
        for section in sections:
            if section.type != _SHT_RELA or section.info not in places:
                continue
            for at in range(section.offset, section.offset + section.size, 24):
                offset, info, addend = struct.unpack_from("<QQq", data, at)
                symbol, kind = info >> 32, info & 0xFFFFFFFF
                place = places[section.info] + offset
                value = values[symbol]
                if kind in (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX):
                    if symbols[symbol][1] != 0:
                        raise LoadError("indirect reference to a defined symbol")
                    value += len(_STUB)  # the stub's address cell serves as the table entry
                if kind == _R_64:
                    struct.pack_into("<Q", self._memory, place, (value + addend) % (1 << 64))
                elif kind == _R_PC64:
                    struct.pack_into("<q", self._memory, place, value + addend - base - place)
                elif kind in (_R_PC32, _R_PLT32, _R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX):
                    struct.pack_into("<i", self._memory, place, value + addend - base - place)
                else:
                    raise LoadError(f"relocation type {kind}")


def _sections(data: bytes) -> list[_Section]:
    if data[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", data, 18)[0] != 62:
        raise LoadError("not an x86-64 ELF object")
    (start,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * n) for n in range(count)]
    strings = rows[names][4]
    return [
        _Section(_text(data, strings + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8])
        for r in rows
    ]


def _symbols(data: bytes, sections: list[_Section]) -> list[tuple[str, int, int]]:
    """(name, section index, value) of every symbol; section 0 is undefined."""
    for section in sections:
        if section.type == _SHT_SYMTAB:
            strings = sections[section.link].offset
            symbols = []
            for at in range(section.offset, section.offset + section.size, 24):
                name, _, _, index, value = struct.unpack_from("<IBBHQ", data, at)
                symbols.append((_text(data, strings + name), index, value))
            return symbols
    raise LoadError("no symbol table")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    return (ctypes.CDLL(None), ctypes.CDLL("libm.so.6"))


def _resolve(name: str, externals: Mapping[str, int]) -> int:
    if name in externals:
        return externals[name]
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise LoadError(f"undefined symbol {name}")


def _make_executable(address: int, size: int) -> None:
    libc = _libraries()[0]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise LoadError("the system refuses executable memory")
