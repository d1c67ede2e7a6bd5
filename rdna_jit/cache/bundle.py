"""Many entries as one archive, to carry a warm cache to another machine or into an image.

A bundle is a gzipped tar file: ``manifest.json`` first (format, and per entry its kind, key, size
and SHA-256), then one member KIND/KEY per entry in the format of the cache. Equal contents make
equal bundles. Nothing is unpacked by name: members are read into memory, must match the manifest,
and go through the same checks and the same publish as any entry.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from rdna_jit.cache import format as entry_format
from rdna_jit.cache.store import KIND_PATTERN, MAX_ENTRY_BYTES, RESERVED, Store
from rdna_jit.errors import ContractError

MANIFEST = "manifest.json"
FORMAT = "rdna_jit bundle 1"
MAX_MANIFEST_BYTES = 64 << 20


@dataclass
class Summary:
    """What an export or import did: entries written, already there, and (name, why) of the rest."""

    entries: int = 0
    nbytes: int = 0
    present: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def export_bundle(path: str, chosen: Iterable[tuple[Store, str, str]]) -> Summary:
    """Write (store, kind, key) entries to the archive ``path``, signed when a key is set.

    Entries that do not verify are left out and reported. Raises OSError when ``path`` cannot be
    written; an existing file is replaced only by a whole new one.
    """
    summary = Summary()
    contents: dict[str, bytes] = {}
    rows = []
    for store, kind, key in sorted(chosen, key=lambda c: c[1:]):
        name = f"{kind}/{key}"
        if name in contents:
            continue
        try:
            data = entry_format.encode(store.check(kind, key), store.signing_key)
        except (OSError, entry_format.BadEntry) as error:
            summary.refused.append((name, str(error)))
            continue
        contents[name] = data
        digest = hashlib.sha256(data).hexdigest()
        rows.append({"kind": kind, "key": key, "bytes": len(data), "sha256": digest})
        summary.entries += 1
        summary.nbytes += len(data)
    manifest = json.dumps({"format": FORMAT, "entries": rows}, indent=1).encode()
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            _write_archive(file, {MANIFEST: manifest, **contents})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path) from error
        raise
    return summary


def import_bundle(path: str, store: Store, *, allow_unsigned: bool = False) -> Summary:
    """Publish the entries of the archive ``path`` into ``store``.

    With a signing key set, entries without a valid signature are refused unless
    ``allow_unsigned``. Raises ContractError when the file is no bundle, OSError when unreadable.
    """
    summary = Summary()
    try:
        with tarfile.open(path, "r:*") as archive:
            members = iter(archive)
            wanted = _read_manifest(archive, next(members, None))
            for name, data in _members(archive, members, wanted, summary):
                _import_entry(store, wanted[name], name, data, allow_unsigned, summary)
            seen = summary.entries + summary.present + len(summary.refused)
            if seen < len(wanted):
                summary.refused.append(("", f"{len(wanted) - seen} entries are missing"))
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ContractError(
            f"{path} is not a whole bundle ({error}); export it again", name="bundle"
        ) from error
    return summary


def _write_archive(file: IO[bytes], contents: dict[str, bytes]) -> None:
    # NOTE: gzip would store a name and a time; equal contents shall make equal bundles.
    with (
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _read_manifest(archive: tarfile.TarFile, first: tarfile.TarInfo | None) -> dict[str, Any]:
    """Name of each expected member -> its row of the manifest."""
    problem = ContractError("the archive is not an rdna_jit bundle (no manifest)", name="bundle")
    if first is None or first.name != MANIFEST or first.size > MAX_MANIFEST_BYTES:
        raise problem
    try:
        manifest = json.loads(_read(archive, first))
        if manifest["format"] != FORMAT:
            raise ContractError(
                f"the bundle's format is {manifest['format']!r}, this version reads {FORMAT!r}",
                name="bundle",
            )
        rows = {f"{row['kind']}/{row['key']}": row for row in manifest["entries"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, ContractError):
            raise
        raise problem from error
    for row in rows.values():
        if (
            not all(isinstance(row[name], str) for name in ("kind", "key"))
            or not KIND_PATTERN.fullmatch(row["kind"])
            or row["kind"] in RESERVED
            or not entry_format.DIGEST_PATTERN.fullmatch(row["key"])
        ):
            raise ContractError(f"the bundle names an impossible entry: {row}", name="bundle")
    return rows


def _members(
    archive: tarfile.TarFile,
    members: Iterator[tarfile.TarInfo],
    wanted: dict[str, Any],
    summary: Summary,
) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    for member in members:
        row = wanted.get(member.name)
        if row is None or member.name in seen:
            raise ContractError(
                f"the bundle holds {member.name!r}, which its manifest does not list", name="bundle"
            )
        seen.add(member.name)
        if not member.isreg() or member.size != row.get("bytes") or member.size > MAX_ENTRY_BYTES:
            summary.refused.append((member.name, "it does not match the manifest"))
            continue
        data = _read(archive, member)
        if hashlib.sha256(data).hexdigest() != row.get("sha256"):
            summary.refused.append((member.name, "its digest does not match the manifest"))
            continue
        yield member.name, data


def _import_entry(
    store: Store,
    row: dict[str, Any],
    name: str,
    data: bytes,
    allow_unsigned: bool,
    summary: Summary,
) -> None:
    try:
        record = entry_format.decode(data, row["key"], text=True)
        if record.kind != row["kind"]:
            raise entry_format.BadEntry("it is of another kind")
    except entry_format.BadEntry as error:
        summary.refused.append((name, str(error)))
        return
    is_signed = entry_format.has_signature(data, store.signing_key)
    if store.signing_key and not is_signed and not allow_unsigned:
        summary.refused.append((name, "it is not signed by the key of RDNA_JIT_CACHE_KEY_FILE"))
        return
    try:
        store.check(record.kind, record.key)
        summary.present += 1
        return
    except (OSError, entry_format.BadEntry):
        pass
    if store.publish(record):
        summary.entries += 1
        summary.nbytes += len(data)
    else:
        summary.refused.append((name, f"{store.root} could not be written"))


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise ContractError(f"{member.name!r} in the bundle is not a file", name="bundle")
    return file.read()
