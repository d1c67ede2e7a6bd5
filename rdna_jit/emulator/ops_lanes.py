"""Moves between lanes, between lanes and scalar registers, and between indexed registers.

The DS instructions here use the LDS crossbar without touching LDS memory.
"""

from __future__ import annotations

from rdna_jit.emulator.context import SGPR_COUNT, Context, Unsupported
from rdna_jit.emulator.decode import EXEC, M0, Decoded
from rdna_jit.emulator.ir import I32, I64, WAVE, Builder, Value
from rdna_jit.emulator.registry import op, valu
from rdna_jit.emulator.vector import OP_SEL, bit


@op("v_readfirstlane_b32")
def _readfirstlane(c: Context, i: Decoded) -> None:
    """The lowest active lane; lane 0 when none is."""
    first = c.count_zeros("cttz", c.sgpr(EXEC)) & (WAVE - 1)
    c.write(i.operands[0], c.lane(c.raw(i.operands[1], I32), first))


@op("v_readlane_b32")
def _readlane(c: Context, i: Decoded) -> None:
    lane = c.scalar_source(i.operands[2], I32) & (WAVE - 1)
    c.write(i.operands[0], c.lane(c.raw(i.operands[1], I32), lane))


@op("v_writelane_b32")
def _writelane(c: Context, i: Decoded) -> None:
    """Writes whether or not the lane is active."""
    index = i.operands[0].index
    value = c.scalar_source(i.operands[1], I32)
    lane = c.scalar_source(i.operands[2], I32) & (WAVE - 1)
    c.replace_vgpr(index, c.with_lane(c.vgpr(index), lane, value))


@op("v_permlane16_b32", "v_permlanex16_b32", modifiers=OP_SEL)
def _permlane(c: Context, i: Decoded) -> None:
    """Each lane reads the lane of its own row (x16: of the other row) that its nibble of the two
    scalars names. op_sel[0] fetches inactive lanes, op_sel[1] makes the rest zero."""
    low, high = (c.scalar_source(operand, I32).zext(I64) for operand in i.operands[2:4])
    nibbles = c.splat(low | (high << 32)) >> c.lane_const(I64, [4 * (n & 15) for n in range(WAVE)])
    row = 16 if i.mnemonic == "v_permlanex16_b32" else 0
    lanes = (nibbles.trunc(I32) & 15) | c.lane_const(I32, [(n & 16) ^ row for n in range(WAVE)])
    moved, mask = c.permute(c.raw(i.operands[1], I32), lanes), c.exec_mask()
    if not bit(i, "op_sel", 0):
        valid = _active(c, lanes)
        if bit(i, "op_sel", 1):
            moved = c.select(valid, moved, 0)
        else:
            mask = mask & valid
    c.write(i.operands[0], moved, mask)


def _active(c: Context, lanes: Value) -> Value:
    """Whether the lanes named by `lanes` are active."""
    return ((c.splat(c.sgpr(EXEC)) >> lanes) & 1).ne(0)


def _below(b: Builder, bits: Value, base: Value) -> Value:
    """Set bits of `bits` below each lane, plus base."""
    return b.unary("ctpop", bits & b.lane_const(I32, [(1 << n) - 1 for n in range(WAVE)])) + base


valu("v_mbcnt_lo_u32_b32", I32, (I32, I32), _below)
# Lanes 32 and up do not exist in wave32.
valu("v_mbcnt_hi_u32_b32", I32, (I32, I32), lambda b, bits, base: base)


def _crossbar(c: Context, i: Decoded) -> tuple[Value, Value]:
    """Lane numbers from byte addresses, and the data of active lanes (0 elsewhere)."""
    address = c.raw(i.operands[1], I32) + i.integer("offset")
    data = c.select(c.exec_mask(), c.raw(i.operands[2], I32), 0)
    return (address >> 2) & (WAVE - 1), data


