"""What a cached kernel is called: a digest of everything that can change its code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rdna_jit.config import config

FORMAT_VERSION = 1
"""Version of the entry layout; part of every key, so a new layout never meets old files."""


@dataclass(frozen=True)
class Key:
    """The inputs of one compile and their digest (64 hex digits).

    Paths and times are not inputs: two machines with the same source, options, arch and
    compiler builds make the same key.
    """

    source: str = field(repr=False)
    options: tuple[str, ...]
    arch: str
    compiler: str
    digest: str

    @staticmethod
    def make(source: str, options: Sequence[str], arch: str, compiler_identity: str) -> Key:
        options = tuple(options)
        appended = config.hiprtc_append or ""
        # JSON keeps the fields apart: ("a", "bc") and ("ab", "c") do not collide.
        text = json.dumps([FORMAT_VERSION, arch, compiler_identity, options, appended, source])
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return Key(source, options, arch, compiler_identity, digest)
