"""The emulator as a device: CPU tensors, buffers named after the kernel's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rdna_jit import arch as archs
from rdna_jit.device import Device
from rdna_jit.errors import ContractError
from rdna_jit.runtime.arguments import Slot
from rdna_jit.runtime.base import Dim3, Extent, Loaded, Program, Runtime, check_geometry

if TYPE_CHECKING:
    from rdna_jit.emulator import Buffer
    from rdna_jit.emulator.profile import Profile
    from rdna_jit.emulator.trace import Stop


class EmulatorRuntime(Runtime):
    """The gfx10 machine on the CPU: one device, of the arch that the settings choose."""

    backend = "emulator"

    def device(self, index: int | None = None) -> Device:
        if index not in (None, 0):
            raise ContractError(f"the emulator is device 0, there is no device {index}")
        arch = archs.choose()[0]
        return Device(arch.name, self.backend, f"emulated {arch.chips}", 72, 0)

    def index_of(self, args: Sequence[object]) -> int:
        return 0

    def load(self, program: Program, index: int) -> EmulatorLoaded:
        return EmulatorLoaded(program)


class EmulatorLoaded(Loaded):
    """A kernel ready to be emulated; its translation is made at the first launch."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        from rdna_jit.emulator import Program as Machine

        self._machine = Machine(program.code_object, program.info.name)

    def launch(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        stream: object,
    ) -> None:
        from rdna_jit.emulator.profiling import collected

        profiles = collected()
        if profiles is None:
            self._run(grid, block, args, dynamic_lds, profile=False)
        else:
            profiles.append(self.profile(grid, block, args, dynamic_lds, "V620"))

    def profile(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        card: str,
    ) -> Profile:
        """Launch with counters; the time is estimated for `card`."""
        from rdna_jit.emulator.profile import Profile

        stats = self._run(grid, block, args, dynamic_lds, profile=True)
        return Profile.from_launch(stats, card=card)

    def trace(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        **where: Any,
    ) -> list[Stop]:
        """Run one workgroup until a wave has stopped; see `rdna_jit.emulator.trace.trace`."""
        from rdna_jit.emulator.trace import trace

        bound = self._bind(grid, block, args, dynamic_lds)
        return trace(self._machine, *bound[:4], dynamic_lds=bound[4], **where)

    def _run(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        profile: bool,
    ) -> Any:
        return self._machine.launch(*self._bind(grid, block, args, dynamic_lds), profile)

    def _bind(
        self, grid: Extent, block: Extent, args: tuple[object, ...], dynamic_lds: int
    ) -> tuple[Dim3, Dim3, bytes, tuple[Buffer, ...], int]:
        """What the machine needs: grid, block, argument bytes, buffers, dynamic LDS."""
        from rdna_jit.emulator import Buffer

        buffers: list[Buffer] = []

        def address(slot: Slot, tensor: Any) -> int:
            if tensor.device.type != "cpu":
                expected = "a CPU tensor (the backend is the emulator)"
                raise self.program.signature.error(slot, tensor, expected)
            pointer = int(tensor.data_ptr())
            nbytes = view_nbytes(tensor)
            if nbytes:
                initialised = slot.name not in self.program.outputs
                buffers.append(Buffer(pointer, nbytes, slot.name, initialised))
            return pointer

        packed = self.program.signature.pack(args, address)
        g, b, lds = check_geometry(self.program, grid, block, dynamic_lds)
        return g, b, bytes(packed), tuple(_with_inputs(buffers)), lds


def _with_inputs(buffers: list[Buffer]) -> list[Buffer]:
    """An output that shares memory with an input (a residual added in place) starts with it."""
    inputs = [b for b in buffers if b.initialised]

    def shares(b: Buffer) -> bool:
        return any(
            b.address < i.address + i.nbytes and i.address < b.address + b.nbytes for i in inputs
        )

    return [b._replace(initialised=b.initialised or shares(b)) for b in buffers]


def view_nbytes(tensor: Any) -> int:
    """Bytes from a view's first element to the end of its last one."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * stride for extent, stride in steps)
    return int(last + 1) * int(tensor.element_size())
