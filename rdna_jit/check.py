"""`python -m rdna_jit check`: every op against its float64 reference, on the device at hand.

One line per case: op, shape, the kernel that ran, relative L2 and max-norm error, seconds. On a
machine without a card the emulator runs the same code objects. Zero checks run is a failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from rdna_jit import models
from rdna_jit.device import device
from rdna_jit.dispatch import dispatch_log
from rdna_jit.errors import RdnaJitError

DEFAULT_MODEL = "flash-next"


@dataclass(frozen=True)
class Case:
    """One op call: `run` gives its fp16 result, `reference` the float64 truth.

    `rel_l2` bounds ``|y - ref| / |ref|``, `max_norm` bounds ``max|y - ref| / max|ref|``.
    """

    op: str
    shape: str
    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    rel_l2: float = 5e-4
    max_norm: float = 2e-3


@dataclass(frozen=True)
class Outcome:
    """What one case gave; `error` is the exception's text when the op raised."""

    op: str
    shape: str
    kernel: str
    rel_l2: float
    max_norm: float
    seconds: float
    ok: bool
    error: str = ""

    def line(self) -> str:
        verdict = "ok" if self.ok else "FAILED"
        if self.error:
            return f"{verdict:<7}{self.op:<18}{self.shape:<38}{self.error}"
        return (
            f"{verdict:<7}{self.op:<18}{self.shape:<38}{self.kernel:<20}"
            f"{self.rel_l2:>9.1e}{self.max_norm:>9.1e}{self.seconds:>8.2f}"
        )


def errors(got: Tensor, want: Tensor) -> tuple[float, float]:
    """Relative L2 and max-norm error of `got` against the float64 `want`; inf on NaN.

    A reference that is zero everywhere asks for zeros: the error is then absolute.
    """
    difference = got.detach().cpu().double() - want
    if not bool(torch.isfinite(difference).all()):
        return float("inf"), float("inf")
    if want.numel() == 0:
        return 0.0, 0.0
    scale_l2, scale_max = float(want.norm()) or 1.0, float(want.abs().max()) or 1.0
    return float(difference.norm()) / scale_l2, float(difference.abs().max()) / scale_max


def run_case(case: Case) -> Outcome:
    """Runs and judges one case; an RdnaJitError becomes a failed outcome."""
    start = time.perf_counter()
    try:
        got = case.run()
        if got.is_cuda:
            torch.cuda.synchronize(got.device)
    except RdnaJitError as error:
        return Outcome(case.op, case.shape, "", 0.0, 0.0, 0.0, False, f"{error}".splitlines()[0])
    seconds = time.perf_counter() - start
    rel_l2, max_norm = errors(got, case.reference())
    ok = rel_l2 <= case.rel_l2 and max_norm <= case.max_norm
    kernel = dispatch_log()[-1].kernel
    return Outcome(case.op, case.shape, kernel, rel_l2, max_norm, seconds, ok)


def cases(model: models.Model, on: torch.device) -> Iterator[Case]:
    """The cases of every op family at the model's shapes."""
    from rdna_jit import check_cases

    for family in check_cases.FAMILIES:
        yield from family(model, on)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every check passed, 1 when one failed or none ran, 2 for a bad command."""
    parser = argparse.ArgumentParser(prog="python -m rdna_jit check", description=__doc__)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, choices=sorted(models.MODELS), metavar="NAME",
        help=f"shapes of this model (default {DEFAULT_MODEL}): {', '.join(models.MODELS)}",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    args = parser.parse_args(argv)
    here = device()
    on = torch.device("cuda" if here.backend == "hip" else "cpu")
    todo = list(cases(models.get(args.model), on))
    if not args.json:
        print(f"{args.model} on {here.name} ({here.arch}, {here.backend}), errors against float64")
        print(f"{'':<7}{'op':<18}{'shape':<38}{'kernel':<20}{'rel L2':>9}{'max':>9}{'s':>8}")
    outcomes = []
    hidden = args.json or not sys.stderr.isatty()
    for case in tqdm(todo, desc="check", leave=False, disable=hidden):
        outcomes.append(run_case(case))
        if not args.json:
            tqdm.write(outcomes[-1].line())
    failed = sum(not outcome.ok for outcome in outcomes)
    ok = bool(outcomes) and not failed
    if args.json:
        rows = [asdict(outcome) for outcome in outcomes]
        summary = {"model": args.model, "arch": here.arch, "backend": here.backend}
        print(json.dumps({**summary, "checks": rows, "ok": ok}, indent=2))
    elif not outcomes:
        print("0 checks run: this model has no shapes that an op covers")
    else:
        print(f"{len(outcomes) - failed} passed, {failed} failed")
    return 0 if ok else 1
