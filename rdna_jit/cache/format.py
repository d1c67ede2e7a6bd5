"""The bytes of an entry: one file that describes and checks itself.

    offset  size  field
         0     8  magic
         8     4  format version, little endian
        12     4  length H of the header in bytes, little endian
        16    32  SHA-256 of bytes 0..16 and of everything from byte 80 on
        48    32  HMAC-SHA256 of that digest, or zeros when the entry is not signed
        80     H  header: JSON with key, kind, section lengths and metadata
      80+H        text (zlib; source and log) and payload (code object), in this order

A decoder trusts no length before the digest agrees, and the header is JSON, so that reading an
entry can only ever produce data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from rdna_jit.cache.key import FORMAT_VERSION

MAGIC = b"RDNAJIT\n"
_PREFIX = struct.Struct("<8sII")
_BODY = _PREFIX.size + 64
UNSIGNED = bytes(32)
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_HEADER_BYTES = 1 << 20
_decode_json = json.JSONDecoder().decode
# Fields that every header has, and types of the metadata that readers look at.
_FIELDS = {
    "key": str, "kind": str, "text": int, "payload": int, "has_log": bool, "metadata": dict,
}  # fmt: skip
_METADATA: dict[str, type | tuple[type, ...]] = {
    "kernel": str, "spec": str, "arch": str, "compiler": str, "values": dict, "options": list,
    "resources": dict, "seconds": (int, float),
}  # fmt: skip


class BadEntry(Exception):
    """The bytes are not a whole, unchanged entry; the message says what is wrong."""


@dataclass(frozen=True)
class Record:
    """One decoded entry. ``payload`` is empty when only the header was read."""

    key: str
    kind: str
    metadata: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""
    source: str = ""
    log: str = ""


def encode(record: Record, signing_key: bytes | None = None) -> bytes:
    text = b""
    if record.source or record.log:
        text = zlib.compress(json.dumps([record.source, record.log]).encode(), 6)
    header = json.dumps(
        {
            "key": record.key,
            "kind": record.kind,
            "text": len(text),
            "has_log": bool(record.log),
            "payload": len(record.payload),
            "metadata": record.metadata,
        },
        separators=(",", ":"),
        default=str,
    ).encode()
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(header))
    body = header + text + record.payload
    digest = hashlib.sha256(prefix + body).digest()
    signature = sign(digest, signing_key) if signing_key else UNSIGNED
    return b"".join((prefix, digest, signature, body))


def sign(digest: bytes, signing_key: bytes) -> bytes:
    return hmac.new(signing_key, b"rdna_jit entry\0" + digest, "sha256").digest()


def has_signature(data: bytes, signing_key: bytes | None) -> bool:
    """Whether ``data`` carries a signature by this key. Says nothing about its digest."""
    if not signing_key or len(data) < _BODY:
        return False
    return hmac.compare_digest(data[48:80], sign(data[16:48], signing_key))


def decode(data: bytes, key: str, *, text: bool = False) -> Record:
    """Check and split an entry; source and log are unpacked when ``text`` is true.

    The log of a compile that said something is always unpacked.
    Raises BadEntry unless every byte is as written and the entry belongs to ``key``.
    """
    header_bytes = _header_length(data)
    view = memoryview(data)
    digest = hashlib.sha256(view[:16])
    digest.update(view[_BODY:])
    if digest.digest() != data[16:48]:
        raise BadEntry("its digest does not match its bytes")
    header = _parse_header(data[_BODY : _BODY + header_bytes])
    if header["key"] != key:
        raise BadEntry("it belongs to another key")
    start = _BODY + header_bytes
    middle = start + header["text"]
    if middle + header["payload"] != len(data):
        raise BadEntry("its length does not match its header")
    source = log = ""
    if middle > start and (text or header["has_log"]):
        source, log = _unpack_text(data[start:middle])
    return Record(key, header["kind"], header["metadata"], data[middle:], source, log)


def decode_header(data: bytes, key: str) -> Record:
    """The header alone, from the first bytes of an entry; nothing is verified but its shape."""
    header_bytes = _header_length(data)
    if len(data) < _BODY + header_bytes:
        raise BadEntry("it is truncated")
    header = _parse_header(data[_BODY : _BODY + header_bytes])
    if header["key"] != key:
        raise BadEntry("it belongs to another key")
    return Record(key, header["kind"], header["metadata"])


def header_bytes_needed(data: bytes) -> int:
    """How many bytes from the start of a file ``decode_header`` needs."""
    return _BODY + _header_length(data)


def _header_length(data: bytes) -> int:
    if len(data) < _BODY:
        raise BadEntry(f"it is truncated ({len(data)} bytes)")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise BadEntry("it is not an rdna_jit entry")
    if version != FORMAT_VERSION:
        raise BadEntry(f"its format is {version}, this version reads {FORMAT_VERSION}")
    if length > MAX_HEADER_BYTES:
        raise BadEntry("its header is too long")
    return int(length)


def _parse_header(data: bytes) -> dict[str, Any]:
    try:
        header = _decode_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise BadEntry("its header is not JSON") from error
    if not isinstance(header, dict):
        raise BadEntry("its header is not an object")
    for name, kind in _FIELDS.items():
        if type(header.get(name)) is not kind:
            raise BadEntry(f"its header has no {name}")
    metadata = header["metadata"]
    shaped = all(
        metadata.get(n) is None or isinstance(metadata[n], kind) for n, kind in _METADATA.items()
    )
    resources = metadata.get("resources") or {}
    if header["text"] < 0 or header["payload"] < 0 or not shaped:
        raise BadEntry("its header is not plausible")
    if not all(isinstance(numbers, dict) for numbers in resources.values()):
        raise BadEntry("its resources are not plausible")
    return header


def _unpack_text(data: bytes) -> tuple[str, str]:
    try:
        source, log = json.loads(zlib.decompress(data))
    except (ValueError, RecursionError, zlib.error) as error:
        raise BadEntry("its text cannot be unpacked") from error
    return str(source), str(log)
