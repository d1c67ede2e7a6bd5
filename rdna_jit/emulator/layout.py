"""Structures shared with the IR in runtime/: see types.ll for what each field means."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

WAVE: Final = 32
POISON: Final = 0xFD
LINE_BYTES: Final = 128
# Bits 63:48 of generic addresses that mean LDS or scratch; no host pointer has them.
SHARED_APERTURE: Final = 0x1000
PRIVATE_APERTURE: Final = 0x2000
# The same of the buffers for host calls: a kernel that makes none never touches them.
HOST_CALL_APERTURE: Final = 0x3000
UNLIMITED: Final = 1 << 62

# Fault kinds recorded by `fault`.
MEMORY, UNSUPPORTED, STEPS, BARRIER, RACE, UNINITIALISED, MISALIGNED, BRANCH, TRAP = range(1, 10)
PRIVATE, DESCRIPTOR, ABSENT = 10, 11, 12
# The last word of the descriptor of private memory, by which buffer accesses know it.
SCRATCH_MARK: Final = 0x5C4A7C4
# Bits of Env.checks.
CHECK_RACES, CHECK_UNINITIALISED, CHECK_MISALIGNED = 1, 2, 4
# Access kinds of the lane-wise helpers.
LOAD, STORE, ATOMIC, ATOMIC_RETURN = range(4)

_RUNTIME_FILES = (
    "types.ll", "memory.ll", "lanes.ll", "profile.ll", "checks.ll", "rounding.ll", "driver.ll",
)  # fmt: skip


class Buffer(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("lines", ctypes.c_void_p),
        ("shadow", ctypes.c_void_p),
    ]


class Slot(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_uint64),
        ("lane_limit", ctypes.c_uint64),
        ("fast_limit", ctypes.c_uint64),
        ("lines", ctypes.c_void_p),
    ]


class Traffic(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_int64), ("units", ctypes.c_int64), ("conflicts", ctypes.c_int64)]


class Env(ctypes.Structure):
    """What one host thread works with."""

    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("traffic", ctypes.c_void_p),
        ("lds", ctypes.c_void_p),
        ("lds_bytes", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("fault_kind", ctypes.c_int32),
        ("fault_lane", ctypes.c_int32),
        ("fault_where", ctypes.c_int64),
        ("fault_address", ctypes.c_uint64),
        ("lds_shadow", ctypes.c_void_p),
        ("wave", ctypes.c_int64),
        ("workgroup", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("epoch_first", ctypes.c_int64),
        ("state", ctypes.c_void_p),
        ("addresses", ctypes.c_uint64 * WAVE),
        ("split", ctypes.c_uint8 * 512),
        ("packed", ctypes.c_uint8 * 512),
        ("checks", ctypes.c_int64),
        ("image", ctypes.c_uint64),
        ("offsets", ctypes.c_uint32 * WAVE),
        ("load_ns", ctypes.c_int64),
        ("scalar_ns", ctypes.c_int64),
        ("private", ctypes.c_uint64),
        ("private_bytes", ctypes.c_int64),
        ("line_ps", ctypes.c_int64),
    ]


class State(ctypes.Structure):
    """The registers of one wave."""

    _fields_ = [
        ("sgprs", ctypes.c_uint32 * 128),
        ("scc", ctypes.c_uint32),
        ("resume", ctypes.c_uint32),
        ("steps", ctypes.c_int64),
        ("ended", ctypes.c_int64),
        ("clock", ctypes.c_int64 * 70),
        ("mode", ctypes.c_uint32),
        ("absent", ctypes.c_uint32),
        ("padding", ctypes.c_int64 * 134),
        ("vgprs", ctypes.c_uint32 * WAVE * 256),
    ]


class Grid(ctypes.Structure):
    """A launch, as one host thread sees it."""

    _fields_ = [
        ("wave_function", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("vgpr_bytes", ctypes.c_int64),
        ("waves", ctypes.c_int64),
        ("x", ctypes.c_int64),
        ("y", ctypes.c_int64),
        ("user_sgprs", ctypes.c_void_p),
        ("user_sgpr_count", ctypes.c_int64),
        ("workgroup_ids", ctypes.c_int64),
        ("work_item_ids", ctypes.c_void_p),
        ("scratch_sgpr", ctypes.c_int64),
        ("scratch_bytes", ctypes.c_int64),
        ("last_exec", ctypes.c_uint32),
        ("steps", ctypes.c_int64),
        ("descending", ctypes.c_int64),
        ("one_barrier", ctypes.c_int64),
        ("waited_ns", ctypes.c_int64),
        ("leading_ns", ctypes.c_int64),
        ("scratch", ctypes.c_uint64),
    ]


def field(structure: type[ctypes.Structure], name: str) -> int:
    """The index of a field in the IR type of the same name."""
    return [row[0] for row in structure._fields_].index(name)


@cache
def runtime_source() -> str:
    """The runtime module as IR text."""
    folder = Path(__file__).with_name("runtime")
    return "\n".join((folder / name).read_text() for name in _RUNTIME_FILES)


@cache
def type_lines() -> str:
    """The type definitions that every module shares."""
    return "\n".join(line for line in runtime_source().splitlines() if line.startswith("%"))
