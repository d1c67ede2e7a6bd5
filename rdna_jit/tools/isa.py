"""`python -m rdna_jit isa FILE`: the machine code of a kernel, with what it occupies."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rdna_jit import disassembler
from rdna_jit.code_object import CodeObject
from rdna_jit.tools import command
from rdna_jit.tools.command import UsageError

if TYPE_CHECKING:
    from rdna_jit.disassembler import Instruction
    from rdna_jit.kernel import Kernel

_WHAT = (
    "a template of yours (.hip), a code object (ELF), a kernel of this package by name, or an op's "
    "call: 'linear.gptq_gemm(f16[1,4096], i32[512,4096], None, f16[32,4096])'"
)

# What the report takes from the kernel, the code object, the symbol.
Found = tuple[dict[str, Any], CodeObject, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the listing, with a summary as comment lines."""
    parser = command.parser("isa", "The machine code of a kernel, with what it occupies.")
    command.add_kernel(parser, _WHAT)
    parser.add_argument("--summary", action="store_true", help="without the listing")
    parser.add_argument("--source", action="store_true", help="the specialised source instead")
    arguments = parser.parse_args(argv)
    return command.guarded("isa", arguments, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    code_object = _elf(arguments.kernel)
    if code_object is not None:
        found: list[Found] = [({}, code_object, name) for name in code_object.kernels]
    else:
        kernels = _kernels(arguments)
        if arguments.source:
            sources = [kernel.source for kernel in kernels]
            print(json.dumps({"sources": sources}) if arguments.json else "\n".join(sources))
            return 0
        programs = [(k, k.program(arguments.arch)) for k in kernels]
        found = [(_named(k), p.code_object, p.info.name) for k, p in programs]
    reports = [{**named, **_report(code, symbol)} for named, code, symbol in found]
    if arguments.json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports, indent=1))
        return 0
    for report, (_, code, symbol) in zip(reports, found, strict=True):
        print(_summary(report))
        if not arguments.summary:
            print(disassembler.listing(code, symbol))
    return 0


def _kernels(arguments: argparse.Namespace) -> list[Kernel]:
    """The kernel that the command line names, or all that the op call launches."""
    if "(" not in arguments.kernel:
        return [command.find_kernel(arguments)]
    from rdna_jit.config import config
    from rdna_jit.dispatch import plan_of
    from rdna_jit.tools import calls

    if arguments.values or arguments.entry or arguments.options is not None:
        raise UsageError("--set, --entry and --options are for kernels; an op chooses its own")
    try:
        op, args, kwargs = calls.parse(arguments.kernel)
        with config.scope(backend="emulator", arch=arguments.arch or config.arch):
            plan = plan_of(op, *args, **kwargs)
    except (ValueError, SyntaxError, TypeError) as error:
        raise UsageError(f"{arguments.kernel}: {error}") from None
    return list(dict.fromkeys(launch.kernel for launch in plan.launches))


def _elf(path: str) -> CodeObject | None:
    """The code object in a file, if it is one."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return CodeObject(content) if content.startswith(b"\x7fELF") else None


def _named(kernel: Kernel) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "values": kernel.values,
        "options": list(kernel.options),
        "signature": kernel.signature,
        "log": kernel.log,
    }


def _report(code_object: CodeObject, name: str) -> dict[str, Any]:
    info = code_object.kernels[name]
    instructions = disassembler.disassemble(code_object, name)
    lines = code_object.source_lines
    rows = []
    for i in instructions:
        place = lines.get(i.address)
        source = "" if place is None else str(place)
        rows.append({"address": i.address, "text": i.text, "source": source})
    return {
        "symbol": name,
        "arch": code_object.arch,
        "resources": info.resources._asdict(),
        "arguments": [argument._asdict() for argument in info.arguments],
        "bytes": sum(i.size for i in instructions),
        "classes": _classes(instructions),
        "instructions": rows,
    }


def _classes(instructions: Sequence[Instruction]) -> dict[str, int]:
    """How many instructions there are of each class that a profile counts."""
    from rdna_jit.emulator.classes import COUNTERS, classify
    from rdna_jit.emulator.decode import decode

    counts: Counter[str] = Counter()
    for decoded in decode(instructions):
        counts.update(classify(decoded.mnemonic))
    return {name: counts[name] for name in COUNTERS if counts[name]}


def _summary(report: dict[str, Any]) -> str:
    resources = report["resources"]
    classes = ", ".join(f"{name} {count}" for name, count in report["classes"].items())
    spills = resources["vgpr_spills"] + resources["sgpr_spills"]
    rows = {
        "kernel": f"{report.get('kernel', report['symbol'])} for {report['arch']}",
        "values": ", ".join(f"{n}={v}" for n, v in report.get("values", {}).items()),
        "options": " ".join(report.get("options", ())),
        "arguments": report.get("signature", ""),
        "registers": f"{resources['vgprs']} VGPRs, {resources['sgprs']} SGPRs, {spills} spilled; "
        f"{resources['waves_per_simd']} waves per SIMD",
        "memory": f"{resources['lds_bytes']} bytes of LDS, {resources['scratch_bytes']} of "
        "scratch per lane",
        "code": f"{len(report['instructions'])} instructions, {report['bytes']} bytes",
        "classes": classes,
        "log": report.get("log", "").strip().replace("\n", "\n;           "),
    }
    return "\n".join(f"; {name:<10}{text}" for name, text in rows.items() if text)
