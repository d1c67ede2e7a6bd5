"""Instruction text -> operands and modifiers.

The disassembler prints one line per instruction; this turns it into a `Decoded` record. Fields
that text cannot carry faithfully (branch targets, swizzle patterns) are taken from the encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

VCC, M0, NULL, EXEC = 106, 124, 125, 126
TTMP = 108

# Names that are scalar registers by another name: (index, count).
_NAMED_SGPRS = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1), "null": (NULL, 1),
}  # fmt: skip
_ENCODING = re.compile(r"_(e32|e64|sdwa|dpp8|dpp|e64_dpp)$")
_REGISTER = re.compile(r"(ttmp|[vs])(?:(\d+)|\[(\d+):(\d+)\])$")
_INTEGER = re.compile(r"-?(0x[0-9a-f]+|\d+)$", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d*(e[-+]?\d+)?$", re.IGNORECASE)
_TOKEN = re.compile(r"[^\s\[(]+(?:\[[^\]]*\]|\([^)]*\))*\|?")

Modifier = int | bool | str | tuple[int, ...]


class Line(Protocol):
    """What the disassembler yields for one instruction."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def words(self) -> tuple[int, ...]: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Operand:
    """One operand. `kind` is

    v, s       vector or scalar registers `index .. index + count - 1`; vcc, exec, m0, null and
               ttmp are scalar registers 106, 126, 124, 125 and 108 upwards
    imm        an inline integer or float (`value`); a float means its bit pattern in the
               operand's own type
    literal    the 32-bit literal that follows the instruction (`value`, unsigned)
    special    anything else (`text`): off, scc, src_shared_base, hwreg(...), ...

    `neg`, `abs` and `sext` are the source modifiers; neg is applied after abs.
    """

    kind: str
    text: str
    index: int = 0
    count: int = 1
    value: int | float = 0
    neg: bool = False
    abs: bool = False
    sext: bool = False

    @property
    def is_vgpr(self) -> bool:
        return self.kind == "v"

    @property
    def is_sgpr(self) -> bool:
        return self.kind == "s"

    @property
    def is_null(self) -> bool:
        return self.kind == "s" and self.index == NULL

    @property
    def is_constant(self) -> bool:
        return self.kind in ("imm", "literal")


@dataclass(frozen=True)
class Decoded:
    """One instruction. `mnemonic` is without its encoding suffix, which is in `encoding`
    ("e32", "e64", "sdwa", "dpp", "dpp8" or ""). `modifiers` maps a name to True, an integer, a
    tuple of integers or text."""

    address: int
    size: int
    words: tuple[int, ...]
    text: str
    mnemonic: str
    encoding: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, Modifier] = field(default_factory=dict)

    @cached_property
    def simm16(self) -> int:
        """The signed 16-bit immediate of SOPP and SOPK encodings."""
        value = self.words[0] & 0xFFFF
        return value - 0x10000 if value & 0x8000 else value

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def branch_target(self) -> int:
        return self.address + 4 + 4 * self.simm16

    def integer(self, modifier: str, default: int = 0) -> int:
        """An integer modifier such as offset; its default where the text leaves it out."""
        value = self.modifiers.get(modifier, default)
        if not isinstance(value, int):
            raise ValueError(f"{modifier} is not an integer in {self.text!r}")
        return value


def decode(lines: Iterable[Line]) -> list[Decoded]:
    """Every instruction of a disassembly, in order."""
    return [decode_line(line) for line in lines]


def decode_line(line: Line) -> Decoded:
    name, _, rest = line.text.strip().partition(" ")
    operands, modifiers = _split(rest)
    suffix = _ENCODING.search(name)
    mnemonic = name[: suffix.start()] if suffix else name
    encoding = suffix.group(1) if suffix else ""
    if mnemonic.startswith("ds_") and "offset" in modifiers:
        modifiers["offset"] = line.words[0] & 0xFFFF
    return Decoded(
        line.address, line.size, tuple(line.words), line.text.strip(), mnemonic, encoding,
        tuple(parse_operand(text) for text in operands), modifiers,
    )  # fmt: skip


def parse_operand(text: str) -> Operand:
    """One operand with its source modifiers: `-|v3|`, `sext(v1)`, `s[4:5]`, `0x3f`, `off` ..."""
    neg = absolute = sext = False
    body = text
    if body.startswith("-") and not _INTEGER.match(body) and not _FLOAT.match(body):
        neg, body = True, body[1:]
    elif body.startswith("neg(") and body.endswith(")"):
        neg, body = True, body[4:-1]
    if body.startswith("|") and body.endswith("|"):
        absolute, body = True, body[1:-1]
    elif body.startswith("abs(") and body.endswith(")"):
        absolute, body = True, body[4:-1]
    if body.startswith("sext(") and body.endswith(")"):
        sext, body = True, body[5:-1]
    kind, index, count, value = _classify(body)
    return Operand(kind, body, index, count, value, neg, absolute, sext)


def _classify(text: str) -> tuple[str, int, int, int | float]:
    if text in _NAMED_SGPRS:
        index, count = _NAMED_SGPRS[text]
        return "s", index, count, 0
    register = _REGISTER.match(text)
    if register:
        bank, single, first, last = register.groups()
        base = TTMP if bank == "ttmp" else 0
        start = int(single if single is not None else first)
        count = 1 if single is not None else int(last) - start + 1
        return ("v" if bank == "v" else "s"), base + start, count, 0
    if _INTEGER.match(text):
        value = int(text, 0)
        inline = -16 <= value <= 64
        return ("imm" if inline else "literal"), 0, 1, value
    if _FLOAT.match(text):
        return "imm", 0, 1, float(text)
    return "special", 0, 1, 0


def _split(rest: str) -> tuple[list[str], dict[str, Modifier]]:
    """Operand texts, and the modifiers that follow the last one separated by blanks."""
    parts = _top_level_commas(rest)
    if not parts:
        return [], {}
    tokens = _TOKEN.findall(parts[-1])
    operands = [t for n, t in enumerate(tokens) if (n == 0 or "(" in t) and not _is_modifier(t)]
    modifiers = [token for token in tokens if token not in operands]
    return parts[:-1] + operands, dict(_modifier(token) for token in modifiers)


def _is_modifier(token: str) -> bool:
    return ":" in token and not {"[", "("} & set(token.split(":", 1)[0])


def _top_level_commas(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _modifier(token: str) -> tuple[str, Modifier]:
    name, colon, value = token.partition(":")
    if not colon or name == "bound_ctrl":
        # NOTE: disassemblers before LLVM 17 print the *set* bit as bound_ctrl:0.
        return name, True
    if value.startswith("["):
        return name, tuple(int(item, 0) for item in value.strip("[]").split(","))
    if _INTEGER.match(value):
        return name, int(value, 0)
    return name, value
