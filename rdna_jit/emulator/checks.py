"""What a launch checks, and the rules that only hardware can settle, as scoped settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from rdna_jit.config import config
from rdna_jit.emulator.options import Options
from rdna_jit.errors import ContractError

# A wave that runs longer than this without a limit of its own is taken to hang.
DEFAULT_STEPS = 1 << 34


class Checks(NamedTuple):
    """`races`: two waves touch the same LDS bytes between barriers, or two workgroups write the
    same global bytes; barriers that only some waves reach, or only some lanes of a wave while the
    others go on later. `uninitialised`: reads of LDS and of output buffers that nobody wrote.
    `steps`: instructions that one wave may execute.

    `misaligned`: accesses that the aligned mode of the hardware does not serve. A card under HIP
    runs in its unaligned mode, which does, at some cost. Halves need addresses that are multiples
    of 2, dwords and longer ones of 4; in LDS, 8 bytes need 8, and 12 and 16 bytes 16. The two
    halves of ds_read2 and ds_write2 count apart. Atomics need their own size in either mode."""

    races: bool = False
    uninitialised: bool = False
    steps: int | None = None
    misaligned: bool = False


class Modes(NamedTuple):
    """How the machine runs, apart from what it computes by definition.

    options     the doubtful rules (see `Options`)
    tier        "quick" or "optimised" translation; None: by the amount of work
    threads     host threads; None: all that the process may use
    descending  run the waves of a workgroup in descending order
    """

    options: Options = Options()
    tier: Literal["quick", "optimised"] | None = None
    threads: int | None = None
    descending: bool = False


_LEGAL: dict[str, tuple[object, ...]] = {
    "dot2": ("chain", "exact", "gfx11"),
    "dot2_flush": (False, True),
    "transcendental": ("exact", "+1ulp", "-1ulp", "hash"),
    "tier": (None, "quick", "optimised"),
    "descending": (False, True),
}

_checks: ContextVar[Checks | None] = ContextVar("emulator_checks", default=None)
_modes: ContextVar[Modes] = ContextVar("emulator_modes", default=Modes())  # noqa: B039


@contextmanager
def checks(
    bounds: bool = True,
    races: bool = False,
    uninitialised: bool = False,
    steps: int | None = None,
    misaligned: bool = False,
) -> Iterator[None]:
    """Check launches within this scope; see `Checks`. A finding raises a subclass of
    EmulationError. Bounds are always checked: without them a stray access would end the process.
    """
    if not bounds:
        raise ContractError("bounds are always checked on the emulator", name="bounds")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ContractError(name="steps", expected="a positive integer or None", got=repr(steps))
    token = _checks.set(Checks(races, uninitialised, steps, misaligned))
    try:
        yield
    finally:
        _checks.reset(token)


def current_checks() -> Checks:
    """The checks of the innermost scope, else those of the settings."""
    scoped = _checks.get()
    if scoped is not None:
        return scoped
    steps = [n.removeprefix("steps=") for n in config.checks if n.startswith("steps=")]
    return Checks(
        "races" in config.checks,
        "uninitialised" in config.checks,
        int(steps[-1]) if steps else None,
        "misaligned" in config.checks,
    )


@contextmanager
def modes(**changes: object) -> Iterator[None]:
    """Change fields of `Modes` or of its options within this scope:

    with emulator.modes(dot2="gfx11", transcendental="+1ulp", threads=1): ...
    """
    now = _modes.get()
    of_options = set(Options._fields)
    of_modes = set(Modes._fields) - {"options"}
    unknown = set(changes) - of_options - of_modes
    if unknown:
        known = ", ".join(sorted(of_options | of_modes))
        raise ContractError(f"no mode {', '.join(sorted(unknown))}; modes are {known}")
    for name, value in changes.items():
        legal = _LEGAL.get(name)
        if legal and value not in legal:
            raise ContractError(name=name, expected="one of " + ", ".join(map(repr, legal)),
                                got=repr(value))  # fmt: skip
    threads = changes.get("threads")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ContractError(
            name="threads", expected="a positive integer or None", got=repr(threads)
        )
    chosen: dict[str, Any] = {k: v for k, v in changes.items() if k in of_options}
    machine: dict[str, Any] = {k: v for k, v in changes.items() if k in of_modes}
    token = _modes.set(now._replace(options=now.options._replace(**chosen), **machine))
    try:
        yield
    finally:
        _modes.reset(token)


def current_modes() -> Modes:
    return _modes.get()
