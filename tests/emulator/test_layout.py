"""The ctypes mirrors have the sizes and offsets of the IR types."""

from __future__ import annotations

import ctypes

import pytest

from rdna_jit.emulator import jit, layout, loader


@pytest.mark.parametrize("name", ["Buffer", "Slot", "Traffic", "Env", "State", "Grid"])
def test_structures_agree(name: str) -> None:
    mirror = getattr(layout, name)
    count = len(mirror._fields_)
    # IR keeps two counters of Grid as an array
    fields = [f for f in range(count) if not (name == "Grid" and f > 16)]
    probes = "\n".join(
        f"define i64 @at.{f}() {{\n"
        f"  ret i64 ptrtoint (ptr getelementptr (%{name}, ptr null, i32 0, i32 {f}) to i64)\n}}"
        for f in fields
    )
    size = f"ret i64 ptrtoint (ptr getelementptr (%{name}, ptr null, i32 1) to i64)"
    ir = f"{layout.type_lines()}\ndefine i64 @size() {{\n  {size}\n}}\n{probes}\n"
    image = loader.Image(jit.compile_ir(ir, "optimised"), {})

    def call(function: str) -> int:
        return ctypes.CFUNCTYPE(ctypes.c_int64)(image.symbols[function])()

    assert call("size") == ctypes.sizeof(mirror)
    for f in fields:
        assert call(f"at.{f}") == getattr(mirror, mirror._fields_[f][0]).offset
