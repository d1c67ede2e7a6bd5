"""What the MoE decode kernels cost, counted, and the rules that silicon may choose."""

from __future__ import annotations

import pytest
import torch

from benchmarks import moe as benchmark
from rdna_jit import emulator
from rdna_jit.ops.moe import moe_int4_decode
from tests.ops.moe_cases import MAX_NORM, REL_L2, Case, errors


@pytest.mark.parametrize("M", [1, 4])
def test_dead_slots_cost_no_vector_instruction(M):
    with emulator.profiling() as profiles:
        moe_int4_decode(**Case(M=M, routing="all_dead").arguments)
    gate_up, down = profiles
    assert gate_up.valu == gate_up.vmem_load == 0 and gate_up.waves > 0
    assert down.dot == 0


def test_tokens_of_one_expert_share_its_weights():
    case = Case(M=4)
    s = case.shape
    local = int((case.tensors["expert_map"] >= 0).nonzero()[0])
    loaded, values = [], {}
    for tokens in (1, 4):
        ids = torch.full((4, s.T), -1, dtype=torch.int32)
        ids[:tokens, 0] = local
        arguments = {**case.arguments, "topk_ids": ids}
        with emulator.profiling() as profiles:
            moe_int4_decode(**arguments)
        loaded.append([profile.bytes_loaded for profile in profiles])
        values = moe_int4_decode.plan(**arguments).values
    rows_of_a_lane = (2 * values["PAIRS"], values["ROWS"])
    for stage, (size, rows) in enumerate(
        zip((2 * s.I * s.H, s.H * s.I), rows_of_a_lane, strict=True)
    ):
        activations = 3 * size * 2 // rows  # of the three further tokens
        further = loaded[1][stage] - loaded[0][stage] - activations
        assert further < size // 4, "the weights, size / 2 bytes, were asked for again"


@pytest.mark.parametrize("mode", [
    {"dot2": "exact"}, {"dot2": "gfx11"}, {"dot2_flush": True}, {"transcendental": "+1ulp"},
    {"transcendental": "hash"},
], ids=str)  # fmt: skip
def test_rules_that_silicon_may_choose(mode):
    case = Case(M=1, asymmetric=True)
    with emulator.modes(**mode):
        rel, largest = errors(moe_int4_decode(**case.arguments), case.expected)
    assert rel <= REL_L2 and largest <= MAX_NORM


# Vector instructions per 32 slot-weights over both stages; time over the floor that DRAM sets.
@pytest.mark.parametrize("M, asymmetric, most, ratio", [
    (1, False, 60, 1.25),
    pytest.param(1, True, 64, 1.25, marks=pytest.mark.slow),
    pytest.param(4, False, 54, 1.25, marks=pytest.mark.slow),
    pytest.param(8, False, 46, 1.4, marks=pytest.mark.slow),
    pytest.param(16, False, 42, 1.4, marks=pytest.mark.slow),
])  # fmt: skip
def test_budget_at_flash_next(M, asymmetric, most, ratio):
    layer = benchmark.Layer()
    rows = benchmark.measure(layer, benchmark.weights(layer, asymmetric), M, "V620")
    both = rows[-1]
    assert both.valu <= most and both.spills == 0
    assert both.rel_l2 <= REL_L2 and both.max_norm <= MAX_NORM
    assert both.time_us <= ratio * both.floor_us
    if M == 1:
        assert all(row.weight_reads < 1.05 for row in rows[:-1])


# Decoding and dots alone, the floor, are 66, 56, 72, 72, 32 and 16 at one token.
@pytest.mark.slow
@pytest.mark.parametrize("format, block, most", [
    ("mxfp4", 0, (73, 64)), ("i8", 0, (63, 57)), ("e4m3", 0, (82, 71)), ("e4m3", 128, (85, 74)),
    ("e5m2", 0, (38, 36)), ("f16", 0, (20, 20)),
])  # fmt: skip
def test_budget_of_every_format(format, block, most):
    layer = benchmark.Layer()
    tensors = benchmark.weights(layer, False, format, block=block)
    for M, bound, ratio in zip((1, 4), most, (1.25, 1.25), strict=True):
        both = benchmark.measure(layer, tensors, M, "V620", format, block)[-1]
        assert both.valu <= bound and both.spills == 0, (M, both.valu)
        assert both.rel_l2 <= REL_L2 and both.max_norm <= MAX_NORM
        assert both.time_us <= ratio * both.floor_us


@pytest.mark.parametrize("format, most", [("mxfp4", 80), ("i8", 70), ("f16", 32)])
def test_budget_of_a_small_layer(format, most):
    layer = benchmark.Layer(H=1024, I=256, T=2, E=2, E_g=2)
    both = benchmark.measure(layer, benchmark.weights(layer, False, format), 1, "V620", format)[-1]
    assert both.valu <= most and both.spills == 0 and both.rel_l2 <= REL_L2
    assert both.weight_reads < 1.2 and both.vgprs and both.waves_per_simd and both.load_bytes == 16
