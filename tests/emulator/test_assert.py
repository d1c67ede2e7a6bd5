"""assert(condition) in kernels: a trap, which the emulator explains."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from rdna_jit import Template, emulator
from rdna_jit.emulator import Buffer, Program
from rdna_jit.errors import EmulationError
from rdna_jit.kernel import Kernel
from tests.ops.clang import compile_with_clang

SOURCE = """#include "common/types.hip"
#include "common/assert.hip"
template <int DIVISOR> DEVICE int checked(int x) {
  assert(x % DIVISOR == 0 && Vec<int, 2>{x, 1}.y);
  return x + 1;
}
KERNEL __launch_bounds__(64) void k(int* x, int n) {
  u32 t = __builtin_amdgcn_workitem_id_x();
  assert(n > 0);
  x[t] = checked<2>(x[t]);
}
"""


def kernel(source: str = SOURCE) -> Kernel:
    return Template(source, "asserting").specialise(arch="gfx1030", options=("-nogpuinc",))


def even() -> torch.Tensor:
    return torch.arange(0, 128, 2, dtype=torch.int32)


def test_an_assertion_that_holds_changes_nothing() -> None:
    x = even()
    kernel().launch(1, 64, x, 1)
    assert torch.equal(x, even() + 1)


@pytest.mark.parametrize("tier", ["quick", "optimised"])
def test_a_failed_assertion_says_which_and_where(tier: str) -> None:
    x = even()
    with emulator.modes(tier=tier):
        with pytest.raises(EmulationError, match="assertion failed: n > 0") as caught:
            kernel().launch(1, 64, x, 0)
        assert caught.value.source_line == "asserting.hip:9" and caught.value.lane == 0
        x[37] = 3
        with pytest.raises(EmulationError) as caught:
            kernel().launch(1, 64, x, 1)
    error = caught.value
    assert str(error).startswith("assertion failed: x % DIVISOR == 0 && Vec<int, 2>{x, 1}.y\n")
    assert error.source_line == "asserting.hip:4" and error.instruction == "s_trap 2"
    assert (error.wave, error.lane) == (1, 5)


def test_without_assertions() -> None:
    x = even()
    kernel("#define NDEBUG\n" + SOURCE).launch(1, 64, x, 0)
    assert torch.equal(x, even() + 1)


def test_clang_agrees(tmp_path: Path) -> None:
    program = Program(compile_with_clang(kernel(), tmp_path), "k")
    x = even()
    kernarg = struct.pack("<Qi", x.data_ptr(), 0)
    with pytest.raises(EmulationError, match="trap"):  # no line table, so no more than that
        program.launch((1, 1, 1), (64, 1, 1), kernarg, [Buffer(x.data_ptr(), 256, "x")])
