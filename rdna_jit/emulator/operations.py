"""Instructions as functions, for the quick tier, and outside of innermost loops also for the
optimised one on CPUs without AVX-512.

Such a translation does not put vector and memory instructions into the kernel's code. Each is a
call of a function that gets pointers to the registers it uses, and one function serves every
instruction that differs only in its registers and in its address offset. These functions are
compiled once per process, and kept on disk, whatever kernel needs them; what remains of a kernel
is mostly calls, which compile about ten times faster.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdna_jit.emulator import layout, registry
from rdna_jit.emulator.decode import VCC, Decoded, Operand, parse_operand
from rdna_jit.emulator.float_mode import FloatMode
from rdna_jit.emulator.options import Options
from rdna_jit.emulator.tables import Site
from rdna_jit.emulator.wave import HELPERS, Wave, attributes

_OUT_OF_LINE = re.compile(r"(v_|ds_|global_|flat_|scratch_|s_load_|buffer_(load|store))")
# Their offset is no address.
_LANE_MOVES = ("ds_swizzle_b32", "ds_bpermute_b32", "ds_permute_b32")
_REGISTER_SLOT = re.compile(r"%(v\d+|s\d+|scc|exec)$")


@dataclass(frozen=True)
class Operation:
    """One function: its text, the slots it takes as pointers, those it writes, and its sites."""

    name: str
    text: str
    declarations: frozenset[str]
    slots: tuple[str, ...]
    written: frozenset[str]
    sites: tuple[Site, ...]
    can_fault: bool


class Outliner:
    """Emits calls for the instructions of one translation."""

    def __init__(self, options: Options | None, *, vector_exec: bool) -> None:
        self._options = options
        self._vector_exec = vector_exec
        self._known: dict[object, Operation] = {}
        self.used: dict[str, Operation] = {}

    @staticmethod
    def takes(i: Decoded) -> bool:
        return _OUT_OF_LINE.match(i.mnemonic) is not None

    def emit(self, c: Wave, i: Decoded) -> None:
        """Call the operation of instruction `i`. Raises Unsupported as its handler would."""
        operation, names = self.find(c, i, c.mode)
        self.used[operation.name] = operation
        c.call_operation(i, operation.name, [names.get(s, s) for s in operation.slots], operation)

    def find(self, c: Wave, i: Decoded, mode: FloatMode | None) -> tuple[Operation, dict[str, str]]:
        """The operation of instruction `i` in a mode, and the real slots of the ones it names."""
        registry.find(i)
        canonical, names = _rename(i)
        operation = self._operation(canonical, c, mode)
        if any(slot not in names and _is_general(slot) for slot in operation.slots):
            # a handler that touches more registers than its operands name
            return self._operation(replace(i, words=()), c, mode), {}
        return operation, names

    def _operation(self, i: Decoded, caller: Wave, mode: FloatMode | None) -> Operation:
        key = (i.mnemonic, i.encoding, i.operands, tuple(sorted(i.modifiers.items())), mode)
        if key not in self._known:
            self._known[key] = self._translate(i, caller, mode)
        return self._known[key]

    def _translate(self, i: Decoded, caller: Wave, mode: FloatMode | None) -> Operation:
        c = Wave(
            self._options,
            inline_memory=False,
            vector_exec=self._vector_exec,
            shared=True,
        )
        c.mode, c.vgpr_count = mode, caller.vgpr_count
        registry.find(i)(c, i)
        slots = sorted(s for s in c.allocas if _REGISTER_SLOT.match(s))
        own = [f"  {s} = alloca {t}" for s, t in c.allocas.items() if s not in slots]
        can_fault = any("%fault" in line for line in c.lines)
        parameters = ", ".join(
            ["ptr %env", "i64 %site", "i64 %plus", *(f"ptr noalias %{s[1:]}" for s in slots)]
        )
        body = [*own, *c.entry_lines(), *c.lines]
        ends = ["  ret i32 0", "fault:", "  ret i32 2"] if can_fault else ["  ret i32 0"]
        text = "\n".join([f"({parameters}) #0 {{", "entry:", *body, *ends, "}"])
        name = "op." + hashlib.sha256(text.encode()).hexdigest()[:24]
        return Operation(
            name,
            f"define i32 @{name}{text}",
            frozenset(c.declarations),
            tuple(slots),
            frozenset(c.stored),
            tuple(c.sites),
            can_fault,
        )


def _is_general(slot: str) -> bool:
    """Whether a slot is a register that renaming may give another number."""
    return slot[1] == "v" or (slot[1] == "s" and slot[2:].isdigit() and int(slot[2:]) < VCC)


def _rename(i: Decoded) -> tuple[Decoded, dict[str, str]]:
    """The instruction with its registers numbered from 0 in order of appearance, and the real
    slots of the new numbers. Registers keep their numbers where operands overlap in part."""
    starts: dict[tuple[str, int, int], int] = {}
    used = {"v": 0, "s": 0}
    names: dict[str, str] = {}
    operands: list[Operand] = []
    for operand in i.operands:
        place = (operand.kind, operand.index, operand.count)
        if operand.kind not in used or (operand.kind == "s" and operand.index >= VCC):
            operands.append(operand)
            continue
        if place not in starts:
            if any(_overlap(place, other) for other in starts):
                return replace(i, words=()), {}
            starts[place] = used[operand.kind]
            for k in range(operand.count):
                new = f"%{operand.kind}{used[operand.kind] + k}"
                names[new] = f"%{operand.kind}{operand.index + k}"
            used[operand.kind] += operand.count
        start = starts[place]
        operands.append(replace(operand, index=start, text=f"{operand.kind}{start}"))
    if i.mnemonic.startswith("s_load_") and operands[2].is_constant:
        operands[2] = parse_operand("0")
    modifiers = i.modifiers
    if i.mnemonic not in _LANE_MOVES:
        modifiers = {name: value for name, value in modifiers.items() if name != "offset"}
    canonical = replace(
        i, address=0, words=(), text="", operands=tuple(operands), modifiers=modifiers
    )
    return canonical, names


def _overlap(x: tuple[str, int, int], y: tuple[str, int, int]) -> bool:
    return x[0] == y[0] and x[1] < y[1] + y[2] and y[1] < x[1] + x[2]


def module(operations: Sequence[Operation]) -> str:
    """The IR of a library's module."""
    declarations: set[str] = set()
    for operation in operations:
        declarations |= operation.declarations
    texts = [o.text for o in sorted(operations, key=lambda o: o.name)]
    return "\n".join([layout.type_lines(), HELPERS, *sorted(declarations), *texts, attributes()])
