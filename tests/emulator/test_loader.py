"""The object loader: calls, constants, external functions, and damaged files."""

from __future__ import annotations

import ctypes

import pytest

from rdna_jit.emulator import jit, loader

IR = """
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare double @exp2(double)
declare i64 @given(i64)
define internal double @entry(i64 %i) noinline {
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %p
  ret double %x
}
define double @power(i64 %i) {
  %x = call double @entry(i64 %i)
  %y = call double @exp2(double %x)
  ret double %y
}
define i64 @ask(i64 %i) {
  %x = call i64 @given(i64 %i)
  %y = add i64 %x, 1
  ret i64 %y
}
"""


@pytest.mark.parametrize("tier", ["quick", "optimised"])
def test_calls_and_data(tier: jit.Tier) -> None:
    given = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda i: 10 * i)
    externals = {"given": ctypes.cast(given, ctypes.c_void_p).value or 0}
    image = loader.Image(jit.compile_ir(IR, tier), externals)
    power = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(image.symbols["power"])
    assert [power(n) for n in range(4)] == [2**1.5, 2**2.5, 2**3.5, 2**4.5]
    ask = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(image.symbols["ask"])
    assert ask(4) == 41


def test_missing_symbols_and_damage() -> None:
    data = jit.compile_ir(IR, "quick")
    with pytest.raises(loader.LoadError, match="given"):
        loader.Image(data, {})
    for bad in (b"", data[:40], data[: len(data) // 2], b"\0" * 200, b"MZ" + data[2:]):
        with pytest.raises(loader.LoadError):
            loader.Image(bad, {"given": 1})
