"""What the benchmarks share: timing of short calls, timing in new processes, the report."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def best_us(call: Callable[[], object], seconds: float = 1.0) -> float:
    """Microseconds of one call: the fastest batch, which the machine disturbed least.

    Batches of about 0.3 ms fit between the interruptions of a busy machine.
    """
    for _ in range(20):
        call()
    start = time.perf_counter()
    call()
    batch = max(5, min(200, int(3e-4 / (time.perf_counter() - start))))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        best = min(best, time.perf_counter() - start)
    return best / batch * 1e6


def in_new_process(code: str, *arguments: str, **environment: str) -> float:
    """The number that `code` prints when a new interpreter runs it in the checkout."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    # Installed packages come with compiled bytecode, so the checkout may write its own.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout.split()[-1])


def best_in_new_process(repeats: int, code: str, *arguments: str, **environment: str) -> float:
    """The smallest of several such numbers, after one run that fills caches and bytecode."""
    in_new_process(code, *arguments, **environment)
    return min(in_new_process(code, *arguments, **environment) for _ in range(repeats))


def report(
    title: str, figures: Mapping[str, float], targets: Mapping[str, float], arguments: list[str]
) -> None:
    """Print the figures: one aligned line each with its target, or one JSON object (--json)."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    if parser.parse_args(arguments).json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        target = f"  (target <= {targets[name]:g})" if name in targets else ""
        print(f"{name:<24}{value:>10.2f}{target}")
