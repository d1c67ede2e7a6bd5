"""Profiles of everything that a piece of code launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdna_jit.emulator.profile import Profile

_collected: ContextVar[list[Profile] | None] = ContextVar("profiling", default=None)


@contextmanager
def profiling() -> Iterator[list[Profile]]:
    """Profile each launch on the emulator within this scope, in order of launch:

        with emulator.profiling() as profiles:
            linear.gptq_gemm(x, weight)
        print(profiles[0])

    Times are estimated for the V620; `Profile.from_launch(p.stats, card=...)` for another card.
    """
    profiles: list[Profile] = []
    token = _collected.set(profiles)
    try:
        yield profiles
    finally:
        _collected.reset(token)


def collected() -> list[Profile] | None:
    """The list of the innermost scope, None outside of one."""
    return _collected.get()
