"""What the benchmarks that count on the emulator share: rows of a table, options, figures of a
launch, errors against float64."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, ClassVar

import torch

from rdna_jit.emulator.cards import CARDS
from rdna_jit.emulator.profile import Profile
from rdna_jit.kernel import Kernel


class Row:
    """One line of a table. Subclasses are dataclasses that list their columns."""

    COLUMNS: ClassVar[tuple[tuple[str, str], ...]]  # title, and format of the attributes below it

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def line(self) -> str:
        return "".join(form for _, form in self.COLUMNS).format_map(self).rstrip()

    @property
    def limit(self) -> str:
        return f"<={self['bound']:g}" if self["bound"] else ""

    @property
    def ratio(self) -> float:
        return float(self["time_us"] / self["floor_us"])

    @property
    def errors(self) -> str:
        return "" if self["rel_l2"] is None else f"{self['rel_l2']:>9.1e}{self['max_norm']:>9.1e}"

    @classmethod
    def head(cls) -> str:
        return "".join(_heading(title, form) for title, form in cls.COLUMNS).rstrip()


def _heading(title: str, form: str) -> str:
    """The title, as wide as its column and on the same side."""
    width = len(re.sub(r"{\w+:[<>](\d+)[^}]*}", lambda found: " " * int(found[1]), form))
    left = re.match(r"( *){\w+:<", form)
    return f"{left[1] + title:<{width}}" if left else f"{title:>{width}}"


def options_of(document: str | None, rows: tuple[int, ...]) -> argparse.ArgumentParser:
    """The options of a table over shapes; the shapes given are None where there are none."""
    parser = plain_options(document)
    parser.add_argument("--rows", type=int, nargs="*", default=rows, metavar="M")
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("N", "K"))
    return parser


def plain_options(document: str | None, card: bool = True) -> argparse.ArgumentParser:
    assert document is not None
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    if card:
        parser.add_argument("--card", default="V620", choices=sorted(CARDS))
    return parser


def show(head: str, rows: Iterable[Any], as_json: bool) -> None:
    """Print each row as soon as it is measured: a line below `head`, or a JSON object."""
    if not as_json:
        print(head)
    for row in rows:
        print(json.dumps(asdict(row)) if as_json else row.line, flush=True)


def resources(kernel: Kernel) -> dict[str, Any]:
    """What tables say of a kernel, by the names of their fields."""
    found = kernel.resources
    return {
        "vgprs": found.vgprs,
        "spills": found.vgpr_spills + found.sgpr_spills,
        "waves_per_simd": found.waves_per_simd,
    }


def figures(profile: Profile) -> dict[str, Any]:
    """What tables say of a launch; bytes in MB (1e6)."""
    return {
        "requested_mb": profile.bytes_loaded / 1e6,
        "touched_mb": profile.lines_distinct * 128 / 1e6,
        "time_us": profile.time_us,
        "bound_by": profile.bound_by,
    }


def widest_load(kernel: Kernel) -> int:
    """Bytes per lane of the widest vector load: the weights'."""
    widths = re.findall(r"global_load_dword(?:x(\d))?\b", kernel.isa())
    return 4 * max((int(width or 1) for width in widths), default=0)


def errors(y: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Of y against float64: relative in L2, and the largest over the largest value."""
    off = (y.double() - want).abs()
    return float(off.norm() / want.norm()), float(off.max() / want.abs().max())
