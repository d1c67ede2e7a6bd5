"""What a probe reports, as records and as text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What the device did: cases per group, and per rule how many of them it explains."""

    instruction: str
    asks: str
    cases: dict[str, int]
    matched: dict[str, dict[str, int]]
    rules: list[str]
    mismatches: list[dict[str, str]]

    @property
    def total(self) -> int:
        return sum(self.cases.values())


@dataclass(frozen=True)
class Move:
    """A cross-lane move: what the lanes of each kind received."""

    instruction: str
    received: dict[str, str]
    as_emulator: bool | None


@dataclass(frozen=True)
class Accuracy:
    """Distances from the nearest result in ulps, and the results at special operands."""

    instruction: str
    cases: int
    ulps: dict[str, int]
    digest: str
    special: dict[str, str]


def answer_text(answer: Answer, verbose: bool) -> str:
    said = " = ".join(answer.rules) or "no rule explains all of it"
    lines = [f"{answer.instruction:<24} {said}"]
    if not verbose:
        return lines[0]
    lines.append(f"  {answer.asks} {answer.total} cases")
    for rule, matched in answer.matched.items():
        missed = [f"{g} {n}/{answer.cases[g]}" for g, n in matched.items() if n < answer.cases[g]]
        lines.append(f"  {sum(matched.values()):>6}  {rule:<44} {', '.join(missed)}".rstrip())
    for row in answer.mismatches:
        lines.append("    " + "  ".join(f"{name} {bits}" for name, bits in row.items()))
    return "\n".join(lines)


def move_text(move: Move) -> str:
    received = ", ".join(f"{kind}: {what}" for kind, what in move.received.items())
    differs = "   DIFFERS from the emulator" if move.as_emulator is False else ""
    return f"{move.instruction:<42} {received}{differs}"


def accuracy_text(accuracy: Accuracy) -> str:
    shares = "  ".join(
        f"{ulps}: {100 * count / max(accuracy.cases, 1):.2f}%"
        for ulps, count in accuracy.ulps.items()
    )
    return f"{accuracy.instruction:<12} {accuracy.cases:>8} cases  {accuracy.digest}  {shares}"
