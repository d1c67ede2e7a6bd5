"""The machine: a kernel of a code object, ready to be launched on host memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rdna_jit.code_object import CodeObject
from rdna_jit.emulator import launch_state
from rdna_jit.emulator.buffers import Buffer, registered
from rdna_jit.emulator.checks import Checks, Modes, current_checks, current_modes
from rdna_jit.emulator.executable import Executable, Variant, build, cached
from rdna_jit.emulator.faults import Place, to_error
from rdna_jit.emulator.launch_state import Extent, Geometry
from rdna_jit.emulator.schedule import Schedule
from rdna_jit.emulator.workers import Launch
from rdna_jit.errors import ContractError

if TYPE_CHECKING:
    from rdna_jit.emulator.decode import Decoded

_WAVE32 = 1 << 10
_FP16_OVERFLOW = 1 << 26
_PAGE = 4096
_ASSERTIONS = ".rdna_jit.assert"  # "file:line", a tab and the condition, each ended by a zero byte


class LaunchStats(NamedTuple):
    """What one launch executed. `counts` and `lanes` are per basic block of `executable`."""

    program: Program
    executable: Executable
    geometry: Geometry
    counts: tuple[int, ...]
    lanes: tuple[int, ...] = ()
    traffic: tuple[tuple[int, int, int], ...] = ()
    lines_touched: int = 0
    waited_ns: int = 0
    leading_ns: int = 0
    seconds: float = 0.0

    @property
    def wave_instructions(self) -> int:
        blocks = self.executable.blocks
        return sum(n * b.instructions for n, b in zip(self.counts, blocks, strict=True))


class Program:
    """One kernel of a code object. Translations are made at the first launch that needs them.

    Launches of one program may run in several threads at once.
    """

    def __init__(self, code_object: CodeObject, entry: str) -> None:
        if entry not in code_object.kernels:
            raise ContractError(
                f"the code object has no kernel {entry!r}; it has {', '.join(code_object.kernels)}",
                name="entry",
                got=entry,
            )
        self.code_object = code_object
        self.info = code_object.kernels[entry]
        if not self.info.descriptor.properties & _WAVE32:
            raise ContractError(
                f"{entry} was compiled for wave64; the emulator runs wave32, compile without "
                "-mwavefrontsize64",
                name="code object",
            )
        if self.info.descriptor.rsrc1 & _FP16_OVERFLOW:
            raise ContractError(
                f"{entry} asks for f16 results that never overflow (FP16_OVFL), which the emulator "
                "does not do",
                name="code object",
            )
        self._memory, self.image = _load_image(code_object)
        self._schedules: dict[Variant, Schedule] = {}
        self._lock = threading.Lock()

    def launch(
        self,
        grid: Extent,
        block: Extent,
        kernarg: bytes,
        buffers: Sequence[Buffer],
        dynamic_lds: int = 0,
        profile: bool = False,
    ) -> LaunchStats:
        """Run a grid of workgroups over host memory; returns when all are done.

        grid         workgroups in x, y, z
        block        work-items of a workgroup in x, y, z
        kernarg      the explicit arguments, at the offsets of the metadata; pointers are host
                     addresses. Hidden arguments and the dispatch packet are filled in here
        buffers      the memory that pointers may reach, besides what is registered
        Raises an EmulationError when a wave faults or a check finds something.
        """
        geometry = Geometry(grid, block, dynamic_lds)
        self._check_geometry(geometry)
        checks, modes = current_checks(), current_modes()
        variant = Variant(modes.options, profile)
        launch = self.prepare(geometry, kernarg, buffers, checks, modes, variant)
        counts = self._schedule(variant).run(launch, modes)
        if launch.fault is not None:
            raise to_error(launch.fault, self.place(launch), launch.table, grid, launch.lds_buffer)
        return self._stats(launch, counts, profile)

    def _check_geometry(self, geometry: Geometry) -> None:
        limit = self.info.max_workgroup_size
        if min(*geometry.grid, *geometry.block) < 1 or geometry.work_items > limit:
            raise ContractError(
                f"{self.info.name}: grid {geometry.grid} and block {geometry.block} must be "
                f"positive, and a block has at most {limit} work-items",
                name="block",
            )

    def prepare(
        self,
        geometry: Geometry,
        kernarg: bytes,
        buffers: Sequence[Buffer],
        checks: Checks,
        modes: Modes,
        variant: Variant,
    ) -> Launch:
        """A launch with its memory set up, not yet running."""
        arguments = launch_state.argument_block(self.info, kernarg, geometry)
        packet = bytearray(launch_state.dispatch_packet(geometry))
        return Launch(
            info=self.info,
            geometry=geometry,
            arguments=arguments,
            packet=packet,
            image=self.image,
            visible=[*buffers, *registered()],
            checks=checks,
            profile=variant.profile,
            descending=modes.descending,
        )

    def _schedule(self, variant: Variant) -> Schedule:
        with self._lock:
            if variant not in self._schedules:
                self._schedules[variant] = Schedule(
                    lambda tier: cached(self, variant, tier),
                    lambda tier: build(self, variant, tier),
                )
            return self._schedules[variant]

    def _stats(self, launch: Launch, counts: Sequence[int], profile: bool) -> LaunchStats:
        executable = launch.executable
        n = len(executable.blocks)
        return LaunchStats(
            self,
            executable,
            launch.geometry,
            tuple(counts[:n]),
            lanes=tuple(counts[n:]) if profile else (),
            traffic=launch.traffic() if profile else (),
            lines_touched=launch.table.lines_touched,
            waited_ns=launch.waited_ns,
            leading_ns=launch.leading_ns,
            seconds=launch.seconds,
        )

    # Code, for translation and for explanations
    @cached_property
    def code(self) -> list[Decoded]:
        """The kernel's instructions, and those of other functions if it makes calls."""
        from rdna_jit import disassembler
        from rdna_jit.emulator.decode import decode

        own = decode(disassembler.disassemble(self.code_object, self.info.name))
        if not any(i.mnemonic in ("s_swappc_b64", "s_setpc_b64", "s_call_b64") for i in own):
            return own
        for name in self.code_object.functions:
            if name not in self.code_object.kernels:
                own += decode(disassembler.disassemble(self.code_object, name))
        return own

    @cached_property
    def functions(self) -> list[int]:
        """Entry addresses of the functions that are not kernels."""
        return [
            va
            for name, (va, _) in self.code_object.functions.items()
            if name not in self.code_object.kernels
        ]

    def text_at(self, pc: int) -> str:
        return next((i.text for i in self.code if i.address == pc), "")

    def source_at(self, pc: int) -> str:
        place = self.code_object.source_lines.get(pc)
        return "" if place is None else str(place)

    def assertion_at(self, pc: int) -> str:
        """The conditions that kernels_src/common/assert.hip asserts in the source line of `pc`."""
        texts = self.code_object.section(_ASSERTIONS).split(b"\0")
        rows = (text.decode(errors="replace").partition("\t") for text in texts)
        here = self.source_at(pc)
        return " or ".join(dict.fromkeys(what for where, _, what in rows if where == here))

    def place(self, launch: Launch) -> Place:
        executable = launch.executable
        return Place(
            self.info.name,
            executable.sites,
            executable.resume_points,
            executable.unsupported,
            self.text_at,
            self.source_at,
            self.assertion_at,
        )


def _load_image(code_object: CodeObject) -> tuple[ctypes.Array[ctypes.c_char], Buffer]:
    """Host memory, and the loaded code object in it; the buffer starts at its address 0."""
    size = max(s.va + s.mem_size for s in code_object.segments)
    memory = (ctypes.c_char * (size + _PAGE))()
    base = -(-ctypes.addressof(memory) // _PAGE) * _PAGE
    for segment in code_object.segments:
        content = code_object.read(segment.va, segment.mem_size)
        ctypes.memmove(base + segment.va, content, len(content))
    for relocation in code_object.relocations:
        value = (base + relocation.symbol + relocation.addend) & 0xFFFF_FFFF_FFFF_FFFF
        ctypes.c_uint64.from_address(base + relocation.va).value = value
    # NOTE: the buffer ends with the object. What lies behind it in memory belongs to others.
    return memory, Buffer(base, size, "code object")
