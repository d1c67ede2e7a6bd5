"""Entries in a directory: read with every check, published by fsync and rename.

    ROOT/kernels/DIGEST     kernels, one file each
    ROOT/NAME/DIGEST        other kinds (the emulator's translated objects)
    ROOT/locks/             lock files, see ``lock``
    ROOT/tmp/               files being written
    ROOT/quarantine/        bad entries, set aside
    ROOT/usage              how often entries were loaded, see ``usage``

No method raises because of the directory's state: trouble is logged once per cause, a read that
fails is a miss and a write that fails leaves the caller with the bytes it has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rdna_jit.cache import format as entry_format
from rdna_jit.cache import trust, usage
from rdna_jit.cache.report import warn_once

KERNELS = "kernels"
LOCKS, TEMPORARY, QUARANTINE, USAGE = "locks", "tmp", "quarantine", "usage"
RESERVED = frozenset({LOCKS, TEMPORARY, QUARANTINE, USAGE})
KIND_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,31}")
MAX_ENTRY_BYTES = 1 << 29
HEADER_GUESS = 4096
LAST_USE_RESOLUTION = 3600.0
"""Seconds: a last use is written at most this often per entry, so a hit writes nothing."""

_OPEN_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MISSING = (FileNotFoundError, NotADirectoryError)
_TRUST_REMEDY = (
    "change its owner or mode, set RDNA_JIT_CACHE_DIR, or sign the entries "
    "(RDNA_JIT_CACHE_KEY_FILE)"
)
# What an entry itself can be the cause of. Other errors, such as too many open files or a stale
# network handle, pass: they are no reason to throw a good entry away.
_ENTRY_FAULTS = frozenset(
    {
        errno.EACCES,
        errno.EFBIG,
        errno.EINVAL,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENXIO,
        errno.EPERM,
    }
)

publish_step: Callable[[str, str], None] | None = None
"""Called as (step, path) after each step of a publish; the fault tests kill the process there."""


class EntryFile(NamedTuple):
    """One file of a store as a directory scan sees it. Times are seconds since the epoch."""

    kind: str
    key: str
    path: str
    size: int
    created: float
    used: float


class Store:
    """One root directory of entries."""

    def __init__(
        self,
        root: str,
        *,
        readonly: bool = False,
        signing_key: bytes | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self.readonly = readonly
        self.signing_key = signing_key
        self.max_bytes = max_bytes
        self.held: set[tuple[str, str]] = set()
        """(kind, key) of what this process loaded or wrote; eviction leaves it alone."""
        self._grown: int | None = None

    def path(self, kind: str, key: str) -> str:
        # NOTE: kind and key become a file name here and only here.
        if not KIND_PATTERN.fullmatch(kind) or kind in RESERVED:
            raise ValueError(f"not a kind of cache entry: {kind!r}")
        if not entry_format.DIGEST_PATTERN.fullmatch(key):
            raise ValueError(f"not a SHA-256 digest in hex: {key!r}")
        return f"{self.root}/{kind}/{key}"

    def read(self, kind: str, key: str, *, text: bool = False) -> entry_format.Record | None:
        """The entry, fully checked, or None. A bad one is set aside."""
        path = self.path(kind, key)
        try:
            data, status = read_file(path)
        except _MISSING:
            return None
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in _ENTRY_FAULTS:
                self.set_aside(kind, key, why)
            else:
                self._warn(f"read {error.errno}", f"cannot read {path}: {why}")
            return None
        reason = self.distrust(path, status)
        if reason and not entry_format.has_signature(data, self.signing_key):
            self._warn("trust", f"an entry was not loaded: {reason}; {_TRUST_REMEDY}")
            return None
        try:
            record = entry_format.decode(data, key, text=text)
            if record.kind != kind:
                raise entry_format.BadEntry("it is of another kind")
        except entry_format.BadEntry as error:
            self.set_aside(kind, key, str(error))
            return None
        if self.readonly:
            return record
        self._mark_used(path, status)
        self.held.add((kind, key))
        usage.count(f"{self.root}/{USAGE}", key)
        return record

    def publish(self, record: entry_format.Record) -> bool:
        """Write an entry for everybody, whole or not at all. False when that was not possible."""
        if self.readonly:
            return False
        path = self.path(record.kind, record.key)
        try:
            file_mode = self.prepare(record.kind)
            reason = trust.untrusted_reason(os.path.dirname(path))
            if reason and not self.signing_key:
                self._warn("trust", f"kernels are kept in memory only: {reason}; {_TRUST_REMEDY}")
                return False
            data = entry_format.encode(record, self.signing_key)
            self._write(path, data, file_mode)
        except OSError as error:
            self._warn(
                f"write {error.errno}",
                f"kernels are kept in memory only: cannot write {error.filename or path}: "
                f"{error.strerror}",
            )
            return False
        self.held.add((record.kind, record.key))
        self._limit(len(data))
        return True

    def prepare(self, *folders: str) -> int:
        """Make the root (0700) and folders in it where missing; returns the mode for files.

        A root that its owner made readable for others keeps its entries readable for them.
        """
        _make_private(self.root)
        shared = os.stat(self.root).st_mode & 0o055
        for folder in (*folders, TEMPORARY):
            path = f"{self.root}/{folder}"
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                continue
            os.chmod(path, 0o700 | shared)
        return 0o600 | (shared & 0o044)

    def distrust(self, path: str, status: os.stat_result) -> str | None:
        """Why the file at ``path`` could be somebody else's work, or None."""
        return trust.foreign_file(path, status) or trust.untrusted_reason(os.path.dirname(path))

    def set_aside(self, kind: str, key: str, why: str) -> bool:
        """Move a bad entry out of the way, so that it is rebuilt and can be looked at."""
        path = self.path(kind, key)
        moved = False
        if not self.readonly:
            try:
                self.prepare(QUARANTINE)
                os.rename(path, f"{self.root}/{QUARANTINE}/{kind}-{key}-{os.urandom(4).hex()}")
                moved = True
            except OSError:
                # A compile replaces the file where that is possible; where not, it stays a miss.
                pass
        fate = "set aside and rebuilt" if moved else "ignored"
        self._warn(f"bad entry {why}", f"an entry was {fate}: {path}: {why}")
        return moved

    def entries(self, kind: str | None = None) -> Iterator[EntryFile]:
        """Every file that is named like an entry, unread and unverified."""
        for folder in [kind] if kind else self.kinds():
            try:
                scan = os.scandir(f"{self.root}/{folder}")
            except OSError:
                continue
            with scan:
                for item in scan:
                    if not entry_format.DIGEST_PATTERN.fullmatch(item.name):
                        continue
                    try:
                        status = item.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    yield EntryFile(
                        folder,
                        item.name,
                        item.path,
                        status.st_size,
                        status.st_mtime,
                        status.st_atime,
                    )

    def header(self, entry: EntryFile) -> entry_format.Record:
        """Key, kind and metadata alone, unverified, for listings. Does not count as a use.

        Raises OSError or BadEntry.
        """
        data, _ = read_file(entry.path, HEADER_GUESS, _quiet_flags())
        needed = entry_format.header_bytes_needed(data)
        if needed > len(data):
            data, _ = read_file(entry.path, needed, _quiet_flags())
        return entry_format.decode_header(data, entry.key)

    def check(self, kind: str, key: str) -> entry_format.Record:
        """The whole entry, verified, without setting anything aside and without counting as a
        use. Raises OSError, BadEntry, or PermissionError when it would not be trusted."""
        path = self.path(kind, key)
        data, status = read_file(path, None, _quiet_flags())
        record = entry_format.decode(data, key, text=True)
        if record.kind != kind:
            raise entry_format.BadEntry("it is of another kind")
        reason = self.distrust(path, status)
        if reason and not entry_format.has_signature(data, self.signing_key):
            raise PermissionError(errno.EPERM, f"not trusted: {reason}", path)
        return record

    def kinds(self) -> list[str]:
        try:
            names = os.listdir(self.root)
        except OSError:
            return []
        return sorted(n for n in names if KIND_PATTERN.fullmatch(n) and n not in RESERVED)

    def remove(self, kind: str, key: str) -> bool:
        try:
            os.unlink(self.path(kind, key))
        except OSError:
            return False
        return True

    def _write(self, path: str, data: bytes, mode: int) -> None:
        key = os.path.basename(path)
        temporary = f"{self.root}/{TEMPORARY}/{key[:16]}-{os.getpid()}-{os.urandom(6).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                _step("created", temporary)
                file.write(data)
                file.flush()
                os.fchmod(fd, mode)
                _step("written", temporary)
                # Without this a power cut can leave the new name with no bytes behind it.
                os.fsync(fd)
                _step("synced", temporary)
            os.replace(temporary, path)
            _step("renamed", path)
        except BaseException:
            _unlink_quietly(temporary)
            raise

    def _limit(self, nbytes: int) -> None:
        """Evict after this process's first publish and then each time it added 1/16 of the cap:
        adding up the folder costs a stat per entry."""
        if self.max_bytes is None:
            return
        is_first = self._grown is None
        self._grown = (self._grown or 0) + nbytes
        if is_first or self._grown > self.max_bytes // 16:
            from rdna_jit.cache import eviction

            self._grown = 0
            eviction.sweep(self)
            eviction.shrink(self, self.max_bytes, held=self.held)

    def _mark_used(self, path: str, status: os.stat_result) -> None:
        # The access time carries the last use and the modification time the birth. A time in the
        # future comes from a clock that jumped, and is put right too.
        now = time.time()
        if 0 <= now - status.st_atime < LAST_USE_RESOLUTION:
            return
        with contextlib.suppress(OSError):
            os.utime(path, ns=(int(now * 1e9), status.st_mtime_ns))

    def _warn(self, cause: str, message: str) -> None:
        warn_once(cause, self.root, f"kernel cache {self.root}: {message}")


