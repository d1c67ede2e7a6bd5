"""The compiled operations (operations.py) of this process, by name.

Groups of them are cache entries. This file is all that a kernel from the cache needs of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from rdna_jit.emulator import jit, loader


class Library:
    """Operations by name; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._images: dict[str, loader.Image] = {}
        self._origins: dict[str, str] = {}
        self.symbols: dict[str, int] = {}

    def provide(self, names: Iterable[str], module: Callable[[list[str]], str]) -> list[str]:
        """Compile what is missing of `names`, from the IR that `module(missing)` gives; returns
        the cache entries that together hold them all."""
        wanted = sorted(set(names))
        with self._lock:
            missing = [name for name in wanted if name not in self.symbols]
            if missing:
                entry = jit.key("operations", *missing)
                data = jit.fetch(entry)
                if data is None or not self._add(entry, data):
                    data = jit.compile_ir(module(missing), "optimised")
                    jit.publish(entry, data)
                    self._add(entry, data)
            return sorted({self._origins[name] for name in wanted})

    def load(self, entries: Sequence[str]) -> bool:
        """Load entries from the cache; False when one is not there."""
        with self._lock:
            for entry in entries:
                if entry not in self._images:
                    data = jit.fetch(entry)
                    if data is None or not self._add(entry, data):
                        return False
        return True

    def _add(self, entry: str, data: bytes) -> bool:
        try:
            image = loader.Image(data, jit.runtime_image().symbols)
        except loader.LoadError:
            return False
        self._images[entry] = image
        for name, address in image.symbols.items():
            if name.startswith("op."):
                self.symbols.setdefault(name, address)
                self._origins.setdefault(name, entry)
        return True


@cache
def library() -> Library:
    return Library()
