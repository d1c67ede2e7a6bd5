"""Operators on torch tensors, one module per family."""

from __future__ import annotations

import importlib

_FAMILIES = ("linear", "moe")


def __getattr__(name: str) -> object:
    if name in _FAMILIES:
        return importlib.import_module(f"rdna_jit.ops.{name}")
    raise AttributeError(f"module 'rdna_jit.ops' has no attribute {name!r}")
