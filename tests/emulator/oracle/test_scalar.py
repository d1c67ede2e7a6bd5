"""Every scalar ALU instruction on random and edge inputs, against the model."""

from __future__ import annotations

import pytest

from tests.emulator.oracle import scalar_harness
from tests.emulator.oracle.support import split

CASES, SLOW_CASES = 160, 4000


@pytest.mark.parametrize(
    "count,seed", [(CASES, 0), pytest.param(SLOW_CASES, 1, marks=pytest.mark.slow)]
)
def test_scalar_forms(count: int, seed: int) -> None:
    taken, _ = split(scalar_harness.all_forms())
    failures = scalar_harness.check(taken, count, seed)
    shown = "\n".join(map(str, failures[:8]))
    assert not failures, f"{len(failures)} forms differ from the model\n{shown}"
