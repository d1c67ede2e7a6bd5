"""What the packet processor sets up before a kernel's first instruction."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from rdna_jit.code_object import KernelInfo
from rdna_jit.emulator import layout
from rdna_jit.emulator.layout import HOST_CALL_APERTURE, PRIVATE_APERTURE, SHARED_APERTURE

Extent = tuple[int, int, int]

_PACKET_BYTES = 64
_POISON = layout.POISON * 0x01010101
# Bits of the kernel descriptor's properties, in the order of the SGPRs they ask for: (bit, SGPRs).
_USER_SGPRS = (
    ("scratch_descriptor", 0, 4), ("dispatch_packet", 1, 2), ("queue", 2, 2), ("kernarg", 3, 2),
    ("dispatch_id", 4, 2), ("flat_scratch", 5, 2), ("scratch_size", 6, 1),
)  # fmt: skip
_DYNAMIC_STACK = 1 << 11
_DYNAMIC_STACK_BYTES = 16384


class Geometry(NamedTuple):
    """Grid in workgroups, workgroup in work-items, LDS bytes a launch adds to the static ones."""

    grid: Extent
    block: Extent
    dynamic_lds: int = 0

    @property
    def workgroups(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def work_items(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def waves(self) -> int:
        """Waves of one workgroup."""
        return -(-self.work_items // layout.WAVE)

    @property
    def last_exec(self) -> int:
        """Active lanes of a workgroup's last wave."""
        rest = self.work_items % layout.WAVE
        return (1 << rest) - 1 if rest else 0xFFFF_FFFF


def scratch_bytes_per_wave(kernel: KernelInfo) -> int:
    """Private memory of one wave; kernels with a stack of unknown depth get some more."""
    descriptor = kernel.descriptor
    per_lane = descriptor.scratch_bytes
    if descriptor.properties & _DYNAMIC_STACK:
        per_lane += _DYNAMIC_STACK_BYTES
    return per_lane * layout.WAVE


def argument_block(kernel: KernelInfo, explicit: bytes, geometry: Geometry) -> bytearray:
    """The kernel argument segment: the caller's arguments and the hidden ones."""
    # Compilers read whole 16-byte words of the segment, which the runtime allocates so.
    nbytes = max(kernel.descriptor.kernarg_bytes, len(explicit), 16)
    block = bytearray(-(-nbytes // 16) * 16)
    block[: len(explicit)] = explicit
    values = _hidden_values(geometry)
    for argument in kernel.hidden:
        value = values.get(argument.kind, 0)
        block[argument.offset : argument.offset + argument.size] = value.to_bytes(
            argument.size, "little"
        )
    return block


def _hidden_values(geometry: Geometry) -> dict[str, int]:
    values = {
        "hidden_grid_dims": max(
            (n for n in (1, 2, 3) if geometry.grid[n - 1] * geometry.block[n - 1] > 1), default=1
        ),
        "hidden_dynamic_lds_size": geometry.dynamic_lds,
        "hidden_shared_base": SHARED_APERTURE << 16,
        "hidden_private_base": PRIVATE_APERTURE << 16,
        # Unoptimised code lists every hidden argument, so a kernel that has these may not use them.
        "hidden_hostcall_buffer": HOST_CALL_APERTURE << 48,
        "hidden_printf_buffer": HOST_CALL_APERTURE << 48,
    }
    for axis, blocks, size in zip("xyz", geometry.grid, geometry.block, strict=True):
        values[f"hidden_block_count_{axis}"] = blocks
        values[f"hidden_group_size_{axis}"] = size
    return values


def dispatch_packet(geometry: Geometry) -> bytes:
    """The HSA dispatch packet: workgroup sizes, and the grid in work-items."""
    sizes = [n * b for n, b in zip(geometry.grid, geometry.block, strict=True)]
    return struct.pack("<HHHHHHIII", 0, 0, *geometry.block, 0, *sizes).ljust(_PACKET_BYTES, b"\0")


def user_sgprs(
    kernel: KernelInfo, *, kernarg: int, packet: int, scratch: int, scratch_bytes: int
) -> list[int]:
    """The SGPRs that a wave starts with, before the workgroup ids."""
    words: dict[str, Callable[[], list[int]]] = {
        "scratch_descriptor": lambda: [*_pair(scratch), scratch_bytes, layout.SCRATCH_MARK],
        "dispatch_packet": lambda: _pair(packet),
        "kernarg": lambda: _pair(kernarg),
        "scratch_size": lambda: [kernel.descriptor.scratch_bytes],
    }
    sgprs: list[int] = []
    for name, bit, count in _USER_SGPRS:
        if kernel.descriptor.properties >> bit & 1:
            sgprs += words[name]() if name in words else [0] * count
    return sgprs


def scratch_sgpr(kernel: KernelInfo, user: int) -> int:
    """The SGPR that gets the wave's scratch offset, or -1: after the ids and the group info."""
    rsrc2 = kernel.descriptor.rsrc2
    if not rsrc2 & 1:
        return -1
    return user + (rsrc2 >> 7 & 0xF).bit_count()


def workgroup_id_mask(kernel: KernelInfo) -> int:
    """Which of x, y, z a wave gets in SGPRs."""
    return kernel.descriptor.rsrc2 >> 7 & 7


def work_item_id_count(kernel: KernelInfo) -> int:
    """How many of x, y, z a wave gets in VGPRs."""
    return (kernel.descriptor.rsrc2 >> 11 & 3) + 1


@lru_cache(maxsize=64)
def work_item_ids(block: Extent, wanted: int) -> ctypes.Array[ctypes.c_uint32]:
    """Ids of every lane as [wave][x, y, z][lane]; poison after the first `wanted` of the three."""
    x, y, z = block
    waves = -(-x * y * z // layout.WAVE)
    ids = []
    for wave in range(waves):
        items = range(wave * layout.WAVE, (wave + 1) * layout.WAVE)
        ids += [n % x for n in items]
        ids += [n // x % y for n in items] if wanted > 1 else [_POISON] * layout.WAVE
        ids += [n // (x * y) for n in items] if wanted > 2 else [_POISON] * layout.WAVE
    return (ctypes.c_uint32 * len(ids))(*ids)


def _pair(value: int) -> list[int]:
    return [value & 0xFFFF_FFFF, value >> 32]
