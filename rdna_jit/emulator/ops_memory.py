"""Global, flat, scalar and private memory.

A lane-wise access takes one of two ways. If all 32 lanes are active and at consecutive addresses
inside the buffer found last, it is one wide load or store. Otherwise every lane is checked and the
data moves through a staging area, lane by lane, in the layout of the wide access; so both ways
meet in the same few shuffles. Where that pays (`Wave.inline_memory`) the first way is inline,
else the whole access is one call of the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdna_jit.emulator import layout
from rdna_jit.emulator.decode import Decoded, Operand
from rdna_jit.emulator.ir import I8, I16, I32, I64, PTR, WAVE, Type, Value
from rdna_jit.emulator.registry import op
from rdna_jit.emulator.wave import Access, Space, Wave

_CACHE_BITS = ("glc", "slc", "dlc")
_LOADS = {
    "ubyte": (I8, False), "sbyte": (I8, True), "ushort": (I16, False), "sshort": (I16, True),
}  # fmt: skip
_DWORDS = {"dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4}


@dataclass(frozen=True)
class Lanes:
    """The addresses of a lane-wise access.

    Either a scalar `base` plus an unsigned 32-bit `offset` per lane plus the constant `plus`, or
    `full` 64-bit addresses plus `plus`.
    """

    base: Value | None = None
    offset: Value | None = None
    full: Value | None = None
    plus: Value | int = 0

    def all(self, c: Wave) -> Value:
        """One I64 address per lane."""
        if self.full is not None:
            return self.full + self.plus
        assert self.offset is not None and self.base is not None
        return self.offset.zext(I64) + c.splat(self.base + self.plus)

    def first(self, c: Wave) -> Value:
        """The address of lane 0, an I64 scalar."""
        if self.full is not None:
            return c.lane(self.full, 0) + self.plus
        assert self.offset is not None and self.base is not None
        return c.lane(self.offset, 0).zext(I64) + (self.base + self.plus)

    def consecutive(self, c: Wave, nbytes: int) -> Value:
        """Whether lane n is at lane 0 + n * nbytes in every lane; an I1 scalar."""
        lanes = self.full if self.full is not None else self.offset
        assert lanes is not None
        first = c.lane(lanes, 0)
        steps = c.lane_const(lanes.type, [n * nbytes for n in range(WAVE)])
        same = lanes.eq(c.splat(first) + steps).bitcast(I32).eq(0xFFFF_FFFF)
        if self.full is not None:
            return same
        # a 32-bit offset may wrap around within the access; the address does not
        return same & ~first.ugt(0xFFFF_FFFF - WAVE * nbytes)


def load_lanes(
    c: Wave, i: Decoded, lanes: Lanes, element: Type, count: int, space: Space
) -> list[Value]:
    """`count` elements per lane; inactive lanes hold anything."""
    nbytes = element.bits // 8 * count
    if not c.inline_memory:
        _call(c, i, lanes, "load", nbytes, space)
        split = c.env_pointer("split")
        return [c.load_scalar(element, c.offset(split, 128 * k), align=8) for k in range(count)]
    wide = _wide_pointer(c, i, lanes, nbytes, space, "load")
    packed = c.env_pointer("packed")
    known = c.snapshot()
    c.branch(wide.fast, wide.direct, wide.helper)
    c.label(wide.helper, known)
    c.do(f"store {lanes.all(c)!r}, {c.env_pointer('addresses')!r}, align 8")
    _helper(c, "gather", wide.site, nbytes, space)
    c.go(wide.join)
    slow = c.current
    c.label(wide.direct)
    c.go(wide.join)
    c.label(wide.join, known)
    origins = f"[ {wide.pointer.ref}, %{wide.direct} ], [ {packed.ref}, %{slow} ]"
    source = c.emit(PTR, f"phi ptr {origins}")
    block = c.load_scalar(element.over(WAVE * count), source, align=1)
    if count == 1:
        return [block]
    return [c.shuffle(block, [n * count + k for n in range(WAVE)]) for k in range(count)]


def store_lanes(c: Wave, i: Decoded, lanes: Lanes, values: list[Value], space: Space) -> None:
    """The elements of each active lane, next to each other; the highest lane wins a conflict."""
    nbytes = values[0].type.bits // 8 * len(values)
    if not c.inline_memory:
        split = c.env_pointer("split")
        for k, value in enumerate(values):
            c.do(f"store {value!r}, {c.offset(split, 128 * k)!r}, align 8")
        _call(c, i, lanes, "store", nbytes, space)
        return
    wide = _wide_pointer(c, i, lanes, nbytes, space, "store")
    block = _interleave(c, values)
    packed = c.env_pointer("packed")
    known = c.snapshot()
    c.branch(wide.fast, wide.direct, wide.helper)
    c.label(wide.helper, known)
    c.do(f"store {block!r}, {packed!r}, align 8")
    c.do(f"store {lanes.all(c)!r}, {c.env_pointer('addresses')!r}, align 8")
    _helper(c, "scatter", wide.site, nbytes, space)
    c.go(wide.join)
    c.label(wide.direct)
    c.do(f"store {block!r}, {wide.pointer!r}, align 1")
    c.go(wide.join)
    c.label(wide.join, known)


def _call(c: Wave, i: Decoded, lanes: Lanes, name: Access, nbytes: int, space: Space) -> None:
    """The whole access as a call of the runtime; data is in, or comes from, env.split."""
    site = c.site(i, nbytes, space, name)
    if lanes.full is not None or space == "flat":
        c.do(f"store {lanes.all(c)!r}, {c.env_pointer('addresses')!r}, align 8")
        _helper(c, name, site, nbytes, space)
        return
    assert lanes.offset is not None and lanes.base is not None
    c.do(f"store {lanes.offset!r}, {c.env_pointer('offsets')!r}, align 4")
    base = lanes.base + lanes.plus
    lds = "true" if space == "lds" else "false"
    arguments = f"{c.exec_bits()!r}, {site!r}, i64 {nbytes}, i1 {lds}, {base!r}"
    c.check_call(f"@{name}_at(ptr %env, {arguments})")


def _interleave(c: Wave, values: list[Value]) -> Value:
    """All elements of lane 0, then all of lane 1 ..."""
    if len(values) == 1:
        return values[0]
    lanes = WAVE
    joined = list(values)
    while len(joined) > 1:
        if len(joined) % 2:
            joined.append(joined[-1])
        pairs = zip(joined[::2], joined[1::2], strict=True)
        joined = [c.shuffle(x, range(2 * lanes), y) for x, y in pairs]
        lanes *= 2
    order = [k * WAVE + n for n in range(WAVE) for k in range(len(values))]
    return c.shuffle(joined[0], order)


@dataclass(frozen=True)
class _Wide:
    site: Value
    fast: Value
    pointer: Value
    direct: str
    helper: str
    join: str


def _wide_pointer(
    c: Wave, i: Decoded, lanes: Lanes, nbytes: int, space: Space, access: Access
) -> _Wide:
    """Decide on the way: `fast` holds when the whole access is one block in a known buffer."""
    site = c.site(i, nbytes, space, access)
    first = lanes.first(c)
    slot = c.offset(Value(c, PTR, "%slots"), site, "%Slot")
    start = c.load_scalar(I64.scalar, slot)
    index = layout.field(layout.Slot, "fast_limit")
    limit = c.load_scalar(
        I64.scalar, c.pointer(f"getelementptr %Slot, {slot!r}, i32 0, i32 {index}")
    )
    inside = (first - start).ult(limit)
    fast = lanes.consecutive(c, nbytes) & c.exec_is_full() & inside
    pointer = c.emit(PTR, f"inttoptr {first!r} to ptr")
    labels = (c.new_label(p) for p in ("direct", "lanes", "join"))
    return _Wide(site, fast, pointer, *labels)


def _helper(c: Wave, name: str, site: Value, nbytes: int, space: Space) -> None:
    exec_bits = c.exec_bits()
    if space == "flat":
        c.check_call(f"@flat_resolve(ptr %env, {exec_bits!r}, {site!r}, i64 {nbytes})")
        exec_bits = c.exec_bits()
    lds = "true" if space == "lds" else "false"
    c.check_call(f"@{name}(ptr %env, {exec_bits!r}, {site!r}, i64 {nbytes}, i1 {lds})")


# Addresses
def global_lanes(c: Wave, i: Decoded, address: Operand, base: Operand | None) -> Lanes:
    """vaddr and saddr of a global or flat instruction."""
    plus = c.address_offset(i)
    if base is None or base.text == "off":
        return Lanes(full=c.raw(address, I64), plus=plus)
    scalar = c.scalar_source(base, I64)
    if address.text == "off":
        return Lanes(base=scalar, offset=c.const(I32, 0), plus=plus)
    return Lanes(base=scalar, offset=c.raw(address, I32), plus=plus)


def narrow(offset: Value | int) -> Value | int:
    """An address offset for 32-bit addresses."""
    return offset.trunc(I32) if isinstance(offset, Value) else offset


def space_of(i: Decoded) -> Space:
    return "flat" if i.mnemonic.startswith("flat_") else "global"


def _names(*patterns: str) -> list[str]:
    return [f"{prefix}_{p}" for prefix in ("global", "flat") for p in patterns]


def _operands(i: Decoded, data: int) -> tuple[Operand, Operand, Operand | None]:
    """(data, address, scalar base); flat instructions have no base."""
    others = [o for n, o in enumerate(i.operands) if n != data]
    return i.operands[data], others[0], others[1] if len(others) > 1 else None


# Global and flat
@op(*_names(*(f"load_{kind}" for kind in _DWORDS)), modifiers=("offset", *_CACHE_BITS))
def _load_dwords(c: Wave, i: Decoded) -> None:
    count = _DWORDS[i.mnemonic.rsplit("_", 1)[1]]
    data, address, base = _operands(i, 0)
    lanes = global_lanes(c, i, address, base)
    values: list[Value] = []
    for part, width in _parts(i, lanes, count):
        values += load_lanes(c, i, part, I32, width, space_of(i))
    for k, value in enumerate(values):
        c.set_vgpr(data.index + k, value)


def _parts(i: Decoded, lanes: Lanes, count: int) -> list[tuple[Lanes, int]]:
    """An access of `count` dwords in pieces: generic ones go dword by dword, since they may reach
    private memory, where a lane's dwords lie apart."""
    if space_of(i) != "flat":
        return [(lanes, count)]
    return [(replace(lanes, plus=lanes.plus + 4 * k), 1) for k in range(count)]


