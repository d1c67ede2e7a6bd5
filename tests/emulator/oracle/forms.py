"""One way to write an instruction, as text and as an expectation.

A `Form` is a table row with an encoding, operand kinds and modifiers. `evaluate` says what it does
to a `Wave`: 32 lanes of inputs, an EXEC mask and scalar inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.emulator.oracle.dpp import SKIP, ZERO, Dpp, Source
from tests.emulator.oracle.floats import round_to
from tests.emulator.oracle.table import Row, registers
from tests.emulator.oracle.types import (
    B32,
    DEFAULT_MODE,
    F16,
    F32,
    Anything,
    Expected,
    Mode,
    Pair,
    Part,
    Type,
    parts,
)

LANES = range(32)
# Registers of the probe kernels, see harness.
SOURCES, RESULT = (10, 12, 14), 24
SCALARS, CARRY_IN, MASK_OUT = (14, 16, 18), 34, 30


@dataclass(frozen=True)
class Wave:
    """Inputs: three vector and scalar sources (64 bits; the third vector one 128), the old result
    (128 bits), masks."""

    sources: tuple[tuple[int, ...], ...]
    old: tuple[int, ...]
    scalars: tuple[int, ...]
    exec_mask: int
    carry: int


@dataclass
class Outcome:
    """What a form does: fields per lane (the rest keeps the old bits), masks, EXEC."""

    lanes: list[list[Part]]
    mask: list[Expected] | None = None  # one bit per lane
    exec_mask: int | None = None


@dataclass(frozen=True)
class Operand:
    """A source: "v" and "s" registers, or a constant with its text and its bits."""

    kind: str = "v"
    text: str = ""
    bits: int = 0


VGPR, SGPR = Operand("v"), Operand("s")
WHOLE = "DWORD"


@dataclass(frozen=True)
class Sdwa:
    selects: tuple[str, ...]
    extend: tuple[bool, ...] = (False, False)
    dst_select: str = WHOLE
    unused: str = "UNUSED_PAD"


@dataclass(frozen=True)
class Form:
    """A row as written. Flags are tuples with one entry per source."""

    row: Row
    encoding: str
    operands: tuple[Operand, ...]
    neg: tuple[bool, ...] = (False, False, False)
    abs: tuple[bool, ...] = (False, False, False)
    clamp: bool = False
    omod: str = ""
    op_sel: tuple[int, ...] = (0, 0, 0)
    op_sel_dst: int = 0
    op_sel_hi: tuple[int, ...] | None = None
    neg_lo: tuple[int, ...] = (0, 0, 0)
    neg_hi: tuple[int, ...] = (0, 0, 0)
    sdwa: Sdwa | None = None
    dpp: Dpp | None = None
    extra: tuple[str, ...] = field(default=())

    @property
    def mnemonic(self) -> str:
        return self.row.name

    @property
    def instruction(self) -> str:
        return self.text

    @property
    def arch(self) -> str:
        return self.row.arch

    @property
    def high(self) -> tuple[int, ...]:
        """op_sel_hi with its default: packed operands take high halves, mixed ones are f32."""
        if self.op_sel_hi is not None:
            return self.op_sel_hi
        return (0, 0, 0) if self.row.mix else (1, 1, 1)

    @property
    def writes_mask(self) -> bool:
        return self.row.carry_out or self.row.result == "mask"

    @property
    def mask_register(self) -> str:
        if self.row.result == "exec":
            return "exec_lo"
        return "vcc_lo" if self._implicit_vcc else f"s{MASK_OUT}"

    @property
    def _implicit_vcc(self) -> bool:
        return self.encoding != "e64"

    # Text.

    @property
    def text(self) -> str:
        suffix = {"e32": "_e32", "e64": "_e64", "sdwa": "_sdwa", "dpp": "_dpp"}
        name = self.row.name + suffix.get(self.encoding, "")
        operands = [self._source_text(k) for k in range(len(self.operands))]
        head = []
        if self.row.result == "vector":
            head.append(registers(RESULT, _register_type(self.row.dst)))
        if self.writes_mask:
            head.append(self.mask_register)
        if self.row.carry_in:
            operands.append("vcc_lo" if self._implicit_vcc else f"s{CARRY_IN}")
        return f"{name} {', '.join(head + operands)} {self._modifier_text()}".strip()

    def _source_text(self, k: int) -> str:
        operand, of = self.operands[k], _register_type(self.row.srcs[k])
        if operand.kind == "v":
            text = registers(SOURCES[k], of)
        elif operand.kind == "s":
            text = registers(SCALARS[k], of, "s")
        else:
            text = operand.text
        if self.sdwa and self.sdwa.extend[k]:
            text = f"sext({text})"
        if self.abs[k]:
            text = f"|{text}|"
        return f"-{text}" if self.neg[k] else text

    def _modifier_text(self) -> str:
        count, words = len(self.operands), []
        if any(self.op_sel[:count]) or self.op_sel_dst:
            bits = [*self.op_sel[:count]]
            if not self.row.mix and not any(
                isinstance(of, Pair) for of in (self.row.dst, *self.row.srcs)
            ):
                bits.append(self.op_sel_dst)
            words.append(_list("op_sel", bits))
        if self.op_sel_hi is not None:
            words.append(_list("op_sel_hi", self.op_sel_hi[:count]))
        for name, flags in (("neg_lo", self.neg_lo), ("neg_hi", self.neg_hi)):
            if any(flags[:count]):
                words.append(_list(name, flags[:count]))
        words += ["clamp"] * self.clamp + [self.omod] * bool(self.omod) + [*self.extra]
        if self.sdwa:
            if self.row.result == "vector":
                words.append(f"dst_sel:{self.sdwa.dst_select} dst_unused:{self.sdwa.unused}")
            words += [f"src{k}_sel:{select}" for k, select in enumerate(self.sdwa.selects[:count])]
        if self.dpp:
            words.append(self.dpp.text)
        return " ".join(words)

    # Meaning.

    def evaluate(self, wave: Wave, mode: Mode = DEFAULT_MODE) -> Outcome:
        feed: list[Source] = list(LANES)
        if self.dpp:
            feed = self.dpp.sources(wave.exec_mask)
        lanes: list[list[Part]] = [[] for _ in LANES]
        mask: list[Expected] = [0] * 32
        for lane in LANES:
            if not wave.exec_mask >> lane & 1 or feed[lane] == SKIP:
                continue
            value = self._value(wave, lane, feed[lane], mode)
            if self.row.carry_out:
                value, mask[lane] = value
            if self.row.result == "vector":
                lanes[lane] = self._fields(value, wave.old[lane], mode)
            else:
                mask[lane] = value
        if self.row.result == "exec":
            return Outcome(lanes, exec_mask=sum(bit << lane for lane, bit in enumerate(mask)))
        return Outcome(lanes, mask if self.writes_mask else None)

    def _value(self, wave: Wave, lane: int, feed: Source, mode: Mode) -> object:
        raw = [self._raw(wave, k, lane, feed) for k in range(len(self.operands))]
        extra = [wave.carry >> lane & 1] if self.row.carry_in or self.row.vcc_in else []
        if self.row.packed:
            return tuple(self._packed_half(raw, wave.old[lane], high, mode) for high in (0, 1))
        values = [self._decode(k, bits, mode) for k, bits in enumerate(raw)]
        if self.row.accumulates:
            values.append(self.row.dst.decode(wave.old[lane] >> 16 * self.op_sel_dst, mode))
        value, through = self.row.meaning(*values, *extra), self.row.through
        return round_to(through, value, mode.rounding(through)) if through else value

    def _raw(self, wave: Wave, k: int, lane: int, feed: Source) -> int:
        operand = self.operands[k]
        if operand.kind == "s":
            bits = wave.scalars[k]
        elif operand.kind == "v":
            source = feed if k == 0 else lane
            bits = 0 if source == ZERO else wave.sources[k][source]
        else:
            bits = operand.bits
        return _select(bits, self.sdwa.selects[k], self.sdwa.extend[k]) if self.sdwa else bits

    def _decode(self, k: int, raw: int, mode: Mode) -> object:
        of = self.row.srcs[k]
        if self.row.mix:
            return self._mixed(k, raw, mode)
        if isinstance(of, Pair):
            halves = (raw >> 16 * self.op_sel[k], raw >> 16 * self.high[k])
            signs = (self.neg_lo[k], self.neg_hi[k])
            return tuple(
                of.element.decode(self._signed(of.element, half, negate, False), mode)
                for half, negate in zip(halves, signs, strict=True)
            )
        if of.width == 16 and self.op_sel[k]:
            raw >>= 16
        return of.decode(self._signed(of, raw, self.neg[k], self.abs[k]), mode)

    def _packed_half(self, raw: Sequence[int], old: int, high: int, mode: Mode) -> object:
        of = self.row.srcs
        selects, signs = (self.high, self.neg_hi) if high else (self.op_sel, self.neg_lo)
        values = [
            of[k].decode(self._signed(of[k], bits >> 16 * selects[k], signs[k], False), mode)
            for k, bits in enumerate(raw)
        ]
        if self.row.accumulates:
            values.append(self.row.dst.element.decode(old >> 16 * high, mode))
        return self.row.meaning(*values)

    def _mixed(self, k: int, raw: int, mode: Mode) -> object:
        of = F16 if self.high[k] else F32
        bits = raw >> 16 * self.op_sel[k] if self.high[k] else raw
        return of.decode(_sign(bits, of.format.sign_bit, self.neg[k], self.abs[k]), mode)

    @staticmethod
    def _signed(of: Type, bits: int, negate: object, absolute: object) -> int:
        return _sign(bits & of.mask, 1 << (of.width - 1), negate, absolute) if of.is_float else bits

    def _fields(self, value: object, old: int, mode: Mode) -> list[Part]:
        fields = parts(self.row.dst, value, self.clamp, mode)
        if self.sdwa:
            return _sdwa_fields(self.sdwa, fields, old)
        shift = 16 * (self.row.high_half or bool(self.op_sel_dst))
        return [(offset + shift, width, expected) for offset, width, expected in fields]


def _register_type(of: Type | Pair) -> Type:
    return of if isinstance(of, Type) and of.bits > 32 else B32


def _list(name: str, bits: Sequence[int]) -> str:
    return f"{name}:[{','.join(str(int(bit)) for bit in bits)}]"


def _sign(bits: int, sign_bit: int, negate: object, absolute: object) -> int:
    if absolute:
        bits &= ~sign_bit
    return bits ^ sign_bit if negate else bits


def _span(select: str) -> tuple[int, int]:
    """Offset and width of an SDWA selection."""
    kind, _, index = select.partition("_")
    width = {"BYTE": 8, "WORD": 16, "DWORD": 32}[kind]
    return int(index or 0) * width, width


def _select(bits: int, select: str, extend: bool) -> int:
    offset, width = _span(select)
    value = bits >> offset & (1 << width) - 1
    if extend and value >> (width - 1):
        value |= 0xFFFFFFFF << width & 0xFFFFFFFF
    return value


def _sdwa_fields(sdwa: Sdwa, fields: list[Part], old: int) -> list[Part]:
    """The result placed by dst_sel, and what dst_unused does to the other bits."""
    offset, width = _span(sdwa.dst_select)
    written = sum(part[1] for part in fields)
    if width == 32:
        # NOTE: no rule is known for bits 31:16 of a 16-bit result that takes the whole register.
        return [*fields, (16, 16, Anything())] if written == 16 else fields
    expected = fields[0][2]
    if len(fields) > 1:
        return [(0, 32, Anything())]
    if not isinstance(expected, int):
        whole = width == written
        if sdwa.unused == "UNUSED_PRESERVE":
            return [(offset, width, expected if whole else Anything())]
        return [(0, 32, Anything())]
    field_bits = expected & (1 << width) - 1
    keep = ((1 << width) - 1) << offset
    if sdwa.unused == "UNUSED_PRESERVE":
        rest = old & 0xFFFFFFFF & ~keep
    elif sdwa.unused == "UNUSED_SEXT" and field_bits >> (width - 1):
        rest = 0xFFFFFFFF << (offset + width) & 0xFFFFFFFF
    else:
        rest = 0
    return [(0, 32, rest | field_bits << offset)]
