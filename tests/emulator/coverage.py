"""What of gfx10's compute instruction set the emulator runs: `python -m tests.emulator.coverage`.

Writes docs/emulator-coverage.md from the instruction table and the encoding space. Every
instruction that is refused has a reason here; one without is an error.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rdna_jit.emulator import registry
from rdna_jit.emulator.context import Unsupported
from rdna_jit.emulator.decode import decode_line
from tests.emulator.encodings import instructions

PAGE = Path(__file__).parents[2] / "docs" / "emulator-coverage.md"

# Reasons for instructions that are refused by name: pattern -> why.
REASONS = (
    (r"v_interp_|v_cube|v_mullit_", "graphics"),
    (r"buffer_(load|store)_format_", "typed buffers (graphics)"),
    (r"buffer_atomic_|s_buffer_load|s_atc_probe", "general buffer descriptors; compilers use "
     "global memory"),
    (r"ds_nop", "no effect on results"),
    (r"ds_(gws|ordered)_|ds_(append|consume)", "global data share and ordered counts"),
    (r"s_(rfe|sethalt|setkill|sendmsg|sendmsghalt|trap|cbranch_cdbg)", "traps, messages, debugger"),
    (r"s_(subvector_loop|.*(saveexec|wrexec)_b64)", "wave64"),
    (r"[sv]_movrel|v_swaprel", "register-indexed moves; compilers use other sequences"),
    (r"ds_(mskor|wrap|wrxchg2|condxchg)|.*_addtid", "no compiler emits it for compute"),
    (r"s_(code_end|wait_idle|endpgm_)", "padding, context switches, graphics"),
    (r"(s_|v_)(clrexcp|version)|v_pipeflush", "no effect on results"),
)  # fmt: skip
GROUPS = (
    "SOP1",
    "SOP2",
    "SOPC",
    "SOPK",
    "SOPP",
    "SMEM",
    "VOP1",
    "VOP2",
    "VOPC",
    "VOP3",
    "VOP3P",
    "SDWA",
    "DPP16",
    "DPP8",
    "DS",
    "FLAT",
    "GLOBAL",
    "SCRATCH",
    "MUBUF",
)


@dataclass
class Group:
    """The mnemonics of an encoding: those that run and those refused, with the reason."""

    name: str
    supported: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def survey(arch: str = "gfx1030") -> list[Group]:
    """Every group; a mnemonic is supported when the table takes one of its samples."""
    found = instructions(arch)
    return [_group(name, found.get(name, [])) for name in GROUPS]


def _group(name: str, samples: list) -> Group:
    group = Group(name)
    refusals: dict[str, str] = {}
    taken: dict[str, None] = {}
    for line in samples:
        decoded = decode_line(line)
        try:
            registry.find(decoded)
            taken[decoded.mnemonic] = None
        except Unsupported as reason:
            refusals.setdefault(decoded.mnemonic, str(reason))
    group.supported = sorted(taken)
    group.refused = {
        mnemonic: reason_for(mnemonic, reason)
        for mnemonic, reason in sorted(refusals.items())
        if mnemonic not in taken
    }
    return group


def reason_for(mnemonic: str, otherwise: str) -> str:
    for pattern, reason in REASONS:
        if re.match(pattern, mnemonic):
            return reason
    return otherwise


def unexplained(groups: list[Group]) -> list[str]:
    """Refused mnemonics whose reason is not stated above."""
    return sorted(
        {
            mnemonic
            for group in groups
            for mnemonic in group.refused
            if reason_for(mnemonic, "") == ""
        }
    )


def page(groups: list[Group]) -> str:
    """The page's Markdown."""
    supported = sum(len(group.supported) for group in groups)
    refused = sum(len(group.refused) for group in groups)
    lines = [
        "# Emulator: instruction coverage",
        "",
        "Made by `python -m tests.emulator.coverage`. Names come from walking the encoding space "
        "of gfx1030 with the disassembler; graphics encodings (MIMG, MTBUF, VINTRP, EXP) are left "
        "out. An instruction that is refused raises `UnsupportedInstruction` when it is executed.",
        "",
        f"{supported} instruction forms run, {refused} are refused.",
        "",
        "| group | runs | refused |",
        "|---|---|---|",
        *(f"| {group.name} | {len(group.supported)} | {len(group.refused)} |" for group in groups),
        "",
        "SDWA, DPP16 and DPP8 count the VOP1, VOP2 and VOPC instructions that have such a form.",
        "",
        "## Refused",
        "",
        "| group | instructions | why |",
        "|---|---|---|",
    ]
    for group in groups:
        by_reason: dict[str, list[str]] = {}
        for mnemonic, reason in group.refused.items():
            by_reason.setdefault(reason, []).append(mnemonic)
        lines += [
            f"| {group.name} | {' '.join(f'`{m}`' for m in names)} | {reason} |"
            for reason, names in by_reason.items()
        ]
    lines += ["", "## Runs", ""]
    for group in groups:
        names = " ".join(f"`{mnemonic}`" for mnemonic in group.supported)
        lines += [f"**{group.name}**: {names or 'none'}", ""]
    return "\n".join(lines)


def main() -> int:
    groups = survey()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(groups))
    missing = unexplained(groups)
    for group in groups:
        print(f"{group.name:8} {len(group.supported):4} run {len(group.refused):4} refused")
    if missing:
        print("refused without a stated reason: " + " ".join(missing))
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
