"""Cache trouble becomes a log line: one per cause and process, never an exception."""

from __future__ import annotations

import logging

_log = logging.getLogger("rdna_jit")
_said: set[tuple[str, str]] = set()


def warn_once(cause: str, where: str, message: str) -> None:
    """Log ``message`` unless this process already did so for the same cause and place."""
    if (cause, where) in _said:
        return
    _said.add((cause, where))
    _log.warning("%s", message)


def forget() -> None:
    """Say everything again (a new configuration, a test)."""
    _said.clear()