@op(*_names(*(f"load_{kind}" for kind in _LOADS)), modifiers=("offset", *_CACHE_BITS))
def _load_small(c: Wave, i: Decoded) -> None:
    element, signed = _LOADS[i.mnemonic.rsplit("_", 1)[1]]
    data, address, base = _operands(i, 0)
    [value] = load_lanes(c, i, global_lanes(c, i, address, base), element, 1, space_of(i))
    c.set_vgpr(data.index, value.sext(I32) if signed else value.zext(I32))


_D16_LOADS = {
    "ubyte_d16": (I8, False), "sbyte_d16": (I8, True), "short_d16": (I16, False),
}  # fmt: skip


@op(
    *_names(*(f"load_{kind}{half}" for kind in _D16_LOADS for half in ("", "_hi"))),
    modifiers=("offset", *_CACHE_BITS),
)
def _load_d16(c: Wave, i: Decoded) -> None:
    kind = i.mnemonic.split("load_", 1)[1].removesuffix("_hi")
    element, signed = _D16_LOADS[kind]
    data, address, base = _operands(i, 0)
    [value] = load_lanes(c, i, global_lanes(c, i, address, base), element, 1, space_of(i))
    write_half(c, data.index, widen_half(value, signed), i.mnemonic.endswith("_hi"))


