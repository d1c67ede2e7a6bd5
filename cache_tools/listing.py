"""list, show."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from typing import Any

from cache_tools import where
from cache_tools.output import age_text, plain, print_json, print_table, size_text
from rdna_jit.cache import usage
from rdna_jit.cache.format import BadEntry, Record
from rdna_jit.cache.store import KERNELS, USAGE, EntryFile, Store

KEY_DIGITS = 12
PARAMETERS_WIDTH = 60


def configure_list(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument("--all", action="store_true", help="the emulator's objects as well")
    parser.add_argument("--arch", help="only this architecture")
    parser.add_argument("--kernel", help="only kernels whose name contains this")
    parser.add_argument(
        "--sort", choices=("kernel", "size", "age", "used", "hits"), default="kernel"
    )


def run_list(arguments: argparse.Namespace) -> int:
    rows = [
        row
        for store in where.all_stores(arguments)
        for row in _rows(store, None if arguments.all else KERNELS)
    ]
    # The first store that has a key is the one that kernels load it from.
    unique: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        unique.setdefault((row["kind"], row["key"]), row)
    chosen = [row for row in unique.values() if _matches(row, arguments)]
    chosen.sort(key=_order(arguments.sort))
    if arguments.json:
        print_json(chosen)
        return 0
    titles = ("key", "kernel", "parameters", "arch", "size", "vgprs", "lds", "age", "used", "hits")
    print_table(titles, [_cells(row) for row in chosen], right="size vgprs lds age used hits")
    total = sum(row["bytes"] for row in chosen)
    print(f"{len(chosen)} entries, {size_text(total)}")
    return 0


def configure_show(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument("key", metavar="KEY", help="a key or the first digits of one")
    parser.add_argument("--source", action="store_true", help="the specialised source")
    parser.add_argument("--isa", action="store_true", help="the disassembly")
    parser.add_argument("--log", action="store_true", help="the compiler's log")


def run_show(arguments: argparse.Namespace) -> int:
    store, kind, key = where.find(where.all_stores(arguments), arguments.key)
    entry = next(e for e in store.entries(kind) if e.key == key)
    state, record = _verify(store, kind, key)
    facts = _row(store, entry, record, usage.read(f"{store.root}/{USAGE}"))
    facts.update(state=state, path=entry.path)
    if record is not None:
        facts.update(_texts(arguments, record))
    if arguments.json:
        print_json(facts)
    else:
        _print_facts(facts)
    return 0 if record is not None else 1


def _rows(store: Store, kind: str | None) -> list[dict[str, Any]]:
    hits = usage.read(f"{store.root}/{USAGE}")
    rows = []
    for entry in store.entries(kind):
        try:
            record = store.header(entry)
        except (OSError, BadEntry):
            record = None
        rows.append(_row(store, entry, record, hits))
    return rows


def _row(
    store: Store, entry: EntryFile, record: Record | None, hits: Counter[str]
) -> dict[str, Any]:
    metadata = record.metadata if record else {}
    return {
        "key": entry.key,
        "kind": entry.kind,
        "kernel": metadata.get("kernel") or "",
        "values": metadata.get("values") or {},
        "arch": metadata.get("arch") or "",
        "options": metadata.get("options") or [],
        "compiler": metadata.get("compiler") or "",
        "compile_seconds": metadata.get("seconds"),
        "resources": metadata.get("resources") or {},
        "bytes": entry.size,
        "created": entry.created,
        "used": max(entry.used, entry.created),
        "hits": hits[entry.key],
        "root": store.root,
        "readonly": store.readonly,
        "readable": record is not None,
    }


def _matches(row: dict[str, Any], arguments: argparse.Namespace) -> bool:
    return (not arguments.arch or row["arch"] == arguments.arch) and (
        not arguments.kernel or arguments.kernel in row["kernel"]
    )


def _order(name: str) -> Any:
    if name == "kernel":
        return lambda row: (row["kind"], row["kernel"], str(row["values"]), row["arch"], row["key"])
    column, sign = {"size": ("bytes", -1), "age": ("created", 1), "used": ("used", -1)}.get(
        name, ("hits", -1)
    )
    return lambda row: (sign * row[column], row["key"])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    resources: dict[str, int] = next(iter(row["resources"].values()), {})
    name = row["kernel"] or (f"({row['kind']})" if row["readable"] else "(unreadable)")
    now = time.time()
    return (
        row["key"][:KEY_DIGITS],
        name,
        _shortened(",".join(f"{k}={v}" for k, v in row["values"].items())),
        row["arch"],
        size_text(row["bytes"]),
        str(resources.get("vgprs", "")),
        str(resources.get("lds_bytes", "")),
        age_text(now - row["created"]),
        age_text(now - row["used"]),
        str(row["hits"]),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= PARAMETERS_WIDTH else text[: PARAMETERS_WIDTH - 3] + "..."


def _verify(store: Store, kind: str, key: str) -> tuple[str, Record | None]:
    try:
        return "good", store.check(kind, key)
    except BadEntry as error:
        return f"bad: {error}", None
    except OSError as error:
        return f"unusable: {error.strerror}", None


def _texts(arguments: argparse.Namespace, record: Record) -> dict[str, str]:
    texts = {}
    if arguments.source:
        texts["source"] = record.source
    if arguments.log:
        texts["log"] = record.log
    if arguments.isa and record.kind == KERNELS:
        from rdna_jit import disassembler
        from rdna_jit.code_object import CodeObject

        code = CodeObject(record.payload)
        texts["isa"] = "\n".join(disassembler.listing(code, name) for name in code.kernels)
    return texts


def _print_facts(facts: dict[str, Any]) -> None:
    long = {"source", "isa", "log"}
    for name, value in facts.items():
        if name in long or value in ("", None):
            continue
        if name in ("created", "used"):
            value = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(value))}"
        elif name == "resources":
            for kernel, numbers in value.items():
                text = ", ".join(f"{k} {v}" for k, v in numbers.items())
                print(plain(f"{'resources':<16} {kernel}: {text}"))
            continue
        elif name == "values":
            value = ", ".join(f"{k}={v}" for k, v in value.items())
        elif name == "options":
            value = " ".join(map(str, value))
        elif name == "bytes":
            value = f"{value} ({size_text(value)})"
        print(plain(f"{name:<16} {value}"))
    for name in ("source", "log", "isa"):
        if name in facts:
            print(f"\n--- {name} ---{os.linesep}{plain(facts[name]) or '(empty)'}")
