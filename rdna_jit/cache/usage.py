"""How often entries were loaded from disk, without a write per load.

Each process counts in memory and appends its sums to ROOT/usage once, when it ends. A process
that is killed loses its counts; nothing but the ``hits`` column of listings depends on them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import Counter
from collections.abc import Set

MAX_BYTES = 4 << 20
"""A usage file longer than this is summed up by the next eviction."""

_counts: dict[str, Counter[str]] = {}


def count(path: str, key: str) -> None:
    """One load of ``key``, to be written to the usage file ``path`` at exit."""
    _counts.setdefault(path, Counter())[key] += 1


def flush() -> None:
    """Append what this process counted, one line per key."""
    for path, counts in list(_counts.items()):
        data = "".join(f"{key} {hits}\n" for key, hits in counts.items()).encode()
        with contextlib.suppress(OSError):
            _write(path, data, os.O_APPEND)
    _counts.clear()


def read(path: str) -> Counter[str]:
    """Loads per key as far as processes have reported them."""
    hits: Counter[str] = Counter()
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                key, _, number = line.partition(" ")
                if number.strip().isdecimal():
                    hits[key] += int(number)
    except OSError:
        pass
    return hits


def compact(path: str, keep: Set[str]) -> None:
    """Sum up a long file and drop keys that are gone. Counts that arrive meanwhile are lost."""
    with contextlib.suppress(OSError):
        if os.path.getsize(path) <= MAX_BYTES:
            return
        hits = read(path)
        data = "".join(f"{key} {hits[key]}\n" for key in hits if key in keep).encode()
        temporary = f"{path}-{os.getpid()}"
        _write(temporary, data, os.O_TRUNC)
        os.replace(temporary, path)


def _write(path: str, data: bytes, how: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how
    fd = os.open(path, flags, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


atexit.register(flush)
os.register_at_fork(after_in_child=_counts.clear)
