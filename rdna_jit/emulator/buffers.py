"""Memory that a kernel may touch, and the tables about it that a launch needs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from rdna_jit.emulator import layout
from rdna_jit.errors import ContractError


class Buffer(NamedTuple):
    """A range of host memory. `name` is for messages; `initialised=False` marks memory whose
    content counts as unwritten until the kernel writes it (see `checks`)."""

    address: int
    nbytes: int
    name: str = ""
    initialised: bool = True


class Registration:
    """A registered range; leaving the `with` block or calling `close` takes it back."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        with _lock:
            _registered.append(self)

    def close(self) -> None:
        with _lock:
            if self in _registered:
                _registered.remove(self)

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_registered: list[Registration] = []
_lock = threading.Lock()


def register(
    ptr: int, nbytes: int, name: str = "registered memory", *, initialised: bool = True
) -> Registration:
    """Let emulated kernels touch `nbytes` bytes of host memory at `ptr`.

    For raw integer pointers; tensors passed to a launch are known by themselves. The range stays
    registered until the returned handle is closed. `initialised=False`: its content counts as
    unwritten, for the check of uninitialised reads.
    """
    if ptr <= 0 or nbytes <= 0:
        raise ContractError(
            f"cannot register {nbytes} bytes at {ptr:#x}; both must be positive", name="ptr"
        )
    return Registration(Buffer(ptr, nbytes, name, initialised))


def registered() -> list[Buffer]:
    """All ranges registered now."""
    with _lock:
        return [r.buffer for r in _registered]


# A buffer with the addresses of its line map and of its shadow.
Row = tuple[Buffer, int | None, int | None]


class BufferTable:
    """The buffers of one launch as the machine sees them.

    `visible` are the caller's; `private` are the launch's own (arguments, packet, image), which
    have neither line maps nor shadows.
    """

    def __init__(
        self,
        visible: Sequence[Buffer],
        private: Sequence[Buffer],
        *,
        lines: bool = False,
        shadow: bool = False,
    ) -> None:
        self.visible = [b for b in dict.fromkeys(visible) if b.nbytes > 0]
        self._lines: list[bytearray] = []
        self._shadows: list[ctypes.Array[ctypes.c_uint32]] = []
        if lines or shadow:
            self.rows = self._observed(lines, shadow)
        else:
            self.rows = [(b, None, None) for b in self.visible]
        self.rows += [(b, None, None) for b in private]

    def table(self, extra: Sequence[Buffer] = ()) -> ctypes.Array[layout.Buffer]:
        """The machine's table, with further private ranges (a thread's scratch)."""
        rows = [*self.rows, *((b, None, None) for b in extra)]
        return (layout.Buffer * len(rows))(
            *(layout.Buffer(b.address, b.nbytes, at, cells) for b, at, cells in rows)
        )

    def _observed(self, lines: bool, shadow: bool) -> list[Row]:
        """Overlapping buffers share one line map and one shadow."""
        rows: list[Row] = []
        for start, end, members in _merge(self.visible):
            line_base = cell_base = 0
            if lines:
                # one more, since a member may begin within a line of the first
                self._lines.append(bytearray((end - start) // layout.LINE_BYTES + 2))
                line_base = _address_of(self._lines[-1])
            if shadow:
                cells = (ctypes.c_uint32 * (end - start))()
                self._shadows.append(cells)
                cell_base = ctypes.addressof(cells)
                _mark_initialised(cells, start, members)
            for b in members:
                skipped = (b.address - start) // layout.LINE_BYTES
                rows.append(
                    (
                        b,
                        line_base + skipped if lines else None,
                        cell_base + 4 * (b.address - start) if shadow else None,
                    )
                )
        return rows

    @property
    def lines_touched(self) -> int:
        """Distinct 128-byte lines that the launch touched."""
        return sum(len(lines) - lines.count(0) for lines in self._lines)

    def nearest(self, address: int) -> tuple[Buffer, int] | None:
        """The visible buffer nearest to an address, and the address relative to its start."""
        if not self.visible:
            return None

        def distance(b: Buffer) -> int:
            return max(b.address - address, address - (b.address + b.nbytes - 1), 0)

        best = min(self.visible, key=distance)
        return best, address - best.address


def _merge(buffers: Iterable[Buffer]) -> list[tuple[int, int, list[Buffer]]]:
    """Groups of overlapping buffers with the range that they cover together."""
    groups: list[tuple[int, int, list[Buffer]]] = []
    for b in sorted(buffers, key=lambda b: b.address):
        if groups and b.address < groups[-1][1]:
            start, end, members = groups[-1]
            groups[-1] = (start, max(end, b.address + b.nbytes), [*members, b])
        else:
            groups.append((b.address, b.address + b.nbytes, [b]))
    return groups


def _mark_initialised(
    cells: ctypes.Array[ctypes.c_uint32], start: int, members: Sequence[Buffer]
) -> None:
    """Cells hold 1 where some buffer over them counts as written."""
    for b in members:
        if b.initialised:
            ones = (ctypes.c_uint32 * b.nbytes).from_buffer(bytearray(b"\1\0\0\0" * b.nbytes))
            ctypes.memmove(ctypes.addressof(cells) + 4 * (b.address - start), ones, 4 * b.nbytes)


def _address_of(data: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
