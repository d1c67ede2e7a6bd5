"""Every vector instruction, in every form, on random and edge inputs, against the model."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.emulator.oracle import atomics, division, harness, lanes, memory, variants
from tests.emulator.oracle.forms import Form
from tests.emulator.oracle.harness import Failure
from tests.emulator.oracle.rows import VECTOR
from tests.emulator.oracle.support import split

# Waves of 32 inputs: the plain form of an instruction gets many, its other forms a few each.
PLAIN_WAVES, FORM_WAVES, SLOW_WAVES = 16, 3, 64


def family(name: str) -> str:
    """A name for the instructions that are tested together."""
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return "compare_" + name.rpartition("_")[2]
    for prefix in ("v_cvt", "v_pk", "v_dot", "v_fma", "v_mad", "v_med3", "v_min", "v_max"):
        if name.startswith(prefix):
            return prefix[2:]
    return "float" if name.endswith(("f16", "f32", "f64")) else "integer"


FAMILIES = sorted({family(name) for name in VECTOR})


@cache
def supported() -> tuple[Form, ...]:
    taken, _ = split(form for name in VECTOR for form in variants.forms(VECTOR[name]))
    return tuple(taken)


def forms_of(group: str) -> list[Form]:
    return [form for form in supported() if family(form.mnemonic) == group]


def sample(group: str) -> list[Form]:
    """The forms of the default run: a part of each instruction's, a smaller one where they are
    many and alike. The long run takes all."""
    kept, position = [], Counter()
    for form in forms_of(group):
        many = group.startswith("compare") or (len(form.row.srcs) == 1 and form.row.dst.is_float)
        if (position[form.mnemonic] + len(form.mnemonic)) % (4 if many else 2) == 0:
            kept.append(form)
        position[form.mnemonic] += 1
    return kept


def report(failures: list[Failure]) -> None:
    shown = "\n".join(map(str, failures[:8]))
    assert not failures, f"{len(failures)} forms differ from the model\n{shown}"


@pytest.mark.parametrize("group", FAMILIES)
def test_plain_forms_on_many_inputs(group: str) -> None:
    plain = {form.mnemonic: form for form in reversed(forms_of(group))}
    report(harness.check(list(plain.values()), PLAIN_WAVES))


@pytest.mark.parametrize("group", FAMILIES)
def test_forms(group: str) -> None:
    report(harness.check(sample(group), FORM_WAVES, seed=1))


def test_lane_moves() -> None:
    taken, _ = split(lanes.lane_forms())
    report(harness.check(taken, PLAIN_WAVES))


def test_memory() -> None:
    taken, _ = split([*memory.access_forms(), *atomics.atomic_forms()])
    report(harness.check(taken, FORM_WAVES))


def test_division_sequences_round_correctly() -> None:
    report(harness.check(division.division_forms(), 2 * PLAIN_WAVES))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("group", FAMILIES)
def test_all_forms_long(group: str, seed: int) -> None:
    forms = harness.shuffled(forms_of(group), seed)
    report(harness.check(forms, SLOW_WAVES, seed, tier=("quick", "optimised")[seed % 2]))
