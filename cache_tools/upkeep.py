"""verify, prune, clear."""

from __future__ import annotations

import argparse
from typing import Any

from cache_tools import where
from cache_tools.output import age, age_text, print_json, size, size_text
from rdna_jit.cache import eviction
from rdna_jit.cache.format import BadEntry
from rdna_jit.cache.store import Store
from rdna_jit.config import config
from rdna_jit.errors import CacheError


def configure_verify(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument(
        "--repair", action="store_true", help="set bad entries aside and sweep left-overs"
    )


def run_verify(arguments: argparse.Namespace) -> int:
    problems: list[dict[str, Any]] = []
    good = 0
    for store in where.all_stores(arguments):
        for entry in store.entries():
            try:
                store.check(entry.kind, entry.key)
                good += 1
            except PermissionError as error:
                problems.append(_problem(store, entry.path, "untrusted", error.strerror))
            except (OSError, BadEntry) as error:
                problem = _problem(store, entry.path, "bad", str(error))
                if arguments.repair:
                    problem["repaired"] = store.set_aside(entry.kind, entry.key, str(error))
                problems.append(problem)
        if arguments.repair and not store.readonly:
            eviction.sweep(store)
    left = [problem for problem in problems if not problem["repaired"]]
    if arguments.json:
        print_json({"good": good, "problems": problems})
        return 1 if left else 0
    for problem in problems:
        fate = "set aside: " if problem["repaired"] else ""
        print(f"{problem['state']:<9} {fate}{problem['path']}: {problem['why']}")
    print(f"{good} entries are good, {len(problems)} are not")
    if left and not arguments.repair:
        print("`rdna-jit-cache verify --repair` sets bad ones aside; untrusted ones are never used")
    return 1 if left else 0


def configure_prune(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="the cap (default: the configured one)"
    )
    parser.add_argument(
        "--older-than", type=age, metavar="AGE", help="also remove what was not used for this long"
    )


def run_prune(arguments: argparse.Namespace) -> int:
    store = where.own_store(arguments)
    cap = arguments.max_bytes
    if cap is None and arguments.older_than is None:
        cap = config.cache_max_bytes
    pruned = eviction.shrink(store, cap, arguments.older_than)
    swept = eviction.sweep(store)
    if arguments.json:
        print_json({**vars(pruned), "swept": swept, "root": store.root})
        return 0
    limit = f" not used for {age_text(arguments.older_than)}" if arguments.older_than else ""
    print(f"removed {pruned.removed} entries{limit}, {size_text(pruned.freed)}")
    print(f"left {pruned.kept} entries, {size_text(pruned.kept_bytes)}; swept {swept} left-overs")
    return 0


def configure_clear(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)


def run_clear(arguments: argparse.Namespace) -> int:
    store = where.own_store(arguments)
    before = sum(1 for _ in store.entries())
    removed = eviction.clear(store)
    if arguments.json:
        print_json({"removed": removed, "root": store.root})
    else:
        print(f"removed {removed} entries from {store.root}")
    if removed < before:
        raise CacheError(f"{before - removed} entries of {store.root} could not be removed")
    return 0


def _problem(store: Store, path: str, state: str, why: str | None) -> dict[str, Any]:
    return {
        "path": path,
        "state": state,
        "why": why or "",
        "root": store.root,
        "repaired": False,
    }
