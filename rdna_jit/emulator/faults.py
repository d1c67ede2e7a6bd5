"""A fault recorded by the machine -> the error a caller sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rdna_jit.emulator import layout
from rdna_jit.emulator.buffers import Buffer, BufferTable
from rdna_jit.emulator.tables import Site
from rdna_jit.errors import (
    DataRace,
    DivergentBarrier,
    EmulationError,
    MemoryFault,
    MisalignedAccess,
    StepLimit,
    UninitialisedRead,
    UnsupportedInstruction,
)

# Kinds whose `where` is a memory site.
_AT_SITE = (
    layout.MEMORY, layout.RACE, layout.UNINITIALISED, layout.PRIVATE, layout.MISALIGNED,
    layout.DESCRIPTOR, layout.ABSENT,
)  # fmt: skip


class Fault(NamedTuple):
    """What the machine recorded; `where` is a site or an address, depending on the kind."""

    kind: int
    where: int
    lane: int
    address: int
    wave: int
    workgroup: int


class Place(NamedTuple):
    """Explains addresses of one kernel."""

    kernel: str
    sites: list[Site]
    resume_points: list[int]
    unsupported: dict[int, str]
    text_at: Callable[[int], str]
    source_at: Callable[[int], str]
    assertion_at: Callable[[int], str]


def to_error(
    fault: Fault, place: Place, table: BufferTable, grid: tuple[int, int, int], lds: Buffer
) -> EmulationError:
    """The exception for a fault, with everything known about where it happened."""
    pc = _pc(fault, place)
    row, x = divmod(fault.workgroup, grid[0])
    common = {
        "kernel": place.kernel,
        "instruction": place.text_at(pc),
        "pc": pc,
        "source_line": place.source_at(pc),
        "workgroup": (x, row % grid[1], row // grid[1]),
        "wave": fault.wave,
        "lane": fault.lane if 0 <= fault.lane < layout.WAVE else None,
    }
    if fault.kind in (layout.UNSUPPORTED, layout.DESCRIPTOR):
        reason = place.unsupported.get(pc, "buffers other than private memory are not emulated")
        text = place.text_at(pc)
        return UnsupportedInstruction(
            f"{reason}; compile without it or report it",
            mnemonic=text.split(" ", 1)[0],
            modifiers=tuple(t for t in text.split() if ":" in t),
            **common,  # type: ignore[arg-type]
        )
    if fault.address >> 48 == layout.HOST_CALL_APERTURE:
        return UnsupportedInstruction(
            f"{place.kernel} uses printf or another host call, which the emulator does not serve; "
            "remove it",
            **common,  # type: ignore[arg-type]
        )
    if fault.kind in (layout.MEMORY, layout.PRIVATE, layout.MISALIGNED):
        return _memory_fault(fault, place, table, lds, common)
    site = place.sites[fault.where] if fault.kind in (layout.RACE, layout.UNINITIALISED) else None
    kind, message = _PLAIN[fault.kind]
    if fault.kind == layout.TRAP and (assertion := place.assertion_at(pc)):
        message = f"assertion failed: {assertion}"
    if site is not None:
        message = message.format(what=_place_name(fault.address, table, lds), nbytes=site.nbytes)
        if fault.kind == layout.UNINITIALISED and site.space == "lds":
            message += " yet; if another wave does, a barrier is missing"
    return kind(message, **common)  # type: ignore[arg-type]


_PLAIN: dict[int, tuple[type[EmulationError], str]] = {
    layout.STEPS: (
        StepLimit,
        "the wave executed more instructions than its limit; if the loop is meant, raise it with "
        "emulator.checks(steps=...)",
    ),
    layout.BARRIER: (
        DivergentBarrier,
        "waves of one workgroup wait at different barriers, or some have ended while others wait, "
        "or lanes of this wave left out a barrier before; every work-item has to reach every "
        "barrier",
    ),
    layout.ABSENT: (
        DivergentBarrier,
        "this lane goes on behind a barrier that it has left out; every work-item has to reach "
        "every barrier, or to have ended",
    ),
    layout.RACE: (
        DataRace,
        "data race on {what}: another wave touched the same byte without a barrier between "
        "the two accesses",
    ),
    layout.UNINITIALISED: (UninitialisedRead, "{what} is read, but nothing has written it"),
    layout.BRANCH: (EmulationError, "the wave jumped to an address that is not its code"),
    layout.TRAP: (EmulationError, "the kernel executed a trap"),
}


def _pc(fault: Fault, place: Place) -> int:
    if fault.kind in _AT_SITE:
        return place.sites[fault.where].pc
    if fault.kind == layout.BARRIER:
        # a wave goes on after its barrier, which is 4 bytes long
        return place.resume_points[fault.where - 1] - 4
    return fault.where


def _memory_fault(
    fault: Fault, place: Place, table: BufferTable, lds: Buffer, common: dict[str, object]
) -> MemoryFault:
    site = place.sites[fault.where]
    nearest = (lds, fault.address - lds.address) if site.space == "lds" else None
    if nearest is None:
        nearest = table.nearest(fault.address)
    if fault.kind == layout.PRIVATE:
        message = f"{_verb(site)} through a generic pointer crosses a dword of private memory"
    elif fault.kind == layout.MISALIGNED:
        where = f"{_place_name(fault.address, table, lds)} ({fault.address:#x})"
        message = f"{_verb(site)} at {where}, which is not a multiple of {site.alignment}"
    elif nearest is None:
        message = f"{_verb(site)} at {fault.address:#x}, and the launch has no buffers"
    else:
        message = _where(fault.address, site, *nearest)
    buffer = nearest[0] if nearest else Buffer(0, 0)
    kind = MisalignedAccess if fault.kind == layout.MISALIGNED else MemoryFault
    return kind(
        message,
        address=fault.address,
        nbytes=site.nbytes,
        access=site.access,
        space=site.space,
        buffer=buffer.name,
        buffer_address=buffer.address,
        buffer_nbytes=buffer.nbytes,
        **common,  # type: ignore[arg-type]
    )


def _verb(site: Site) -> str:
    return f"{site.space} {site.access} of {site.nbytes} bytes"


def _where(address: int, site: Site, buffer: Buffer, offset: int) -> str:
    name = buffer.name or f"the buffer at {buffer.address:#x}"
    verb = _verb(site)
    size = f"{name} ({buffer.nbytes} bytes)"
    if site.space == "lds":
        return f"{verb} at byte {offset} of the workgroup's LDS ({buffer.nbytes} bytes)"
    if 0 <= offset < buffer.nbytes:
        return f"{verb} at byte {offset} runs past the end of {size}"
    for aperture, space in ((layout.SHARED_APERTURE, "LDS"), (layout.PRIVATE_APERTURE, "private")):
        if address >> 48 == aperture:
            return f"{verb} at byte {address & 0xFFFFFFFF} of the {space} memory, past its end"
    if address < 4096:
        return f"{verb} at {address:#x}: a null pointer; the nearest buffer is {size}"
    if offset < 0:
        return f"{verb} at {address:#x}, {-offset} bytes before the start of {size}"
    return f"{verb} at {address:#x}, {offset - buffer.nbytes} bytes past the end of {size}"


def _place_name(address: int, table: BufferTable, lds: Buffer) -> str:
    if lds.address <= address < lds.address + lds.nbytes:
        return f"LDS byte {address - lds.address}"
    nearest = table.nearest(address)
    if nearest is None:
        return f"address {address:#x}"
    buffer, offset = nearest
    return f"byte {offset} of {buffer.name or hex(buffer.address)}"
