"""The translation context of a whole kernel: a wave's registers plus memory sites and control flow.

A memory *site* is one static access; it owns a bounds slot at run time and is how faults, traffic
and profiles refer back to the instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdna_jit.emulator import layout
from rdna_jit.emulator.context import Context
from rdna_jit.emulator.decode import EXEC, Decoded
from rdna_jit.emulator.ir import I1, I32, I64, PTR, Type, Value
from rdna_jit.emulator.options import Options
from rdna_jit.emulator.tables import Access, Site, Space

if TYPE_CHECKING:
    from rdna_jit.emulator.operations import Operation

_BRANCH_WEIGHTS = "!prof !0"  # the first successor is hardly ever taken

# The runtime's functions that translated code calls.
HELPERS = """\
declare i32 @fault(ptr, i32, i64, i32, i64) cold
declare i32 @access_scalar(ptr, i64, i64, i64) cold
declare i32 @access(ptr, i32, i64, i64, i1, i32)
declare i32 @gather(ptr, i32, i64, i64, i1)
declare i32 @scatter(ptr, i32, i64, i64, i1)
declare i32 @load(ptr, i32, i64, i64, i1)
declare i32 @store(ptr, i32, i64, i64, i1)
declare i32 @load_at(ptr, i32, i64, i64, i1, i64)
declare i32 @store_at(ptr, i32, i64, i64, i1, i64)
declare i32 @flat_resolve(ptr, i32, i64, i64)
declare void @round_f64(ptr, ptr, ptr, ptr, i32, i32)
declare void @clock_wait(ptr, ptr, i64)
declare void @clock_wait_scalar(ptr, ptr)
"""


def attributes() -> str:
    """The attribute groups #0 (inlining allowed) and #1 (not), and the branch weights."""
    common = (
        'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" '
        '"denormal-fp-math"="ieee,ieee"'
    )
    return (
        f"attributes #0 = {{ {common} }}\nattributes #1 = {{ {common} noinline }}\n"
        '!0 = !{!"branch_weights", i32 1, i32 1000000}\n'
    )


def address_offset(i: Decoded) -> int:
    """The `offset` of a memory instruction; of scalar loads also a constant last operand."""
    offset = i.integer("offset")
    if i.mnemonic.startswith("s_load_") and i.operands[2].is_constant:
        offset += int(i.operands[2].value)
    return offset


@dataclass(frozen=True)
class Edge:
    """A backward jump, on which a wave pays for the instructions of the loop."""

    label: str
    source: int
    target: int


def _slot_type(slot: str) -> Type:
    if slot == "%scc":
        return I1.scalar
    return I32.scalar if slot[1] == "s" else I32


