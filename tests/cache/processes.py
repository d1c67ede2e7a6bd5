"""Starting workers and reading what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def start(*arguments, module="tests.cache.worker", preexec=None, prefix=(), env=None):
    command = [*prefix, sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec,
    )


def finish_all(process):
    """The reports of a worker and its forks; fails when it did not end well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def finish(process):
    [report] = finish_all(process)
    return report


def origins(report):
    assert all(result["right"] for result in report["results"])
    return [result["origin"] for result in report["results"]]
