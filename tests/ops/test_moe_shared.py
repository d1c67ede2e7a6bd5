"""moe_decode with a shared expert: fused up to two tokens, launches of its own above."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, emulator
from rdna_jit.ops.moe import moe_decode
from rdna_jit.ops.moe_compat import moe_decode_v3
from tests.ops.moe_cases import MAX_NORM, REL_L2, Case, Shape, errors, off_by, poisoned
from tests.ops.moe_shared import SharedExpert

BASE = Case(M=1)


def assert_near(y: torch.Tensor, expected, slack: float = 1.0) -> None:
    rel, largest = errors(y, expected)
    assert rel <= slack * REL_L2 and largest <= slack * MAX_NORM, (rel, largest)


def launches(case: Case, shared: SharedExpert, **options: object) -> int:
    with emulator.profiling() as profiles:
        moe_decode(**case.call, **shared.tensors, **options)
    return len(profiles)


@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize("with_gate", [False, True])
@pytest.mark.parametrize("format", ["int4", pytest.param("mxfp4", marks=pytest.mark.slow)])
def test_added_before_the_one_rounding(M, with_gate, format):
    case = BASE.with_(M=M, format=format, with_residual=True)
    shared = SharedExpert(case, with_gate=with_gate)
    plan = moe_decode.plan(**case.call, **shared.tensors)
    assert plan.values["SHARED"] == 48 and len(plan.launches) == 2 and not plan.notes
    y = moe_decode(**case.call, **shared.tensors, out=poisoned(M, 256),
                   workspace=poisoned(M, 4, 64), shared_workspace=poisoned(M, 56))  # fmt: skip
    assert_near(y, case.expected + shared.part)
    assert torch.equal(y, moe_decode(**case.call, **shared.tensors)), "two runs differ"


@pytest.mark.parametrize("M", [1, 2])
def test_all_slots_dead_leaves_the_shared_expert(M):
    case = BASE.with_(M=M, routing="all_dead")
    shared = SharedExpert(case)
    assert_near(moe_decode(**case.call, **shared.tensors), shared.part)


@pytest.mark.parametrize("I", [16, 160, pytest.param(640, marks=pytest.mark.slow)])
def test_widths_and_fp32_scales(I):  # noqa: E741
    case = BASE.with_(shape=Shape(H=2560 if I == 640 else 256))
    shared = SharedExpert(case, I=I, dtype=torch.float32)
    assert moe_decode.plan(**case.call, **shared.tensors).values["SHARED"] == I
    assert_near(moe_decode(**case.call, **shared.tensors), case.expected + shared.part)


def test_epilogue_is_the_experts_own():
    case = BASE.with_(limit=0.5, alpha=1.702, scale=4.0)
    shared = SharedExpert(case)
    assert_near(moe_decode(**case.call, **shared.tensors), case.expected + shared.part)


WHY = [
    ({"M": 3}, {}, "M 3 is above 2"),
    ({}, {"variant": "v1"}, "the plain kernels do not fuse it"),
    ({}, {"I": 24}, "no multiple of 16"),
    ({}, {"off": "shared_w1"}, "not 16-byte aligned"),
    ({}, {"off": "shared_gate"}, "not 16-byte aligned"),
]


@pytest.mark.parametrize("changes, options, why", WHY, ids=[w[2] for w in WHY])
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_launches_of_its_own(changes, options, why, apart):
    case = BASE.with_(with_residual=True, **changes)
    options = dict(options)
    shared = SharedExpert(case, I=options.pop("I", 48))
    tensors, name = dict(shared.tensors), options.pop("off", None)
    if name:
        tensors[name] = off_by(tensors[name], 1)
    part = poisoned(case.M, 256) if apart else None
    plan = moe_decode.plan(**case.call, **tensors, **options)
    assert any(why in note for note in plan.notes)
    y = moe_decode(**case.call, **tensors, **options, shared_out=part)
    if part is None:
        assert_near(y, case.expected + shared.part, slack=2.0)  # two roundings
    else:
        assert_near(y, case.expected)
        assert_near(part, shared.part)


def test_fork_named_entry_point():
    case = BASE.with_(M=2, routing="padding")
    shared, given = SharedExpert(case), dict(case.tensors)
    table = given.pop("expert_map")
    act, out, part = poisoned(2, 4, 64), poisoned(2, 256), poisoned(2, 256)
    moe_decode_v3(*given.values(), *shared.tensors.values(), act, out, part, 32, table)
    assert_near(out, case.expected)
    assert_near(part, shared.part)
    with pytest.raises(ContractError, match="shared_output: expected a tensor"):
        moe_decode_v3(*given.values(), *shared.tensors.values(), act, out, None, 32, table)


@pytest.mark.parametrize("name, value, message", [
    ("shared_w2", None, "shared_w2: expected a tensor beside shared_w1, got None"),
    ("shared_w1", [1], "shared_w1: expected a tensor, got list"),
    ("shared_w1", torch.zeros(95, 256, dtype=torch.int8), "an even number of rows"),
    ("shared_w1", torch.zeros(96, 256), "torch.int8 for format i8, got torch.float32"),
    ("shared_w2", torch.zeros(256, 49, dtype=torch.int8), r"expected shape \[1, 256, 48\]"),
    ("shared_w2_scale", torch.zeros(255).half(), r"expected shape \[1, 256\], got \[1, 255\]"),
    ("shared_gate", torch.zeros(255).half(), r"shared_gate: expected shape \[256\]"),
    ("shared_out", torch.zeros(1, 255).half(), "shared_out: expected shape"),
    ("shared_workspace", torch.zeros(1, 48).half(), "shared_workspace: expected shape"),
])  # fmt: skip
def test_refused(name, value, message):
    shared = SharedExpert(BASE)
    with pytest.raises(ContractError, match=message):
        moe_decode(**BASE.call, **{**shared.tensors, name: value})


def test_result_apart_from_the_shared_part():
    shared, y = SharedExpert(BASE), poisoned(1, 256)
    with pytest.raises(ContractError, match="out: expected memory apart from shared_out"):
        moe_decode(**BASE.call, **shared.tensors, shared_out=y, out=y)


@pytest.mark.parametrize("M", [1, 3])
def test_the_shared_part_apart_from_the_input(M):
    """Also where neither out nor workspace is given."""
    case = BASE.with_(M=M)
    x = case.tensors["hidden_states"]
    before = x.clone()
    with pytest.raises(ContractError, match="shared_out: expected memory apart from hidden_states"):
        moe_decode(**case.call, **SharedExpert(case).tensors, shared_out=x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("apart", [False, True])
def test_a_plan_lists_every_launch(apart):
    """warm() compiles what a plan lists."""
    case = BASE.with_(M=3)
    call = {**case.call, **SharedExpert(case).tensors}
    if apart:
        call["shared_out"] = poisoned(3, 256)
    plan = moe_decode.plan(**call)
    with emulator.profiling() as profiles:
        moe_decode(**call)
    assert len(plan.launches) == len(profiles) == 4
    assert [launch.kernel.values["FORMAT"] for launch in plan.launches] == ["int4"] * 2 + ["i8"] * 2


def test_number_of_launches():
    assert launches(BASE, SharedExpert(BASE)) == 2
    three = BASE.with_(M=3)
    assert launches(three, SharedExpert(three, with_gate=False)) == 4
