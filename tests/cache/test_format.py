import random

import pytest

from rdna_jit.cache.format import (
    BadEntry,
    Record,
    decode,
    decode_header,
    encode,
    has_signature,
    header_bytes_needed,
)

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
