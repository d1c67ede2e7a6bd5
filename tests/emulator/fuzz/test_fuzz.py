"""Random programs: every compiler and level must store what the host evaluation says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fuzz.builds import builds, compile_with, run
from tests.emulator.fuzz.generator import Generator, evaluate, initial, source_text

STATEMENTS, SLOW_STATEMENTS = 14, 20


def differences(seed: int, statements: int, tier: str = "quick") -> list[str]:
    """One line per build that differs from the host, with the first word that does."""
    program = Generator(seed).program(statements)
    words, source = initial(seed), source_text(program)
    want = evaluate(program, words)
    found = []
    for tool, level in builds():
        got = run(compile_with(tool, level, source), words, tier)
        wrong = np.argwhere(got != want)
        if len(wrong):
            item, word = wrong[0]
            found.append(
                f"seed {seed} {tool} {level}: {len(wrong)} words, first item {item} word "
                f"{word}: {got[item, word]:#x} for {want[item, word]:#x}"
            )
    return found


@pytest.mark.parametrize("seed", range(3))
def test_program(seed: int) -> None:
    assert not differences(seed, STATEMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_long_program(seed: int) -> None:
    assert not differences(seed, SLOW_STATEMENTS, ("quick", "optimised")[seed % 2])
