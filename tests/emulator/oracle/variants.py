"""The forms of a row that are tested: encodings, operand kinds and modifiers.

Candidates are made from the operand types; the assembler says which of them exist. Modifier
combinations rotate over the mnemonics, so that each mnemonic has a few and all have many.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from tests.emulator.oracle.assembler import refused_lines
from tests.emulator.oracle.dpp import CONTROLS, Dpp
from tests.emulator.oracle.floats import number, pack
from tests.emulator.oracle.forms import SGPR, VGPR, WHOLE, Form, Operand, Sdwa
from tests.emulator.oracle.rows import VECTOR
from tests.emulator.oracle.table import Row
from tests.emulator.oracle.types import Pair, Type

NONE = (False, False, False)
SELECTS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1")
UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")
# These run under every DPP control and mask; the others take turns.
DPP_WITNESSES = ("v_mov_b32", "v_sub_f16")


def forms(row: Row) -> list[Form]:
    """Every tested form of a row, the assembler's refusals left out."""
    return _existing()[row.name]


@cache
def _existing() -> dict[str, list[Form]]:
    kept: dict[str, list[Form]] = {name: [] for name in VECTOR}
    for arch in {row.arch for row in VECTOR.values()}:
        candidates = [
            form for row in VECTOR.values() if row.arch == arch for form in _candidates(row)
        ]
        refused = refused_lines([form.text for form in candidates], arch)
        for index, form in enumerate(candidates):
            if index not in refused:
                kept[form.mnemonic].append(form)
    return kept


def _candidates(row: Row) -> Iterator[Form]:
    seen = set()
    for form in _all_candidates(row):
        if form.text not in seen:
            seen.add(form.text)
            yield form


def _all_candidates(row: Row) -> Iterator[Form]:
    count = len(row.srcs)
    operands = tuple(_literal(row.srcs[k]) if k == row.literal else VGPR for k in range(count))
    short, long = Form(row, "e32", operands), Form(row, "e64", operands)
    turn = zlib.crc32(row.name.encode())
    yield short
    yield from _with_operands(short, turn, (0,))
    if row.literal is not None:
        return
    yield long
    yield from _with_operands(long, turn, tuple(range(count)))
    yield from _signs(row, long)
    yield from _outputs(row, long, turn)
    yield from _halves(row, long, turn)
    yield from _sdwa(row, operands, turn)
    yield from _dpp(row, operands, turn)


# Constants.

INTEGERS = (0, 1, 64, -1, -16, 5)
FLOATS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
LITERALS = (0x3E9A1234, 0xC0DE55AA, 0x00008001, 0x7F)


def _constant(of: Type | Pair, value: int | float, packed: bool) -> Operand:
    """An inline constant: an integer's own bits, a float's pattern in the operand's type.

    Packed operands see the 16-bit pattern in the low half and zero in the high one; other integer
    constants are sign-extended to the operand.
    """
    if isinstance(value, int):
        return Operand("c", str(value), value & 0xFFFFFFFFFFFFFFFF)
    element = of.element if isinstance(of, Pair) else of
    width = 32 if element.width not in (16, 64) else element.width
    return Operand("c", str(value), pack(Type("f", width).format, number(value)))


def _literal(of: Type | Pair, turn: int = 0) -> Operand:
    bits = LITERALS[turn % len(LITERALS)]
    if isinstance(of, Pair) or of.width == 16:
        bits &= 0xFFFF
    return Operand("c", hex(bits), bits)


