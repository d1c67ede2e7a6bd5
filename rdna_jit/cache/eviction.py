"""Keeps a store below its size cap and free of what killed processes left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Container
from dataclasses import dataclass

from rdna_jit.cache import usage
from rdna_jit.cache.store import QUARANTINE, TEMPORARY, USAGE, EntryFile, Store

TARGET = 0.9
"""Share of the cap that an eviction goes down to, so that the next one is far off."""
STALE_SECONDS = 3600.0
"""A temporary file this old has no writer any more; writing one takes milliseconds."""
QUARANTINE_SECONDS = 7 * 86400.0
QUARANTINE_COUNT = 64


@dataclass(frozen=True)
class Pruned:
    """What an eviction did: files and bytes removed, files and bytes left."""

    removed: int
    freed: int
    kept: int
    kept_bytes: int


def shrink(
    store: Store,
    max_bytes: int | None = None,
    older_than: float | None = None,
    held: Container[tuple[str, str]] = (),
) -> Pruned:
    """Remove the least recently used entries: those unused for ``older_than`` seconds, and as
    many as it takes to come under ``max_bytes``. (kind, key) pairs in ``held`` always stay.
    """
    now = time.time()
    files = list(store.entries())
    total = sum(file.size for file in files)
    target = total if max_bytes is None or total <= max_bytes else int(max_bytes * TARGET)
    if target == total and older_than is None:
        return Pruned(0, 0, len(files), total)
    # A last use in the future comes from a clock that jumped: it counts as now.
    files.sort(key=lambda file: (min(file.used, now), min(file.created, now), file.key))
    removed = freed = 0
    keep: set[str] = set()
    for file in files:
        is_old = older_than is not None and now - file.used > older_than
        is_over = total - freed > target
        if (is_old or is_over) and _remove(store, file, held):
            removed += 1
            freed += file.size
        else:
            keep.add(file.key)
    usage.compact(f"{store.root}/{USAGE}", keep)
    return Pruned(removed, freed, len(files) - removed, total - freed)


def sweep(store: Store) -> int:
    """Remove stale temporaries and old bad entries; returns how many."""
    removed = 0
    for path, status in _files(f"{store.root}/{TEMPORARY}"):
        # abs: a temporary from the future was written before the clock was put back.
        if abs(time.time() - status.st_mtime) > STALE_SECONDS:
            removed += _delete(path, status)
    # The change time, because a rename into quarantine keeps the others.
    aside = sorted(_files(f"{store.root}/{QUARANTINE}"), key=lambda f: f[1].st_ctime, reverse=True)
    for rank, (path, status) in enumerate(aside):
        if rank >= QUARANTINE_COUNT or time.time() - status.st_ctime > QUARANTINE_SECONDS:
            removed += _delete(path, status)
    return removed


def clear(store: Store) -> int:
    """Remove every entry, temporary and bad entry; returns how many entries. Locks stay."""
    removed = sum(store.remove(file.kind, file.key) for file in list(store.entries()))
    for folder in (TEMPORARY, QUARANTINE):
        for path, status in _files(f"{store.root}/{folder}"):
            _delete(path, status)
    with contextlib.suppress(OSError):
        os.unlink(f"{store.root}/{USAGE}")
    return removed


def _remove(store: Store, file: EntryFile, held: Container[tuple[str, str]]) -> bool:
    return (file.kind, file.key) not in held and store.remove(file.kind, file.key)


def _files(folder: str) -> list[tuple[str, os.stat_result]]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as scan:
        for item in scan:
            with contextlib.suppress(OSError):
                found.append((item.path, item.stat(follow_symlinks=False)))
    return found


def _delete(path: str, status: os.stat_result) -> bool:
    try:
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError:
        return False
    return True