class Wave(Context):
    """A `Context` that also knows memory sites, labels of code addresses and faults."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        profile: bool = False,
        inline_memory: bool = True,
        vector_exec: bool = False,
        inline_lines: int = 1 << 30,
        shared: bool = False,
    ) -> None:
        """`inline_memory` puts the fast way of loads and stores into the code. `vector_exec` keeps
        EXEC expanded to one word per lane as well, for CPUs without mask registers. Operations
        that take more than `inline_lines` lines of IR become functions, translated once.
        `shared` is for operations of many instructions (operations.py): the number of the first
        site and the address offset are then the parameters %site and %plus."""
        super().__init__(options)
        self.shared = shared
        self.copy_registers = False
        self.stored: set[str] = set()
        self.inline_lines = inline_lines
        self.functions: list[str] = []
        self._outlined: dict[object, tuple[str, Type] | None] = {}
        self.profile = profile
        self.inline_memory = inline_memory
        self.vector_exec = vector_exec
        self.sites: list[Site] = []
        self.current = ""
        # (address to go on at, label of the block that suspends), numbered from 1
        self.resume_points: list[tuple[int, str]] = []
        self.edges: list[Edge] = []
        self.jumps = False
        self.refusals: dict[int, str] = {}  # by address: what `refuse_if` found may happen

    def label(self, name: str, known: dict[str, Value] | None = None) -> None:
        """Start a basic block. `known` are values of registers that still hold in it."""
        super().label(name)
        self.current = name
        self._known.update(known or {})

    def snapshot(self) -> dict[str, Value]:
        """What is known of registers here, for a later block that this one dominates."""
        return dict(self._known)

    # Operations out of line
    def apply(self, compute: Callable[..., Value], values: Sequence[Value]) -> Value:
        if self.directed:
            return compute(self, *values)
        key = (compute, self.mode, *(v.type for v in values))
        if key not in self._outlined:
            self._outlined[key] = self._outline(compute, [v.type for v in values])
        outlined = self._outlined[key]
        if outlined is None:
            return compute(self, *values)
        name, type = outlined
        return self.emit(type, f"call {type.text} {name}({', '.join(map(repr, values))})")

    def _outline(
        self, compute: Callable[..., Value], types: Sequence[Type]
    ) -> tuple[str, Type] | None:
        """A function for `compute`, unless it is short or looks at registers."""
        c = Context(self.options)
        c.mode = self.mode
        parameters = [Value(c, type, f"%a{n}") for n, type in enumerate(types)]
        out = compute(c, *parameters)
        if len(c.lines) <= self.inline_lines or c.used_vgprs or c.used_sgprs:
            return None
        name = f"@operation.{len(self.functions)}"
        head = f"define internal {out.type.text} {name}({', '.join(map(repr, parameters))}) #1"
        slots = [f"  {slot} = alloca {type}" for slot, type in c.allocas.items()]
        self.functions.append("\n".join([f"{head} {{", *slots, *c.lines, f"  ret {out!r}", "}"]))
        self.declarations |= c.declarations
        return name, out.type

    def call_operation(
        self, i: Decoded, name: str, slots: Sequence[str], operation: Operation
    ) -> None:
        """Call a function that works on the register slots of instruction `i`."""
        for slot in slots:
            self._use_slot(slot)
        site = len(self.sites)
        self.sites += [s._replace(pc=i.address) for s in operation.sites]
        numbers = [f"i64 {site}", f"i64 {address_offset(i)}"]
        places = (
            self._copies(slots) if self.copy_registers else dict(zip(slots, slots, strict=True))
        )
        arguments = ", ".join(["ptr %env", *numbers, *(f"ptr {places[slot]}" for slot in slots)])
        self.declarations.add(f"declare i32 @{name}(ptr, i64, i64{', ptr' * len(slots)})")
        real = dict(zip(operation.slots, slots, strict=True))
        for slot in operation.written:
            self._forget(real[slot])
        if operation.can_fault:
            self.check_call(f"@{name}({arguments})")
        else:
            self.do(f"call i32 @{name}({arguments})")
        if self.copy_registers:
            for slot in sorted(real[slot] for slot in operation.written):
                type = _slot_type(slot)
                self._store(slot, self.emit(type, f"load {type.text}, ptr {places[slot]}"))

    def _copies(self, slots: Sequence[str]) -> dict[str, str]:
        """Places that hold what the slots hold: a slot whose address is taken would stay in memory,
        also where its register is used in a loop."""
        places = {}
        for n, slot in enumerate(slots):
            type = _slot_type(slot)
            places[slot] = f"%copy{n}.{type.bits}x{type.lanes}"
            self.allocas[places[slot]] = type.text
            self.do(f"store {self._load(slot, type)!r}, ptr {places[slot]}")
        return places

    def _use_slot(self, slot: str) -> None:
        kind, number = slot[1], slot[2:]
        if slot == "%scc":
            self.allocas[slot] = "i1"
        elif kind == "v":
            self.used_vgprs.add(int(number))
        elif number.isdigit():
            self.used_sgprs.add(int(number))

    def _forget(self, slot: str) -> None:
        """A slot changed behind our back."""
        self._known.pop(slot, None)
        self._known.pop(f"mask{'126' if slot == '%exec' else slot[2:]}", None)

    def _store(self, slot: str, value: Value) -> None:
        super()._store(slot, value)
        self.stored.add(slot)

    def entry_lines(self) -> list[str]:
        """Values of the environment that code refers to by name."""
        lines = []
        for name, type in (("slots", "ptr"), ("counts", "ptr"), ("lds", "i64"), ("image", "i64")):
            index = layout.field(layout.Env, name)
            lines += [
                f"  %{name}.p = getelementptr %Env, ptr %env, i32 0, i32 {index}",
                f"  %{name} = load {type}, ptr %{name}.p",
            ]
        return lines

    # EXEC as a vector
    def lane_mask(self, index: int) -> Value:
        if index != EXEC or not self.vector_exec:
            return super().lane_mask(index)
        # the sign bit is what AVX2's blend looks at
        return self._memo("mask126", lambda: self._load("%exec", I32).slt(0))

    def set_sgpr(self, index: int, value: Value) -> None:
        super().set_sgpr(index, value)
        if index == EXEC and self.vector_exec:
            self._store("%exec", self.sgpr(EXEC).bitcast(I1).sext(I32))

    def set_lane_mask(self, index: int, mask: Value) -> None:
        super().set_lane_mask(index, mask)
        if index == EXEC:
            self._known.pop("mask126", None)

    def mark(self) -> tuple[int, int, str]:
        """A place to rewind to."""
        return len(self.lines), len(self.sites), self.current

    def rewind(self, mark: tuple[int, int, str]) -> None:
        """Forget everything emitted since `mark`."""
        lines, sites, self.current = mark
        del self.lines[lines:]
        del self.sites[sites:]
        self._known.clear()

    # Environment
    def env_pointer(self, name: str) -> Value:
        """Address of a field of the thread's environment."""
        index = layout.field(layout.Env, name)
        return self.pointer(f"getelementptr %Env, ptr %env, i32 0, i32 {index}")

    def pointer(self, text: str) -> Value:
        """The result of an instruction that yields an address."""
        return self.emit(PTR, text)

    def offset(self, base: Value, index: Value | int, element: str = "i8") -> Value:
        """base + index elements."""
        at = f"{index!r}" if isinstance(index, Value) else f"i64 {index}"
        return self.pointer(f"getelementptr {element}, {base!r}, {at}")

    def load_scalar(self, type: Type, pointer: Value, align: int = 0) -> Value:
        suffix = f", align {align}" if align else ""
        return self.emit(type, f"load {type.text}, {pointer!r}{suffix}")

    def site(self, i: Decoded, nbytes: int, space: Space, access: Access = "load") -> Value:
        """The number of a new memory site, an I64 scalar."""
        number = self.next_site()
        self.sites.append(Site(i.address, nbytes, space, access))
        return number

    def next_site(self) -> Value:
        """The number that the next site gets."""
        number = len(self.sites)
        if not self.shared:
            return self.const(I64.scalar, number)
        first = self.parameter("%site")
        return first + number if number else first

    def parameter(self, name: str) -> Value:
        """An I64 parameter of a shared operation."""
        return Value(self, I64.scalar, name)

    def address_offset(self, i: Decoded) -> Value | int:
        """The constant that an instruction adds to its addresses."""
        return self.parameter("%plus") if self.shared else address_offset(i)

    # Control flow
    @staticmethod
    def code_label(address: int) -> str:
        return f"L{address:x}"

    def edge(self, i: Decoded, target: int) -> str:
        """The label to jump to in order to reach `target` from instruction `i`."""
        if target > i.address:
            return self.code_label(target)
        label = self.new_label("back")
        self.edges.append(Edge(label, i.address, target))
        return label

    def suspend(self, address: int) -> None:
        """Leave the function at a barrier, to be entered again at `address`."""
        label = self.new_label("barrier")
        self.go(label)
        self.label(label)
        self.resume_points.append((address, label))
        self.go("suspend")

    def jump(self, pc: Value) -> None:
        """Go to a computed address (I64 scalar, in host terms)."""
        self.jumps = True
        self.allocas["%pc"] = "i64"
        self.do(f"store {pc!r}, ptr %pc")
        self.go("dispatch")

    def host_address(self, address: int) -> Value:
        """Where an address of the code object is in host memory."""
        return Value(self, I64.scalar, "%image") + address

    def go(self, target: str) -> None:
        self.do(f"br label %{target}")

    def branch(self, condition: Value, yes: str, no: str, *, rare: bool = False) -> None:
        """Jump on an I1 scalar; `rare` says that `yes` is the exception."""
        weights = f", {_BRANCH_WEIGHTS}" if rare else ""
        self.do(f"br {condition!r}, label %{yes}, label %{no}{weights}")

    def fault(self, kind: int, where: int | Value, lane: int | Value = -1) -> None:
        """Stop the wave here. What follows is unreachable until the next label."""
        at = repr(where) if isinstance(where, Value) else f"i64 {where}"
        by = repr(lane) if isinstance(lane, Value) else f"i32 {lane}"
        arguments = f"ptr %env, i32 {kind}, {at}, {by}, i64 0"
        self.do(f"call i32 @fault({arguments})")
        self.go("fault")

    def fault_if(self, condition: Value, kind: int, where: int | Value) -> None:
        """Stop the wave when an I1 scalar holds."""
        bad, fine = self.new_label("bad"), self.new_label("fine")
        known = self.snapshot()
        self.branch(condition, bad, fine, rare=True)
        self.label(bad)
        self.fault(kind, where)
        self.label(fine, known)

    def refuse_if(self, condition: Value, i: Decoded, what: str) -> None:
        """Stop the wave as at an instruction that is not emulated, when an I1 scalar holds."""
        self.refusals[i.address] = f"{what} is not emulated"
        self.fault_if(condition, layout.UNSUPPORTED, i.address)

    def steps_done(self) -> Value:
        """The steps so far, an I64 scalar: a clock that is the same in every run."""
        left = self.load_scalar(I64.scalar, self.env_pointer("steps"))
        return self.const(I64.scalar, layout.UNLIMITED) - left

    def check_call(self, text: str) -> None:
        """Call a helper that returns i32, nonzero after it recorded a fault; then go on."""
        status = self.emit(I32.scalar, f"call i32 {text}")
        fine = self.new_label("ok")
        known = self.snapshot()
        self.branch(status.ne(0), "fault", fine, rare=True)
        self.label(fine, known)

    # Lanes
    def each_active_lane(self, body: Callable[[Value], None]) -> None:
        """Run `body(lane)` for every active lane in ascending order; lane is a scalar I64."""
        exec_bits = self.exec_bits()
        known = self.snapshot()
        before, loop, end = (self.new_label(p) for p in ("lanes", "lane", "lanes.end"))
        self.go(before)
        self.label(before)
        self.branch(exec_bits.eq(0), end, loop)
        self.label(loop)
        self._count += 1
        left = Value(self, I32.scalar, f"%left{self._count}")
        at = len(self.lines)
        self.do("")  # the phi, once the latch block's label is known
        lane = self.count_zeros("cttz", left)
        body(lane.zext(I64))
        rest = left & (left - 1)
        origins = f"[ {exec_bits.ref}, %{before} ], [ {rest.ref}, %{self.current} ]"
        self.lines[at] = f"  {left.ref} = phi i32 {origins}"
        self.branch(rest.eq(0), end, loop)
        self.label(end, known)

    def exec_is_full(self) -> Value:
        return self.sgpr(EXEC).eq(0xFFFF_FFFF)
