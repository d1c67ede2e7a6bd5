"""Decoder for MessagePack, the encoding of a code object's metadata note."""

from __future__ import annotations

import struct

Value = None | bool | int | float | str | bytes | list["Value"] | dict["Value", "Value"]

_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS: dict[int, Value] = {0xC0: None, 0xC2: False, 0xC3: True}
_BYTES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}


def decode(data: bytes) -> Value:
    """The one value that `data` holds. ValueError when the data is not MessagePack."""
    reader = _Reader(data)
    try:
        return reader.value()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a MessagePack value: {error}") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self.data, self.position)
        self.position += struct.calcsize(layout)
        return value  # type: ignore[no-any-return]

    def take(self, count: int) -> bytes:
        chunk = self.data[self.position : self.position + count]
        if len(chunk) != count:
            raise IndexError("the data ends early")
        self.position += count
        return chunk

    def sequence(self, count: int) -> list[Value]:
        return [self.value() for _ in range(count)]

    def mapping(self, count: int) -> dict[Value, Value]:
        result: dict[Value, Value] = {}
        for _ in range(count):
            key = self.value()
            result[key] = self.value()
        return result

    def value(self) -> Value:
        tag = self.number(">B")
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self.mapping(tag & 0x0F)
        if tag < 0xA0:
            return self.sequence(tag & 0x0F)
        if tag < 0xC0:
            return self.take(tag & 0x1F).decode()
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return self.number(_NUMBERS[tag])
        if tag in _BYTES:
            return self.take(self.number(_BYTES[tag]))
        if tag in _STRINGS:
            return self.take(self.number(_STRINGS[tag])).decode()
        if tag in _LISTS:
            return self.sequence(self.number(_LISTS[tag]))
        if tag in _MAPS:
            return self.mapping(self.number(_MAPS[tag]))
        raise ValueError(f"MessagePack tag {tag:#x} is not used by code objects")
