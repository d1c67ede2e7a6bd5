"""No handler without a test: the oracle's list against the emulator's instruction table."""

from __future__ import annotations

import re

import pytest

from rdna_jit.emulator import registry
from tests.emulator import coverage
from tests.emulator.oracle import (
    atomics,
    division,
    lanes,
    memory,
    scalar_harness,
    support,
    variants,
)
from tests.emulator.oracle.rows import SCALAR, VECTOR

# Instructions whose meaning is memory, control flow or machine state: they are tested by running
# kernels, in the module named.
ELSEWHERE = (
    (r"buffer_gl[01]_inv|flat_atomic_csub", "memory"),
    (r"s_(buffer_)?load_|s_memtime|s_memrealtime|s_(dcache|gl1|icache)_", "memory"),
    (r"s_(c?branch|endpgm|setpc|swappc|getpc|call|barrier|trap|setkill|rfe)", "flow"),
    (r"s_(getreg|setreg|round_mode|denorm_mode)", "modes"),
    (r"s_(waitcnt|nop|sleep|clause|inst_prefetch|setprio|version|wakeup|sethalt|[ti]n?[ct]\w*perf|"
     r"ttrace|incperf|decperf|code_end|wait_idle)|v_nop|v_clrexcp|v_pipeflush|ds_nop", "no effect"),
)  # fmt: skip


def judged() -> set[str]:
    names = {*VECTOR, *SCALAR, *division.COVERED}
    forms = [*lanes.lane_forms(), *memory.access_forms(), *atomics.atomic_forms()]
    return names | {form.mnemonic for form in forms}


def test_every_handler_has_an_independent_meaning() -> None:
    missing = [
        name
        for name in registry.entries()
        if name not in judged() and not any(re.match(p, name) for p, _ in ELSEWHERE)
    ]
    assert not missing, f"no row of the oracle and no stated exemption: {missing}"


def test_every_meaning_has_a_handler() -> None:
    """What the oracle knows, the emulator runs, but for what the coverage page gives a reason."""
    missing = [
        name
        for name in sorted(judged() - set(registry.entries()))
        if not coverage.reason_for(name, "")
    ]
    assert not missing, f"not emulated: {missing}"


def test_every_row_has_a_form_that_is_tested() -> None:
    vector_taken, _ = support.split(f for row in VECTOR.values() for f in variants.forms(row))
    scalar_taken, _ = support.split(scalar_harness.all_forms())
    seen = {form.mnemonic for form in vector_taken} | {form.row.name for form in scalar_taken}
    handled = {name for name in (*VECTOR, *SCALAR) if name in registry.entries()}
    assert handled <= seen, sorted(handled - seen)


@pytest.fixture(scope="module")
def groups() -> list[coverage.Group]:
    return coverage.survey()


def test_refused_instructions_have_reasons(groups: list[coverage.Group]) -> None:
    assert coverage.unexplained(groups) == []


def test_the_page_is_current(groups: list[coverage.Group]) -> None:
    """It is not: run `python -m tests.emulator.coverage`."""
    assert coverage.PAGE.read_text() == coverage.page(groups)
