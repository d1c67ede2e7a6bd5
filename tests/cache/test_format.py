import hashlib
import json
import random
import struct

import pytest

from rdna_jit.cache.format import (
    MAGIC,
    UNSIGNED,
    BadEntry,
    Record,
    decode,
    decode_header,
    encode,
    has_signature,
    header_bytes_needed,
)
from rdna_jit.cache.key import FORMAT_VERSION

KEY = "ab" * 32
RECORD = Record(KEY, "kernels", {"kernel": "axpy", "values": {"K": 4}}, b"\x7fELF" * 50, "src", "")


def test_round_trip():
    assert decode(encode(RECORD), KEY, text=True) == RECORD


def test_text_is_unpacked_only_when_asked_or_when_there_is_a_log():
    assert decode(encode(RECORD), KEY).source == ""
    warned = Record(KEY, "kernels", {}, b"x", "src", "warning: unused")
    assert decode(encode(warned), KEY).log == "warning: unused"


def test_header_can_be_read_alone():
    data = encode(RECORD)
    head = data[: header_bytes_needed(data)]
    assert decode_header(head, KEY).metadata == RECORD.metadata
    with pytest.raises(BadEntry):
        decode_header(head[:-1], KEY)


def test_every_truncation_is_found():
    data = encode(RECORD)
    for length in range(len(data)):
        with pytest.raises(BadEntry):
            decode(data[:length], KEY)
    with pytest.raises(BadEntry):
        decode(data + b"\0", KEY)


def test_every_changed_byte_is_found():
    data = encode(RECORD)
    for position in range(len(data)):
        if 48 <= position < 80:
            continue  # the signature, which an unsigned entry does not use
        changed = bytearray(data)
        changed[position] ^= 1 << random.Random(position).randrange(8)
        with pytest.raises(BadEntry):
            decode(bytes(changed), KEY)


def test_entry_of_another_key_is_refused():
    with pytest.raises(BadEntry, match="another key"):
        decode(encode(RECORD), "cd" * 32)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"#!/bin/sh\n" * 30, b"\x80\x04N." * 40])
def test_other_files_are_refused(data):
    with pytest.raises(BadEntry):
        decode(data, KEY)


def test_signature_binds_the_content_to_the_key():
    secret, other = b"s" * 32, b"t" * 32
    signed = encode(RECORD, secret)
    assert has_signature(signed, secret)
    assert not has_signature(signed, other)
    assert not has_signature(signed, None)
    assert not has_signature(encode(RECORD), secret)
    forged = encode(Record(KEY, "kernels", {}, b"evil"))
    assert not has_signature(forged[:48] + signed[48:80] + forged[80:], secret)
    # A stolen digest and signature over other bytes: the signature holds, the digest does not.
    swapped = forged[:16] + signed[16:80] + forged[80:]
    assert has_signature(swapped, secret)
    with pytest.raises(BadEntry, match="digest"):
        decode(swapped, KEY)


def test_unsigned_and_signed_entries_decode_alike():
    assert decode(encode(RECORD, b"s" * 32), KEY, text=True) == RECORD


def _sealed(header):
    """An entry with any header and the digest that belongs to it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = struct.pack("<8sII", MAGIC, FORMAT_VERSION, len(text))
    return prefix + hashlib.sha256(prefix + text).digest() + UNSIGNED + text


GOOD_HEADER = {
    "key": KEY, "kind": "kernels", "text": 0, "payload": 0, "has_log": False, "metadata": {},
}  # fmt: skip


def test_the_sealed_header_of_these_tests_is_good():
    assert decode(_sealed(GOOD_HEADER), KEY).metadata == {}


@pytest.mark.parametrize(
    "header",
    [
        *({k: v for k, v in GOOD_HEADER.items() if k != name} for name in GOOD_HEADER),
        {**GOOD_HEADER, "text": False},
        {**GOOD_HEADER, "payload": -1},
        {**GOOD_HEADER, "metadata": {"values": [1]}},
        {**GOOD_HEADER, "metadata": {"kernel": 3}},
        {**GOOD_HEADER, "metadata": {"resources": {"axpy": [1]}}},
        b"[" * 100_000,
        b"[]",
        b'{"key":' + b"1" * 5000 + b"}",
    ],
)
def test_a_header_of_the_wrong_shape_is_refused_though_its_digest_is_right(header):
    data = _sealed(header)
    with pytest.raises(BadEntry):
        decode(data, KEY)
    with pytest.raises(BadEntry):
        decode_header(data, KEY)
