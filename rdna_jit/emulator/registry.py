"""The table of instructions: mnemonic -> handler and the modifiers that it consumes.

Most instructions are rows: a mnemonic, the type of the result, the types of the sources, and the
operation as an expression over `Value`s:

    valu("v_add_f32", F32, (F32, F32), lambda b, x, y: x + y)
    salu("s_and_b32", I32, (I32, I32), lambda b, x, y: x & y, scc="nonzero")

`vector.VectorAccess` wraps a vector row in what its encoding can add. Instructions that do more
than map sources to a result are functions under `@op`. An instruction that carries a modifier
which its entry does not declare is unsupported, never approximated.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rdna_jit.emulator.context import Context, Unsupported
from rdna_jit.emulator.decode import Decoded
from rdna_jit.emulator.ir import I1, I16, Type, Value
from rdna_jit.emulator.rounding import directed
from rdna_jit.emulator.vector import (
    DPP,
    OP_SEL,
    OUTPUT,
    PACKED,
    SDWA,
    SOURCE_SIGN,
    VectorAccess,
)

# The context is a `Wave` for handlers that touch memory or control flow.
Handler = Callable[[Any, Decoded], None]
# Called with the context and one Value per source; returns the result.
Compute = Callable[..., Value]

_MODULES = (
    "ops_salu", "ops_valu_int", "ops_valu_float", "ops_half", "ops_compare", "ops_lanes",
    "ops_convert", "ops_memory", "ops_lds", "ops_atomic", "ops_flow",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A handler and every modifier that it consumes (`neg`, `abs`, `sext` mean source signs)."""

    mnemonic: str
    handler: Handler
    modifiers: frozenset[str]


_entries: dict[str, Entry] = {}


def op(*mnemonics: str, modifiers: Iterable[str] = ()) -> Callable[[Handler], Handler]:
    """Register a handler for one or more mnemonics."""

    def register(handler: Handler) -> Handler:
        for mnemonic in mnemonics:
            if mnemonic in _entries:
                raise ValueError(f"{mnemonic} is registered twice")
            _entries[mnemonic] = Entry(mnemonic, handler, frozenset(modifiers))
        return handler

    return register


@cache
def entries() -> dict[str, Entry]:
    """Every supported instruction by mnemonic."""
    for module in _MODULES:
        importlib.import_module(f"rdna_jit.emulator.{module}")
    return _entries


def find(i: Decoded) -> Handler:
    """The handler of an instruction; Unsupported when it or one of its modifiers has none."""
    entry = entries().get(i.mnemonic)
    if entry is None:
        raise Unsupported(f"{i.mnemonic} is not emulated")
    undeclared = carried_modifiers(i) - entry.modifiers
    if undeclared:
        raise Unsupported(f"{i.mnemonic} with {', '.join(sorted(undeclared))} is not emulated")
    return entry.handler


def carried_modifiers(i: Decoded) -> set[str]:
    """The modifiers of an instruction, source signs included."""
    carried = set(i.modifiers)
    for operand in i.operands:
        for sign in ("neg", "abs", "sext"):
            if getattr(operand, sign):
                carried.add(sign)
    return carried


def valu(
    mnemonic: str,
    result: Type,
    sources: tuple[Type, ...],
    compute: Compute,
    *,
    saturate: Compute | None = None,
    accumulate: bool = False,
    moves: bool = False,
    modifiers: Iterable[str] | None = None,
) -> None:
    """A vector row.

    result      I1 writes a lane mask to an SGPR; 16-bit types write one half of the register
    sources     I1 reads a lane mask; 64-bit types read register pairs
    saturate    the operation under clamp, for integer results (float results clamp themselves)
    accumulate  the old destination is passed as a last source
    moves       floats are moved, not computed with
    modifiers   instead of those that the types imply
    """
    if modifiers is None:
        modifiers = _implied(result, sources, saturate is not None)
    count = len(sources)

    def handler(c: Context, i: Decoded) -> None:
        if len(i.operands) != count + 1:
            raise Unsupported(f"{i.mnemonic} with {len(i.operands)} operands")
        destination = i.operands[0]
        access = VectorAccess(c, i, i.operands[1:], moves=moves)
        values = [access.source(k, type) for k, type in enumerate(sources)]
        if accumulate:
            values.append(access.destination(destination, result))
        saturating = saturate if "clamp" in i.modifiers else None
        with directed(c, result):
            computed = c.apply(saturating or compute, values)
        access.write(destination, computed)

    op(mnemonic, modifiers=modifiers)(handler)


def _implied(result: Type, sources: tuple[Type, ...], saturates: bool) -> set[str]:
    """The modifiers that a row's types allow."""
    types = {result, *sources}
    modifiers: set[str] = set()
    if any(type.is_float for type in sources):
        modifiers |= SOURCE_SIGN
    if result.is_float:
        modifiers |= OUTPUT
    if saturates:
        modifiers.add("clamp")
    if any(type.bits == 16 for type in types):
        modifiers |= OP_SEL
    if len(sources) - sources.count(I1) <= 2 and not any(type.bits == 64 for type in types):
        modifiers |= SDWA | DPP
    return modifiers


def packed(
    mnemonic: str,
    lane: Type,
    count: int,
    compute: Compute,
    *,
    saturate: Compute | None = None,
    accumulate: bool = False,
) -> None:
    """A packed row: `compute` sees `count` vectors of 64 values of the 16-bit type `lane`."""
    modifiers = PACKED if lane.is_float or saturate else PACKED - {"clamp"}
    if lane is I16:
        modifiers -= {"neg_lo", "neg_hi"}

    def handler(c: Context, i: Decoded) -> None:
        access = VectorAccess(c, i, i.operands[1:])
        values = [access.packed(k, lane) for k in range(count)]
        if accumulate:
            values.append(access.packed_destination(lane))
        saturating = saturate if "clamp" in i.modifiers else None
        with directed(c, lane):
            computed = c.apply(saturating or compute, values)
        access.write(i.operands[0], computed)

    op(mnemonic, modifiers=modifiers | DPP if accumulate else modifiers)(handler)


def salu(
    mnemonic: str,
    result: Type,
    sources: tuple[Type, ...],
    compute: Callable[..., Value | tuple[Value, Value]],
    *,
    scc: Literal["nonzero"] | None = None,
    inout: bool = False,
) -> None:
    """A scalar row: `compute` returns the result, or the result and the new SCC.

    scc     "nonzero": SCC = (result != 0)
    inout   the old destination comes first among the values
    """

    def handler(c: Context, i: Decoded) -> None:
        destination = i.operands[0]
        signed = i.mnemonic.endswith("_i64")
        values = [
            c.scalar_source(operand, type, signed)
            for operand, type in zip(i.operands[1:], sources, strict=True)
        ]
        if inout:
            values.insert(0, c.scalar_source(destination, result))
        out = compute(c, *values)
        out, condition = out if isinstance(out, tuple) else (out, None)
        if scc == "nonzero":
            condition = out.ne(0)
        c.write(destination, out)
        if condition is not None:
            c.set_scc(condition)

    op(mnemonic)(handler)
