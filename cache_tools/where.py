"""Which stores a command works on."""

from __future__ import annotations

import argparse
from pathlib import Path

from rdna_jit.cache import configured
from rdna_jit.cache.store import Store
from rdna_jit.config import config
from rdna_jit.errors import ContractError

MIN_PREFIX = 4


def add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, help="cache folder (default: the one that kernels use)"
    )


def own_store(arguments: argparse.Namespace, create: bool = False) -> Store:
    """The writable store: --dir, which must exist unless `create`, else what the settings say."""
    if arguments.dir and not create and not arguments.dir.is_dir():
        raise ContractError(f"there is no folder {arguments.dir}")
    root = str(arguments.dir) if arguments.dir else configured.root()
    if root is None:
        raise ContractError(
            "there is no cache on disk: RDNA_JIT_CACHE is off or this user has no cache folder; "
            "pass --dir or set RDNA_JIT_CACHE_DIR"
        )
    return Store(root, signing_key=configured.signing_key())


def layers(arguments: argparse.Namespace) -> list[Store]:
    """The read-only layers; --dir leaves none."""
    key = configured.signing_key()
    roots = () if arguments.dir else config.cache_readonly
    return [Store(str(root), readonly=True, signing_key=key) for root in roots]


def all_stores(arguments: argparse.Namespace) -> list[Store]:
    """The writable store and the read-only layers."""
    return [own_store(arguments), *layers(arguments)]


def find(stores: list[Store], prefix: str) -> tuple[Store, str, str]:
    """(store, kind, key) of the one entry whose key starts with `prefix`."""
    if len(prefix) < MIN_PREFIX:
        raise ContractError(f"give at least {MIN_PREFIX} digits of the key")
    found: dict[tuple[str, str], Store] = {}
    for store in stores:
        for entry in store.entries():
            if entry.key.startswith(prefix):
                found.setdefault((entry.kind, entry.key), store)
    if not found:
        raise ContractError(f"no entry starts with {prefix}; `rdna-jit-cache list` shows the keys")
    if len(found) > 1:
        raise ContractError(f"{len(found)} entries start with {prefix}; give more digits")
    [((kind, key), store)] = found.items()
    return store, kind, key
