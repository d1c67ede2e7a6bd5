"""Small file systems of a test's own."""

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def tmpfs(path, options):
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting needs root and the right to mount")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
