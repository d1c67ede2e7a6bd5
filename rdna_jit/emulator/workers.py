"""One launch: its memory, and the host threads' share of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from rdna_jit.code_object import KernelInfo
from rdna_jit.emulator import launch_state, layout
from rdna_jit.emulator.buffers import Buffer, BufferTable
from rdna_jit.emulator.checks import DEFAULT_STEPS, Checks
from rdna_jit.emulator.executable import Executable, run_function
from rdna_jit.emulator.faults import Fault
from rdna_jit.emulator.launch_state import Geometry

_ALIGN = 128
_GUARD = 128


class Aligned:
    """Zeroed host memory on a 128-byte boundary."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = (ctypes.c_char * (nbytes + _ALIGN + _GUARD))()
        self.address = -(-ctypes.addressof(self._memory) // _ALIGN) * _ALIGN


class Launch:
    """A launch in progress. Workers add their results to it when it is over."""

    def __init__(
        self,
        *,
        info: KernelInfo,
        geometry: Geometry,
        arguments: bytearray,
        packet: bytearray,
        image: Buffer,
        visible: Sequence[Buffer],
        checks: Checks,
        profile: bool,
        descending: bool,
    ) -> None:
        self.info = info
        self.geometry = geometry
        self.image = image
        self.steps = checks.steps or DEFAULT_STEPS
        self.checks = (
            layout.CHECK_RACES * checks.races
            + layout.CHECK_UNINITIALISED * checks.uninitialised
            + layout.CHECK_MISALIGNED * checks.misaligned
        )
        self.profile = profile
        self.descending = descending
        self._arguments = (ctypes.c_char * len(arguments)).from_buffer(arguments)
        self._packet = (ctypes.c_char * len(packet)).from_buffer(packet)
        self.arguments = Buffer(ctypes.addressof(self._arguments), len(arguments), "arguments")
        self.packet = Buffer(ctypes.addressof(self._packet), len(packet), "dispatch packet")
        self.table = BufferTable(
            visible,
            [self.arguments, self.packet, image],
            lines=profile,
            shadow=self.shadowed,
        )
        self.workers: list[Worker] = []
        self.seconds = 0.0

    @property
    def lds_bytes(self) -> int:
        return self.info.descriptor.lds_bytes + self.geometry.dynamic_lds

    @property
    def shadowed(self) -> bool:
        """Whether a check needs the shadow of every byte, which threads cannot share."""
        return bool(self.checks & (layout.CHECK_RACES | layout.CHECK_UNINITIALISED))

    @property
    def executable(self) -> Executable:
        return self.workers[-1].executable

    def worker(self, executable: Executable) -> Worker:
        worker = Worker(self, executable)
        self.workers.append(worker)
        return worker

    @property
    def _faulty(self) -> Worker | None:
        """The worker whose fault belongs to the lowest workgroup."""
        faulty = [w for w in self.workers if w.env.fault_kind]
        return min(faulty, key=lambda w: w.env.workgroup, default=None)

    @property
    def fault(self) -> Fault | None:
        worker = self._faulty
        if worker is None:
            return None
        env = worker.env
        return Fault(
            env.fault_kind,
            env.fault_where,
            env.fault_lane,
            env.fault_address,
            env.wave,
            env.workgroup,
        )

    @property
    def lds_buffer(self) -> Buffer:
        worker = self._faulty or self.workers[0]
        return Buffer(worker.env.lds, self.lds_bytes, "LDS")

    def counts(self) -> list[int]:
        """Block counts (and active lanes) over all workers."""
        return [sum(column) for column in zip(*(w.counts for w in self.workers), strict=True)]

    def traffic(self) -> tuple[tuple[int, int, int], ...]:
        """(bytes, lines or LDS cycles, conflicts) of every site, over all workers."""
        rows = zip(*(w.traffic for w in self.workers), strict=True)
        return tuple(
            (sum(t.bytes for t in row), sum(t.units for t in row), sum(t.conflicts for t in row))
            for row in rows
        )

    @property
    def waited_ns(self) -> int:
        """Nanoseconds that waves waited for loads, summed over waves."""
        return sum(w.grid.waited_ns for w in self.workers)

    @property
    def leading_ns(self) -> int:
        """What of that was before a wave's first wide load had returned."""
        return sum(w.grid.leading_ns for w in self.workers)


class Worker:
    """What one host thread needs to run workgroups of a launch."""

    def __init__(self, launch: Launch, executable: Executable) -> None:
        self.executable = executable
        info, geometry = launch.info, launch.geometry
        waves = geometry.waves
        self._run = run_function()
        self._lds = Aligned(launch.lds_bytes)
        self.states = Aligned(waves * ctypes.sizeof(layout.State))
        wave_scratch = launch_state.scratch_bytes_per_wave(info)
        self._scratch = Aligned(waves * wave_scratch)
        self.counts = (ctypes.c_int64 * (2 * len(executable.blocks)))()
        self._slots = self._make_slots(launch, executable)
        self.traffic = (layout.Traffic * (len(executable.sites) if launch.profile else 0))()
        self._table = launch.table.table(self._own_buffers(launch, executable))
        self._shadow = Aligned(16 * launch.lds_bytes if launch.shadowed else 0)
        sgprs = launch_state.user_sgprs(
            info,
            kernarg=launch.arguments.address,
            packet=launch.packet.address,
            scratch=self._scratch.address,
            scratch_bytes=self._scratch.nbytes,
        )
        self._sgprs = (ctypes.c_uint32 * max(len(sgprs), 1))(*sgprs)
        self._ids = launch_state.work_item_ids(
            geometry.block, launch_state.work_item_id_count(info)
        )
        self.env = layout.Env(
            buffers=ctypes.addressof(self._table),
            buffer_count=len(self._table),
            slots=ctypes.addressof(self._slots),
            counts=ctypes.addressof(self.counts),
            traffic=ctypes.addressof(self.traffic) if launch.profile else None,
            lds=self._lds.address,
            lds_bytes=launch.lds_bytes,
            lds_shadow=self._shadow.address,
            checks=launch.checks,
            private_bytes=wave_scratch // layout.WAVE,
            image=launch.image.address,
        )
        if launch.profile:
            from rdna_jit.emulator import model

            self.env.load_ns = round(1e3 * model.load_latency_us(geometry.workgroups * waves))
            self.env.line_ps = round(1e6 * model.LINE_RETURN_US)
            self.env.scalar_ns = round(1e3 * model.SCALAR_LATENCY_US)
        self.grid = layout.Grid(
            wave_function=executable.wave_function,
            states=self.states.address,
            vgpr_bytes=128 * executable.vgprs,
            waves=waves,
            x=geometry.grid[0],
            y=geometry.grid[1],
            user_sgprs=ctypes.addressof(self._sgprs),
            user_sgpr_count=len(sgprs),
            workgroup_ids=launch_state.workgroup_id_mask(info),
            work_item_ids=ctypes.addressof(self._ids),
            scratch_sgpr=launch_state.scratch_sgpr(info, len(sgprs)),
            scratch_bytes=wave_scratch,
            last_exec=geometry.last_exec,
            steps=launch.steps,
            descending=launch.descending,
            one_barrier=bool(launch.checks & layout.CHECK_RACES),
            scratch=self._scratch.address,
        )

    def _own_buffers(self, launch: Launch, executable: Executable) -> list[Buffer]:
        own = []
        if self._scratch.nbytes:
            own.append(Buffer(self._scratch.address, self._scratch.nbytes, "scratch"))
        if executable.uses_flat and launch.lds_bytes:
            own.append(Buffer(self._lds.address, launch.lds_bytes, "LDS"))
        return own

    def _make_slots(self, launch: Launch, executable: Executable) -> ctypes.Array[layout.Slot]:
        """Bounds slots: those of LDS sites are final, all others empty."""
        slots = (layout.Slot * max(len(executable.sites), 1))()
        observed = launch.profile or launch.checks
        for slot, site in zip(slots, executable.sites, strict=False):
            if site.space == "lds":
                slot.first = self._lds.address
                slot.lane_limit = max(0, launch.lds_bytes - site.nbytes + 1)
                fast = max(0, launch.lds_bytes - layout.WAVE * site.nbytes + 1)
                slot.fast_limit = 0 if observed else fast
        return slots

    def run(self, first: int, last: int) -> bool:
        """Run workgroups first .. last - 1; False after a fault."""
        status: int = self._run(
            ctypes.addressof(self.grid), ctypes.addressof(self.env), first, last
        )
        return status == 0
