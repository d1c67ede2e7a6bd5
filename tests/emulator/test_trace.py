"""Stops: registers at an instruction or a source line, and no change of what a kernel computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rdna_jit import ContractError, Kernel, MemoryFault, Template, emulator
from rdna_jit.emulator.trace import trace
from tests.emulator import harness

SOURCE = """#include "common/wave.hip"
KERNEL __launch_bounds__(64) void scan(const u32* in, u32* out, int rounds) {
  __shared__ u32 words[64];
  u32 sum = in[block_x() * 64 + thread_x()];
  for (int n = 0; n < rounds; ++n) {
    words[thread_x()] = sum;
    block_barrier();
    sum += words[63 - thread_x()];
    block_barrier();
    asm volatile("v_xor_b32 %0, 0x5a5a, %0" : "+v"(sum));
  }
  if (thread_x() & 1) out[block_x() * 64 + thread_x()] = sum;
}
"""
ROUND_LINE = 8


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return Template(SOURCE, name="scan").specialise(arch="gfx1030")


def expected(values: np.ndarray, rounds: int) -> list[np.ndarray]:
    """`sum` of all threads before each xor."""
    sums, seen = values.astype(np.uint32), []
    for _ in range(rounds):
        sums = sums + sums[::-1]
        seen.append(sums.copy())
        sums ^= 0x5A5A
    return seen


def arguments(rounds: int = 3) -> tuple[torch.Tensor, torch.Tensor, int]:
    return torch.arange(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32), rounds


@pytest.mark.parametrize("wave", [0, 1])
def test_registers_across_barriers_and_rounds(kernel, wave):
    stops = kernel.trace(2, 64, *arguments(), at="v_xor_b32", workgroup=1, wave=wave, hits=3)
    assert [stop.hit for stop in stops] == [1, 2, 3]
    rounds = expected(np.arange(64, 128), 3)
    for stop, sums in zip(stops, rounds, strict=True):
        kind, register, _ = stop.operands[0]
        assert kind == "v" and (stop.wave, stop.workgroup) == (wave, (1, 0, 0))
        np.testing.assert_array_equal(stop.v(register), sums[32 * wave : 32 * wave + 32])
        assert stop.exec == 0xFFFFFFFF and stop.active.all()
        assert f"v{register}" in str(stop) and stop.instruction in str(stop)
    # LDS holds what was written in the last round
    np.testing.assert_array_equal(stops[-1].lds.view(np.uint32), rounds[1] ^ 0x5A5A)


def test_the_launch_ends_at_the_last_hit(kernel):
    source, out, rounds = arguments()
    assert len(kernel.trace(2, 64, source, out, rounds, at="global_store", hits=1)) == 1
    assert not out.any()
    # asked for more than happens: the whole workgroup ran, and no other
    stops = kernel.trace(2, 64, source, out, rounds, at="global_store", wave=None, hits=9)
    assert [stop.wave for stop in stops] == [0, 1]
    assert all(stop.exec == 0xAAAAAAAA for stop in stops)
    final = expected(np.arange(64), 3)[-1] ^ 0x5A5A
    np.testing.assert_array_equal(out.numpy()[1:64:2].view(np.uint32), final[1::2])
    assert not out[64:].any()


def test_source_lines_and_addresses(kernel):
    by_line = kernel.trace(1, 64, *arguments(), at=f"scan.hip:{ROUND_LINE}")[0]
    assert by_line.source_line == f"scan.hip:{ROUND_LINE}"
    assert kernel.trace(1, 64, *arguments(), at=str(ROUND_LINE))[0].pc == by_line.pc
    by_address = kernel.trace(1, 64, *arguments(), at=by_line.pc)[0]
    assert by_address.instruction == by_line.instruction
    np.testing.assert_array_equal(by_address.vgprs, by_line.vgprs)
    assert f"{by_line.pc:x}" in kernel.isa()


def test_scalars_and_the_arguments(kernel):
    source, out, rounds = arguments(5)
    stop = kernel.trace(1, 64, source, out, rounds, at="global_load")[0]
    pairs = {stop.s(i, 2) for i in range(0, 104, 2)}
    assert source.data_ptr() in pairs
    assert stop.v(0, np.uint16).shape == (32, 2)


@pytest.mark.parametrize("order", [False, True])
def test_stops_do_not_change_results(kernel, order):
    source, plain, rounds = arguments()
    kernel.launch(2, 64, source, plain, rounds)
    traced = torch.zeros_like(plain)
    for workgroup in (0, 1):
        with emulator.modes(descending=order):
            kernel.trace(
                2, 64, source, traced, rounds, at="v_", workgroup=workgroup, wave=None, hits=10_000
            )
    assert torch.equal(traced, plain)


def test_faults_on_the_way_are_reported(kernel):
    source, out, rounds = arguments()
    with pytest.raises(MemoryFault, match="past the end of in"):
        kernel.trace(1, 64, source[:40], out, rounds, at="global_store")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"at": "v_nothing"}, "no instruction at 'v_nothing'"),
        ({"at": "scan.hip:1"}, "no instruction at 'scan.hip:1'"),
        ({"at": 2}, "no instruction at 0x2"),
        ({"at": "v_xor", "workgroup": 2}, "the grid is"),
        ({"at": "v_xor", "wave": 2}, "2 waves"),
        ({"at": "v_xor", "hits": 0}, "0 times"),
    ],
)
def test_places_that_do_not_exist(kernel, where, said):
    with pytest.raises(ContractError, match=said):
        kernel.trace(2, 64, *arguments(), **where)


def test_registers_that_do_not_exist(kernel):
    stop = kernel.trace(1, 64, *arguments(), at="v_xor")[0]
    with pytest.raises(ContractError, match="not v255"):
        stop.v(255)


def test_registers_are_shown_once_and_halves_as_halves() -> None:
    source = """KERNEL(32) k(u32* x) { u32 a = x[lane_x()];
      asm volatile("v_pk_mul_f16 %0, %0, %0" : "+v"(a)); x[lane_x()] = a; }"""
    p = harness.program(source)
    kernarg, buffers = harness.pack(p, (np.full(32, 0x3C004200, np.uint32),))
    [stop] = trace(p, (1, 1, 1), (32, 1, 1), kernarg, buffers, at="v_pk_mul")
    shown = str(stop)
    assert shown.count("3c004200") == 8 and shown.count("3|1") == 8
