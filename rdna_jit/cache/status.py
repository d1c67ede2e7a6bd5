"""The state of the cache that the settings describe, for `doctor`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from rdna_jit.cache import configured, trust
from rdna_jit.cache.store import QUARANTINE, TEMPORARY, Store
from rdna_jit.config import config


@dataclass
class RootStatus:
    """One root. ``problems`` are sentences that end with what to do; none means all is well."""

    root: str
    readonly: bool
    exists: bool = False
    mode: str = ""
    entries: int = 0
    nbytes: int = 0
    temporaries: int = 0
    set_aside: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Status:
    """The cache as a whole: `problems` are those of no single root."""

    enabled: bool
    max_bytes: int
    signed: bool
    roots: list[RootStatus] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def status() -> Status:
    """Looks at every root; changes nothing."""
    found = Status(config.cache, config.cache_max_bytes, False)
    key_file = config.cache_key_file
    if key_file is not None:
        try:
            trust.read_signing_key(str(key_file))
            found.signed = True
        except (OSError, ValueError) as error:
            found.problems.append(f"RDNA_JIT_CACHE_KEY_FILE: {error}")
    root = configured.root()
    if root is not None:
        found.roots.append(_root_status(root, readonly=False, signed=found.signed))
    elif config.cache:
        found.problems.append("this user has no cache folder: set RDNA_JIT_CACHE_DIR")
    if config.cache:
        for layer in config.cache_readonly:
            found.roots.append(_root_status(str(layer), readonly=True, signed=found.signed))
    return found


def _root_status(root: str, *, readonly: bool, signed: bool) -> RootStatus:
    store = Store(root, readonly=readonly)
    found = RootStatus(store.root, readonly, os.path.isdir(root))
    if not found.exists:
        if os.path.lexists(root):
            found.problems.append(f"{root} is not a folder: choose another one")
        elif readonly:
            found.problems.append(f"{root} does not exist: correct RDNA_JIT_CACHE_READONLY")
        elif not _can_be_made(root):
            found.problems.append(f"{root} cannot be made: set RDNA_JIT_CACHE_DIR")
        return found
    found.mode = f"{os.stat(root).st_mode & 0o7777:04o}"
    for entry in store.entries():
        found.entries += 1
        found.nbytes += entry.size
    found.temporaries = _count(f"{root}/{TEMPORARY}")
    found.set_aside = _count(f"{root}/{QUARANTINE}")
    reason = trust.untrusted_reason(store.root)
    if reason and not signed:
        found.problems.append(
            f"nothing is loaded from {root}: {reason}. Change owner or mode (chmod go-w), "
            "or sign the entries with RDNA_JIT_CACHE_KEY_FILE"
        )
    if not readonly and not _writable(root):
        found.problems.append(
            f"{root} cannot be written: kernels are compiled again in each process; "
            "set RDNA_JIT_CACHE_DIR, or list it in RDNA_JIT_CACHE_READONLY"
        )
    elif not readonly and _free_bytes(root) < 64 << 20:
        found.problems.append(f"{root}: under 64 MiB are free on its disk; make room")
    return found


def _can_be_made(path: str) -> bool:
    parent = os.path.dirname(path)
    while not os.path.lexists(parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
    return os.path.isdir(parent) and _writable(parent)


def _writable(path: str) -> bool:
    is_readonly_mount = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return os.access(path, os.W_OK | os.X_OK) and not is_readonly_mount


def _free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _count(path: str) -> int:
    try:
        return len(os.listdir(path))
    except OSError:
        return 0
