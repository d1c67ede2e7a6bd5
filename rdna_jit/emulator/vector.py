"""How a vector instruction reads its sources and writes its result.

One `VectorAccess` per instruction applies everything that the encoding adds around the operation
itself: DPP lane moves and SDWA or op_sel selection on sources, neg, abs and sext, packed halves;
clamp, the destination half or byte, and the write mask on the result. Output modifiers (mul, div)
have no effect while denormal results are kept or IEEE is on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdna_jit.emulator.context import (
    Context,
    Unsupported,
    apply_sign,
    constant_bits,
    packed_constant_bits,
)
from rdna_jit.emulator.decode import Decoded, Operand
from rdna_jit.emulator.floats import flush_subnormal
from rdna_jit.emulator.ir import I1, I8, I16, I32, WAVE, Type, Value

# The modifiers that this file consumes, by what carries them.
SOURCE_SIGN = frozenset({"neg", "abs"})
OUTPUT = frozenset({"clamp", "mul", "div"})
OP_SEL = frozenset({"op_sel"})
SDWA = frozenset({"src0_sel", "src1_sel", "dst_sel", "dst_unused", "sext"})
DPP = frozenset(
    {"quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror", "row_share"}
    | {"row_xmask", "row_mask", "bank_mask", "bound_ctrl", "fi", "dpp8"}
)
PACKED = frozenset({"op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp"})

_FIELDS = {
    "BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8),
    "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32),
}  # fmt: skip


class VectorAccess:
    """The sources, write mask and destination of one vector instruction."""

    def __init__(
        self, c: Context, i: Decoded, sources: Sequence[Operand], *, moves: bool = False
    ) -> None:
        """`moves`: floats go through as they are, so that denormal modes do not apply."""
        self.moves = moves
        self.c = c
        self.i = i
        self.sources = sources
        self.mask = c.exec_mask()
        self._signed = i.mnemonic.endswith("i64") or "_i64_" in i.mnemonic
        self._moved: Value | None = None
        c.lanes_of_zero = i.encoding in ("dpp", "dpp8")
        if c.lanes_of_zero:
            self._moved = self._lane_move()

    # Sources
    def source(self, k: int, type: Type) -> Value:
        """Source k, one `type` per lane, all source modifiers applied."""
        operand = self.sources[k]
        if type is I1:
            return self.c.mask_source(operand)
        if self.i.encoding == "sdwa":
            bits = self._sdwa_source(k, operand, type)
        elif type.bits == 16 and bit(self.i, "op_sel", k):
            bits = self._high_half(operand, type)
        elif self._moved is not None and k == 0:
            bits = self._moved if type.bits == 32 else self._moved.trunc(I16)
        else:
            bits = self.c.raw(operand, type, self._signed)
        return self.let_in(apply_sign(bits.bitcast(type), operand))

    def let_in(self, value: Value) -> Value:
        """A source as the denormal mode lets it in."""
        type = value.type
        if self.moves or not type.is_float or not self.c.float_mode().flushes_inputs(type):
            return value
        return flush_subnormal(self.c, value)

    def _output(self, value: Value) -> Value:
        type = value.type
        if self.moves or not type.is_float:
            return value
        mode, modifiers = self.c.float_mode(), self.i.modifiers
        if mode.flushes_results(type):
            if not mode.ieee:
                for name, power in (("mul", 1), ("div", -1)):
                    if name in modifiers:
                        value = value * float(self.i.integer(name)) ** power
            value = flush_subnormal(self.c, value)
        if "clamp" in modifiers:
            value = clamp(value, mode.clamps_nan)
        return value

    def packed(self, k: int, type: Type) -> Value:
        """Source k as 64 values of a 16-bit type: low and high half of each lane in turn."""
        bits = self.packed_bits(k)
        low, high = bit(self.i, "op_sel", k), bit(self.i, "op_sel_hi", k, default=1)
        if (low, high) == (0, 0):
            bits = (bits & 0xFFFF) | (bits << 16)
        elif (low, high) == (1, 1):
            bits = (bits >> 16) | (bits & 0xFFFF0000)
        elif (low, high) == (1, 0):
            bits = self.c.intrinsic("fshl", I32, bits, bits, self.c.const(I32, 16))
        signs = 0x8000 * bit(self.i, "neg_lo", k) | 0x80000000 * bit(self.i, "neg_hi", k)
        if signs:
            bits = bits ^ signs
        return self.let_in(bits.bitcast(type))

    def packed_bits(self, k: int) -> Value:
        """Source k of a packed instruction as plain 32 bits per lane."""
        operand = self.sources[k]
        if operand.is_constant:
            return self.c.const(I32, packed_constant_bits(operand))
        return self._moved if self._moved is not None and k == 0 else self.c.raw(operand, I32)

    def accumulator(self, k: int, type: Type) -> Value:
        """Source k, or the old destination where the instruction has no such source."""
        if k < len(self.sources):
            return self.source(k, type)
        return self.destination(self.i.operands[0], type)

    def destination(self, operand: Operand, type: Type) -> Value:
        """The old value of the destination, for instructions that accumulate into it."""
        return self.let_in(self.c.raw(operand, type).bitcast(type))

    def packed_destination(self, type: Type) -> Value:
        """The old destination as 64 values."""
        return self.let_in(self.c.vgpr(self.i.operands[0].index).bitcast(type))

    def _high_half(self, operand: Operand, type: Type) -> Value:
        if operand.is_constant:
            # The high half of a constant: only a literal has one.
            wide = constant_bits(operand, I32) if isinstance(operand.value, int) else 0
            return self.c.const(I16, wide >> 16)
        return (self.c.raw(operand, I32) >> 16).trunc(I16)

    def _sdwa_source(self, k: int, operand: Operand, type: Type) -> Value:
        selection = self.i.modifiers.get(f"src{k}_sel", "DWORD")
        shift, width = _FIELDS[str(selection)]
        if type.bits == 64:
            raise Unsupported("a 64-bit source with SDWA")
        if operand.is_constant:
            bits = self.c.const(I32, constant_bits(operand, type))
        else:
            bits = self.c.raw(operand, I32)
        if width < 32:
            if operand.sext:
                bits = (bits << (32 - shift - width)).ashr(32 - width)
            else:
                bits = (bits >> shift) & ((1 << width) - 1)
        return bits if type.bits == 32 else bits.trunc(I16)

    # DPP
    def _lane_move(self) -> Value:
        """Source 0 after the lane move; narrows the write mask where nothing may be written."""
        c, mods = self.c, self.i.modifiers
        origin = lane_order(self.i)
        inside = [lane is not None for lane in origin]
        # Lane WAVE of the shuffle is the first of the second, all-zero operand.
        order = [WAVE if lane is None else lane for lane in origin]
        zero = c.const(I32, 0)
        moved = c.shuffle(c.raw(self.sources[0], I32), order, zero)
        if mods.get("fi"):
            valid = c.lane_const(I1, inside)
        else:
            valid = c.shuffle(c.exec_mask(), order, c.const(I1, 0))
        if "dpp8" in mods or "bound_ctrl" in mods:
            moved = c.select(valid, moved, zero)
        elif not (mods.get("fi") and all(inside)):
            self.mask = self.mask & valid
        rows, banks = self.i.integer("row_mask", 0xF), self.i.integer("bank_mask", 0xF)
        if (rows & 3, banks) != (3, 0xF):
            written = [rows >> (n >> 4) & 1 and banks >> (n >> 2 & 3) & 1 for n in range(WAVE)]
            self.mask = self.mask & c.lane_const(I1, written)
        return moved

    # Result
    def write(self, operand: Operand, value: Value) -> None:
        """Write a result of any type to its destination."""
        c = self.c
        if value.type is I1:
            c.set_lane_mask(operand.index, value & self.mask)
            return
        value = self._output(value)
        if value.type.lanes == 2 * WAVE:
            value = value.bitcast(I32)
        if self.i.encoding == "sdwa":
            self._write_sdwa(operand, value)
        elif value.type.bits == 16 and value.type.lanes == WAVE:
            self._merge_half(operand, value, bit(self.i, "op_sel", len(self.sources)))
        else:
            c.write(operand, value, self.mask)

    def write_half(self, operand: Operand, value: Value, high: int) -> None:
        """Write one 16-bit half; the other half keeps its bits."""
        self._merge_half(operand, self._output(value), high)

    def _merge_half(self, operand: Operand, value: Value, high: int) -> None:
        old, bits = self.c.vgpr(operand.index), value.bits.zext(I32)
        merged = (old & 0xFFFF) | (bits << 16) if high else (old & 0xFFFF0000) | bits
        self.c.set_vgpr(operand.index, merged, self.mask)

    def _write_sdwa(self, operand: Operand, value: Value) -> None:
        bits = value.bits if value.type.bits == 32 else value.bits.zext(I32)
        shift, width = _FIELDS[str(self.i.modifiers.get("dst_sel", "DWORD"))]
        unused = self.i.modifiers.get("dst_unused", "UNUSED_PAD")
        if width < 32:
            field = ((1 << width) - 1) << shift
            narrow = (bits << shift) & field
            if unused == "UNUSED_PRESERVE":
                bits = narrow | (self.c.vgpr(operand.index) & ~field)
            elif unused == "UNUSED_SEXT":
                bits = bits.trunc(I8 if width == 8 else I16).sext(I32) << shift
            else:
                bits = narrow
        self.c.set_vgpr(operand.index, bits, self.mask)


def bit(i: Decoded, modifier: str, k: int, default: int = 0) -> int:
    """Element k of a modifier such as op_sel:[0,1]; `default` where the text leaves it out."""
    bits = i.modifiers.get(modifier, ())
    return bits[k] if isinstance(bits, tuple) and k < len(bits) else default


def lane_order(i: Decoded) -> list[int | None]:
    """The lane that each lane's source 0 comes from; None: outside its row."""
    mods = i.modifiers
    if isinstance(pattern := mods.get("dpp8"), tuple):
        return [(n & ~7) + pattern[n & 7] for n in range(WAVE)]
    if isinstance(pattern := mods.get("quad_perm"), tuple):
        return [(n & ~3) + pattern[n & 3] for n in range(WAVE)]
    for name, source in _ROW_MOVES.items():
        if name in mods:
            amount = int(mods[name])  # type: ignore[arg-type]
            within = [source(n & 15, amount) for n in range(WAVE)]
            return [
                None if not 0 <= lane < 16 else (n & 16) + lane for n, lane in enumerate(within)
            ]
    raise Unsupported("an unknown DPP control")


# Position within the row of 16 that position n reads, by control and its amount.
_ROW_MOVES = {
    "row_shl": lambda n, k: n + k,
    "row_shr": lambda n, k: n - k,
    "row_ror": lambda n, k: (n - k) & 15,
    "row_mirror": lambda n, _: 15 - n,
    "row_half_mirror": lambda n, _: (n & 8) + 7 - (n & 7),
    "row_share": lambda n, k: k,
    "row_xmask": lambda n, k: n ^ k,
}


def clamp(x: Value, clamps_nan: bool = True) -> Value:
    """To [0, 1]; NaN gives 0, unless MODE.DX10_CLAMP is off; -0 stays as it is."""
    b = x.builder
    x = b.select(x.compare("ult" if clamps_nan else "olt", 0.0), 0.0, x)
    return b.select(x.fgt(1.0), 1.0, x)
