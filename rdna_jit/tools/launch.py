"""`python -m rdna_jit run FILE`, `profile FILE`, `trace FILE`: one launch from the command line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rdna_jit.tools import buffers, command
from rdna_jit.tools.command import UsageError

if TYPE_CHECKING:
    from rdna_jit.kernel import Kernel
    from rdna_jit.tools.buffers import Argument

_WHAT = "a template of yours (.hip), or a kernel of this package by name"
_ARG = f"""a kernel argument, by its parameter's name. A pointer: DTYPE[SIZE,...]:FILL, such as
x=f16[4096]:normal; fills are {buffers.FILLS}. A value: n=4096. A null pointer: bias=null"""


def run(argv: Sequence[str] | None = None) -> int:
    """Launch once on the current device and say what the tensors hold afterwards."""
    parser = _parser("run", "Launches a kernel once and says what its tensors hold afterwards.")
    parser.add_argument("--checks", metavar="LIST", help="races,misaligned,steps=N,... (emulator)")
    parser.add_argument(
        "--save",
        metavar="NAME=FILE.npy",
        action="append",
        default=[],
        help="write a tensor to a file after the launch",
    )
    arguments = parser.parse_args(argv)
    return command.guarded("run", arguments, lambda: _run(arguments))


def profile(argv: Sequence[str] | None = None) -> int:
    """Launch once on the emulator with counters and print the profile."""
    parser = _parser(
        "profile", "Runs a kernel on the emulator with counters and estimates its time on a card."
    )
    parser.add_argument("--card", default="V620", help="V620 (the default), RX6800, RX6900XT, ...")
    parser.add_argument(
        "--hot", type=int, metavar="N", help="also the N instructions that are executed most"
    )
    arguments = parser.parse_args(argv)
    return command.guarded("profile", arguments, lambda: _profile(arguments))


def trace(argv: Sequence[str] | None = None) -> int:
    """Run one workgroup until a wave reaches a place and print what it holds there."""
    parser = _parser("trace", "Runs one workgroup on the emulator until a wave reaches a place.")
    parser.add_argument(
        "--at",
        type=lambda text: int(text, 16) if re.fullmatch("0x[0-9a-fA-F]+", text) else text,
        required=True,
        metavar="PLACE",
        help="a source line (axpy.hip:12), an address of the listing (0x166c), or how an "
        "instruction begins (v_dot2)",
    )
    parser.add_argument("--workgroup", type=_place, default=(0,), metavar="X[,Y[,Z]]")
    parser.add_argument("--wave", type=int, default=0, help="of the workgroup (default 0)")
    parser.add_argument("--hits", type=int, default=1, help="how often it stops (default once)")
    arguments = parser.parse_args(argv)
    return command.guarded("trace", arguments, lambda: _trace(arguments))


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = command.parser(name, description)
    parser.add_argument(
        "--grid", type=_extent, default=(1,), metavar="X[,Y[,Z]]", help="of workgroups"
    )
    parser.add_argument("--block", type=_extent, metavar="X[,Y[,Z]]", help="threads per workgroup")
    parser.add_argument("--lds", type=int, default=0, metavar="BYTES", help="dynamic LDS")
    parser.add_argument(
        "--arg", dest="args", action="append", default=[], metavar="NAME=VALUE", help=_ARG
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random fills (default 0)")
    command.add_kernel(parser, _WHAT)
    return parser


def _extent(text: str, least: int = 1) -> tuple[int, ...]:
    try:
        extents = tuple(int(part) for part in text.split(","))
    except ValueError:
        extents = ()
    if not 1 <= len(extents) <= 3 or min(extents) < least:
        raise argparse.ArgumentTypeError(f"{text!r}: write 1 to 3 positive numbers, such as 64,4")
    return extents


def _place(text: str) -> tuple[int, ...]:
    return _extent(text, least=0)


def _run(arguments: argparse.Namespace) -> int:
    from rdna_jit.device import device

    here = device()
    on = "cuda" if here.backend == "hip" else "cpu"
    kernel, launch_arguments = _prepare(arguments, on)
    saved = _saved(arguments.save, launch_arguments)
    with _checks(arguments.checks):
        kernel.launch(
            arguments.grid,
            _block(arguments, kernel),
            *(a.value for a in launch_arguments),
            dynamic_lds=arguments.lds,
        )
    report = buffers.changes(launch_arguments)
    for name, file in saved.items():
        import numpy as np

        np.save(file, buffers.after(launch_arguments)[name])
    if arguments.json:
        print(json.dumps({"device": vars(here), "kernel": kernel.name, "tensors": report}))
    else:
        print(f"{kernel.signature} on {here}")
        print(buffers.describe(report))
    return 0


def _profile(arguments: argparse.Namespace) -> int:
    from rdna_jit.config import config

    with config.scope(backend="emulator"):
        kernel, launch_arguments = _prepare(arguments, "cpu")
        measured = kernel.profile(
            arguments.grid,
            _block(arguments, kernel),
            *(a.value for a in launch_arguments),
            card=arguments.card,
            dynamic_lds=arguments.lds,
        )
    if arguments.json:
        print(json.dumps(measured.to_dict()))
        return 0
    print(f"{kernel.signature}\n{measured}")
    for spot in measured.hot(arguments.hot) if arguments.hot else ():
        print(f"{spot.share:>7.1%} {spot.count:>12,}  {spot.text:<56} {spot.source}".rstrip())
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from rdna_jit.config import config

    with config.scope(backend="emulator"):
        kernel, launch_arguments = _prepare(arguments, "cpu")
        stops = kernel.trace(
            arguments.grid,
            _block(arguments, kernel),
            *(a.value for a in launch_arguments),
            at=arguments.at,
            workgroup=arguments.workgroup,
            wave=arguments.wave,
            hits=arguments.hits,
            dynamic_lds=arguments.lds,
        )
    if arguments.json:
        print(json.dumps([stop.to_dict() for stop in stops]))
    else:
        print("\n".join(map(str, stops)) or "the workgroup ended without coming there")
    return 0


def _prepare(arguments: argparse.Namespace, device: str) -> tuple[Kernel, list[Argument]]:
    kernel = command.find_kernel(arguments)
    signature = kernel.program().signature
    return kernel, buffers.parse(arguments.args, signature, device, arguments.seed)


def _block(arguments: argparse.Namespace, kernel: Kernel) -> tuple[int, ...]:
    if arguments.block is not None:
        return arguments.block  # type: ignore[no-any-return]
    if kernel.spec is None:
        raise UsageError("--block is missing: how many threads has a workgroup?")
    block = kernel.spec.block_of(kernel.values)
    return (block,) if isinstance(block, int) else block


def _checks(text: str | None) -> AbstractContextManager[Any]:
    from rdna_jit.config import config

    return nullcontext() if text is None else config.scope(checks=text)


def _saved(texts: Sequence[str], arguments: Sequence[Argument]) -> dict[str, str]:
    tensors = {a.name for a in arguments if a.before is not None}
    saved = dict(text.partition("=")[::2] for text in texts)
    for name, file in saved.items():
        if name not in tensors or not file:
            raise UsageError(
                f"--save {name}={file}: write NAME=FILE.npy with one of {command.listed(tensors)}"
            )
    return saved
