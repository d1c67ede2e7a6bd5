"""doctor: toolchain and devices as `python -m rdna_jit doctor` sees them, and the cache."""

from __future__ import annotations

import argparse


def configure_doctor(parser: argparse.ArgumentParser) -> None:
    pass


def run_doctor(arguments: argparse.Namespace) -> int:
    return 0
