"""RDNA_JIT_RECORD: which specialisations a run used, as JSON lines for ``warm``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from rdna_jit.cache.report import warn_once
from rdna_jit.config import config

_written: set[tuple[str, str]] = set()


def record(
    spec_name: str,
    values: Mapping[str, object],
    arch: str,
    *,
    source: str | None = None,
    options: Sequence[str] = (),
) -> None:
    """Append one specialisation to the file of RDNA_JIT_RECORD, once per process.

    A kernel that no KernelSpec declares passes its specialised ``source`` and ``options``, which
    is all that another machine needs to compile it.
    """
    path = config.record
    if path is None:
        return
    fact: dict[str, object] = {"spec": spec_name, "values": dict(values), "arch": arch}
    if source is not None:
        fact = {**fact, "source": source, "options": list(options)}
    line = json.dumps(fact, sort_keys=True, default=str)
    if (str(path), line) in _written:
        return
    _written.add((str(path), line))
    try:
        # One write of one line in append mode, so that lines of several processes do not mix.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, (line + "\n").encode())
        finally:
            os.close(fd)
    except OSError as error:
        warn_once("record", str(path), f"RDNA_JIT_RECORD={path}: {error.strerror}")
