"""A debugger's minimum: run one workgroup until an instruction or a source line, and look.

The kernel is translated with stops: exits like those at barriers, where a wave's registers are in
memory. The waves of the workgroup take turns from barrier to barrier, as in a launch.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rdna_jit.emulator import executable, jit, layout
from rdna_jit.emulator.buffers import Buffer
from rdna_jit.emulator.checks import current_checks, current_modes
from rdna_jit.emulator.decode import EXEC, VCC
from rdna_jit.emulator.executable import Executable, Variant
from rdna_jit.emulator.faults import to_error
from rdna_jit.emulator.launch_state import Extent, Geometry
from rdna_jit.emulator.translate import stop_point
from rdna_jit.errors import ContractError

if TYPE_CHECKING:
    from rdna_jit.emulator.decode import Decoded
    from rdna_jit.emulator.machine import Program
    from rdna_jit.emulator.workers import Launch, Worker

At = int | str
_ENDED, _SUSPENDED = 0, 1
_SHOWN_LANES = 8
# Instructions whose registers hold halves and nothing else.
_HALVES = re.compile(r"v_\w+(?<!f32)(?<!mixlo)(?<!mixhi)_f16(_e32|_e64|_sdwa|_dpp8?)?\b")
_RUN_WAVE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
_START_WAVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4)


@dataclass(frozen=True)
class Stop:
    """A wave just before an instruction, with copies of its registers and of its LDS.

    `vgprs` is uint32 [register, lane], `sgprs` uint32 [register], `lds` bytes. `hit` counts the
    wave's stops from 1.
    """

    pc: int
    instruction: str
    source_line: str
    workgroup: Extent
    wave: int
    hit: int
    scc: bool
    sgprs: NDArray[np.uint32] = field(repr=False)
    vgprs: NDArray[np.uint32] = field(repr=False)
    lds: NDArray[np.uint8] = field(repr=False)
    operands: tuple[tuple[str, int, int], ...] = field(repr=False)

    @property
    def exec(self) -> int:
        """Bit i: lane i is active."""
        return int(self.sgprs[EXEC])

    @property
    def vcc(self) -> int:
        return int(self.sgprs[VCC])

    @property
    def active(self) -> NDArray[np.bool_]:
        return (self.exec >> np.arange(layout.WAVE) & 1).astype(bool)

    def v(self, index: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        """A vector register as [lane], or [lane, part] for dtypes below 32 bits."""
        if not 0 <= index < len(self.vgprs):
            raise ContractError(f"the kernel uses {len(self.vgprs)} vector registers, not v{index}")
        values = self.vgprs[index].view(dtype)
        return values if values.size == layout.WAVE else values.reshape(layout.WAVE, -1)

    def s(self, index: int, count: int = 1) -> int:
        """Scalar registers s[index : index + count] as one number."""
        return int.from_bytes(self.sgprs[index : index + count].tobytes(), "little")

    def to_dict(self) -> dict[str, object]:
        """Plain values for scripts: registers as lists of numbers."""
        return {
            "pc": self.pc,
            "instruction": self.instruction,
            "source_line": self.source_line,
            "workgroup": list(self.workgroup),
            "wave": self.wave,
            "hit": self.hit,
            "exec": self.exec,
            "vcc": self.vcc,
            "scc": self.scc,
            "sgprs": self.sgprs.tolist(),
            "vgprs": self.vgprs.tolist(),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.instruction}  at {self.pc:#x}  {self.source_line}".rstrip(),
            f"  workgroup {self.workgroup}, wave {self.wave}, hit {self.hit}; "
            f"exec {self.exec:08x}, vcc {self.vcc:08x}, scc {int(self.scc)}",
        ]
        for kind, index, count in dict.fromkeys(self.operands):
            lines += [self._row(kind, n) for n in range(index, index + count)]
        return "\n".join(lines)

    def _row(self, kind: str, index: int) -> str:
        values = self.v(index) if kind == "v" else self.sgprs[index : index + 1]
        shown = values[:_SHOWN_LANES]
        bits = " ".join(f"{x:08x}" for x in shown)
        if _HALVES.match(self.instruction):
            pairs = shown.view(np.float16).reshape(-1, 2)
            floats = " ".join(f"{low:.4g}|{high:.4g}" for low, high in pairs)
        else:
            floats = " ".join(f"{x:.5g}" for x in shown.view(np.float32))
        more = " ..." if len(values) > len(shown) else ""
        return f"  {kind}{index:<4} {bits}{more}  ({floats}{more})"


def stops_at(program: Program, at: At) -> tuple[int, ...]:
    """The addresses that `at` means: an instruction's address; "file.hip:12" or "12", where code
    of that line begins; or how an instruction's text begins, such as "v_dot2"."""
    code = sorted(program.code, key=lambda i: i.address)
    if isinstance(at, int):
        found = [i.address for i in code if i.address == at]
    elif at.rpartition(":")[2].isdecimal():
        file, _, line = at.rpartition(":")
        found = list(_begins(program, code, file, int(line)))
    else:
        found = [i.address for i in code if i.text.startswith(at)]
    if not found:
        where = f"{at:#x}" if isinstance(at, int) else repr(at)
        raise ContractError(
            f"{program.info.name} has no instruction at {where}; give an address of isa(), a "
            "source line with code such as 'file.hip:12', or the beginning of an instruction",
            name="at",
            got=at,
        )
    return tuple(found)


