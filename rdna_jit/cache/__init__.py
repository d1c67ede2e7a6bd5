"""The kernel cache: compiled code objects by key, in memory and on disk.

See docs/cache.md for the entry format, the rules of trust and what happens under each fault.
"""

from rdna_jit.cache.blobs import BlobStore
from rdna_jit.cache.configured import blobs, default
from rdna_jit.cache.kernels import Entry, KernelCache
from rdna_jit.cache.key import Key
from rdna_jit.cache.recording import record
from rdna_jit.cache.store import Store

__all__ = ["BlobStore", "Entry", "KernelCache", "Key", "Store", "blobs", "default", "record"]
