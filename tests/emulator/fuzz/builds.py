"""The compilers and levels that a random program goes through."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from rdna_jit import compiler
from rdna_jit.code_object import CodeObject
from rdna_jit.emulator import Buffer, Program, modes
from tests.emulator.fuzz.generator import BLOCK, GROUPS, ITEMS, TOTAL_WORDS

# Contraction would fuse a product and a sum, which the host does not.
FLAGS = ("-ffp-contract=off",)
LEVELS = ("-O0", "-O1", "-O3")
ARCH = "gfx1030"


@cache
def clang() -> str | None:
    """A clang of version 19 to 22 with its linker, if there is one."""
    for version in (22, 21, 20, 19):
        if shutil.which(f"clang-{version}") and shutil.which(f"ld.lld-{version}"):
            return f"clang-{version}"
    return None


def builds() -> list[tuple[str, str]]:
    """(compiler, level) pairs; the other compiler only where it is installed."""
    other = clang()
    return [("hiprtc", level) for level in LEVELS] + ([(other, "-O3")] if other else [])


def compile_with(tool: str, level: str, source: str) -> bytes:
    if tool == "hiprtc":
        return compiler.compile_source(source, arch=ARCH, options=(*FLAGS, level)).code_object
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "program.hip", Path(folder) / "program.co"
        text.write_text(source)
        subprocess.run(
            [
                tool,
                "-x",
                "hip",
                f"--offload-arch={ARCH}",
                "--cuda-device-only",
                "--no-gpu-bundle-output",
                "-nogpuinc",
                "-nogpulib",
                *FLAGS,
                level,
                str(text),
                "-o",
                str(made),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        return made.read_bytes()


def run(code: bytes, words: np.ndarray, tier: str = "quick") -> np.ndarray:
    """The words that a compiled program stores, of shape (items, words)."""
    out = np.zeros((ITEMS, TOTAL_WORDS), np.uint32)
    buffers = [Buffer(a.ctypes.data, a.nbytes, name) for name, a in (("in", words), ("out", out))]
    kernarg = b"".join(buffer.address.to_bytes(8, "little") for buffer in buffers)
    with modes(tier=tier):
        Program(CodeObject(code), "k").launch((GROUPS, 1, 1), (BLOCK, 1, 1), kernarg, buffers)
    return out
