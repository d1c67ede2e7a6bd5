"""What a device has to offer, and the checks that every launch shares."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rdna_jit import arch as archs
from rdna_jit.errors import ContractError, ContractTypeError

if TYPE_CHECKING:
    from rdna_jit.code_object import CodeObject, KernelInfo
    from rdna_jit.device import Device
    from rdna_jit.runtime.arguments import Signature

Extent = int | Sequence[int]
Dim3 = tuple[int, int, int]

_GRID_LIMIT = ((1 << 31) - 1, 65535, 65535)
_MAX_THREADS_PER_DIMENSION = (1 << 32) - 1  # the dispatch packet counts work-items in 32 bits


class Program(NamedTuple):
    """One kernel of one code object, ready to be loaded: what compiling a Kernel gives."""

    name: str
    code_object: CodeObject
    info: KernelInfo
    signature: Signature
    digest: str
    outputs: frozenset[str] = frozenset()  # parameters that are only written

    @property
    def arch(self) -> str:
        return self.code_object.arch


class LaunchFunction(Protocol):
    """The signature of `Kernel.launch`."""

    def __call__(
        self,
        grid: Extent,
        block: Extent,
        *args: object,
        dynamic_lds: int = 0,
        stream: object = None,
    ) -> None: ...


class SlowLaunch(Protocol):
    """The checked way that a fast launch function falls back to."""

    def __call__(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        stream: object,
    ) -> None: ...


class Loaded(ABC):
    """A program loaded on one device. One module per (arch, device)."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @abstractmethod
    def launch(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        stream: object,
    ) -> None:
        """Check everything, pack, launch. `grid` in workgroups, `block` in threads."""

    def fast_launch(self, slow: SlowLaunch) -> LaunchFunction | None:
        """A quicker equal of `launch`, the same at each call, that turns to `slow` in any doubt."""
        return None


class Runtime(ABC):
    """One backend: its devices, and loading programs on them."""

    backend: str

    @abstractmethod
    def device(self, index: int | None = None) -> Device:
        """Device `index`, or the current one."""

    @abstractmethod
    def index_of(self, args: Sequence[object]) -> int:
        """Device of the first tensor among the arguments; the current device without one."""

    @abstractmethod
    def load(self, program: Program, index: int) -> Loaded:
        """Put the program on the device."""

    def before_load(self, kernel: str) -> None:
        """Raise when nothing may be compiled or loaded now (during graph capture)."""
        return None


def dim3(value: Extent, what: str) -> Dim3:
    """An int or a 1..3-tuple as three positive extents."""
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(items) <= 3:
        raise ContractError(f"{what} has 1 to 3 extents, got {value!r}", name=what, got=value)
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__") or hasattr(item, "data_ptr"):
            raise ContractTypeError(
                f"{what} is an int or a tuple of 1 to 3 ints, got {value!r}", name=what, got=value
            )
    x, y, z = (*(operator.index(item) for item in items), 1, 1)[:3]  # type: ignore[arg-type]
    if min(x, y, z) < 1:
        raise ContractError(
            f"{what}={value!r}: every extent must be at least 1; skip the launch when there is "
            "nothing to do",
            name=what,
            got=value,
        )
    return int(x), int(y), int(z)


def check_geometry(
    program: Program, grid: Extent, block: Extent, dynamic_lds: int
) -> tuple[Dim3, Dim3, int]:
    """Launch extents and dynamic LDS bytes, checked against the kernel's and the chip's limits."""
    g, b = dim3(grid, "grid"), dim3(block, "block")
    where = f"kernel {program.signature.entry}"
    threads = b[0] * b[1] * b[2]
    limit = program.info.max_workgroup_size
    if threads > limit:
        raise ContractError(
            f"{where}: block={block!r} has {threads} threads, its __launch_bounds__ allow {limit}",
            name="block",
            expected=limit,
            got=threads,
        )
    for axis, extent, threads_in_axis, most in zip("xyz", g, b, _GRID_LIMIT, strict=True):
        if extent > most or extent * threads_in_axis > _MAX_THREADS_PER_DIMENSION:
            raise ContractError(
                f"{where}: grid={grid!r} is too large along {axis}: at most {most} workgroups and "
                f"{_MAX_THREADS_PER_DIMENSION} threads; loop in the kernel or launch in parts",
                name="grid",
                expected=most,
                got=extent,
            )
    return g, b, check_lds(program, dynamic_lds)


def check_lds(program: Program, dynamic_lds: int) -> int:
    """Dynamic LDS bytes, checked together with the kernel's static LDS."""
    if isinstance(dynamic_lds, bool) or not hasattr(dynamic_lds, "__index__"):
        raise ContractTypeError(
            f"dynamic_lds is a number of bytes, got {dynamic_lds!r}", name="dynamic_lds"
        )
    nbytes = operator.index(dynamic_lds)
    fixed = program.info.resources.lds_bytes
    limit = archs.get(program.arch).lds_max_workgroup
    if nbytes < 0 or fixed + nbytes > limit:
        raise ContractError(
            f"kernel {program.signature.entry}: {fixed} bytes of static and {nbytes} of dynamic "
            f"LDS; a workgroup has 0..{limit} bytes in all",
            name="dynamic_lds",
            expected=limit - fixed,
            got=nbytes,
        )
    return nbytes
