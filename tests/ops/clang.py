"""A second compiler's opinion: the system's clang, where there is a recent one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rdna_jit.code_object import CodeObject
from rdna_jit.kernel import Kernel


def compile_with_clang(kernel: Kernel, folder: Path, arch: str = "gfx1030") -> CodeObject:
    """The kernel's source compiled by clang 22; skips the test without one."""
    clang = shutil.which("clang++-22")
    if clang is None:
        pytest.skip("clang++-22 is not installed")
    source, target = folder / "kernel.hip", folder / "kernel.co"
    source.write_text(kernel.source)
    options = ["-nogpuinc", "-nogpulib", "-O3", "-std=c++17", "-mno-cumode", "-Wall", "-Werror"]
    command = [clang, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", *options]
    command += [f"--offload-arch={arch}", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return CodeObject(target.read_bytes())
