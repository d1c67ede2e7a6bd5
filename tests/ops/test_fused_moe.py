"""fused_moe: what it computes, which kernels it takes, and that torch.compile leaves the choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import rdna_jit
from rdna_jit import ContractError, config
from rdna_jit.dispatch import FallbackError
from rdna_jit.formats import MoEWeights
from rdna_jit.ops.moe import SharedExpert, fused_moe, moe_tiled
from tests.ops.moe_cases import MAX_NORM, REL_L2, Case, Shape, errors, poisoned
from tests.ops.moe_oracle import moe_reference

FULL = Case(M=3, asymmetric=True, with_residual=True, id_dtype=torch.int64)
FORMATS = [
    ("decode", {"format": "i8"}), ("decode", {"format": "mxfp4"}),
    ("decode", {"format": "e4m3", "scales": "block"}),
    ("decode", {"format": "e5m2", "scales": "channel"}), ("decode", {"format": "f16"}),
    ("tiled", {"format": "i8", "scales": "channel"}), ("tiled", {"format": "mxfp4"}),
    ("tiled", {"format": "e4m3", "scales": "block"}),
]  # fmt: skip
PARTS = ("w1", "w1_scale", "w2", "w2_scale", "w1_zp", "w2_zp")


def operands(case: Case) -> dict[str, object]:
    """Keyword arguments of fused_moe."""
    given = dict(case.call)
    parts = {name: given.pop(name, None) for name in PARTS}
    group, block = given.pop("group_size"), given.pop("block")
    weights = MoEWeights(given.pop("format"), **parts, group_size=group or -1, block=block)
    return {**given, "weights": weights}


def workspace_of(given: dict[str, object]) -> torch.Tensor:
    return torch.full((fused_moe.workspace_bytes(**given),), 255, dtype=torch.uint8)


def assert_close(y: torch.Tensor, case: Case) -> None:
    rel, largest = errors(y, case.expected)
    assert rel <= REL_L2 and largest <= MAX_NORM, (rel, largest)


@pytest.mark.parametrize("variant, changes", FORMATS, ids=str)
def test_values(variant, changes):
    case = Case(M=3, **changes)
    given = {**operands(case), "variant": variant}
    out = poisoned(3, case.shape.H)
    y = fused_moe(**given, out=out, workspace=workspace_of(given))
    assert y is out
    assert_close(y, case)
    assert torch.equal(fused_moe(**given), y), "two runs differ"


@pytest.mark.parametrize("M, variant", [(1, "decode"), (19, "decode"), (19, "tiled")])
def test_values_with_all_operands(M, variant):
    case = FULL.with_(M=M, activation="gelu", limit=2.0)
    given = {**operands(case), "variant": variant}
    y = fused_moe(**given, out=poisoned(M, case.shape.H), workspace=workspace_of(given))
    assert_close(y, case)


@pytest.mark.parametrize("routing", ["all_dead", "dead_token", "padding", "out_of_range"])
def test_dead_slots(routing):
    case = FULL.with_(routing=routing)
    y = fused_moe(**operands(case), out=poisoned(3, case.shape.H))
    if routing == "all_dead":
        assert torch.equal(y, case.tensors["residual"])
    elif routing == "dead_token":
        assert torch.equal(y[1], case.tensors["residual"][1])
    assert_close(y, case)


def test_result_may_replace_the_residual():
    given = operands(FULL)
    want = fused_moe(**given)
    y = given["residual"].clone()
    assert fused_moe(**{**given, "residual": y}, out=y) is y
    assert torch.equal(y, want)


def test_retained_outputs_are_not_written_again():
    given = operands(FULL)
    first = fused_moe(**given)
    kept = first.clone()
    fused_moe(**{**given, "hidden_states": first})
    assert torch.equal(first, kept)


def in_wider_rows(tensor: torch.Tensor, first: int) -> torch.Tensor:
    """The same values as a slice of longer rows."""
    room = torch.full((len(tensor), tensor.shape[1] + 24), 7.0, dtype=tensor.dtype)
    view = room[:, first : first + tensor.shape[1]]
    return view.copy_(tensor)


@pytest.mark.parametrize("variant", ["decode", "tiled"])
@pytest.mark.parametrize("first", [8, 1], ids=["strided", "misaligned"])
def test_views(first, variant):
    given = {**operands(FULL), "variant": variant}
    for name in ("hidden_states", "residual"):
        given[name] = in_wider_rows(given[name], first)
    out = in_wider_rows(poisoned(3, 256), first)
    assert fused_moe(**given, out=out) is out
    assert_close(out, FULL)
    around = torch.as_strided(out, (3, 280), (280, 1), out.storage_offset() - first)
    assert (around[:, :first] == 7).all() and (around[:, first + 256 :] == 7).all()


def test_router_weight_on_input_of_tiles():
    case = FULL.with_(shape=Shape(T=1), with_residual=False, asymmetric=False)
    weights = case.tensors["topk_weights"]
    on_input = {**operands(case), "apply_router_weight_on_input": True}
    tiled, decode = (fused_moe(**on_input, variant=variant) for variant in ("tiled", "decode"))
    x = (case.tensors["hidden_states"].double() * weights.double()).numpy()
    ones, ids = np.ones(weights.shape), case.tensors["topk_ids"].numpy()
    dense = (w.double().numpy() for w in on_input["weights"].dequantize(torch.float64))
    expected = moe_reference(x, *dense, ones, ids, case.tensors["expert_map"].numpy())
    assert errors(tiled, expected)[0] <= REL_L2  # x is not rounded
    assert errors(decode, expected)[0] <= 2 * REL_L2  # x is


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_router_weight_on_input(dtype):
    case = FULL.with_(shape=Shape(T=1), weight_dtype=dtype)
    given = operands(case)
    weights = given["topk_weights"]
    scaled = (given["hidden_states"].float() * weights.float()).half()
    want = fused_moe(**{**given, "hidden_states": scaled, "topk_weights": torch.ones_like(weights)})
    y = fused_moe(**given, apply_router_weight_on_input=True)
    assert torch.equal(y, want) and not torch.equal(y, fused_moe(**given))


def test_empty_batch():
    given = operands(Case(M=1))
    for name in ("hidden_states", "topk_ids", "topk_weights"):
        given[name] = given[name][:0]
    assert fused_moe(**given).shape == (0, 256)


def space(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


BAD = [
    # changed argument, what the message says
    ({"variant": "fast"}, "variant: expected one of auto"),
    ({"hidden_states": torch.ones(3, 256)}, r"call hidden_states.half\(\)"),
    ({"hidden_states": torch.ones(3, 64).half()}, r"hidden_states: expected \[tokens, 256\]"),
    ({"weights": None}, "weights: expected a MoEWeights, got NoneType"),
    ({"workspace": space(1535)}, "workspace: expected 1536 bytes, 16-byte aligned, got 1535 at"),
    ({"workspace": space(1552)[8:]}, "workspace: expected 1536 bytes, 16-byte aligned"),
    ({"workspace": poisoned(1536)}, "workspace: expected torch.uint8"),
    ({"workspace": space(16, 96)}, "workspace: expected shape"),
    ({"apply_router_weight_on_input": True}, "False unless top-k is 1, got top-k 4"),
    ({"topk_weights": torch.ones(2, 4)}, "topk_weights: expected shape"),
    ({"residual": torch.ones(3, 257).half()}, "residual: expected shape"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message[:24] for _, message in BAD])
def test_refused(change, message):
    with pytest.raises(ContractError, match=message):
        fused_moe(**{**operands(FULL), **change})


@pytest.mark.parametrize("variant", ["decode", "tiled"])
@pytest.mark.parametrize("name", ["hidden_states", "workspace"])
def test_result_may_not_overlap(name, variant):
    given = {**operands(FULL), "workspace": space(1 << 16)}
    buffer = given[name].flatten().view(torch.float16)[: 3 * 256].view(3, 256)
    message = f"^fused_moe: out: expected memory apart from {name}"
    with pytest.raises(ContractError, match=message):
        fused_moe(**given, out=buffer, variant=variant)


@pytest.mark.parametrize("variant", ["decode", "tiled"])
def test_rows_of_the_result_are_apart(variant):
    with pytest.raises(ContractError, match=r"^fused_moe: out: expected rows apart"):
        fused_moe(**operands(FULL), out=torch.zeros(1, 256).half().expand(3, 256), variant=variant)


@pytest.mark.parametrize("shared", [{}, 0, torch.zeros(5)], ids=["dict", "int", "tensor"])
def test_a_shared_expert_is_a_shared_expert(shared):
    with pytest.raises(ContractError, match="shared_expert: expected a SharedExpert"):
        fused_moe(**operands(FULL), shared_expert=shared)


def test_weighted_input_may_not_be_the_result():
    given = operands(FULL.with_(shape=Shape(T=1)))
    with pytest.raises(ContractError, match="out: expected memory apart from hidden_states"):
        fused_moe(**given, out=given["hidden_states"], apply_router_weight_on_input=True)


def test_traced_with_many_tokens_and_run_with_few():
    shape = Shape(E=8)
    few = {M: operands(Case(M=M, shape=shape, with_map=False)) for M in (64, 1, 9)}
    weights = few[64]["weights"]

    def layer(x, topk_weights, topk_ids):
        return fused_moe(x * 2, weights, topk_weights, topk_ids) + 1

    backend = CompileCounterWithBackend("aot_eager")
    traced = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for M, graphs in ((64, 1), (9, 1), (1, 2)):  # torch traces a size of one apart
        x, topk_weights, topk_ids = (
            few[M][name] for name in ("hidden_states", "topk_weights", "topk_ids")
        )
        rdna_jit.dispatch_log(clear=True)
        y = traced(x, topk_weights, topk_ids)
        assert backend.frame_count == graphs
        (entry,) = rdna_jit.dispatch_log()
        assert entry.op == "fused_moe" and entry.shape["M"] == M
        assert torch.equal(y, layer(x, topk_weights, topk_ids))


def test_registered_with_torch():
    given = operands(FULL)
    w = given.pop("weights")
    parts = {**w.tensors, "format": "int4", "group_size": w.group_size}
    op = torch.ops.rdna_jit.fused_moe
    y = op(**given, **parts)
    assert torch.equal(y, fused_moe(**given, weights=w))
    out = poisoned(3, 256)
    op.out(**given, **parts, out=out)
    assert torch.equal(out, y)
    every = {**given, **parts}
    first = ("hidden_states", *PARTS[:4], "topk_weights", "topk_ids")
    rest = {name: value for name, value in every.items() if name not in first}
    torch.library.opcheck(op.default, tuple(every[name] for name in first), rest)


def shared_of(case: Case, gated: bool) -> tuple[SharedExpert, np.ndarray]:
    """A shared expert, and what it adds."""
    H, M = case.shape.H, case.M
    one = Case(M=M, shape=Shape(H=H, I=48, T=1, E=1, E_g=1), with_map=False, format="i8",
               scales="channel", routing="one_expert", activation=case.activation,
               limit=case.limit)  # fmt: skip
    weights: MoEWeights = operands(one)["weights"]
    gate = torch.linspace(-0.2, 0.3, H).half() if gated else None
    x = case.tensors["hidden_states"]
    factor = torch.ones(M, 1).double()
    if gate is not None:
        factor = torch.sigmoid(x.double() @ gate.double()[:, None])
    dense = (w.double().numpy() for w in weights.dequantize(torch.float64))
    ids = np.zeros((M, 1), np.int64)
    added = moe_reference(
        x.numpy(), *dense, factor.numpy(), ids, activation=case.activation, limit=case.limit
    )
    return SharedExpert.of(weights, gate), added


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "M, variant, launches", [(2, "decode", 1), (3, "decode", 2), (3, "tiled", 2)]
)
def test_shared_expert(M, variant, launches, gated):
    case = FULL.with_(M=M, limit=3.0)
    shared, added = shared_of(case, gated)
    given = {**operands(case), "shared_expert": shared, "variant": variant}
    rdna_jit.dispatch_log(clear=True)
    out = poisoned(M, case.shape.H)
    assert fused_moe(**given, out=out, workspace=workspace_of(given)) is out
    assert len(rdna_jit.dispatch_log()) == launches
    rel, largest = errors(out, case.expected + added)
    assert rel <= REL_L2 and largest <= MAX_NORM
    assert torch.equal(fused_moe(**given), out)
    plan = fused_moe.plan(**given)
    assert len(plan.launches) == {1: 2, 2: 4}[launches] + 2 * (variant == "tiled")
    assert any("itself in moe_any" in note for note in plan.notes) == (launches == 2)
    assert ("shared expert: H 256 or I 48" in plan.fallback) == (launches == 2)
    assert not torch.equal(fused_moe(**{**given, "shared_expert": None}), out)


def test_input_of_the_shared_expert_is_not_weighted():
    case = FULL.with_(M=2, shape=Shape(T=1), with_residual=False)
    shared, added = shared_of(case, False)
    given = {**operands(case), "apply_router_weight_on_input": True}
    alone = fused_moe(**given)
    y = fused_moe(**given, shared_expert=shared)
    assert errors(y, alone.double().numpy() + added)[0] <= REL_L2


def test_shared_experts_in_other_formats_are_refused():
    weights = operands(Case(M=1, shape=Shape(E=1, E_g=1)))["weights"]
    with pytest.raises(ContractError, match="one i8 expert with a scale per row, got MoEWeights"):
        SharedExpert.of(weights)


def plan_of(case: Case, **changes: object) -> rdna_jit.dispatch.Plan:
    return fused_moe.plan(**{**operands(case), **changes})


@pytest.mark.parametrize("M, kernel", [(1, "moe_grouped"), (16, "moe_grouped"), (64, "moe_tile")])
def test_the_batch_decides(M, kernel):
    plan = plan_of(Case(M=M))
    assert plan.kernel == kernel and not plan.fallback
    (other,) = (c for c in plan.candidates if "estimated" in c.reason)
    assert not other.taken and other.kernel == {"moe_grouped": "moe_tile"}.get(
        kernel, "moe_grouped"
    )
    assert ("tiles" if kernel == "moe_tile" else kernel) in other.reason
    text = str(rdna_jit.explain(fused_moe, **operands(Case(M=M))))
    assert text.startswith(f"fused_moe(M={M}, H=256") and other.reason in text


def test_asking_for_kernels_is_no_fallback():
    for variant, M, kernel in (("decode", 64, "moe_grouped"), ("tiled", 1, "moe_tile")):
        plan = plan_of(Case(M=M), variant=variant)
        assert plan.kernel == kernel and not plan.fallback
        assert any(f"variant='{variant}'" in c.reason for c in plan.candidates)


@pytest.mark.parametrize("variant", ["auto", "tiled"])
def test_what_tiles_cannot_take_runs_in_decode_kernels(variant):
    case = Case(M=64, shape=Shape(G=16), format="i8")
    plan = plan_of(case, variant=variant)
    assert plan.kernel == "moe_grouped"
    assert plan.fallback == "moe_tile: the group size is no multiple of 32"
    assert not plan_of(case.with_(M=1)).fallback
    with config.scope(strict=True), pytest.raises(FallbackError, match="group size"):
        fused_moe(**operands(case), variant=variant)


def test_int8_activations():
    case = FULL.with_(M=40, with_residual=False)
    given = {**operands(case), "variant": "w4a8"}
    plan = fused_moe.plan(**given)
    assert plan.kernel == "moe_tile_w4a8" and not plan.fallback
    y = fused_moe(**given, workspace=workspace_of(given))
    assert torch.equal(y, moe_tiled(**case.call, variant="w4a8"))
    assert 1e-3 < errors(y, case.expected)[0] < 2e-2
    assert plan_of(case.with_(M=3), variant="w4a8").kernel == "moe_grouped"
    exact = plan_of(case.with_(format="mxfp4", asymmetric=False), variant="w4a8")
    assert exact.kernel == "moe_tile"
    assert exact.fallback == "moe_tile_w4a8: format mxfp4 is not int4"


def test_disabled_kernels():
    with config.scope(disabled_kernels=("moe_tile",)):
        plan = plan_of(Case(M=64))
        assert plan.kernel == "moe_grouped" and "VLLM_DISABLED_KERNELS" in plan.fallback
    with config.scope(disabled_kernels=("moe_grouped",)):
        assert plan_of(Case(M=1)).kernel == "moe_any"
        assert not plan_of(Case(M=64)).fallback


@pytest.mark.parametrize("I, kernel", [(1000, "moe_tile"), (1024, "moe_grouped")])
def test_plain_decode_kernels_give_way_to_tiles_earlier(I, kernel):  # noqa: E741
    M, H, E, T = 12, 2048, 8, 4
    w1, w2 = (torch.empty(E, *size, dtype=torch.int8) for size in ((2 * I, H), (H, I)))
    weights = MoEWeights("i8", w1, torch.empty(E, 2 * I), w2, torch.empty(E, H))
    given = (torch.empty(M, H).half(), weights, torch.empty(M, T), torch.empty(M, T).int())
    plan = fused_moe.plan(*given)
    assert plan.kernel == kernel and not plan.fallback
    assert fused_moe.plan(*given, variant="decode").kernel == {1000: "moe_any"}.get(I, kernel)


def test_strict_forbids_a_fallback():
    case = Case(M=1, shape=Shape(H=40, I=24, G=8))
    with config.scope(strict=True), pytest.raises(FallbackError, match="no multiple of 32"):
        fused_moe(**operands(case))
