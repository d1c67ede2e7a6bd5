"""The oracle's table: one row per mnemonic, its operand types and its meaning.

Rows are grouped by how an instruction is written and what state it touches; the modules `scalar`,
`integer`, `floating`, `half`, `convert`, `compare` and `lanes` fill the table when imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.emulator.oracle.floats import Format
from tests.emulator.oracle.types import B32, Type


@dataclass(frozen=True)
class Row:
    """A vector ALU instruction. `meaning` takes one decoded value per source.

    accumulates: the old destination is the last argument of `meaning`, and is no text operand.
    carry_in: a carry bit (0 or 1) is the last argument; written as the last operand.
    vcc_in: the same, but VCC is read without being written in the text.
    carry_out: `meaning` returns (value, bit); the bit's mask is written as the second operand.
    result: "vector" (a VGPR), "mask" (a compare: VCC or an SGPR), "exec" (cmpx).
    packed: `meaning` is applied to each 16-bit half; op_sel and op_sel_hi choose source halves.
    through: a format that the result is rounded to before the destination's.
    """

    name: str
    dst: Type
    srcs: tuple[Type, ...]
    meaning: Callable
    accumulates: bool = False
    carry_in: bool = False
    vcc_in: bool = False
    carry_out: bool = False
    result: str = "vector"
    packed: bool = False
    mix: bool = False
    through: Format | None = None
    literal: int | None = None  # position of the operand that is a literal constant
    high_half: bool = False  # writes bits 31:16 and keeps 15:0
    arch: str = "gfx1030"  # one that has it


VECTOR: dict[str, Row] = {}


def vector(
    names: str, dst: Type, srcs: tuple[Type, ...], meaning: Callable, **properties: object
) -> None:
    """Add a row under each of the space-separated names."""
    for name in names.split():
        if name in VECTOR:
            raise ValueError(f"{name} is in the table twice")
        VECTOR[name] = Row(name, dst, srcs, meaning, **properties)


@dataclass(frozen=True)
class ScalarRow:
    """A scalar ALU instruction. `meaning` takes the sources and what `takes` names of the state.

    scc: "keep"; "nonzero" (of the result); "given": `meaning` returns (value, scc)
    takes: "scc", "old" (the destination), "exec", in the order of the arguments
    immediates: of a SOPK, as its last source
    sets_exec: `meaning` returns (value, new EXEC)
    """

    name: str
    dst: Type | None
    srcs: tuple[Type, ...]
    meaning: Callable
    scc: str = "keep"
    takes: tuple[str, ...] = ()
    immediates: tuple[int, ...] = ()
    sets_exec: bool = False


SCALAR: dict[str, ScalarRow] = {}


def scalar(
    names: str,
    dst: Type | None,
    srcs: tuple[Type, ...],
    meaning: Callable,
    scc: str = "keep",
    **properties: object,
) -> None:
    """Add a scalar row under each of the space-separated names."""
    for name in names.split():
        if name in SCALAR:
            raise ValueError(f"{name} is in the table twice")
        SCALAR[name] = ScalarRow(name, dst, srcs, meaning, scc, **properties)


def bit(value: int, position: int) -> int:
    """One bit of a value."""
    return value >> position & 1


def registers(first: int, of: Type = B32, letter: str = "v") -> str:
    """The text of a register operand of a type."""
    count = max(1, of.bits // 32)
    return f"{letter}{first}" if count == 1 else f"{letter}[{first}:{first + count - 1}]"
