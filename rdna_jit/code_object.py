"""Code objects: what a compiled kernel needs, read from its ELF file and metadata note."""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any, NamedTuple

from . import arch as archs
from . import msgpack
from .elf import PT_LOAD, STT_FUNC, Elf, Relocation, Segment, Symbol
from .errors import ContractError
from .line_table import LineTable

EM_AMDGPU = 224
NT_AMDGPU_METADATA = 32
# What reading a damaged file can raise.
_MALFORMED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    struct.error,
)
_KINDS = {
    "global_buffer": "pointer",
    "dynamic_shared_pointer": "lds_pointer",
    "by_value": "value",
}


class Argument(NamedTuple):
    """One kernel argument.

    `kind` is "pointer", "lds_pointer", "value", or for what the runtime fills in
    "hidden_...". `size` and `offset` are bytes in the argument buffer.
    """

    name: str
    kind: str
    size: int
    offset: int
    type_name: str = ""
    address_space: str = ""


class Resources(NamedTuple):
    """What one workgroup or wave of a kernel occupies; `waves_per_simd` by registers alone."""

    vgprs: int
    sgprs: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    wavefront_size: int
    waves_per_simd: int


class KernelDescriptor(NamedTuple):
    """The 64-byte descriptor that the hardware's packet processor reads.

    `entry` is the address of the first instruction; scratch is in bytes per lane.
    """

    va: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int


class KernelInfo(NamedTuple):
    """One kernel. `entry` is an address in the code object, `size` the bytes of its code."""

    name: str
    symbol: str
    entry: int
    size: int
    descriptor: KernelDescriptor
    arguments: tuple[Argument, ...]
    hidden: tuple[Argument, ...]
    resources: Resources
    max_workgroup_size: int
    code_object_version: int

    @property
    def signature(self) -> str:
        """The argument list in words, for messages."""
        parts = (
            f"{argument.name or f'argument {i}'}: "
            + (f"{argument.size}-byte value" if argument.kind == "value" else argument.kind)
            for i, argument in enumerate(self.arguments)
        )
        return f"{self.name}({', '.join(parts)})"


# EF_AMDGPU_MACH: what the low byte of the ELF flags names.
_MACHINES = {
    0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x42: "gfx1013", 0x36: "gfx1030",
    0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3E: "gfx1034", 0x3D: "gfx1035",
    0x45: "gfx1036",
}  # fmt: skip


