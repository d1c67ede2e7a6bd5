"""One compile per key: a lock that threads and processes share, with a deadline.

The operating system frees the lock of a process that dies, so a left-over lock file means
nothing. Lock files are a fixed set of slots that keys hash to: they are never deleted, which
would let two holders meet on two files of one name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator

from rdna_jit.cache.report import warn_once
from rdna_jit.cache.store import LOCKS, Store

DEADLINE = 120.0
"""Seconds to wait for another process's compile; after that we compile as well."""
POLL = 0.01
SLOT_DIGITS = 3
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


class ThreadLocks:
    """A lock per key inside this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = lock, users - 1

    def reset(self) -> None:
        """In a forked child: locks that the parent's other threads held will never be freed."""
        self._guard = threading.Lock()
        self._locks = {}


@contextlib.contextmanager
def process_lock(store: Store, key: str, deadline: float = DEADLINE) -> Iterator[bool]:
    """Hold the key's lock over all processes; yields False when it could not be had.

    A lock that fails (read-only or full disk, no locks on a network mount, deadline) costs a
    second compile of the same code, never the launch.
    """
    lock = _acquire(store, key, deadline)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                lock.release()


def _acquire(store: Store, key: str, deadline: float):  # type: ignore[no-untyped-def]
    try:
        # Here and not above: a process that only loads needs no filelock.
        import filelock

        mode = store.prepare(LOCKS)
        path = os.path.join(store.root, LOCKS, key[:SLOT_DIGITS])
        lock = filelock.FileLock(path, timeout=deadline, mode=mode, thread_local=False)
        lock.acquire(poll_interval=POLL)
    except TimeoutError:
        warn_once(
            "lock deadline",
            store.root,
            f"kernel cache {store.root}: another process has held a compile lock for "
            f"{deadline:g} s; compiling without it",
        )
        return None
    except (OSError, ImportError, NotImplementedError) as error:
        # A folder that cannot be written fails the publish as well, which says so.
        if not isinstance(error, OSError) or error.errno in _NO_LOCKS:
            warn_once(
                "lock",
                store.root,
                f"kernel cache {store.root}: no lock between processes ({error}); the same "
                "kernel may be compiled by several",
            )
        return None
    return lock
