"""Machine code of one kernel -> LLVM IR of one function that runs a wave.

    i32 wave(ptr state, ptr env)      0: ended, 1: at a barrier, 2: fault recorded in env

Basic blocks become blocks of the function. Registers are stack slots, filled from `state` on
entry and saved to it at barriers. Every block counts its executions; what an instruction counts
as is static, so that all other counters are products.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rdna_jit.emulator import layout, registry
from rdna_jit.emulator.classes import classify
from rdna_jit.emulator.context import UnknownMode, Unsupported
from rdna_jit.emulator.decode import EXEC, Decoded
from rdna_jit.emulator.float_mode import DEFAULT, FIELDS, FLOAT_BITS, FloatMode, float_modes
from rdna_jit.emulator.ir import I32, I64, Value
from rdna_jit.emulator.operations import Operation, Outliner
from rdna_jit.emulator.options import Options
from rdna_jit.emulator.tables import Block, Site
from rdna_jit.emulator.wave import HELPERS, Wave, attributes


@dataclass
class Translation:
    """IR of a kernel, and what the host needs to know to run it and to explain a run."""

    ir: str
    sites: list[Site]
    blocks: list[Block]
    resume_points: list[int]
    vgprs: int
    unsupported: dict[int, str]
    order_dependent: bool
    operations: list[Operation]


def translate(
    code: Sequence[Decoded],
    entry: int,
    *,
    functions: Sequence[int] = (),
    options: Options | None = None,
    float_mode: FloatMode = DEFAULT,
    vgpr_count: int = 256,
    profile: bool = False,
    inline_memory: bool = True,
    vector_exec: bool = False,
    inline_lines: int = 1 << 30,
    out_of_line: bool = False,
    inline_loops: int = 0,
    stops: Collection[int] = (),
) -> Translation:
    """Translate the kernel at `entry`.

    `code` holds its instructions and those of every function at `functions` that it may call.
    `float_mode` is the mode at its start, and `vgpr_count` the registers that a wave has.
    A profiling translation also counts active lanes and waits for loads. `out_of_line` makes the
    vector and memory instructions calls of operations (see operations.py), except in innermost
    loops of up to `inline_loops` instructions in all; for the other options see `Wave`. They change
    speed, not results. At the addresses in `stops` a wave leaves as at a barrier, before the
    instruction; its resume point is then `stop_point(address)`.
    """
    wave = Wave(
        options,
        profile=profile,
        inline_memory=inline_memory,
        vector_exec=vector_exec,
        inline_lines=inline_lines,
    )
    outliner = Outliner(options, vector_exec=vector_exec)
    wave.vgpr_count = vgpr_count
    inline = inline_loops if out_of_line else None
    return _Translator(code, entry, functions, wave, outliner, float_mode, stops, inline).run()


def stop_point(address: int) -> int:
    """The resume point of a stop: an address at which no instruction can be."""
    return address | 1


class _Translator:
    def __init__(
        self,
        code: Sequence[Decoded],
        entry: int,
        functions: Sequence[int],
        wave: Wave,
        outliner: Outliner,
        float_mode: FloatMode,
        stops: Collection[int],
        inline_loops: int | None,
    ) -> None:
        """`inline_loops` None: every instruction is translated in place."""
        self.code = sorted(code, key=lambda i: i.address)
        self.entry = entry
        self.wave = wave
        self.outliner = outliner
        self.addresses = [i.address for i in self.code]
        self.stops = frozenset(stops).intersection(self.addresses)
        self.known = frozenset(self.addresses) | {stop_point(a) for a in self.stops}
        self.blocks: list[Block] = []
        self.unsupported: dict[int, str] = {}
        self.lanes_due = 0
        self.jump_targets = {f for f in functions if f in self.known}
        self.leaders = self._find_leaders()
        everything = frozenset(self.addresses)
        self.inline = everything if inline_loops is None else self._hot(inline_loops)
        wave.copy_registers = bool(self.inline)
        starts = {entry, *functions}
        self.modes = float_modes(self.code, starts, float_mode)
        self.first_mode = float_mode
        wave.tracks_mode, wave.keeps_mode = True, None in self.modes.values()

    def _find_leaders(self) -> set[int]:
        leaders = {self.entry} | self.jump_targets | self.stops
        for i in self.code:
            if i.mnemonic.startswith(("s_cbranch", "s_branch", "s_call")):
                leaders |= {i.branch_target, i.end}
            elif i.mnemonic in ("s_endpgm", "s_barrier", "s_setpc_b64", "s_swappc_b64"):
                leaders.add(i.end)
            if i.mnemonic in ("s_swappc_b64", "s_call_b64"):
                self.jump_targets.add(i.end)
        return leaders

    def _hot(self, limit: int) -> frozenset[int]:
        """Addresses in innermost loops, of the shortest ones up to `limit` instructions in all."""
        loops = {
            (i.branch_target, i.address)
            for i in self.code
            if i.mnemonic.startswith(("s_cbranch", "s_branch")) and i.branch_target <= i.address
        }
        inner = [
            [a for a in self.addresses if first <= a <= last]
            for first, last in loops
            if not any(o != (first, last) and first <= o[0] and o[1] <= last for o in loops)
        ]
        hot: list[int] = []
        for loop in sorted(inner, key=lambda addresses: (len(addresses), addresses)):
            if len(hot) + len(loop) <= limit:
                hot += loop
        return frozenset(hot)

    def run(self) -> Translation:
        c = self.wave
        for i in self.code:
            if i.address in self.leaders or not self.blocks:
                self._start_block(i)
            self._instruction(i)
        self._end_block()
        if not self._terminated():
            c.fault(layout.BRANCH, self.code[-1].end)
        self._edges()
        self._outside()
        return Translation(
            ir=self._module(),
            sites=c.sites,
            blocks=self.blocks,
            resume_points=[address for address, _ in c.resume_points],
            vgprs=max(c.used_vgprs, default=-1) + 1,
            unsupported=self.unsupported | c.refusals,
            order_dependent=any("cmpswap" in i.mnemonic for i in self.code),
            operations=list(self.outliner.used.values()),
        )

    # Blocks
    def _start_block(self, i: Decoded) -> None:
        c = self.wave
        self._end_block()
        if self.blocks and not self._terminated():
            c.go(c.code_label(i.address))
        c.label(c.code_label(i.address))
        self._bump(len(self.blocks), 1)
        self.blocks.append(Block(i.address))
        if i.address in self.stops:
            c.suspend(stop_point(i.address))
            c.label(c.code_label(stop_point(i.address)))

    def _bump(self, index: int, amount: int | Value) -> None:
        c = self.wave
        pointer = c.pointer(f"getelementptr i64, ptr %counts, i64 {index}")
        c.do(f"store {c.load_scalar(I64.scalar, pointer) + amount!r}, {pointer!r}")

    def _terminated(self) -> bool:
        last = self.wave.lines[-1].lstrip()
        return last.startswith(("br ", "ret ", "switch "))

    def _instruction(self, i: Decoded) -> None:
        c, block = self.wave, self.blocks[-1]
        block.instructions += 1
        counters = classify(i.mnemonic)
        for name in counters:
            block.counts[name] = block.counts.get(name, 0) + 1
        self.lanes_due += counters[0] == "valu"
        if _writes_exec(i) or i.end in self.leaders:
            self._end_block()
        c.mode = self.modes[i.address]
        mark = c.mark()
        try:
            try:
                if i.address not in self.inline and Outliner.takes(i):
                    self.outliner.emit(c, i)
                else:
                    registry.find(i)(c, i)
            except UnknownMode:
                c.rewind(mark)
                self._by_mode(i)
        except Unsupported as reason:
            c.rewind(mark)
            self.unsupported[i.address] = str(reason)
            c.fault(layout.UNSUPPORTED, i.address)
            c.label(c.new_label("after"))

    def _by_mode(self, i: Decoded) -> None:
        """One operation for each state of the MODE bits that make a difference to `i`."""
        c, find = self.wave, self.outliner.find

        def name(bits: int) -> str:
            return find(c, i, FloatMode(bits))[0].name

        relevant = 0
        # Flushing and IEEE together decide on output modifiers: so seen from both sides.
        for field, others in itertools.product(FIELDS, (DEFAULT.bits, 0)):
            states = [bits for bits in range(FLOAT_BITS + 1) if not bits & ~field]
            if len({name(others & ~field | bits) for bits in states}) > 1:
                relevant |= field
        cases: dict[str, list[int]] = {}
        for bits in (n for n in range(FLOAT_BITS + 1) if not n & ~relevant):
            cases.setdefault(name(DEFAULT.bits & ~relevant | bits), []).append(bits)
        labels = [c.new_label("mode") for _ in cases]
        targets = " ".join(
            f"i32 {bits}, label %{label}"
            for label, states in zip(labels, cases.values(), strict=True)
            for bits in states
        )
        c.do(f"switch {c.mode_bits() & relevant!r}, label %{labels[0]} [ {targets} ]")
        end = c.new_label("moded")
        for label, states in zip(labels, cases.values(), strict=True):
            c.label(label)
            c.mode = FloatMode(DEFAULT.bits & ~relevant | states[0])
            self.outliner.emit(c, i)
            c.go(end)
        c.label(end)

    def _end_block(self) -> None:
        """Add the lanes of the vector instructions since EXEC last changed."""
        due, self.lanes_due = self.lanes_due, 0
        if due and self.wave.profile and not self._terminated():
            active = self.wave.unary("ctpop", self.wave.exec_bits()).zext(I64)
            # the second half of the counts; its place is known once all blocks are
            pointer = self.wave.pointer(
                f"getelementptr i64, ptr %lanes, i64 {len(self.blocks) - 1}"
            )
            total = self.wave.load_scalar(I64.scalar, pointer) + active * due
            self.wave.do(f"store {total!r}, {pointer!r}")

    # Control flow around the blocks
    def _edges(self) -> None:
        """Backward jumps charge the wave for the instructions that they repeat."""
        c = self.wave
        for edge in c.edges:
            c.label(edge.label)
            cost = bisect_left(self.addresses, edge.source) - bisect_left(
                self.addresses, edge.target
            )
            self._charge(cost + 1, edge.source)
            c.go(c.code_label(edge.target))

    def _charge(self, steps: int, pc: int) -> None:
        c = self.wave
        pointer = c.env_pointer("steps")
        left = c.load_scalar(I64.scalar, pointer) - steps
        c.do(f"store {left!r}, {pointer!r}")
        c.fault_if(left.slt(0), layout.STEPS, pc)

    def _outside(self) -> None:
        """Branches that leave the code become faults when taken."""
        c = self.wave
        targets = {edge.target for edge in c.edges}
        targets |= {address for address, _ in c.resume_points}
        targets |= {i.branch_target for i in self.code if "branch" in i.mnemonic}
        targets |= {leader for leader in self.leaders if leader not in self.known}
        for target in sorted(targets - self.known):
            c.label(c.code_label(target))
            c.fault(layout.BRANCH, target)
        if c.jumps:
            c.label("dispatch")
            self._charge(1, self.entry)
            pc = c.emit(I64.scalar, "load i64, ptr %pc") - Value(c, I64.scalar, "%image")
            cases = " ".join(
                f"i64 {t}, label %{c.code_label(t)}" for t in sorted(self.jump_targets)
            )
            c.do(f"switch {pc!r}, label %astray [ {cases} ]")
            c.label("astray")
            c.fault(layout.BRANCH, self.entry)

    # The module
    def _module(self) -> str:
        c = self.wave
        c.used_sgprs.add(EXEC)
        body = c.lines
        c.lines = []
        self._prologue()
        prologue = c.lines
        c.lines = []
        self._epilogue()
        return "\n".join(
            [
                layout.type_lines(),
                HELPERS,
                *sorted(c.declarations),
                "define i32 @wave(ptr noalias %state, ptr noalias %env) #0 {",
                *prologue,
                *body,
                *c.lines,
                "}",
                *c.functions,
                attributes(),
            ]
        )

    def _prologue(self) -> None:
        c = self.wave
        c.lines.append("entry:")
        if c.vector_exec:
            c.allocas["%exec"] = I32.text
        for index in c.used_vgprs:
            c.allocas[f"%v{index}"] = I32.text
        for index in c.used_sgprs:
            c.allocas[f"%s{index}"] = I32.scalar.text
        c.allocas["%scc"] = "i1"
        if c.keeps_mode:
            c.allocas["%mode"] = "i32"
        for name, type in sorted(c.allocas.items()):
            c.do(f"{name} = alloca {type}")
        c.lines += c.entry_lines()
        c.do(f"%lanes = getelementptr i64, ptr %counts, i64 {len(self.blocks)}")
        for slot, type, place in self._saved():
            value = c.emit(I32, f"load {type}, {place}").ref
            if slot == "%scc":
                value = c.emit(I32, f"trunc i32 {value} to i1").ref
                type = "i1"
            elif slot == "%mode":
                value = c.emit(I32, f"xor i32 {value}, {self.first_mode.bits}").ref
            c.do(f"store {type} {value}, ptr {slot}")
        if c.vector_exec:
            c.set_sgpr(EXEC, c.sgpr(EXEC))
        resume = c.load_scalar(I32.scalar, self._state("resume"))
        cases = " ".join(
            f"i32 {n}, label %{c.code_label(address)}"
            for n, (address, _) in enumerate(c.resume_points, 1)
        )
        c.do(f"switch {resume!r}, label %{c.code_label(self.entry)} [ {cases} ]")

    def _epilogue(self) -> None:
        c = self.wave
        c.lines += ["fault:", "  ret i32 2"]
        if not c.resume_points:
            return
        origins = ", ".join(f"[ {n}, %{label} ]" for n, (_, label) in enumerate(c.resume_points, 1))
        c.lines += ["suspend:", f"  %resume.at = phi i32 {origins}"]
        c.do(f"store i32 %resume.at, {self._state('resume')!r}")
        for slot, type, place in self._saved():
            if slot == "%scc":
                bit = c.emit(I32, "load i1, ptr %scc").ref
                value = c.emit(I32, f"zext i1 {bit} to i32").ref
            else:
                value = c.emit(I32, f"load {type}, ptr {slot}").ref
            if slot == "%mode":
                value = c.emit(I32, f"xor i32 {value}, {self.first_mode.bits}").ref
            c.do(f"store {type} {value}, {place}")
        c.do("ret i32 1")

    def _saved(self) -> list[tuple[str, str, str]]:
        """Every register in use: its stack slot, type, and place in `state`."""
        c = self.wave
        saved = []
        for index in sorted(c.used_vgprs):
            place = c.pointer(f"getelementptr {I32.text}, ptr {self._vgprs()}, i64 {index}")
            saved.append((f"%v{index}", I32.text, f"{place!r}, align 64"))
        for index in sorted(c.used_sgprs):
            place = c.pointer(f"getelementptr i32, ptr %state, i64 {index}")
            saved.append((f"%s{index}", "i32", repr(place)))
        if c.keeps_mode:
            saved.append(("%mode", "i32", repr(self._state("mode"))))
        return [*saved, ("%scc", "i32", repr(self._state("scc")))]

    def _vgprs(self) -> str:
        return self._state("vgprs").ref

    def _state(self, name: str) -> Value:
        index = layout.field(layout.State, name)
        return self.wave.pointer(f"getelementptr %State, ptr %state, i32 0, i32 {index}")


def _writes_exec(i: Decoded) -> bool:
    if i.mnemonic.startswith("v_cmpx") or "saveexec" in i.mnemonic or "wrexec" in i.mnemonic:
        return True
    return bool(i.operands) and i.operands[0].kind == "s" and i.operands[0].index == EXEC
