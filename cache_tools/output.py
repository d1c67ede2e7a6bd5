"""Printing for people and for scripts, and reading sizes and ages."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def print_json(value: Any) -> None:
    """One JSON document; a list gets a line per item, which is also the fast way to print it."""
    if isinstance(value, list):
        encode = json.JSONEncoder(default=str).encode
        lines = [encode(item) for item in value]
        print("[" + ",\n ".join(lines) + "]")
    else:
        print(json.dumps(value, indent=1, default=str))


def plain(text: str) -> str:
    """Text from an entry as a terminal may have it: control characters are written as escapes."""
    if text.isprintable():
        return text
    keep = "\n\t"
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Aligned columns; `right` names the titles whose columns align right."""
    rows = [[plain(cell.replace("\n", "\\n")) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    numeric = [title in right.split() for title in titles]
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def size_text(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def age_text(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(text: str) -> int:
    """A number of bytes with an optional binary suffix: 500M, 2G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write for example 500M or 2G")
    return int(float(match[1]) * (1 << _UNITS[match[2].upper()]))


def age(text: str) -> float:
    """A length of time in seconds: 90m, 12h, 30d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write for example 12h or 30d")
    return float(match[1]) * _SECONDS[match[2].lower()]


class Progress:
    """A bar on a terminal's standard error; silent elsewhere."""

    WIDTH = 30

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self.total = total
        self.done = 0
        self.is_shown = not quiet and total > 0 and sys.stderr.isatty()

    def step(self, label: str) -> None:
        self.done += 1
        if self.is_shown:
            filled = self.WIDTH * self.done // self.total
            bar = "#" * filled + "." * (self.WIDTH - filled)
            sys.stderr.write(f"\r[{bar}] {self.done}/{self.total} {label[:40]:<40}")
            sys.stderr.flush()

    def end(self) -> None:
        if self.is_shown:
            sys.stderr.write("\n")