def read_file(path: str, limit: int | None = None, flags: int = 0) -> tuple[bytes, os.stat_result]:
    """A regular file's bytes (the first ``limit`` of them) and the status of what was read."""
    try:
        fd = os.open(path, _OPEN_READ | flags)
    except PermissionError:
        # A network mount that takes root for nobody refuses O_NOATIME.
        if not flags:
            raise
        fd = os.open(path, _OPEN_READ)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        if status.st_size > MAX_ENTRY_BYTES:
            raise OSError(errno.EFBIG, "it is far too large", path)
        size = status.st_size if limit is None else min(limit, status.st_size)
        data = os.read(fd, size)
        while len(data) < size:
            more = os.read(fd, size - len(data))
            if not more:
                break
            data += more
    finally:
        os.close(fd)
    return data, status


def _quiet_flags() -> int:
    """Leave the access time, which is the last use, alone. Only root may for others' files."""
    return os.O_NOATIME if os.geteuid() == 0 else 0


def _make_private(path: str) -> None:
    """mkdir -p with mode 0700 for every directory that it makes."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent == path:
            raise
        _make_private(parent)
        # Once: below a link to nowhere, or in /proc, the parent is there and this still fails.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _step(name: str, path: str) -> None:
    if publish_step is not None:
        publish_step(name, path)