class CodeObject:
    """A gfx10 code object of version 3 to 6. ContractError when `data` is something else.

    `text` is the machine code of all functions from address `text_va`, gaps included;
    `relocations` are what a loader has to apply, usually none.
    """

    def __init__(self, data: bytes) -> None:
        self.data = bytes(data)
        try:
            self._elf = Elf(self.data)
            self._metadata = self._read_metadata()
            self.arch = self._read_arch()
            # ABI byte 1 in the ELF header is code object version 3.
            self.version = self._elf.abi_version + 2
            self.segments: tuple[Segment, ...] = tuple(
                s for s in self._elf.segments if s.type == PT_LOAD
            )
            self.text = self._elf.content(".text")
            self.text_va = self._elf.sections[".text"].address
            self.relocations: tuple[Relocation, ...] = self._elf.relocations
            self.kernels: dict[str, KernelInfo] = {
                row[".name"]: self._kernel(row) for row in self._metadata["amdhsa.kernels"]
            }
        except _MALFORMED as error:
            raise ContractError(
                f"not a usable gfx10 code object ({type(error).__name__}: {error}); "
                "compile the kernel again",
                name="code object",
            ) from None

    @property
    def symbols(self) -> dict[str, Symbol]:
        """Functions, descriptors and device variables by name."""
        return self._elf.symbols

    @cached_property
    def functions(self) -> dict[str, tuple[int, int]]:
        """Name -> (address, bytes) of every function, kernels included, by address."""
        symbols = (s for s in self._elf.symbols.values() if s.type == STT_FUNC)
        return {s.name: (s.va, s.size) for s in sorted(symbols, key=lambda s: s.va)}

    def section(self, name: str) -> bytes:
        """Bytes of an ELF section; empty when there is no such section."""
        return self._elf.content(name)

    @cached_property
    def source_lines(self) -> LineTable:
        """Address -> source file and line; empty when compiled without line tables."""
        return LineTable.from_elf(self._elf)

    def read(self, va: int, count: int) -> bytes:
        """`count` bytes at an address, as they are after loading and before relocation."""
        for segment in self.segments:
            start = va - segment.va
            if start >= 0 and start + count <= segment.mem_size:
                stored = self.data[
                    segment.offset + start : segment.offset + min(start + count, segment.file_size)
                ]
                return stored.ljust(count, b"\0")
        raise ContractError(f"the code object has no {count} bytes at {va:#x}", name="va", got=va)

    def _read_arch(self) -> str:
        """From the metadata; version 3 has the target in the ELF header's flags only."""
        target = self._metadata.get("amdhsa.target")
        if target is None:
            (flags,) = struct.unpack_from("<I", self.data, 48)
            return _MACHINES[flags & 0xFF]
        return str(target).rsplit("-", 1)[-1].split(":")[0]

    def _read_metadata(self) -> dict[str, Any]:
        if self._elf.machine != EM_AMDGPU:
            raise ValueError(f"ELF machine {self._elf.machine} is not AMDGPU")
        for owner, kind, content in self._elf.notes():
            if owner == b"AMDGPU" and kind == NT_AMDGPU_METADATA:
                metadata = msgpack.decode(content)
                if isinstance(metadata, dict):
                    return metadata  # type: ignore[return-value]
        raise ValueError("no metadata note")

    def _kernel(self, row: dict[str, Any]) -> KernelInfo:
        descriptor = self._descriptor(row[".symbol"])
        arguments = tuple(_argument(a) for a in row.get(".args", ()))
        return KernelInfo(
            name=row[".name"],
            symbol=row[".symbol"],
            entry=descriptor.entry,
            size=self._elf.symbols[row[".symbol"].removesuffix(".kd")].size,
            descriptor=descriptor,
            arguments=tuple(a for a in arguments if not a.kind.startswith("hidden_")),
            hidden=tuple(a for a in arguments if a.kind.startswith("hidden_")),
            resources=_resources(row, self.arch),
            max_workgroup_size=row[".max_flat_workgroup_size"],
            code_object_version=self.version,
        )

    def _descriptor(self, symbol: str) -> KernelDescriptor:
        va = self._elf.symbols[symbol].va
        content = self.read(va, 64)
        lds, scratch, kernarg, _, entry = struct.unpack_from("<IIIIq", content)
        rsrc3, rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", content, 44)
        return KernelDescriptor(
            va, lds, scratch, kernarg, va + entry, rsrc1, rsrc2, rsrc3, properties
        )


def _argument(row: dict[str, Any]) -> Argument:
    kind = row[".value_kind"]
    return Argument(
        name=row.get(".name", ""),
        kind=_KINDS.get(kind, kind),
        size=row[".size"],
        offset=row[".offset"],
        type_name=row.get(".type_name", ""),
        address_space=row.get(".address_space", ""),
    )


def _resources(row: dict[str, Any], arch: str) -> Resources:
    vgprs = row[".vgpr_count"]
    return Resources(
        vgprs=vgprs,
        sgprs=row[".sgpr_count"],
        lds_bytes=row[".group_segment_fixed_size"],
        scratch_bytes=row[".private_segment_fixed_size"],
        vgpr_spills=row.get(".vgpr_spill_count", 0),
        sgpr_spills=row.get(".sgpr_spill_count", 0),
        wavefront_size=row[".wavefront_size"],
        waves_per_simd=archs.get(arch).waves_per_simd(vgprs),
    )
