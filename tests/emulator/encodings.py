"""Every gfx10 mnemonic that the disassembler knows, found by walking the encoding space.

Each opcode of each encoding is tried with a few operand patterns; what disassembles to an
instruction names it. No list of names is kept anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from rdna_jit.code_object import CodeObject
from rdna_jit.disassembler import Instruction, disassemble
from tests.emulator.oracle.assembler import assemble

# Bytes per candidate. A wrong guess costs at most one word and one instruction of three, so the
# decoder is back in step at the next candidate.
_STRIDE = 16
_NOP = 0xBF800000
VGPR = 256
_SDWA, _DPP16, _DPP8 = 0xF9, 0xFA, 0xE9


@dataclass(frozen=True)
class Candidate:
    """Words that may be an instruction of an encoding group."""

    group: str
    opcode: int
    words: tuple[int, ...]


def _scalar() -> Iterator[Candidate]:
    for op in range(0x60):
        yield Candidate("SOP2", op, (0x80000000 | op << 23 | 4 << 16 | 8 << 8 | 12,))
    for op in range(0x1D):
        yield Candidate("SOPK", op, (0xB0000000 | op << 23 | 4 << 16 | 1, 5))
    for op in range(0x80):
        yield Candidate("SOP1", op, (0xBE800000 | 4 << 16 | op << 8 | 8,))
        yield Candidate("SOP1", op, (0xBE800000 | op << 8 | 8,))
        yield Candidate("SOPC", op, (0xBF000000 | op << 16 | 8 << 8 | 12,))
        yield Candidate("SOPP", op, (0xBF800000 | op << 16 | 1,))
        yield Candidate("SOPP", op, (0xBF800000 | op << 16,))
    for op in range(0x100):
        for data, base, offset in ((8, 2, 0xFA000010), (0, 0, 0), (0, 2, 0xFA000010)):
            yield Candidate("SMEM", op, (0xF4000000 | op << 18 | data << 6 | base, offset))


def _vector_short() -> Iterator[Candidate]:
    """VOP1, VOP2 and VOPC, plain and with the SDWA, DPP16 and DPP8 words."""
    for op in range(0x100):
        yield Candidate("VOP1", op, (0x7E000000 | op << 9,))
    sources = {
        "": (VGPR + 4, 0x3F800000),
        "SDWA": (_SDWA, 0x06060604),
        "DPP16": (_DPP16, 0xFF00E404),
        "DPP8": (_DPP8, 0x05397704),
    }
    for form, (source, word) in sources.items():
        for op in range(0x3E):
            head = op << 25 | 6 << 17 | 2 << 9 | source
            yield Candidate(form or "VOP2", op, (head, word))
        for op in range(0x100):
            yield Candidate(form or "VOP1", op, (0x7E000000 | 2 << 17 | op << 9 | source, word))
            compare = word & 0xFFFF00FF if form == "SDWA" else word
            yield Candidate(form or "VOPC", op, (0x7C000000 | op << 17 | 2 << 9 | source, compare))


def _vector_long() -> Iterator[Candidate]:
    v = VGPR
    for op in range(0x400):
        for a, b, c in (
            (v + 4, v + 6, v + 8),
            (v + 4, v + 6, 0),
            (v + 4, 0, 0),
            (v + 4, 2, 3),
            (v + 4, 2, 0),
            (4, 2, 0),
        ):
            yield Candidate("VOP3", op, (0xD4000000 | op << 16 | 2, a | b << 9 | c << 18))
    for op in range(0x80):
        for c in (v + 8, 0):
            words = (0xCC004000 | op << 16 | 2, 0x18000000 | v + 4 | v + 6 << 9 | c << 18)
            yield Candidate("VOP3P", op, words)


def _memory() -> Iterator[Candidate]:
    data = (
        (8, 0, 4, 2),
        (0, 0, 4, 2),
        (8, 0, 4, 0),
        (0, 6, 4, 2),
        (8, 6, 4, 2),
        (0, 6, 4, 0),
        (8, 0, 0, 0),
        (0, 0, 0, 0),
        (0, 0, 4, 0),
    )
    for op in range(0x100):
        for vdst, data1, data0, address in data:
            word = vdst << 24 | data1 << 16 | data0 << 8 | address
            yield Candidate("DS", op, (0xD8000000 | op << 18, word))
        for word in (0, 8 << 24):  # the global data share only
            yield Candidate("DS", op, (0xD8020000 | op << 18, word))
    segments = (0, "FLAT", 2, 0x7D), (1, "SCRATCH", 0, 4), (2, "GLOBAL", 2, 0x7D)
    for segment, name, address, base in segments:
        for op in range(0x80):
            for vdst, value, returns in ((8, 0, 0), (0, 4, 0), (8, 4, 1)):
                head = 0xDC000000 | op << 18 | returns << 16 | segment << 14
                yield Candidate(name, op, (head, vdst << 24 | base << 16 | value << 8 | address))
    for op in range(0x80):
        yield Candidate("MUBUF", op, (0xE0001000 | op << 18, 0x80010402))
        yield Candidate("MUBUF", op, (0xE0000000 | op << 18, 0))


def candidates() -> list[Candidate]:
    return [*_scalar(), *_vector_short(), *_vector_long(), *_memory()]


@cache
def instructions(arch: str = "gfx1030") -> dict[str, list[Instruction]]:
    """Samples of each instruction form by group, in order of opcode; no text twice."""
    tried = candidates()
    padding = [_NOP] * (_STRIDE // 4)
    words = [w for c in tried for w in (*c.words, *padding)[: _STRIDE // 4]]
    body = "\n".join(
        ".long " + ", ".join(map(hex, words[k : k + 64])) for k in range(0, len(words), 64)
    )
    code = CodeObject(assemble(body, arch=arch))
    entry = code.kernels["probe"].entry
    decoded = {i.address: i for i in disassemble(code, "probe")}
    found: dict[str, list[Instruction]] = {}
    seen: set[tuple[str, str]] = set()
    for index, candidate in enumerate(tried):
        instruction = decoded[entry + index * _STRIDE]
        if instruction.text.startswith(".long") or not _is_of(candidate.group, instruction.text):
            continue
        if (candidate.group, instruction.text) not in seen:
            seen.add((candidate.group, instruction.text))
            found.setdefault(candidate.group, []).append(instruction)
    return found


def _is_of(group: str, text: str) -> bool:
    """SOP1, SOPC and SOPP lie inside of the space of SOP2 and SOPK, and VOPC inside of VOP2."""
    name = text.split()[0]
    if group in ("SOP2", "SOPK"):
        return not name.startswith(("s_cmp_", "s_cbranch", "s_bitcmp"))
    return True