def _begins(program: Program, code: Sequence[Decoded], file: str, line: int) -> Iterator[int]:
    inside = False
    for i in code:
        place = program.code_object.source_lines.get(i.address)
        was, inside = inside, place is not None and place.line == line and place.file.endswith(file)
        if inside and not was:
            yield i.address


def trace(
    program: Program,
    grid: Extent,
    block: Extent,
    kernarg: bytes,
    buffers: Sequence[Buffer],
    *,
    at: At,
    workgroup: int | Sequence[int] = 0,
    wave: int | None = 0,
    hits: int = 1,
    dynamic_lds: int = 0,
) -> list[Stop]:
    """Run one workgroup, given as x, (x, y) or (x, y, z), until `wave` (None: any) has stopped
    `hits` times; returns the stops.

    The list is shorter when the workgroup ends before. Other workgroups do not run, and what the
    waves have written until then is in the buffers.
    """
    geometry = Geometry(grid, block, dynamic_lds)
    given = (workgroup,) if isinstance(workgroup, int) else workgroup
    x, y, z = (*given, 0, 0)[:3]
    outside = any(not 0 <= n < extent for n, extent in zip((x, y, z), grid, strict=True))
    if outside or (wave is not None and not 0 <= wave < geometry.waves) or hits < 1:
        raise ContractError(
            f"no wave {wave} of workgroup {workgroup} stops {hits} times: the grid is {grid} and a "
            f"workgroup has {geometry.waves} waves"
        )
    modes = current_modes()
    variant = Variant(modes.options, profile=False, stops=stops_at(program, at))
    made = executable.cached(program, variant, "quick") or executable.build(
        program, variant, "quick"
    )
    launch = program.prepare(geometry, kernarg, buffers, current_checks(), modes, variant)
    return _Run(program, launch, made, (x, y, z), wave, hits).run()


class _Run:
    """One workgroup, driven from here instead of from the runtime's driver."""

    def __init__(
        self,
        program: Program,
        launch: Launch,
        made: Executable,
        workgroup: Extent,
        wave: int | None,
        hits: int,
    ) -> None:
        self.program, self.launch, self.executable = program, launch, made
        self.workgroup, self.wave, self.hits = workgroup, wave, hits
        self.worker: Worker = launch.worker(made)
        self.stops: list[Stop] = []
        self.instructions = {stop_point(i.address): i for i in program.code}
        self.run_wave = _RUN_WAVE(jit.runtime_image().symbols["run_wave"])

    def run(self) -> list[Stop]:
        waves = range(self.launch.geometry.waves)
        self._start(waves)
        alive = list(reversed(waves) if self.launch.descending else waves)
        while alive:
            self.worker.env.epoch += 1
            alive = [w for w in alive if len(self.stops) < self.hits and self._turn(w)]
        return self.stops

    def _start(self, waves: range) -> None:
        env, (x, y, z), grid = self.worker.env, self.workgroup, self.launch.geometry.grid
        env.workgroup = x + grid[0] * (y + grid[1] * z)
        env.epoch_first = env.epoch + 1
        ctypes.memset(env.lds, layout.POISON, env.lds_bytes)
        start = _START_WAVE(jit.runtime_image().symbols["start_wave"])
        for w in waves:
            start(ctypes.addressof(self.worker.grid), self._address(w), w, x, y, z)

    def _turn(self, w: int) -> bool:
        """Run a wave to its next barrier; False when it has ended or enough is seen."""
        env, state = self.worker.env, self._state(w)
        env.wave, env.state, env.steps = w, self._address(w), state.steps
        while True:
            status = self.run_wave(
                self.executable.wave_function, self._address(w), ctypes.addressof(env)
            )
            state.steps = env.steps
            if status not in (_ENDED, _SUSPENDED):
                self._fail()
            if status == _ENDED:
                return False
            stopped = self.instructions.get(self.executable.resume_points[state.resume - 1])
            if stopped is None:
                return True
            if self.wave in (None, w):
                self.stops.append(self._stop(w, stopped))
                if len(self.stops) == self.hits:
                    return False

    def _stop(self, w: int, i: Decoded) -> Stop:
        state, env = self._state(w), self.worker.env
        vgprs = np.ctypeslib.as_array(state.vgprs)[: self.executable.vgprs]
        lds = ctypes.string_at(env.lds, env.lds_bytes) if env.lds_bytes else b""
        return Stop(
            i.address,
            i.text,
            self.program.source_at(i.address),
            self.workgroup,
            w,
            1 + sum(stop.wave == w for stop in self.stops),
            bool(state.scc & 1),
            np.ctypeslib.as_array(state.sgprs).copy(),
            vgprs.copy(),
            np.frombuffer(lds, np.uint8),
            tuple((o.kind, o.index, o.count) for o in i.operands if o.kind in ("v", "s")),
        )

    def _fail(self) -> None:
        launch, fault = self.launch, self.launch.fault
        assert fault is not None
        place = self.program.place(launch)
        raise to_error(fault, place, launch.table, launch.geometry.grid, launch.lds_buffer)

    def _address(self, w: int) -> int:
        return int(self.worker.states.address + w * ctypes.sizeof(layout.State))

    def _state(self, w: int) -> layout.State:
        return layout.State.from_address(self._address(w))
