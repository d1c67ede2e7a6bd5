"""Key to code object: memory, then disk, then read-only layers, then the compiler."""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rdna_jit.cache import lock as locks
from rdna_jit.cache.format import Record
from rdna_jit.cache.key import Key
from rdna_jit.cache.store import KERNELS, Store
from rdna_jit.config import config
from rdna_jit.errors import CompileError, RdnaJitError

if TYPE_CHECKING:
    from rdna_jit.compiler import CompileResult

log = logging.getLogger("rdna_jit")
SLOW_COMPILE_SECONDS = 1.0


@dataclass(frozen=True)
class Entry:
    """A compiled kernel.

    ``origin`` says where this call found it: memory, disk, readonly or compiled. ``metadata`` is
    plain data: what the caller named (kernel, spec, values), arch, options, compiler, seconds and
    the registers and LDS of the code object.
    """

    digest: str
    code_object: bytes = field(repr=False)
    source: str = field(repr=False)
    log: str = field(repr=False)
    metadata: dict[str, Any]
    origin: str


class KernelCache:
    """Compiled kernels of one process over one writable store and any read-only ones.

    Safe for threads, processes and fork. With ``store`` None it lives in memory alone. Nothing
    about the disk makes a call fail.
    """

    def __init__(
        self,
        store: Store | None = None,
        layers: Sequence[Store] = (),
        *,
        lock_deadline: float = locks.DEADLINE,
    ) -> None:
        self.store = store
        self.layers = tuple(layers)
        self.lock_deadline = lock_deadline
        self._memory: dict[str, Entry] = {}
        self._locks = locks.ThreadLocks()
        _live.add(self)

    def get_or_compile(
        self,
        key: Key,
        compile: Callable[[], CompileResult],
        metadata: Mapping[str, Any] | None = None,
    ) -> Entry:
        """The kernel of ``key``; ``compile`` runs at most once per key over all processes.

        ``metadata`` (JSON values: kernel, spec, values ...) is stored for listings; it is no part
        of the key. Raises whatever ``compile`` raises, and CompileError when RDNA_JIT_NO_COMPILE
        forbids a compile that would be needed.
        """
        entry = self._memory.get(key.digest)
        if entry is not None:
            return entry
        with self._locks.hold(key.digest):
            entry = self._memory.get(key.digest) or self._find(key)
            if entry is None:
                entry = self._compile(key, compile, dict(metadata or {}))
            self._memory.setdefault(key.digest, replace(entry, origin="memory"))
        return entry

    def get(self, key: Key) -> Entry | None:
        """The kernel if some layer holds it; never compiles."""
        return self._memory.get(key.digest) or self._find(key)

    def rebuild(
        self,
        key: Key,
        compile: Callable[[], CompileResult],
        metadata: Mapping[str, Any] | None = None,
        *,
        why: str,
    ) -> Entry:
        """Compile anew, because the kernel that the cache gave cannot be used; `why` is logged.

        The entry is set aside. A read-only layer's copy stays, behind the new one.
        """
        with self._locks.hold(key.digest):
            if config.no_compile:
                raise _compile_forbidden(key, dict(metadata or {}))
            record = _record(key, compile(), dict(metadata or {}))
            if self.store is not None:
                self.store.set_aside(KERNELS, key.digest, why)
                self.store.publish(record)
            entry = _entry(record, key, "compiled")
            self._memory[key.digest] = replace(entry, origin="memory")
        return entry

    def forget(self) -> None:
        """Empty the memory layer; the disk keeps what it has."""
        self._memory.clear()

    def _find(self, key: Key) -> Entry | None:
        for store in (self.store, *self.layers):
            record = store.read(KERNELS, key.digest) if store is not None else None
            if record is not None and record.payload:
                origin = "disk" if store is self.store else "readonly"
                return _entry(record, key, origin)
        return None

    def _compile(
        self, key: Key, compile: Callable[[], CompileResult], metadata: dict[str, Any]
    ) -> Entry:
        if config.no_compile:
            raise _compile_forbidden(key, metadata)
        if self.store is None:
            return _entry(_record(key, compile(), metadata), key, "compiled")
        with locks.process_lock(self.store, key.digest, self.lock_deadline):
            # Whoever held the lock before us has most likely published it.
            entry = self._find(key)
            if entry is not None:
                return entry
            record = _record(key, compile(), metadata)
            seconds = record.metadata["seconds"]
            if seconds > SLOW_COMPILE_SECONDS:
                name = metadata.get("kernel", "a kernel")
                log.info("compiled %s for %s in %.1f s", name, key.arch, seconds)
            # Published or not, the bytes at hand are right.
            self.store.publish(record)
        return _entry(record, key, "compiled")


_live: weakref.WeakSet[KernelCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in _live:
        cache._locks.reset()


os.register_at_fork(after_in_child=_after_fork)


def _record(key: Key, result: CompileResult, metadata: dict[str, Any]) -> Record:
    facts = {
        **metadata,
        "arch": key.arch,
        "options": list(key.options),
        "compiler": key.compiler,
        "seconds": round(result.seconds, 4),
        "resources": _resources(result.code_object),
    }
    return Record(key.digest, KERNELS, facts, result.code_object, key.source, result.log)


def _entry(record: Record, key: Key, origin: str) -> Entry:
    # The key is a digest of the source, so the stored copy need not be unpacked.
    return Entry(key.digest, record.payload, key.source, record.log, record.metadata, origin)


def _resources(code_object: bytes) -> dict[str, dict[str, int]]:
    """Registers, LDS and scratch per kernel of the object, for listings."""
    from rdna_jit.code_object import CodeObject

    try:
        kernels = CodeObject(code_object).kernels
    except RdnaJitError:
        # Not the cache's business: whoever loads the object says what is wrong with it.
        return {}
    return {name: kernel.resources._asdict() for name, kernel in kernels.items()}


def _compile_forbidden(key: Key, metadata: dict[str, Any]) -> CompileError:
    if "spec" in metadata:
        fact = {"spec": metadata["spec"], "values": metadata["values"], "arch": key.arch}
        remedy = (
            "add this line to the list for `rdna-jit-cache warm --recorded LIST`: "
            f"{json.dumps(fact, sort_keys=True, default=str)}"
        )
    else:
        values = ", ".join(f"{k}={v}" for k, v in metadata.get("values", {}).items())
        remedy = (
            f"run it [{values}] once with RDNA_JIT_RECORD=LIST where compiling is allowed, and "
            "give the list to `rdna-jit-cache warm --recorded LIST`"
        )
    return CompileError(
        f"no cache holds this kernel and RDNA_JIT_NO_COMPILE forbids to compile it; {remedy}",
        kernel=str(metadata.get("kernel", "")),
        arch=key.arch,
        options=key.options,
    )
