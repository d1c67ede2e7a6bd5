from __future__ import annotations

import os
import tempfile

import pytest

# One cache for the whole run, private and outside the user's: kernels compile once per run.
_folder = None
if "RDNA_JIT_CACHE_DIR" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="rdna_jit-tests-")
    os.environ["RDNA_JIT_CACHE_DIR"] = _folder.name


def pytest_unconfigure(config: pytest.Config) -> None:
    if _folder is not None:
        _folder.cleanup()