@op("ds_bpermute_b32", modifiers={"offset"})
def _bpermute(c: Context, i: Decoded) -> None:
    """Pull: each lane reads the lane that it names; inactive ones read as 0."""
    lanes, data = _crossbar(c, i)
    c.write(i.operands[0], c.permute(data, lanes))


@op("ds_permute_b32", modifiers={"offset"})
def _permute(c: Context, i: Decoded) -> None:
    """Push: each active lane writes to the lane that it names; the highest source wins, lanes
    that none names get 0."""
    lanes, data = _crossbar(c, i)
    c.write(i.operands[0], c.scatter(data, lanes, c.exec_mask()))


@op("ds_swizzle_b32", modifiers={"offset"})
def _swizzle(c: Context, i: Decoded) -> None:
    pattern = i.integer("offset")
    if pattern >= 0xC000:
        raise Unsupported("ds_swizzle_b32 in rotate or FFT mode")
    if pattern & 0x8000:
        order = [(n & ~3) + (pattern >> 2 * (n & 3) & 3) for n in range(WAVE)]
    else:
        keep, force, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
        order = [((n & keep) | force) ^ flip for n in range(WAVE)]
    data = c.select(c.exec_mask(), c.raw(i.operands[1], I32), 0)
    c.write(i.operands[0], c.shuffle(data, order))


# Registers indexed by M0. The window of registers that an index may reach goes through memory.
def _window(c: Context, first: int) -> tuple[list[int], Value]:
    """Registers from `first` on, and M0 limited to them."""
    numbers = list(range(first, c.vgpr_count))
    return numbers, c.minmax("umin", c.sgpr(M0), len(numbers) - 1)


def _load_indexed(c: Context, first: int) -> Value:
    """v[first + M0]"""
    numbers, index = _window(c, first)
    return c.load_indexed([c.vgpr(n) for n in numbers], index)


def _store_indexed(c: Context, first: int, value: Value) -> None:
    """v[first + M0] = value in the active lanes"""
    numbers, index = _window(c, first)
    for k, n in enumerate(numbers):
        c.set_vgpr(n, value, c.exec_mask() & c.splat(index.eq(k)))


@op("v_movrels_b32")
def _move_from_indexed(c: Context, i: Decoded) -> None:
    c.write(i.operands[0], _load_indexed(c, i.operands[1].index))


@op("v_movreld_b32")
def _move_to_indexed(c: Context, i: Decoded) -> None:
    _store_indexed(c, i.operands[0].index, c.raw(i.operands[1], I32))


@op("v_movrelsd_b32")
def _move_between_indexed(c: Context, i: Decoded) -> None:
    _store_indexed(c, i.operands[0].index, _load_indexed(c, i.operands[1].index))


@op("s_movrels_b32", "s_movrels_b64")
def _scalar_from_indexed(c: Context, i: Decoded) -> None:
    words = 2 if i.mnemonic.endswith("b64") else 1
    first, target = i.operands[1].index, i.operands[0].index
    numbers = range(first, SGPR_COUNT - words + 1)
    index = c.minmax("umin", c.sgpr(M0), len(numbers) - 1)
    parts = [c.load_indexed([c.sgpr(n + k) for n in numbers], index) for k in range(words)]
    for k, part in enumerate(parts):
        c.set_sgpr(target + k, part)


@op("s_movreld_b32", "s_movreld_b64")
def _scalar_to_indexed(c: Context, i: Decoded) -> None:
    words = 2 if i.mnemonic.endswith("b64") else 1
    first = i.operands[0].index
    value = c.scalar_source(i.operands[1], I64 if words == 2 else I32)
    parts = [value.trunc_to(I32), (value >> 32).trunc(I32)] if words == 2 else [value]
    numbers = range(first, SGPR_COUNT - words + 1)
    index = c.minmax("umin", c.sgpr(M0), len(numbers) - 1)
    for n in numbers:
        for k, part in enumerate(parts):
            chosen = index.eq(n - first)
            c.set_sgpr(n + k, c.select(chosen, part, c.sgpr(n + k)))
