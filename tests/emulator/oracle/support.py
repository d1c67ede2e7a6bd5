"""Which forms the emulator's instruction table takes, as it says itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from rdna_jit.code_object import CodeObject
from rdna_jit.disassembler import disassemble
from rdna_jit.emulator import registry
from rdna_jit.emulator.context import Unsupported
from rdna_jit.emulator.decode import decode_line
from tests.emulator.oracle.assembler import assemble


class Written(Protocol):
    """A form and the instruction that it tests."""

    @property
    def instruction(self) -> str: ...

    @property
    def arch(self) -> str: ...


F = TypeVar("F", bound=Written)


def refusals(texts: Sequence[str], arch: str) -> dict[int, str]:
    """The reason for each instruction, by index, that the emulator refuses."""
    code = CodeObject(assemble("\n".join([*texts, "s_endpgm"]), arch=arch))
    refused = {}
    for index, line in enumerate(disassemble(code, "probe")[: len(texts)]):
        try:
            registry.find(decode_line(line))
        except Unsupported as reason:
            refused[index] = str(reason)
    return refused


def split(forms: Iterable[F]) -> tuple[list[F], list[tuple[F, str]]]:
    """Forms that the emulator takes, and those that it refuses with the reason."""
    taken, refused, all_forms = [], [], list(forms)
    for arch in sorted({form.arch for form in all_forms}):
        given = [form for form in all_forms if form.arch == arch]
        reasons = refusals([form.instruction for form in given], arch)
        taken += [form for index, form in enumerate(given) if index not in reasons]
        refused += [(given[index], reason) for index, reason in reasons.items()]
    return taken, refused
