"""LDS reads and writes. Addresses are 32-bit byte offsets into the workgroup's LDS.

The bounds slot of an LDS site is the LDS itself, set by the launch, so these are the lane-wise
accesses of ops_memory with that base.
"""

from __future__ import annotations

from rdna_jit.emulator.decode import Decoded, Operand
from rdna_jit.emulator.ir import I8, I16, I32, I64, Value
from rdna_jit.emulator.ops_memory import (
    Lanes,
    load_lanes,
    narrow,
    store_lanes,
    widen_half,
    write_half,
)
from rdna_jit.emulator.registry import op
from rdna_jit.emulator.wave import Wave

_BITS = (32, 64, 96, 128)
_SMALL = {"u8": (I8, False), "i8": (I8, True), "u16": (I16, False), "i16": (I16, True)}
_D16 = {"u8_d16": (I8, False), "i8_d16": (I8, True), "u16_d16": (I16, False)}


def lds_lanes(c: Wave, address: Operand, offset: Value | int) -> Lanes:
    """LDS addresses of the lanes, as host addresses; the sum wraps at 32 bits."""
    lanes = c.raw(address, I32) + narrow(offset)
    return Lanes(base=Value(c, I64.scalar, "%lds"), offset=lanes)


@op(*(f"ds_read_b{bits}" for bits in _BITS), modifiers=("offset",))
def _read(c: Wave, i: Decoded) -> None:
    data, address = i.operands
    count = int(i.mnemonic.rsplit("b", 1)[1]) // 32
    lanes = lds_lanes(c, address, c.address_offset(i))
    for k, value in enumerate(load_lanes(c, i, lanes, I32, count, "lds")):
        c.set_vgpr(data.index + k, value)


@op(*(f"ds_read_{kind}" for kind in _SMALL), modifiers=("offset",))
def _read_small(c: Wave, i: Decoded) -> None:
    data, address = i.operands
    element, signed = _SMALL[i.mnemonic.removeprefix("ds_read_")]
    lanes = lds_lanes(c, address, c.address_offset(i))
    [value] = load_lanes(c, i, lanes, element, 1, "lds")
    c.set_vgpr(data.index, value.sext(I32) if signed else value.zext(I32))


@op(*(f"ds_read_{kind}{half}" for kind in _D16 for half in ("", "_hi")), modifiers=("offset",))
def _read_d16(c: Wave, i: Decoded) -> None:
    data, address = i.operands
    element, signed = _D16[i.mnemonic.removeprefix("ds_read_").removesuffix("_hi")]
    lanes = lds_lanes(c, address, c.address_offset(i))
    [value] = load_lanes(c, i, lanes, element, 1, "lds")
    write_half(c, data.index, widen_half(value, signed), i.mnemonic.endswith("_hi"))


@op(*(f"ds_write_b{bits}" for bits in _BITS), modifiers=("offset",))
def _write(c: Wave, i: Decoded) -> None:
    address, data = i.operands
    count = int(i.mnemonic.rsplit("b", 1)[1]) // 32
    values = [c.vgpr(data.index + k) for k in range(count)]
    store_lanes(c, i, lds_lanes(c, address, c.address_offset(i)), values, "lds")


@op(
    "ds_write_b8", "ds_write_b16", "ds_write_b8_d16_hi", "ds_write_b16_d16_hi",
    modifiers=("offset",),
)  # fmt: skip
def _write_small(c: Wave, i: Decoded) -> None:
    address, data = i.operands
    value = c.vgpr(data.index)
    if i.mnemonic.endswith("_d16_hi"):
        value = value >> 16
    value = value.trunc(I8 if i.mnemonic.startswith("ds_write_b8") else I16)
    store_lanes(c, i, lds_lanes(c, address, c.address_offset(i)), [value], "lds")


def _pair_offsets(i: Decoded, nbytes: int) -> list[int]:
    """Byte offsets of the two halves of a read2 or write2."""
    step = nbytes * (64 if "st64" in i.mnemonic else 1)
    return [i.integer("offset0") * step, i.integer("offset1") * step]


@op(
    *(f"ds_read2{st64}_b{bits}" for st64 in ("", "st64") for bits in (32, 64)),
    modifiers=("offset0", "offset1"),
)
def _read2(c: Wave, i: Decoded) -> None:
    data, address = i.operands
    count = int(i.mnemonic.rsplit("b", 1)[1]) // 32
    values: list[Value] = []
    for offset in _pair_offsets(i, 4 * count):
        values += load_lanes(c, i, lds_lanes(c, address, offset), I32, count, "lds")
    for k, value in enumerate(values):
        c.set_vgpr(data.index + k, value)


@op(
    *(f"ds_write2{st64}_b{bits}" for st64 in ("", "st64") for bits in (32, 64)),
    modifiers=("offset0", "offset1"),
)
def _write2(c: Wave, i: Decoded) -> None:
    address, *data = i.operands
    count = int(i.mnemonic.rsplit("b", 1)[1]) // 32
    for source, offset in zip(data, _pair_offsets(i, 4 * count), strict=True):
        values = [c.vgpr(source.index + k) for k in range(count)]
        store_lanes(c, i, lds_lanes(c, address, offset), values, "lds")
