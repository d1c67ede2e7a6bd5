"""The entry points under the forks' names and the switches that steer them."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, config
from rdna_jit.ops.moe_compat import moe_modular_apply, moe_skinny_int4_decode
from tests.ops.moe_cases import MAX_NORM, REL_L2, Case, Shape, errors, off_by, poisoned

CASE = Case(M=2)
slow = pytest.mark.slow


def apply(
    made: Case, output: torch.Tensor, workspace: torch.Tensor, **options: object
) -> torch.Tensor:
    given = dict(made.tensors)
    options = {"expert_map": given.pop("expert_map", None), **options}
    s = made.shape
    return moe_modular_apply(
        output, *given.values(), poisoned(made.M, s.T, s.I), workspace, [0, s.G], **options
    )


def assert_close(y: torch.Tensor, made: Case) -> None:
    rel, largest = errors(y, made.expected)
    assert rel <= REL_L2 and largest <= MAX_NORM, (rel, largest)


@pytest.mark.parametrize("alias", [False, True])
def test_alias_decides_where_the_experts_write(alias):
    output, workspace = poisoned(2, 256), poisoned(4, 256)
    with config.scope(moe_alias=alias):
        assert apply(CASE, output, workspace) is output
    assert_close(output, CASE)
    assert workspace.isnan().all() if alias else torch.equal(workspace[:2], output)
    assert workspace[2:].isnan().all()


@pytest.mark.parametrize("output", [
    torch.full((2, 256), torch.nan), poisoned(2, 512)[:, :256], poisoned(2, 512)[:, ::2],
], ids=["fp32", "strided", "every second"])  # fmt: skip
def test_an_output_of_another_form_is_copied_to(output):
    with config.scope(moe_alias=True):
        assert apply(CASE, output, poisoned(2, 256)) is output
    assert_close(output.half(), CASE)


def test_the_fresh_output_may_not_be_the_input():
    x = CASE.tensors["hidden_states"].clone()
    given = {**CASE.tensors, "hidden_states": x}
    table = given.pop("expert_map")
    with config.scope(moe_alias=True), pytest.raises(ContractError, match="out: expected memory"):
        moe_modular_apply(
            x, *given.values(), poisoned(2, 4, 64), poisoned(2, 256), [0, 32], expert_map=table
        )


def kernel_of(made: Case, **options: object) -> str:
    apply(made, poisoned(made.M, made.shape.H), poisoned(made.M, made.shape.H), **options)
    last = rdna_jit.dispatch_log()[-1]
    return f"{last.op} {last.kernel}"


@pytest.mark.parametrize("switches, M, kernel", [
    ({}, 2, "moe_int4_decode moe_any"),
    ({"moe_v2": True}, 2, "moe_int4_decode moe_grouped"),
    ({"moe_v2": True, "moe_skinny_max_m": 1}, 2, "fused_moe moe_grouped"),
    pytest.param({"moe_v2": True}, 9, "fused_moe moe_grouped", marks=slow),  # the default is 8
    pytest.param(
        {"moe_v2": True, "moe_skinny_max_m": 64}, 9, "moe_int4_decode moe_grouped", marks=slow
    ),
    pytest.param(
        {"moe_v2": True, "moe_skinny_max_m": 64}, 17, "fused_moe moe_grouped", marks=slow
    ),  # clamped to 16
], ids=str)  # fmt: skip
def test_switches(switches, M, kernel):
    with config.scope(**switches):
        assert kernel_of(CASE.with_(M=M)) == kernel


@pytest.mark.parametrize("shape, why", [
    (Shape(H=40, I=24, G=8), "no multiple of 32"), (Shape(T=33), "top-k"),
], ids=["odd", "top-k"])  # fmt: skip
def test_v2_falls_back_to_v1(shape, why):
    with config.scope(moe_v2=True):
        made = CASE.with_(shape=shape)
        assert kernel_of(made) == "moe_int4_decode moe_any"
        assert why in rdna_jit.dispatch_log()[-1].fallback


def test_a_misaligned_buffer_falls_back_to_v1():
    given = dict(CASE.tensors)
    table, act, out = given.pop("expert_map"), off_by(poisoned(2, 4, 64), 1), poisoned(2, 256)
    with config.scope(moe_v2=True):
        moe_skinny_int4_decode(*given.values(), act, out, 32, table)
    assert rdna_jit.dispatch_log()[-1].kernel == "moe_any"
    assert_close(out, CASE)


@pytest.mark.parametrize("options", [
    {"activation": "gelu"}, {"global_num_experts": 16, "expert_map": None},
], ids=str)  # fmt: skip
def test_calls_that_the_predicate_refuses(options):
    made = Case(
        M=2, with_map=False, shape=Shape(E_g=4), activation=options.get("activation", "silu")
    )
    output = poisoned(2, 256)
    apply(made, output, poisoned(2, 256), **options)
    assert rdna_jit.dispatch_log()[-1].op == "fused_moe"
    assert_close(output, made)


def test_zero_points():
    made = Case(M=2, asymmetric=True)
    given, output = dict(made.tensors), poisoned(2, 256)
    zeros = {"w13_zp": given.pop("w1_zp"), "w2_zp": given.pop("w2_zp")}
    moe_modular_apply(
        output, *[given[n] for n in list(given) if n != "expert_map"], poisoned(2, 4, 64),
        poisoned(2, 256), [0, 32], expert_map=given["expert_map"], **zeros,
    )  # fmt: skip
    assert_close(output, made)


def test_router_weight_on_the_input():
    made = Case(M=2, shape=Shape(T=1))
    weights = torch.tensor([[0.5], [2.0]])  # exact in fp16: the products are those of the weights
    x = made.tensors["hidden_states"]
    scaled = Case(M=2, shape=Shape(T=1))
    scaled.tensors["hidden_states"], scaled.tensors["topk_weights"] = (
        x * weights.half(),
        weights * 0 + 1,
    )
    expected, output = poisoned(2, 256), poisoned(2, 256)
    apply(scaled, expected, poisoned(2, 256))
    made.tensors["topk_weights"] = weights
    apply(made, output, poisoned(2, 256), apply_router_weight_on_input=True)
    assert errors(output, expected.double().numpy())[0] <= REL_L2
    with pytest.raises(ContractError, match="top-k"):
        apply(CASE, output, poisoned(2, 256), apply_router_weight_on_input=True)


@pytest.mark.parametrize("missing", ["output", "workspace", "act_buf"])
def test_buffers_are_needed(missing):
    buffers = {
        "output": poisoned(1, 32),
        "act_buf": poisoned(1, 1, 32),
        "workspace": poisoned(1, 32),
    }
    buffers[missing] = None
    with pytest.raises(ContractError, match=missing):
        moe_modular_apply(buffers.pop("output"), *[None] * 7, **buffers, block_shape=[0, 32])
