"""Probe kernels of scalar instructions: one case per workgroup, eight forms per stored vector."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.emulator.oracle.assembler import assemble, refused_lines
from tests.emulator.oracle.harness import Failure, execute
from tests.emulator.oracle.inputs import COUNTS, integer_edges
from tests.emulator.oracle.rows import SCALAR
from tests.emulator.oracle.table import ScalarRow, registers
from tests.emulator.oracle.types import Anything, Type, accepts

FIRST, SECOND, OLD, RESULT = 40, 42, 44, 60
CASE_WORDS = 16
PER_VECTOR = 8

_PROLOGUE = """
s_mov_b64 s[0:1], s[4:5]
s_mov_b32 s2, s6
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v2, 2, v0
s_lshl_b32 s20, s2, 7
v_add_nc_u32_e32 v2, s20, v2
s_lshl_b32 s8, s2, 6
s_waitcnt lgkmcnt(0)
s_add_u32 s8, s4, s8
s_addc_u32 s9, s5, 0
s_load_dwordx16 s[40:55], s[8:9], 0x0
s_mov_b32 s21, {stride}
s_waitcnt lgkmcnt(0)
"""

_FORM = """
s_mov_b64 s[60:61], s[44:45]
s_mov_b32 exec_lo, s47
s_cmp_lg_u32 s46, 0
{instruction}
s_cselect_b32 s62, 1, 0
s_mov_b32 s63, exec_lo
s_mov_b32 exec_lo, -1
v_writelane_b32 v20, s60, {lane}
v_writelane_b32 v20, s61, {lane}+1
v_writelane_b32 v20, s62, {lane}+2
v_writelane_b32 v20, s63, {lane}+3
"""

_STORE = """
global_store_dword v2, v20, s[6:7]
v_add_nc_u32_e32 v2, s21, v2
"""


@dataclass(frozen=True)
class Case:
    """Two 64-bit sources, the old destination, SCC and EXEC."""

    sources: tuple[int, int]
    old: int
    scc: int
    exec_mask: int


@dataclass(frozen=True)
class ScalarForm:
    """A row with its operands: None is a register, otherwise the constant's text and bits."""

    row: ScalarRow
    constants: tuple[tuple[str, int] | None, ...]
    arch = "gfx1030"

    @property
    def instruction(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        operands = [] if self.row.dst is None else [registers(RESULT, self.row.dst, "s")]
        for k, constant in enumerate(self.constants):
            place = (FIRST, SECOND)[k]
            operands.append(constant[0] if constant else registers(place, self.row.srcs[k], "s"))
        return f"{self.row.name} {', '.join(operands)}"

    def expected(self, case: Case) -> tuple[object, object, int]:
        """The destination's 64 bits, SCC and EXEC."""
        row = self.row
        values = [
            of.decode(constant[1] if constant else case.sources[k])
            for k, (of, constant) in enumerate(zip(row.srcs, self.constants, strict=True))
        ]
        old = case.old if row.dst is None else case.old & row.dst.mask
        state = {"scc": case.scc, "old": old, "exec": case.exec_mask}
        value = row.meaning(*values, *(state[name] for name in row.takes))
        scc: object = case.scc
        exec_mask = case.exec_mask
        if row.sets_exec:
            value, exec_mask = value
            scc = int(exec_mask != 0)
        elif row.scc == "given":
            value, scc = value
        if row.dst is None:
            return case.old, scc, exec_mask
        if isinstance(value, Anything):
            return value, scc, exec_mask
        value &= row.dst.mask
        if row.scc == "nonzero":
            scc = int(value != 0)
        return value | case.old & ~row.dst.mask, scc, exec_mask


def forms(row: ScalarRow) -> list[ScalarForm]:
    """Register operands, inline constants and literals; immediates for SOPK."""
    made = list(_candidates(row))
    refused = refused_lines([form.text for form in made])
    return [form for index, form in enumerate(made) if index not in refused]


def _candidates(row: ScalarRow) -> Iterator[ScalarForm]:
    registers_only = (None,) * len(row.srcs)
    if row.immediates:
        for value in row.immediates:
            shown = str(value & 0xFFFF if row.srcs[-1].kind == "u" else value)
            yield ScalarForm(row, (*registers_only[1:], (shown, value)))
        return
    yield ScalarForm(row, registers_only)
    for k, of in enumerate(row.srcs):
        for text, bits in _constants(of):
            constants = tuple((text, bits) if n == k else None for n in range(len(row.srcs)))
            yield ScalarForm(row, constants)


def _constants(of: Type) -> Iterator[tuple[str, int]]:
    for value in (-1, 33):
        yield str(value), value & 0xFFFFFFFFFFFFFFFF
    if of.width <= 32:
        yield "1.0", 0x3F800000
        yield "0x89abcdef", 0x89ABCDEF


def cases(count: int, seed: int) -> list[Case]:
    """Edges, shift counts, bit field descriptors and random bits."""
    source = random.Random(seed)

    def value() -> int:
        pick = source.random()
        if pick < 0.25:
            return source.choice(integer_edges(32)) | source.choice(integer_edges(32)) << 32
        if pick < 0.4:
            return source.choice(integer_edges(64))
        if pick < 0.6:
            return source.choice((1, -1)) * source.choice(COUNTS) & 0xFFFFFFFFFFFFFFFF
        if pick < 0.75:
            return source.getrandbits(6) | source.choice((0, 1, 8, 31, 32, 33, 63, 64)) << 16
        return source.getrandbits(64)

    def case(index: int) -> Case:
        first = value()
        second = first if source.random() < 0.1 else value()
        exec_mask = (0xFFFFFFFF, 0, source.getrandbits(32), 1)[index % 4]
        return Case((first, second), source.getrandbits(64), source.getrandbits(1), exec_mask)

    return [case(index) for index in range(count)]


def check(made: Sequence[ScalarForm], count: int, seed: int = 0) -> list[Failure]:
    """Run forms on `count` cases; at most one failure per form."""
    given = cases(count, seed)
    words = np.zeros((count, CASE_WORDS), np.uint32)
    for row, case in zip(words, given, strict=True):
        row[:6] = np.array([*case.sources, case.old], np.uint64).view(np.uint32)
        row[6:8] = case.scc, case.exec_mask
    lines = [_PROLOGUE.format(stride=count * 128)]
    for index, form in enumerate(made):
        lane = 4 * (index % PER_VECTOR)
        lines.append(_FORM.format(instruction=form.text, lane=lane))
        if lane == 28 or index == len(made) - 1:
            lines.append(_STORE)
    code = assemble("\n".join([*lines, "s_endpgm"]))
    results = np.zeros((-(-len(made) // PER_VECTOR), count, PER_VECTOR, 4), np.uint32)
    execute(code, "probe", words, results, count)
    failures = []
    for index, form in enumerate(made):
        rows = results[index // PER_VECTOR, :, index % PER_VECTOR]
        failures += _first_failure(form, given, rows)
    return failures


def _first_failure(form: ScalarForm, given: Sequence[Case], rows: np.ndarray) -> list[Failure]:
    for index, (case, row) in enumerate(zip(given, rows, strict=True)):
        got = int(row[0]) | int(row[1]) << 32, int(row[2]), int(row[3])
        want = form.expected(case)
        if not all(accepts(w, g) for w, g in zip(want, got, strict=True)):
            shown = "result {}, scc {}, exec {}"
            return [
                Failure(
                    form.text,
                    index,
                    0,
                    str(case),
                    shown.format(*map(hex, got)),
                    shown.format(*(hex(w) if isinstance(w, int) else w for w in want)),
                )
            ]
    return []


def all_forms() -> list[ScalarForm]:
    """Every form of every scalar row, from one pass of the assembler."""
    made = [form for row in SCALAR.values() for form in _candidates(row)]
    refused = refused_lines([form.text for form in made])
    return [form for index, form in enumerate(made) if index not in refused]
