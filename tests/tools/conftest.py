from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rdna_jit import __main__ as commands

AXPY = """constexpr int SCALE = ${SCALE};
#include "common/wave.hip"
KERNEL __launch_bounds__(64) void axpy(const float* x, float* y, float a, int n) {
  const u32 i = block_x() * 64 + thread_x();
  if (i < (u32)n) y[i] += a * x[i] * SCALE;
}
"""


@pytest.fixture
def axpy(tmp_path: Path) -> str:
    path = tmp_path / "axpy.hip"
    path.write_text(AXPY)
    return str(path)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDNA_JIT_BACKEND", "emulator")
    monkeypatch.setenv("RDNA_JIT_ARCH", "gfx1030")


@pytest.fixture
def command(
    emulated: None, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `python -m rdna_jit ...` in this process: (exit code, standard output, its errors)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = commands.main(arguments)
        except SystemExit as stop:  # argparse's own way
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def report(command: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """The object that a command prints with --json; it must succeed."""

    def run(name: str, file: str, *arguments: str) -> Any:
        status, out, errors = command(name, file, "--json", *arguments)
        assert status == 0, errors
        return json.loads(out)

    return run
