"""`python -m rdna_jit probe`: asks a card what no manual settles, and which rules explain it.

Each question is one exact instruction on chosen operands. On a machine without a card the emulator
answers, which shows what it assumes and settles nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rdna_jit import arch as archs
from rdna_jit.config import config
from rdna_jit.device import Device, device
from rdna_jit.tools import command, probe_inputs, probe_models
from rdna_jit.tools.probe_inputs import Triple, Words
from rdna_jit.tools.probe_models import Model
from rdna_jit.tools.probe_questions import (
    LANES,
    MNEMONICS,
    MOVES,
    TRANSCENDENTALS,
    VALUES,
    Question,
    questions,
)  # fmt: skip
from rdna_jit.tools.probe_report import (
    Accuracy,
    Answer,
    Move,
    accuracy_text,
    answer_text,
    move_text,
)

_MASKS = (0x0F0F5A3C, 0xFFFEFFFE, 0x00FFFF00)
_HALF = np.uint32(0xFFFF)
_SHOWN = 8  # mismatches


def main(argv: Sequence[str] | None = None) -> int:
    """Ask everything and print the answers."""
    parser = command.parser("probe", str(__doc__))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="every rule, group by group")
    parser.add_argument(
        "--all-mantissas", action="store_true", help="all 2**23 of each f32 function (a card's job)"
    )
    parser.add_argument("--save", metavar="FILE.npz", help="keep operands and results, bit for bit")
    arguments = parser.parse_args(argv)
    return command.guarded("probe", arguments, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    probe = Probe(device())
    mantissas = 1 << 23 if arguments.all_mantissas else 1 << 14
    answers = list(probe.answers())
    moves = list(probe.moves())
    accuracies = list(probe.accuracies(mantissas))
    if arguments.save:
        np.savez_compressed(arguments.save, **probe.record)  # type: ignore[arg-type]
    if arguments.json:
        rows = {
            "device": vars(probe.device),
            "asked": "card" if probe.is_card else "emulator",
            "values": [asdict(answer) for answer in answers],
            "moves": [asdict(move) for move in moves],
            "transcendental": [asdict(accuracy) for accuracy in accuracies],
        }
        print(json.dumps(rows, indent=1))
        return 0
    who = "card" if probe.is_card else "emulator (no card was asked)"
    print(f"{probe.device}\nanswers of the {who}\n")
    for answer in answers:
        print(answer_text(answer, arguments.verbose or not answer.rules))
    print("\nmoves between lanes: what a lane receives when its source lane is ...")
    print("\n".join(move_text(move) for move in moves))
    print("\ntranscendentals: share of results by distance from the nearest value, in ulps")
    print("\n".join(accuracy_text(accuracy) for accuracy in accuracies))
    print(f"\n{_conclusion(probe, answers, moves)}")
    return 0


class Probe:
    """Asks one device. `record` collects operands and results by instruction."""

    def __init__(self, here: Device) -> None:
        self.device = here
        self.is_card = here.backend == "hip"
        self.has_emulator = importlib.util.find_spec("llvmlite") is not None
        self.record: dict[str, Words] = {}

    def answers(self) -> Iterator[Answer]:
        """Every question that this arch has the instruction for."""
        capabilities = archs.get(self.device.arch).capabilities
        for question in questions():
            if not question.requires or question.requires in capabilities:
                yield self._answer(question)

    def _answer(self, question: Question) -> Answer:
        groups = question.groups()
        a, b, c = (np.concatenate(column) for column in zip(*groups.values(), strict=True))
        joined = (a, b, c)
        got = self._keep(question.instruction, joined, self._ask(question.instruction, joined))
        rules = dict(question.models)
        if question.emulator_modes and self.has_emulator:
            rules |= self._dot2_rules(question.instruction)
        if self.is_card and self.has_emulator:
            rules["the emulator"] = self._emulated(question.instruction)
        agree = {name: _equal(question, got, rule(*joined)) for name, rule in rules.items()}
        ends = np.cumsum([len(a) for a, _, _ in groups.values()])
        split = {name: np.split(same, ends[:-1]) for name, same in agree.items()}
        return Answer(
            question.mnemonic,
            question.asks,
            {name: len(a) for name, (a, _, _) in groups.items()},
            {
                rule: {g: int(s.sum()) for g, s in zip(groups, parts, strict=True)}
                for rule, parts in split.items()
            },
            [name for name, same in agree.items() if same.all()],
            _mismatches(joined, got, rules, agree),
        )

    def _ask(self, instruction: str, operands: Triple) -> Words:
        """The device's results."""
        import torch

        on = "cuda" if config.backend != "emulator" and self.is_card else "cpu"
        tensors = [torch.from_numpy(w.view(np.int32)).to(on) for w in operands]
        out = torch.zeros_like(tensors[0])
        n = len(operands[0])
        kernel = VALUES.specialise(INSTRUCTION=instruction)
        kernel.launch(-(-n // 256), 256, *tensors, out, n)
        return out.cpu().numpy().view(np.uint32)  # type: ignore[no-any-return]

    def _emulated(self, instruction: str, **modes: object) -> Model:
        """The emulator as a rule, in the given modes."""
        from rdna_jit import emulator

        def rule(a: Words, b: Words, c: Words) -> Words:
            with config.scope(backend="emulator"), emulator.modes(**modes):
                return self._ask(instruction, (a, b, c))

        return rule

    def _dot2_rules(self, instruction: str) -> dict[str, Model]:
        """The emulator's modes, alone and with what other chips were seen to do to operands."""
        rules: dict[str, Model] = {}
        for dot2 in ("chain", "exact", "gfx11"):
            for flush in (False, True) if dot2 != "gfx11" else (True,):
                rule = self._emulated(instruction, dot2=dot2, dot2_flush=flush)
                name = f"{dot2} + flush" if flush and dot2 != "gfx11" else dot2
                rules[name] = rule
                if flush:
                    rules[f"{name}, subnormal halves are 0"] = _before(_without_subnormals, rule)
                if dot2 == "chain":
                    rules[f"{name}, high product first"] = _before(_swapped, rule)
        return rules

    def moves(self) -> Iterator[Move]:
        """Cross-lane moves with lanes off."""
        for name, mnemonic in MOVES.items():
            got = {mask: self._move(name, mask) for mask in _MASKS}
            same = None
            if self.is_card and self.has_emulator:
                with config.scope(backend="emulator"):
                    same = all(bool((self._move(name, m) == got[m]).all()) for m in _MASKS)
            yield Move(mnemonic, _received(name, got), same)

    def _move(self, name: str, mask: int) -> Words:
        import torch

        on = "cuda" if config.backend != "emulator" and self.is_card else "cpu"
        source = torch.arange(0x200, 0x220, dtype=torch.int32, device=on)
        before = torch.arange(0x100, 0x120, dtype=torch.int32, device=on)
        out = torch.zeros_like(before)
        LANES.specialise(MOVE=name).launch(1, 32, source, before, out, mask)
        got: Words = out.cpu().numpy().view(np.uint32)
        self.record[f"{name}.{mask:08x}"] = got
        return got

    def accuracies(self, mantissas: int) -> Iterator[Accuracy]:
        """The transcendental functions over their range."""
        for name in TRANSCENDENTALS:
            function, half = name.split("_")[0].lower(), name.endswith("F16")
            x = probe_inputs.words(np.arange(1 << 16)) if half else (
                probe_inputs.swept(function, mantissas)
            )  # fmt: skip
            got = self._keep(name, (x,), self._ask(name, probe_inputs.triple(x)))
            normal = _normal(x, got, half)
            distances = probe_models.distance(function, half, x[normal], got[normal])
            odd = probe_inputs.special_values(half)
            results = self._ask(name, probe_inputs.triple(odd))
            mask = _HALF if half else np.uint32(0xFFFFFFFF)
            yield Accuracy(
                MNEMONICS[name],
                int(normal.sum()),
                _histogram(distances),
                hashlib.sha256(got.tobytes()).hexdigest()[:16],
                {f"{i:08x}": f"{o & mask:08x}" for i, o in zip(odd, results, strict=True)},
            )

    def _keep(self, name: str, operands: Sequence[Words], got: Words) -> Words:
        for letter, words in zip("abc", operands, strict=False):
            self.record[f"{name}.{letter}"] = words
        self.record[f"{name}.out"] = got
        return got


def _before(change: Callable[[Words], Words], rule: Model) -> Model:
    """The rule on changed packed operands."""
    return lambda a, b, c: rule(change(a), change(b), c)


def _swapped(pairs: Words) -> Words:
    return (pairs << np.uint32(16)) | (pairs >> np.uint32(16))


def _without_subnormals(pairs: Words) -> Words:
    halves = pairs.view(np.uint16)
    flushed = np.where(halves & 0x7C00, halves, halves & 0x8000).astype(np.uint16)
    return flushed.view(np.uint32)


def _equal(question: Question, got: Words, expected: Words) -> np.ndarray[Any, Any]:
    mask = np.uint32(question.bits)
    same = (got & mask) == (expected & mask)
    if not question.exact_nan and question.bits == 0xFFFFFFFF:
        same |= np.isnan(got.view(np.float32)) & np.isnan(expected.view(np.float32))
    return same  # type: ignore[no-any-return]


def _mismatches(
    operands: Triple, got: Words, rules: dict[str, Model], agree: dict[str, np.ndarray[Any, Any]]
) -> list[dict[str, str]]:
    """Cases that the best rule does not explain."""
    if not agree:
        return []
    best = max(agree, key=lambda name: int(agree[name].sum()))
    found = np.flatnonzero(~agree[best])[:_SHOWN]
    expected = rules[best](*operands)
    return [
        {
            **{name: f"{w[i]:08x}" for name, w in zip("abc", operands, strict=True)},
            "got": f"{got[i]:08x}",
            best: f"{expected[i]:08x}",
        }
        for i in found
    ]


def _received(name: str, got: dict[int, Words]) -> dict[str, str]:
    """Kind of lane -> what lanes of that kind hold afterwards."""
    kinds: dict[str, set[str]] = {}
    for mask, words in got.items():
        for lane in range(32):
            if not mask >> lane & 1:
                kind, source = "off itself", lane
            else:
                source = lane - 1 if name.startswith("ROW_SHR") else lane ^ 1
                source ^= 16 if name.startswith("PERMLANEX16") else 0
                if name.startswith("ROW_SHR") and lane % 16 == 0:
                    kind, source = "outside the row", lane
                else:
                    kind = "on" if mask >> source & 1 else "off"
            names = {0x100 + lane: "kept", 0: "zero", 0x200 + source: "the source"}
            names.setdefault(0x200 + lane, "its own source")
            kinds.setdefault(kind, set()).add(names.get(int(words[lane]), f"{words[lane]:#x}"))
    return {kind: " or ".join(sorted(seen)) for kind, seen in sorted(kinds.items())}


def _normal(x: Words, got: Words, half: bool) -> np.ndarray[Any, Any]:
    """Cases with normal positive or negative operand and a normal or zero result."""
    exponent, shift = (np.uint32(31), np.uint32(10)) if half else (np.uint32(255), np.uint32(23))
    of_x, of_result = (x >> shift) & exponent, (got >> shift) & exponent
    return (of_x > 0) & (of_x < exponent) & (of_result > 0) & (of_result < exponent)


def _histogram(distances: np.ndarray[Any, Any]) -> dict[str, int]:
    limited = np.clip(distances, -4, 4)
    names = {-4: "<= -4", 4: ">= 4"}
    values, counts = np.unique(limited, return_counts=True)
    return {names.get(int(v), f"{v:+d}"): int(n) for v, n in zip(values, counts, strict=True)}


def _conclusion(probe: Probe, answers: list[Answer], moves: list[Move]) -> str:
    if not probe.has_emulator:
        return "Install rdna_jit[emulator] to hold the answers against the emulator's modes."
    if not probe.is_card:
        return "No card was asked: this is what the emulator does, and proves nothing about one."
    wrong = [a.instruction for a in answers if "the emulator" not in a.rules]
    wrong += [m.instruction for m in moves if m.as_emulator is False]
    modes = [rule for a in answers for rule in a.rules if a.instruction == "v_dot2_f32_f16"]
    lines = [f"emulator modes that are this card: {', '.join(modes) or 'none'}"]
    lines.append(f"the emulator differs in its default modes: {command.listed(wrong)}")
    lines.append("Please report this output (--json --save FILE.npz) to the project.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
