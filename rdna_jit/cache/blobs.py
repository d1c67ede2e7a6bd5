"""Named byte strings next to the kernels, with the same checks."""

from __future__ import annotations

from collections.abc import Sequence

from rdna_jit.cache.format import Record
from rdna_jit.cache.store import Store


class BlobStore:
    """Blobs of one kind, by SHA-256 digest in hex of whatever they derive from.

    Trust, digest check, atomic publish and the size cap are those of kernels. There is no memory
    layer and no lock: two processes that make the same blob both publish it, last one wins.
    """

    def __init__(self, kind: str, store: Store | None, layers: Sequence[Store] = ()) -> None:
        self.kind = kind
        self._store = store
        self._layers = tuple(layers)

    def get(self, digest: str) -> bytes | None:
        """The blob, or None when no layer has a good one."""
        for store in (self._store, *self._layers):
            record = store.read(self.kind, digest) if store is not None else None
            if record is not None:
                return record.payload
        return None

    def put(self, digest: str, data: bytes) -> bool:
        """Publish a blob; False when the disk would not take it."""
        if self._store is None:
            return False
        return self._store.publish(Record(digest, self.kind, {}, bytes(data)))
