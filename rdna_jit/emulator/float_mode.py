"""The floating-point bits of the MODE register: their meaning, and their value over the code.

MODE is followed statically: compilers change it around short straight stretches of code, so that at
nearly every instruction all paths agree. A kernel in which they do not, or that sets MODE from a
register, keeps the bits at run time as well, and chooses by them where they matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rdna_jit.emulator.decode import Decoded
from rdna_jit.emulator.ir import Type

Rounding = Literal["nearest", "up", "down", "zero"]
_ROUNDINGS: tuple[Rounding, ...] = ("nearest", "up", "down", "zero")
MODE_REGISTER = 1


@dataclass(frozen=True)
class FloatMode:
    """MODE[9:0]: rounding of f32 [1:0] and of f16 and f64 [3:2] (nearest even, up, down, toward
    zero), and denormals of f32 [5:4] and of f16 and f64 [7:6] (bit 0 allows them as inputs, bit 1
    as results); whether clamp makes NaN zero [8] and minima and maxima respect signalling NaN [9],
    which compilers set."""

    bits: int = 0x3F0

    @classmethod
    def of_kernel(cls, rsrc1: int) -> FloatMode:
        """What a kernel's descriptor starts it with."""
        return cls(rsrc1 >> 12 & 0xFF | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9)

    @property
    def clamps_nan(self) -> bool:
        return bool(self.bits >> 8 & 1)

    @property
    def ieee(self) -> bool:
        return bool(self.bits >> 9 & 1)

    def rounding(self, type: Type) -> Rounding:
        return _ROUNDINGS[self.bits >> (0 if type.bits == 32 else 2) & 3]

    def flushes_inputs(self, type: Type) -> bool:
        return not self.bits >> (4 if type.bits == 32 else 6) & 1

    def flushes_results(self, type: Type) -> bool:
        return not self.bits >> (5 if type.bits == 32 else 7) & 1


DEFAULT = FloatMode()
# What of MODE is emulated; the rest is zero.
FLOAT_BITS = 0x3FF
# The fields of that.
FIELDS = (0x003, 0x00C, 0x030, 0x0C0, 0x100, 0x200)


def register_field(i: Decoded) -> tuple[int, int, int]:
    """Number, offset and (not shifted) mask of the hardware register field of s_getreg, s_setreg:
    number in bits 5:0 of the immediate, offset in 10:6, width - 1 in 15:11."""
    spec = i.simm16 & 0xFFFF
    return spec & 63, spec >> 6 & 31, (2 << (spec >> 11)) - 1


def changes_mode(i: Decoded) -> bool:
    if i.mnemonic in ("s_round_mode", "s_denorm_mode"):
        return True
    if not i.mnemonic.startswith("s_setreg"):
        return False
    number, offset, _ = register_field(i)
    return number == MODE_REGISTER and offset < 10


def written_bits(i: Decoded) -> tuple[int, int | None]:
    """Which bits of MODE an instruction sets, and to what: None means from its register."""
    if i.mnemonic == "s_round_mode":
        return 0x0F, i.simm16 & 0xF
    if i.mnemonic == "s_denorm_mode":
        return 0xF0, (i.simm16 & 0xF) << 4
    _, offset, mask = register_field(i)
    field = mask << offset & 0xFFFF_FFFF
    return field, i.words[1] << offset & field if i.mnemonic == "s_setreg_imm32_b32" else None


def after(i: Decoded, mode: FloatMode | None) -> FloatMode | None:
    """The mode that instruction i leaves; None: not known."""
    if mode is None or not changes_mode(i):
        return mode
    field, value = written_bits(i)
    return None if value is None else FloatMode((mode.bits & ~field | value) & FLOAT_BITS)


def float_modes(
    code: Sequence[Decoded], entries: Iterable[int], initial: FloatMode
) -> Mapping[int, FloatMode | None]:
    """The mode before each instruction, by address. `entries` start with `initial`; a call leaves
    the mode as it was."""
    if not any(map(changes_mode, code)):
        return dict.fromkeys((i.address for i in code), initial)
    by_address = {i.address: i for i in code}
    modes: dict[int, FloatMode | None] = {}
    work: list[tuple[int, FloatMode | None]] = [(entry, initial) for entry in entries]
    while work:
        address, mode = work.pop()
        if address not in by_address:
            continue
        if address in modes:
            if modes[address] in (mode, None):
                continue
            mode = None
        modes[address] = mode
        i = by_address[address]
        work += [(successor, after(i, mode)) for successor in _successors(i)]
    # What no path reaches cannot be executed.
    return {i.address: modes.get(i.address, initial) for i in code}


def _successors(i: Decoded) -> tuple[int, ...]:
    if i.mnemonic in ("s_endpgm", "s_setpc_b64"):
        return ()
    if i.mnemonic == "s_branch":
        return (i.branch_target,)
    if i.mnemonic.startswith("s_cbranch"):
        return (i.branch_target, i.end)
    return (i.end,)