def _with_operands(form: Form, turn: int, positions: tuple[int, ...]) -> Iterator[Form]:
    """A scalar, an inline integer, a float constant and a literal in some positions."""
    row = form.row
    k = positions[turn % len(positions)]
    other = positions[(turn // 7 + 1) % len(positions)]
    if row.literal in (k, other) or max(of.width for of in row.srcs) > 64:
        return
    integer, value = INTEGERS[turn // 3 % len(INTEGERS)], FLOATS[turn // 5 % len(FLOATS)]
    yield _replaced(form, k, SGPR)
    if row.mix:
        return  # the meaning of a constant depends on op_sel_hi; see _halves
    yield _replaced(form, other, _constant(row.srcs[other], integer, row.packed))
    if _element(row.srcs[k]).is_float:
        yield _replaced(form, k, _constant(row.srcs[k], value, row.packed))
    if row.srcs[k].width <= 32 and not row.packed and not isinstance(row.srcs[k], Pair):
        yield _replaced(form, k, _literal(row.srcs[k], turn // 11))


def _element(of: Type | Pair) -> Type:
    return of.element if isinstance(of, Pair) else of


def _replaced(form: Form, k: int, operand: Operand) -> Form:
    operands = (*form.operands[:k], operand, *form.operands[k + 1 :])
    return replace(form, operands=operands)


# Source signs, clamp, omod.


def _signs(row: Row, form: Form) -> Iterator[Form]:
    if row.packed or any(isinstance(of, Pair) for of in row.srcs):
        return
    floats = tuple(of.is_float for of in row.srcs)
    if not any(floats):
        return
    first = floats.index(True)
    alternate = tuple(f and bool(k % 2) for k, f in enumerate(floats))
    one = tuple(k == first for k in range(len(floats)))
    yield replace(form, neg=one, abs=alternate)
    yield replace(form, neg=alternate, abs=one)
    yield replace(form, neg=floats, abs=floats)


def _outputs(row: Row, form: Form, turn: int) -> Iterator[Form]:
    element = _element(row.dst)
    if row.result != "vector" or element.kind in ("b", "fb"):
        return
    if row.name.startswith(("v_cvt_pk", "v_cvt_norm")):
        return  # their integers saturate anyhow
    yield replace(form, clamp=True)
    if element.kind == "f" and not row.packed:
        yield replace(form, omod=("mul:2", "mul:4", "div:2")[turn % 3])


# Halves: op_sel of 16-bit, packed, mixed and dot operands.


def _halves(row: Row, form: Form, turn: int) -> Iterator[Form]:
    if row.mix:
        yield from _mixed(row, form)
    elif row.packed or any(isinstance(of, Pair) for of in row.srcs):
        yield from _packed(row, form)
    elif any(of.width == 16 for of in row.srcs) or _element(row.dst).width == 16:
        half = tuple(int(of.width == 16) for of in row.srcs)
        alternate = tuple(h and k % 2 for k, h in enumerate(half))
        other = tuple(h and 1 - k % 2 for k, h in enumerate(half))
        for bits, dst in ((half, 0), (alternate, 1), (other, 0), (half, 1)):
            if row.accumulates or isinstance(row.dst, Pair) or row.dst.width != 16:
                dst = 0
            yield replace(form, op_sel=bits, op_sel_dst=dst)


def _packed(row: Row, form: Form) -> Iterator[Form]:
    floats = _element(row.srcs[0]).is_float
    selects = (((1, 0, 0), (0, 1, 1)), ((0, 1, 1), (1, 1, 0)), ((1, 1, 1), (0, 0, 0)))
    if isinstance(row.srcs[-1], Type) and not row.packed:
        selects = tuple(((*low[:2], 0), (*high[:2], 1)) for low, high in selects)
    for low, high in selects:
        yield replace(form, op_sel=low, op_sel_hi=high)
    if floats:
        yield replace(form, neg_lo=(1, 0, 0), neg_hi=(0, 1, 0))
        yield replace(
            form, neg_lo=(0, 1, 0), neg_hi=(1, 0, 0), op_sel=(1, 0, 0), op_sel_hi=(0, 1, 1)
        )


def _mixed(row: Row, form: Form) -> Iterator[Form]:
    for high in ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)):
        select = tuple(h and k != 1 for k, h in enumerate(high))
        yield replace(form, op_sel_hi=high)
        yield replace(
            form,
            op_sel_hi=high,
            op_sel=tuple(map(int, select)),
            neg=(False, True, False),
            abs=(True, False, True),
        )
    for high in ((1, 1, 1), (0, 0, 0)):
        of = Type("f", 16 if high[0] else 32)
        yield replace(_replaced(form, 1, _constant(of, 0.5, False)), op_sel_hi=high)


# Sub-dword addressing and lane moves.


def _sdwa(row: Row, operands: tuple[Operand, ...], turn: int) -> Iterator[Form]:
    count = len(operands)
    if count > 2 or any(of.width > 32 for of in row.srcs):
        return
    floats = tuple(of.is_float for of in row.srcs)
    integers = tuple(not f for f in floats) + (False,) * (2 - count)
    for step in range(4):
        t = turn + 5 * step
        selects = (SELECTS[t % 6], SELECTS[t // 6 % 6])
        target = WHOLE if step % 2 == 0 else SELECTS[t // 3 % 6]
        extend = tuple(i and step in (1, 2) for i in integers)
        form = Form(
            row,
            "sdwa",
            operands,
            sdwa=Sdwa(
                (selects[0], WHOLE) if step == 0 else selects, extend, target, UNUSED[step % 3]
            ),
        )
        if any(floats) and step:
            form = replace(
                form,
                neg=tuple(f and step == 1 for f in floats),
                abs=tuple(f and step == 2 for f in floats),
            )
        yield form
    yield Form(row, "sdwa", (SGPR, *operands[1:]), sdwa=Sdwa(("WORD_1", "WORD_0")))
    if _element(row.dst).kind in "uif" and row.result == "vector":
        yield Form(row, "sdwa", operands, clamp=True, sdwa=Sdwa((WHOLE, WHOLE)))


def _dpp(row: Row, operands: tuple[Operand, ...], turn: int) -> Iterator[Form]:
    if len(operands) > 2 or any(of.width > 32 for of in row.srcs) or row.result != "vector":
        return
    every = row.name in DPP_WITNESSES
    for index, control in enumerate(CONTROLS):
        if every or (index + turn) % len(CONTROLS) in (0, 5, 11):
            bound, fetch = bool((index + turn) & 1), bool((index + turn) & 2)
            yield Form(row, "dpp", operands, dpp=Dpp(control, 15, 15, bound, fetch))
            if every:
                yield Form(row, "dpp", operands, dpp=Dpp(control, 15, 15, not bound, fetch))
                yield Form(row, "dpp", operands, dpp=Dpp(control, 15, 15, bound, not fetch))
    if row.carry_out:
        return  # whether a lane that the masks switch off clears its carry is not known
    for masks in ((1, 15), (2, 15), (15, 5), (3, 8), (0, 15)) if every else ((1 + turn % 2, 11),):
        yield Form(row, "dpp", operands, dpp=Dpp("row_ror:3", *masks))
    if all(of.is_float for of in row.srcs):
        signs = tuple(bool(k == turn % len(operands)) for k in range(len(operands)))
        yield Form(row, "dpp", operands, neg=signs, dpp=Dpp("row_mirror", bound_ctrl=True))
        yield Form(row, "dpp", operands, abs=signs, dpp=Dpp("row_share:4"))