def widen_half(value: Value, signed: bool) -> Value:
    """An 8- or 16-bit element as the low half of 32 bits."""
    if value.type.bits == 16:
        return value.zext(I32)
    return (value.sext(I16) if signed else value.zext(I16)).zext(I32)


def write_half(c: Wave, register: int, half: Value, high: bool) -> None:
    """Write one half of a register and keep the other."""
    old = c.vgpr(register)
    merged = (old & 0xFFFF) | (half << 16) if high else (old & 0xFFFF_0000) | half
    c.set_vgpr(register, merged)


@op(*_names(*(f"store_{kind}" for kind in _DWORDS)), modifiers=("offset", *_CACHE_BITS))
def _store_dwords(c: Wave, i: Decoded) -> None:
    count = _DWORDS[i.mnemonic.rsplit("_", 1)[1]]
    data, address, base = _operands(i, 1)
    values = [c.vgpr(data.index + k) for k in range(count)]
    for part, width in _parts(i, global_lanes(c, i, address, base), count):
        store_lanes(c, i, part, values[:width], space_of(i))
        del values[:width]


@op(
    *_names("store_byte", "store_short", "store_byte_d16_hi", "store_short_d16_hi"),
    modifiers=("offset", *_CACHE_BITS),
)
def _store_small(c: Wave, i: Decoded) -> None:
    data, address, base = _operands(i, 1)
    value = c.vgpr(data.index)
    if i.mnemonic.endswith("_d16_hi"):
        value = value >> 16
    value = value.trunc(I8 if "_byte" in i.mnemonic else I16)
    store_lanes(c, i, global_lanes(c, i, address, base), [value], space_of(i))


# Scalar loads
_SCALAR_DWORDS = {f"s_load_dword{'' if n == 1 else f'x{n}'}": n for n in (1, 2, 4, 8, 16)}


@op(*_SCALAR_DWORDS, modifiers=("offset", "glc", "dlc"))
def _scalar_load(c: Wave, i: Decoded) -> None:
    count = _SCALAR_DWORDS[i.mnemonic]
    data, base, offset = i.operands
    address = c.scalar_source(base, I64) + c.address_offset(i)
    if not offset.is_constant:
        address = address + c.scalar_source(offset, I32).zext(I64)
    address = address & ~3
    pointer = scalar_pointer(c, i, address, 4 * count)
    words = [c.load_scalar(I32.scalar, c.offset(pointer, n, "i32"), align=4) for n in range(count)]
    for n, word in enumerate(words):
        c.set_sgpr(data.index + n, word)


