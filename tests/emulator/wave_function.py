"""Runs a few instructions, or an expression, on one wave without a kernel around them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rdna_jit.disassembler import Instruction
from rdna_jit.emulator import registry
from rdna_jit.emulator.context import Context, Options
from rdna_jit.emulator.decode import EXEC, decode_line
from rdna_jit.emulator.ir import I32, PTR, Value

Words = npt.NDArray[np.uint32]
_loaded: list[Any] = []  # keeps the machine code alive


class WaveState:
    """256 VGPRs of 32 lanes, 128 SGPRs and SCC; EXEC starts full."""

    def __init__(self) -> None:
        self.vgprs = np.zeros((256, 32), np.uint32)
        self.sgprs = np.zeros(128, np.uint32)
        self.scc = np.zeros(1, np.uint8)
        self.sgprs[EXEC] = 0xFFFFFFFF

    def floats(self, index: int) -> npt.NDArray[np.float32]:
        return self.vgprs[index].view(np.float32)


def execute(text: str, state: WaveState, options: Options | None = None) -> WaveState:
    """Run instructions (one a line, as a disassembler prints them) on `state`."""
    c = Context(options)
    for line in text.strip().splitlines():
        i = decode_line(Instruction(0, 8, (0, 0), line.strip()))
        registry.find(i)(c, i)
    _call(c, state)
    return state


def evaluate(compute: Callable[[Context, Value], Value], x: npt.ArrayLike) -> Words:
    """compute(context, x) for 32 words, as 32 words."""
    state = WaveState()
    state.vgprs[0] = np.asarray(x).view(np.uint32)
    c = Context()
    c.replace_vgpr(1, c.splat(compute(c, c.vgpr(0)).bits))
    _call(c, state)
    return state.vgprs[1]


def _call(c: Context, state: WaveState) -> None:
    """Load the registers in use, run the lines of `c`, store the registers."""
    places = [(f"%v{n}", I32, state.vgprs[n]) for n in c.used_vgprs]
    places += [(f"%s{n}", I32.scalar, state.sgprs[n : n + 1]) for n in c.used_sgprs]
    lines = ["define void @wave() {", *(f"  {slot} = alloca {t}" for slot, t in c.allocas.items())]
    stores = []
    for k, (slot, type, array) in enumerate(places):
        memory = f"{PTR.text} inttoptr (i64 {array.ctypes.data} to ptr)"
        lines.append(f"  %in{k} = load {type.text}, {memory}, align 4")
        lines.append(f"  store {type.text} %in{k}, ptr {slot}")
        stores.append(f"  %out{k} = load {type.text}, ptr {slot}")
        stores.append(f"  store {type.text} %out{k}, {memory}, align 4")
    if "%scc" in c.allocas:
        memory = f"ptr inttoptr (i64 {state.scc.ctypes.data} to ptr)"
        lines += [f"  %scc.in = load i8, {memory}", "  %scc.bit = trunc i8 %scc.in to i1"]
        lines.append("  store i1 %scc.bit, ptr %scc")
        stores += ["  %scc.out = load i1, ptr %scc", "  %scc.byte = zext i1 %scc.out to i8"]
        stores.append(f"  store i8 %scc.byte, {memory}")
    text = "\n".join([*sorted(c.declarations), *lines, *c.lines, *stores, "  ret void", "}"])
    ctypes.CFUNCTYPE(None)(_compile(text))()


def _compile(ir: str) -> int:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    module = llvm.parse_assembly(ir)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _loaded.append(engine)
    return int(engine.get_function_address("wave"))
