"""The cache that the settings describe."""

from __future__ import annotations

import os
from typing import Any

from rdna_jit.cache import trust
from rdna_jit.cache.blobs import BlobStore
from rdna_jit.cache.kernels import KernelCache
from rdna_jit.cache.report import warn_once
from rdna_jit.cache.store import Store
from rdna_jit.config import config

_caches: dict[tuple[Any, ...], KernelCache] = {}


def default() -> KernelCache:
    """The cache of the present settings; equal settings share one."""
    settings = (
        config.cache,
        config.cache_dir,
        config.cache_readonly,
        config.cache_max_bytes,
        config.cache_key_file,
    )
    cache = _caches.get(settings)
    if cache is None:
        cache = _caches.setdefault(settings, _build())
    return cache


def blobs(kind: str) -> BlobStore:
    """Blobs of one kind, such as "emulator", in the default cache's folders."""
    cache = default()
    return BlobStore(kind, cache.store, cache.layers)


def root() -> str | None:
    """The writable root of the present settings, or None when there is none."""
    if not config.cache:
        return None
    if config.cache_dir is not None:
        return os.path.abspath(config.cache_dir)
    try:
        # Here and not above: with RDNA_JIT_CACHE_DIR set it is not needed.
        import platformdirs

        path = platformdirs.user_cache_dir("rdna_jit")
    except (ImportError, OSError, RuntimeError, KeyError) as error:
        path = f"? ({error})"
    if not os.path.isabs(path):
        warn_once(
            "no home",
            path,
            "kernel cache: this user has no cache folder, kernels are kept in memory only; "
            "set RDNA_JIT_CACHE_DIR",
        )
        return None
    return path


def signing_key() -> bytes | None:
    path = config.cache_key_file
    if path is None:
        return None
    try:
        return trust.read_signing_key(str(path))
    except (OSError, ValueError) as error:
        warn_once("key file", str(path), f"kernel cache: no signing key: {error}")
        return None


def _build() -> KernelCache:
    key = signing_key()
    path = root()
    store = Store(path, signing_key=key, max_bytes=config.cache_max_bytes) if path else None
    roots = config.cache_readonly if config.cache else ()
    layers = [Store(str(layer), readonly=True, signing_key=key) for layer in roots]
    return KernelCache(store, layers)