def scalar_pointer(c: Wave, i: Decoded, address: Value, nbytes: int) -> Value:
    """A checked address of a scalar load."""
    site = c.site(i, nbytes, "scalar")
    slot = c.offset(Value(c, PTR, "%slots"), site, "%Slot")
    start = c.load_scalar(I64.scalar, slot)
    index = layout.field(layout.Slot, "fast_limit")
    limit = c.load_scalar(
        I64.scalar, c.pointer(f"getelementptr %Slot, {slot!r}, i32 0, i32 {index}")
    )
    check, fine = c.new_label("check"), c.new_label("fine")
    known = c.snapshot()
    c.branch((address - start).ult(limit), fine, check)
    c.label(check)
    c.check_call(f"@access_scalar(ptr %env, {site!r}, {address!r}, i64 {nbytes})")
    c.go(fine)
    c.label(fine, known)
    return c.emit(PTR, f"inttoptr {address!r} to ptr")


# Private memory: dwords of the 32 lanes lie next to each other. It is reached through a buffer
# descriptor, or by the flat scratch instructions, whose base is always the wave's own memory.
_PRIVATE = (
    *(f"{way}_{kind}" for way in ("load", "store") for kind in _DWORDS),
    *(f"load_{kind}" for kind in _LOADS),
    *(f"load_{kind}{half}" for kind in _D16_LOADS for half in ("", "_hi")),
    *(f"store_{kind}{half}" for kind in ("byte", "short") for half in ("", "_d16_hi")),
)


@op(*(f"buffer_{name}" for name in _PRIVATE), modifiers=("offset", "offen", *_CACHE_BITS))
def _buffer(c: Wave, i: Decoded) -> None:
    data, address, descriptor, start = i.operands
    mark = c.sgpr(descriptor.index + 3)
    c.fault_if(mark.ne(layout.SCRATCH_MARK), layout.DESCRIPTOR, c.next_site())
    low = c.sgpr(descriptor.index).zext(I64)
    high = (c.sgpr(descriptor.index + 1) & 0xFFFF).zext(I64)
    base = (low | (high << 32)) + c.scalar_source(start, I32).zext(I64)
    offset = c.const(I32, 0) if "offen" not in i.modifiers else c.raw(address, I32)
    _private(c, i, data, base, offset + narrow(c.address_offset(i)))


@op(*(f"scratch_{name}" for name in _PRIVATE), modifiers=("offset", *_CACHE_BITS))
def _flat_scratch(c: Wave, i: Decoded) -> None:
    data, *addresses = _operands(i, 1 if "_store_" in i.mnemonic else 0)
    offset = c.const(I32, 0) + narrow(c.address_offset(i))
    for part in addresses:
        if part is not None and part.text != "off":
            offset = offset + c.raw(part, I32)
    base = c.load_scalar(I64.scalar, c.env_pointer("private"))
    _private(c, i, data, base, offset)


def _private(c: Wave, i: Decoded, data: Operand, base: Value, offset: Value) -> None:
    """Load or store at byte `offset` of each lane's private memory."""
    kind = i.mnemonic.split("_", 2)[2].removesuffix("_hi")
    upper = i.mnemonic.endswith("_hi")
    if kind in _DWORDS:
        _private_dwords(c, i, data, base, offset, _DWORDS[kind])
        return
    lanes = Lanes(base=base, offset=_swizzle(c, offset))
    if "_store_" in i.mnemonic:
        element = I8 if "byte" in kind else I16
        value = c.vgpr(data.index) >> 16 if upper else c.vgpr(data.index)
        store_lanes(c, i, lanes, [value.trunc(element)], "scratch")
        return
    element, signed = (_LOADS | _D16_LOADS)[kind]
    [value] = load_lanes(c, i, lanes, element, 1, "scratch")
    if kind in _D16_LOADS:
        write_half(c, data.index, widen_half(value, signed), upper)
    else:
        c.set_vgpr(data.index, value.sext(I32) if signed else value.zext(I32))


def _private_dwords(
    c: Wave, i: Decoded, data: Operand, base: Value, offset: Value, count: int
) -> None:
    for k in range(count):
        lanes = Lanes(base=base, offset=_swizzle(c, offset + 4 * k))
        if "_store_" in i.mnemonic:
            store_lanes(c, i, lanes, [c.vgpr(data.index + k)], "scratch")
        else:
            [value] = load_lanes(c, i, lanes, I32, 1, "scratch")
            c.set_vgpr(data.index + k, value)


def _swizzle(c: Wave, offset: Value) -> Value:
    """Byte `offset` of each lane's private memory -> offset in the wave's."""
    return ((offset >> 2) << 7) + (offset & 3) + c.lane_ids * 4
