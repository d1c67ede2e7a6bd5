"""The exception tree.

Every error carries one readable message that ends with what to do, and the same facts as
attributes for programs. All of them survive pickling, so they can cross a process boundary.
"""

from __future__ import annotations

from collections.abc import Sequence


class RdnaJitError(Exception):
    """Base of everything that this package raises on purpose."""


class ContractError(RdnaJitError, ValueError):
    """An argument or a setting breaks a documented contract.

    `name` is the argument or setting, `expected` and `got` describe the difference.
    """

    def __init__(
        self, message: str = "", *, name: str = "", expected: object = None, got: object = None
    ) -> None:
        super().__init__(message or f"{name}: expected {expected}, got {got}")
        self.name = name
        self.expected = expected
        self.got = got


class ContractTypeError(ContractError, TypeError):
    """A contract broken by an argument's type or by the number of arguments."""


class CompileError(RdnaJitError):
    """hiprtc refused a source.

    `excerpt` shows the lines of the first error as file, line and text; `log` is the whole log.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        arch: str = "",
        options: Sequence[str] = (),
        log: str = "",
        excerpt: str = "",
    ) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.arch = arch
        self.options = tuple(options)
        self.log = log
        self.excerpt = excerpt

    def __str__(self) -> str:
        target = f"kernel {self.kernel or '?'} for {self.arch or '?'}"
        if self.options:
            target += f" with {' '.join(self.options)}"
        parts = [f"{self.args[0]} ({target})", self.excerpt, self.log.strip()]
        return "\n".join(part for part in parts if part)


class UnsupportedArchError(RdnaJitError):
    """A GPU architecture that this package does not know, or that lacks what a kernel needs."""

    def __init__(self, message: str, *, arch: str = "", known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.arch = arch
        self.known = tuple(known)


class NoDeviceError(RdnaJitError):
    """The requested backend has no usable device here."""


class ToolchainError(RdnaJitError):
    """A library of the toolchain is missing or unusable.

    `searched` lists every place that was tried with its outcome, `install` is the remedy.
    """

    def __init__(
        self, message: str, *, library: str = "", searched: Sequence[str] = (), install: str = ""
    ) -> None:
        super().__init__(message)
        self.library = library
        self.searched = tuple(searched)
        self.install = install

    def __str__(self) -> str:
        lines = [str(self.args[0])]
        if self.searched:
            lines += ["searched:", *(f"  {place}" for place in self.searched)]
        if self.install:
            lines.append(f"install it with: {self.install}")
        return "\n".join(lines)


class LaunchError(RdnaJitError):
    """A HIP call failed. `code` is the hipError_t, `hip_name` its name."""

    def __init__(
        self, message: str, *, kernel: str = "", code: int = 0, hip_name: str = ""
    ) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.code = code
        self.hip_name = hip_name


class EmulationError(RdnaJitError):
    """The emulator stopped a kernel.

    `instruction` is the disassembled text, `pc` its address in the code object, `source_line` is
    "file:line" when line tables are there, `workgroup` is (x, y, z), `wave` counts in the
    workgroup, `lane` is 0..31.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        instruction: str = "",
        pc: int | None = None,
        source_line: str = "",
        workgroup: tuple[int, int, int] | None = None,
        wave: int | None = None,
        lane: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.instruction = instruction
        self.pc = pc
        self.source_line = source_line
        self.workgroup = workgroup
        self.wave = wave
        self.lane = lane

    def __str__(self) -> str:
        lines = [str(self.args[0])]
        if self.kernel:
            lines.append(f"  kernel       {self.kernel}")
        if self.instruction:
            at = "" if self.pc is None else f" at {self.pc:#x}"
            lines.append(f"  instruction  {self.instruction}{at}")
        if self.source_line:
            lines.append(f"  source       {self.source_line}")
        where = [
            f"{name} {value}"
            for name, value in (
                ("workgroup", self.workgroup),
                ("wave", self.wave),
                ("lane", self.lane),
            )
            if value is not None
        ]
        if where:
            lines.append(f"  where        {', '.join(where)}")
        return "\n".join(lines)


class MemoryFault(EmulationError):
    """An access outside every buffer, or outside the workgroup's LDS.

    `address` is the faulting address, `nbytes` the access width, `access` "load", "store" or
    "atomic", `space` "global", "scalar", "lds" or "scratch"; `buffer` names the nearest buffer,
    which holds `buffer_nbytes` bytes from `buffer_address`.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        instruction: str = "",
        pc: int | None = None,
        source_line: str = "",
        workgroup: tuple[int, int, int] | None = None,
        wave: int | None = None,
        lane: int | None = None,
        address: int = 0,
        nbytes: int = 0,
        access: str = "",
        space: str = "global",
        buffer: str = "",
        buffer_address: int = 0,
        buffer_nbytes: int = 0,
    ) -> None:
        super().__init__(
            message,
            kernel=kernel,
            instruction=instruction,
            pc=pc,
            source_line=source_line,
            workgroup=workgroup,
            wave=wave,
            lane=lane,
        )
        self.address = address
        self.nbytes = nbytes
        self.access = access
        self.space = space
        self.buffer = buffer
        self.buffer_address = buffer_address
        self.buffer_nbytes = buffer_nbytes


class MisalignedAccess(MemoryFault):
    """An access whose address is not a multiple of what the access requires."""


class UnsupportedInstruction(EmulationError):
    """An instruction, or a modifier of it, that the emulator does not implement, was reached."""

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        instruction: str = "",
        pc: int | None = None,
        source_line: str = "",
        workgroup: tuple[int, int, int] | None = None,
        wave: int | None = None,
        lane: int | None = None,
        mnemonic: str = "",
        modifiers: Sequence[str] = (),
    ) -> None:
        super().__init__(
            message,
            kernel=kernel,
            instruction=instruction,
            pc=pc,
            source_line=source_line,
            workgroup=workgroup,
            wave=wave,
            lane=lane,
        )
        self.mnemonic = mnemonic
        self.modifiers = tuple(modifiers)

    @property
    def address(self) -> int | None:
        """Address of the instruction in the code object."""
        return self.pc


class DataRace(EmulationError):
    """Two waves touched the same bytes without a barrier between them, one of them writing."""


class UninitialisedRead(EmulationError):
    """A kernel read memory that nobody had written."""


class DivergentBarrier(EmulationError):
    """Some waves of a workgroup ended or wait elsewhere while others wait at a barrier."""


class StepLimit(EmulationError):
    """A wave executed more instructions than the limit allows."""


class CacheError(RdnaJitError):
    """A defect of the cache. Internal: launches turn it into a warning and compile instead."""
