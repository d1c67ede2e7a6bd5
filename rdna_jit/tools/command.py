"""What the commands share: finding the kernel that a command line names, errors, exit codes."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from rdna_jit.errors import ContractError, RdnaJitError

if TYPE_CHECKING:
    from rdna_jit.kernel import Kernel
    from rdna_jit.spec import KernelSpec
    from rdna_jit.template import Value

EPILOG = "exit status: 0 done, 1 the kernel or the machine is at fault, 2 the command is"


class UsageError(ContractError):
    """The command line itself is wrong."""


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser in the style of all commands."""
    return argparse.ArgumentParser(
        prog=f"python -m rdna_jit {name}",
        description=description,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def guarded(name: str, arguments: argparse.Namespace, body: Callable[[], int]) -> int:
    """Run a command; a user's mistake becomes one message (with --json: one object) and a code."""
    try:
        status = body()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (RdnaJitError, OSError, MemoryError) as error:
        if arguments.json:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        print(f"rdna_jit {name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, (UsageError, OSError, MemoryError)) else 1


def add_kernel(to: argparse.ArgumentParser, what: str) -> None:
    """The arguments that name a kernel and how to specialise and compile it."""
    to.add_argument("kernel", metavar="FILE", help=what)
    to.add_argument(
        "--set",
        dest="values",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a value of the specialisation block: an integer, a float, true, false or a type",
    )
    to.add_argument("--arch", help="gfx1030, gfx1031, ... (default: the current device's)")
    to.add_argument("--entry", help="the __global__ function, where the file has more than one")
    to.add_argument("--json", action="store_true", help="print one JSON object")
    to.add_argument(
        "--options",
        nargs=argparse.REMAINDER,
        default=None,
        metavar="OPTION",
        help="compiler options: all that follows, or one as --options=-DX=1",
    )


def find_kernel(arguments: argparse.Namespace) -> Kernel:
    """The kernel of a template file, or a declared one by its name; not compiled yet."""
    values = parse_values(arguments.values)
    if Path(arguments.kernel).is_file():
        return _from_file(arguments, values)
    declared = find_declared(arguments.kernel)
    if arguments.options is not None or arguments.entry is not None:
        raise UsageError(
            f"{declared.name} is declared with its entry and options; --entry and --options are "
            f"for files (copy kernels_src/{declared.file} to try others)"
        )
    return declared.specialise(arguments.arch, **values)


def _from_file(arguments: argparse.Namespace, values: dict[str, Value]) -> Kernel:
    from rdna_jit.template import Template

    try:
        template = Template.from_file(arguments.kernel)
    except UnicodeDecodeError:
        raise UsageError(f"{arguments.kernel} is not a text file") from None
    taken = {"arch", "entry", "options"} & set(values)
    if taken:
        raise UsageError(f"--set {', '.join(sorted(taken))}: that name means an option, rename it")
    options = tuple(arguments.options or ())
    return template.specialise(
        arch=arguments.arch, entry=arguments.entry, options=options, **values
    )


def find_declared(name: str) -> KernelSpec:
    """The spec of that name; UsageError lists what there is."""
    kernels = declared_kernels()
    if "(" in name:
        raise UsageError(
            f"{name!r}: only isa takes an op's call; from Python, rdna_jit.emulator.profiling() "
            "gives the profile of each kernel that an op launches"
        )
    if name not in kernels:
        close = get_close_matches(name, kernels, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"{name!r} is neither a file nor a kernel; {hint}kernels are {listed(kernels)}"
        )
    return kernels[name]


def declared_kernels() -> dict[str, KernelSpec]:
    """Every kernel that the package declares, those of its ops included."""
    from rdna_jit import ops, spec
    from rdna_jit.tools import probe_questions  # noqa: F401 (declares the probe's kernels)

    for family in ops._FAMILIES:
        importlib.import_module(f"rdna_jit.ops.{family}")
    return spec.registry()


def parse_values(settings: Sequence[str]) -> dict[str, Value]:
    """NAME=VALUE texts as template values."""
    values: dict[str, Value] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set {text}: write NAME=VALUE, such as K=4096")
        values[name] = _value(value)
    return values


def _value(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (lambda t: int(t, 0), float):
        try:
            return read(text)  # type: ignore[no-any-return]
        except ValueError:
            continue
    return text


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
