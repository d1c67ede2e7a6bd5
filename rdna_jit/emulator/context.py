"""The state of one wave while its instructions are translated.

Registers live in stack slots that LLVM promotes: `%v<i>` holds the 32 lanes of a VGPR, `%s<i>` an
SGPR, `%scc` the condition bit. Within a basic block the last known value of a slot is remembered,
so that straight-line code reads each register once. EXEC is SGPR 126, VCC 106, M0 124.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rdna_jit.emulator import float_mode
from rdna_jit.emulator.decode import EXEC, NULL, VCC, Operand
from rdna_jit.emulator.float_mode import FloatMode
from rdna_jit.emulator.ir import (
    F16,
    F64,
    I1,
    I16,
    I32,
    I64,
    PTR,
    WAVE,
    Builder,
    Type,
    Value,
    float_bits,
)  # fmt: skip
from rdna_jit.emulator.layout import PRIVATE_APERTURE, SHARED_APERTURE
from rdna_jit.emulator.options import Options


class Unsupported(Exception):
    """This instruction cannot be translated; it becomes a fault where it would be executed."""


class UnknownMode(Unsupported):
    """What this instruction computes depends on MODE, which is known at run time only."""


# General scalar registers: s0 .. s105.
SGPR_COUNT: Final = 106


class Context(Builder):
    """Reads and writes wave state; emits IR for one instruction after another.

    `allocas` maps every stack slot in use to its LLVM type; `used_vgprs` and `used_sgprs` are the
    registers that the translated code touches.
    """

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        self.options = options or Options()
        self.vgpr_count = 256  # what an indexed move can reach
        # Before each instruction the translator sets the mode; None: it is not known.
        self.mode: FloatMode | None = float_mode.DEFAULT
        self.tracks_mode = False  # whether it does: without, changes of the mode are refused
        self.keeps_mode = False  # whether %mode holds MODE[9:0] at run time
        self.allocas: dict[str, str] = {}
        self.used_vgprs: set[int] = set()
        self.used_sgprs: set[int] = set()
        self._known: dict[str, Value] = {}

    def label(self, name: str) -> None:
        """Start a basic block: what was known of registers may not reach here."""
        super().label(name)
        self._known.clear()

    def float_mode(self) -> FloatMode:
        if self.mode is None:
            raise UnknownMode("floating point where MODE is not known")
        return self.mode

    def ieee(self) -> bool:
        return self.float_mode().ieee

    def mode_bits(self) -> Value:
        """MODE[9:0] at run time, an I32 scalar."""
        if self.mode is not None:
            return self.const(I32.scalar, self.mode.bits)
        return self._load("%mode", I32.scalar)

    def set_mode_bits(self, bits: Value) -> None:
        if self.keeps_mode:
            self._store("%mode", bits)

    # Slots
    def _load(self, slot: str, type: Type) -> Value:
        value = self._known.get(slot)
        if value is None:
            self.allocas[slot] = type.text
            value = self.emit(type, f"load {type.text}, ptr {slot}")
            self._known[slot] = value
        return value

    def _store(self, slot: str, value: Value) -> None:
        self.allocas[slot] = value.type.text
        self.do(f"store {value!r}, ptr {slot}")
        self._known[slot] = value

    def _memo(self, name: str, make: Callable[[], Value]) -> Value:
        """A derived value, remembered until its source changes or the block ends."""
        value = self._known.get(name)
        if value is None:
            value = self._known[name] = make()
        return value

    # Vector registers
    def vgpr(self, index: int) -> Value:
        """The 32 lanes of v<index> as I32."""
        self.used_vgprs.add(index)
        return self._load(f"%v{index}", I32)

    def set_vgpr(self, index: int, value: Value, mask: Value | None = None) -> None:
        """Write the lanes in `mask` (default EXEC) of v<index>; `value` has 32 bits a lane."""
        value = self.splat(value.bits)
        old = self.vgpr(index)
        self.replace_vgpr(
            index, self.select(self.exec_mask() if mask is None else mask, value, old)
        )

    def replace_vgpr(self, index: int, value: Value) -> None:
        """Write every lane of v<index>, active or not."""
        self.used_vgprs.add(index)
        self._store(f"%v{index}", value)

    # Scalar registers
    def sgpr(self, index: int) -> Value:
        if index == NULL:
            return self.const(I32.scalar, 0)
        self.used_sgprs.add(index)
        return self._load(f"%s{index}", I32.scalar)

    def set_sgpr(self, index: int, value: Value) -> None:
        if index == NULL:
            return
        self.used_sgprs.add(index)
        self._store(f"%s{index}", value.bits)
        self._known.pop(f"mask{index}", None)

    def sgpr64(self, index: int) -> Value:
        """The pair s[index:index+1] as I64."""
        low, high = self.sgpr(index).zext(I64), self.sgpr(index + 1).zext(I64)
        return low | (high << 32)

    def set_sgpr64(self, index: int, value: Value) -> None:
        if index == NULL:
            return
        bits = value.bits
        self.set_sgpr(index, bits.trunc(I32))
        self.set_sgpr(index + 1, (bits >> 32).trunc(I32))

    def scc(self) -> Value:
        return self._load("%scc", I1.scalar)

    def set_scc(self, value: Value) -> None:
        self._store("%scc", value)

    # Lane masks
    def lane_mask(self, index: int) -> Value:
        """SGPR `index` as one I1 per lane."""
        return self._memo(f"mask{index}", lambda: self.sgpr(index).bitcast(I1))

    def set_lane_mask(self, index: int, mask: Value) -> None:
        self.set_sgpr(index, mask.bitcast(I32))
        if index != NULL:
            self._known[f"mask{index}"] = mask

    def exec_mask(self) -> Value:
        """The active lanes."""
        return self.lane_mask(EXEC)

    def exec_bits(self) -> Value:
        return self.sgpr(EXEC)

    def vcc(self) -> Value:
        return self.sgpr(VCC)

    # Operands
    def raw(self, operand: Operand, type: Type, signed: bool = False) -> Value:
        """The bits of a source in `type`'s width, per lane, without its modifiers.

        16-bit types read the low half. `signed` says how a 32-bit literal widens to 64 bits.
        """
        if operand.kind != "v":
            return self.splat(self.scalar_raw(operand, type, signed))
        if type.bits == 64:
            low, high = self.vgpr(operand.index).zext(I64), self.vgpr(operand.index + 1).zext(I64)
            return low | (high << 32)
        value = self.vgpr(operand.index)
        return value if type.bits == 32 else value.trunc(I16)

    def scalar_raw(self, operand: Operand, type: Type, signed: bool = False) -> Value:
        """The bits of a scalar register or constant in `type`'s width."""
        if operand.kind in ("imm", "literal"):
            return self.const(type.scalar.integer, constant_bits(operand, type, signed))
        if operand.kind == "special":
            value = self._special(operand)
            return value if type.bits == 64 else value.trunc(type.scalar.integer)
        if operand.kind != "s":
            raise Unsupported(f"operand {operand.text} where a scalar is wanted")
        if type.bits == 64:
            return self.sgpr64(operand.index)
        value = self.sgpr(operand.index)
        return value if type.bits == 32 else value.trunc(type.scalar.integer)

    def _special(self, operand: Operand) -> Value:
        name, i64 = operand.text.removeprefix("src_"), I64.scalar
        if name == "scc":
            return self.scc().zext(i64)
        if name in ("vccz", "execz"):
            return self.sgpr(VCC if name == "vccz" else EXEC).eq(0).zext(i64)
        if name in ("shared_base", "private_base"):
            top = SHARED_APERTURE if name == "shared_base" else PRIVATE_APERTURE
            return self.const(i64, top << 48)
        if name in ("shared_limit", "private_limit"):
            top = SHARED_APERTURE if name == "shared_limit" else PRIVATE_APERTURE
            return self.const(i64, (top << 48) | 0xFFFF_FFFF)
        raise Unsupported(f"operand {operand.text}")

    def source(self, operand: Operand, type: Type) -> Value:
        """A source per lane in `type`, with its own neg and abs applied."""
        return apply_sign(self.raw(operand, type).bitcast(type), operand)

    def scalar_source(self, operand: Operand, type: Type, signed: bool = False) -> Value:
        """A scalar source in `type.scalar`."""
        return self.scalar_raw(operand, type, signed).bitcast(type)

    def mask_source(self, operand: Operand) -> Value:
        """A source that holds one bit per lane (the condition of v_cndmask, a carry)."""
        if operand.kind == "s" and operand.index != NULL:
            return self.lane_mask(operand.index)
        return self.scalar_raw(operand, I32).bitcast(I1)

    def write(self, operand: Operand, value: Value, mask: Value | None = None) -> None:
        """Write a 32- or 64-bit result, or a lane mask, to its destination register.

        Vector registers take the lanes in `mask` (default EXEC).
        """
        if value.type.name == "i1":
            self.set_lane_mask(operand.index, value)
        elif operand.kind == "s" and value.type.bits == 64:
            self.set_sgpr64(operand.index, value)
        elif operand.kind == "s":
            self.set_sgpr(operand.index, value)
        elif operand.kind != "v":
            raise Unsupported(f"destination {operand.text}")
        elif value.type.bits == 64:
            bits = value.bits
            self.set_vgpr(operand.index, bits.trunc(I32), mask)
            self.set_vgpr(operand.index + 1, (bits >> 32).trunc(I32), mask)
        else:
            self.set_vgpr(operand.index, value, mask)

    def apply(self, compute: Callable[..., Value], values: Sequence[Value]) -> Value:
        """compute(self, *values); long operations may be put out of line here."""
        return compute(self, *values)

    # Lane moves, through memory: LLVM has no variable shuffle, and this is the same on every CPU.
    def permute(self, x: Value, lanes: Value) -> Value:
        """x[lanes[i]] in lane i, for I32 x and indices already within 0..31."""
        _, pointers = self._lane_slots(x, lanes)
        gather = "@llvm.masked.gather.v32i32.v32p0"
        self.declarations.add(f"declare {I32.text} {gather}({_POINTERS}, {I1.text}, {I32.text})")
        return self.emit(
            I32,
            f"call {I32.text} {gather}({_POINTERS} align 4 {pointers.ref}, "
            f"{I1.text} splat (i1 true), {I32.text} zeroinitializer)",
        )

    def scatter(self, x: Value, lanes: Value, mask: Value) -> Value:
        """x[i] in lane lanes[i] for the lanes i in `mask`, the highest winning; 0 elsewhere."""
        slot, pointers = self._lane_slots(self.const(I32, 0), lanes)
        scatter = "@llvm.masked.scatter.v32i32.v32p0"
        self.declarations.add(f"declare void {scatter}({I32.text}, {_POINTERS}, {I1.text})")
        self.do(f"call void {scatter}({x!r}, {_POINTERS} align 4 {pointers.ref}, {mask!r})")
        return self.emit(I32, f"load {I32.text}, ptr {slot}")

    def load_indexed(self, values: Sequence[Value], index: Value) -> Value:
        """values[index] for a scalar index in range; all of one type."""
        type = values[0].type
        slot = f"%indexed.{type.suffix}.{len(values)}"
        self.allocas[slot] = f"[{len(values)} x {type.text}]"
        for k, value in enumerate(values):
            at = self.emit(PTR, f"getelementptr {type.text}, ptr {slot}, i32 {k}")
            self.do(f"store {value!r}, {at!r}")
        at = self.emit(PTR, f"getelementptr {type.text}, ptr {slot}, {index!r}")
        return self.emit(type, f"load {type.text}, {at!r}")

    def _lane_slots(self, x: Value, lanes: Value) -> tuple[str, Value]:
        slot = "%lane.slots"
        self.allocas[slot] = I32.text
        self.do(f"store {x!r}, ptr {slot}")
        return slot, self.emit(PTR.over(WAVE), f"getelementptr i32, ptr {slot}, {lanes!r}")


_POINTERS = PTR.over(WAVE).text


def constant_bits(operand: Operand, type: Type, signed: bool = False) -> int:
    """The pattern of an inline constant or literal for an operand of `type`."""
    value = operand.value
    if isinstance(value, float):
        return float_bits(value, type.bits)
    if type.bits == 64 and operand.kind == "literal":
        if type.name == F64.name:
            return (value & 0xFFFF_FFFF) << 32
        if signed and value & 0x8000_0000:
            return value | 0xFFFF_FFFF_0000_0000
    return value & ((1 << type.bits) - 1)


def packed_constant_bits(operand: Operand) -> int:
    """The 32 bits of a constant for packed 16-bit operands: floats fill the low half only."""
    if isinstance(operand.value, float):
        return float_bits(operand.value, F16.bits)
    return operand.value & 0xFFFF_FFFF


def apply_sign(value: Value, operand: Operand) -> Value:
    """abs, then neg, of a float source; bit-exact on NaN."""
    if operand.abs:
        value = value.builder.unary("fabs", value)
    return -value if operand.neg else value
