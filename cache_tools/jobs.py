"""What to compile: from recorded runs, lists of op calls, or a model's shapes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdna_jit.config import config
from rdna_jit.errors import ContractError, RdnaJitError
from rdna_jit.ops import _FAMILIES as FAMILIES
from rdna_jit.tools import calls

if TYPE_CHECKING:
    from rdna_jit.kernel import Kernel


@dataclass(frozen=True)
class Job:
    """One compile, in plain data so that it can go to another process."""

    kernel: str
    source: str = field(repr=False)
    options: tuple[str, ...]
    arch: str
    metadata: dict[str, Any] = field(hash=False)


def from_kernel(kernel: Kernel, arch: str) -> Job:
    metadata: dict[str, Any] = {"kernel": kernel.name, "values": kernel.values}
    if kernel.spec is not None:
        metadata["spec"] = kernel.spec.name
    return Job(kernel.name, kernel.source, tuple(kernel.options), arch, metadata)


def from_recorded(lines: Iterable[str], label: str, archs: list[str]) -> Iterator[Job]:
    """Jobs of RDNA_JIT_RECORD's lines; `archs`, when given, replace the recorded one."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{label} line {number}"
        try:
            fact = json.loads(line)
            name, values, arch = str(fact["spec"]), dict(fact["values"]), fact.get("arch")
            source, options = fact.get("source"), tuple(fact.get("options", ()))
        except (ValueError, KeyError, TypeError) as error:
            raise ContractError(
                f'{where} is no recorded kernel ({error}); expected {{"spec": NAME, "values": '
                '{...}, "arch": "gfx1030"}'
            ) from None
        for target in archs or [str(arch or config.arch or "gfx1030")]:
            if source is not None:
                yield Job(name, source, options, target, {"kernel": name, "values": values})
            else:
                yield from_kernel(_specialise(name, values, target, where), target)


def from_calls(lines: Iterable[str], label: str, archs: list[str]) -> Iterator[Job]:
    """Jobs of op calls, one a line, such as
    `linear.w4a16_gemv(f16[1,4096], i32[512,4096], f16[32,4096], group_size=128)`.
    """
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            yield from _call(text, f"{label} line {number}", archs)


def _call(text: str, where: str, archs: list[str]) -> Iterator[Job]:
    from rdna_jit.dispatch import plan_of

    try:
        op, args, kwargs = calls.parse(text)
    except (ValueError, SyntaxError) as error:
        raise ContractError(f"{where}: {text}: {error}") from None
    for arch in archs or [config.arch or "gfx1030"]:
        try:
            with config.scope(backend="emulator", arch=arch):
                plan = plan_of(op, *args, **kwargs)
        except (RdnaJitError, TypeError) as error:
            raise ContractError(f"{where}: {text}: {error}") from None
        for launch in plan.launches:
            yield from_kernel(launch.kernel, arch)


def _specialise(name: str, values: dict[str, Any], arch: str, where: str) -> Kernel:
    from rdna_jit import spec

    for family in FAMILIES:
        importlib.import_module(f"rdna_jit.ops.{family}")
    found = spec.registry().get(name)
    if found is None:
        raise ContractError(
            f"{where}: no kernel is called {name!r}; there are {', '.join(sorted(spec.registry()))}"
        )
    try:
        return found.specialise(arch, **values)
    except (RdnaJitError, TypeError) as error:
        raise ContractError(f"{where}: {error}") from None
