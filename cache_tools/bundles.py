"""export, import."""

from __future__ import annotations

import argparse

from cache_tools import where
from cache_tools.output import print_json, size_text
from rdna_jit.cache import bundle
from rdna_jit.cache.format import BadEntry
from rdna_jit.cache.store import KERNELS, EntryFile, Store
from rdna_jit.config import config
from rdna_jit.errors import ContractError


def configure_export(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument("file", metavar="FILE", help="the archive to write (.tar.gz)")
    parser.add_argument("keys", metavar="KEY", nargs="*", help="only these (first digits will do)")
    parser.add_argument("--arch", help="only this architecture")
    parser.add_argument("--all", action="store_true", help="the emulator's objects as well")


def run_export(arguments: argparse.Namespace) -> int:
    stores = where.all_stores(arguments)
    if arguments.keys:
        chosen = [where.find(stores, key) for key in arguments.keys]
    else:
        kind = None if arguments.all else KERNELS
        chosen = [
            (store, entry.kind, entry.key)
            for store in stores
            for entry in store.entries(kind)
            if not arguments.arch or _arch(store, entry) == arguments.arch
        ]
    if not chosen:
        raise ContractError("there is nothing to export; `rdna-jit-cache list` shows the entries")
    summary = bundle.export_bundle(arguments.file, chosen)
    return _report(arguments, summary, f"wrote {arguments.file}:")


def configure_import(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument("file", metavar="FILE", help="an archive that `export` wrote")
    parser.add_argument(
        "--allow-unsigned",
        action="store_true",
        help="with a signing key set: take entries that it did not sign",
    )


def run_import(arguments: argparse.Namespace) -> int:
    store = where.own_store(arguments, create=True)
    if config.cache_key_file and not store.signing_key and not arguments.allow_unsigned:
        raise ContractError(
            f"the signing key of RDNA_JIT_CACHE_KEY_FILE={config.cache_key_file} cannot be used, "
            "so no signature can be checked; mend the file, or pass --allow-unsigned"
        )
    summary = bundle.import_bundle(arguments.file, store, allow_unsigned=arguments.allow_unsigned)
    return _report(arguments, summary, f"{store.root}:")


def _arch(store: Store, entry: EntryFile) -> str:
    try:
        return str(store.header(entry).metadata.get("arch", ""))
    except (OSError, BadEntry):
        return ""


def _report(arguments: argparse.Namespace, summary: bundle.Summary, label: str) -> int:
    if arguments.json:
        print_json({"file": arguments.file, **vars(summary)})
    else:
        present = f", {summary.present} were there" if summary.present else ""
        print(f"{label} {summary.entries} entries, {size_text(summary.nbytes)}{present}")
        for name, why in summary.refused:
            print(f"left out: {name} {why}".replace("  ", " "))
    return 1 if summary.refused else 0
