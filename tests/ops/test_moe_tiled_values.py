"""Values of moe_tiled against float64: formats, routing, shapes, forms of the arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rdna_jit
from rdna_jit import emulator
from rdna_jit.ops.moe_tiled import moe_tiled
from tests.ops.moe_cases import MAX_NORM, REL_L2, ROUTINGS, Case, Shape, errors, poisoned
from tests.ops.test_moe_values import assert_close, in_wider_rows, off_by

PLAIN = Case(M=40)
FULL = Case(
    M=40, asymmetric=True, with_residual=True, id_dtype=torch.int64, weight_dtype=torch.float16,
    with_map=False, shape=Shape(E_g=4),
)  # fmt: skip
ONE = Shape(T=1, E=2, E_g=4)
SLOW = pytest.mark.slow


def run(case: Case, **changes: object) -> torch.Tensor:
    """The op into poisoned memory, inputs checked for changes."""
    before = {n: None if t is None else t.clone() for n, t in case.tensors.items()}
    arguments = {**case.call, "out": poisoned(case.M, case.shape.H), **changes}
    if "workspace" not in arguments:
        size = moe_tiled.workspace_bytes(**arguments)
        arguments["workspace"] = torch.full((size,), 0xFF, dtype=torch.uint8)  # NaN, far slots
    y = moe_tiled(**arguments)
    assert arguments["out"] is None or y is arguments["out"]
    for name, tensor in case.tensors.items():
        if tensor is not None:
            assert torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), name
    return y


@pytest.mark.parametrize("base", [PLAIN, FULL], ids=["plain", "full"])
def test_values(base):
    y = run(base, variant="64")
    assert_close(y, base)
    assert torch.equal(y, run(base, variant="64")), "two runs differ"
    assert torch.equal(y, run(base, variant="64", workspace=None, out=None))
    assert torch.equal(y, run(base, variant="32")), "the block changes a sum"


FORMS = [
    ("i8", "channel", {}), ("i8", "group", {"scale_dtype": torch.float32}),
    ("e4m3", "tensor", {}), ("e4m3", "channel", {"scale_dtype": torch.float16}),
    ("e4m3", "block", {"block": (48, 96)}), ("e5m2", "block", {"block": (64, 64)}),
    ("mxfp4", "group", {"scale_bytes": (90, 100, 119, 120)}), ("f16", "group", {}),
    ("int4", "group", {"asymmetric": True, "code_dtype": torch.int32}),
]  # fmt: skip


@pytest.mark.parametrize("format, scales, options", FORMS, ids=[f"{f}-{s}" for f, s, _ in FORMS])
def test_formats(format, scales, options):
    """Scales differ per row and group, and have both signs: one column's scale for another, or a
    group's for the next, would show."""
    case = Case(M=21, format=format, scales=scales, shape=Shape(H=192, I=96, G=32), **options)
    assert_close(run(case), case)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_routing(routing):
    case = PLAIN.with_(M=13, routing=routing)
    y = run(case)
    if routing == "all_dead":
        assert torch.count_nonzero(y) == 0
    elif routing == "dead_token":
        assert torch.count_nonzero(y[6]) == 0
    assert_close(y, case)


def test_wide_ids_out_of_range():
    case = FULL.with_(M=13, routing="out_of_range")
    assert_close(run(case), case)


def test_map_that_names_experts_beyond_those_of_the_rank():
    case = PLAIN.with_(M=13)
    table = case.tensors["expert_map"].clone()
    far = table.clone()
    far[table < 0] = torch.tensor([4, 5, 7, 2**31 - 1], dtype=torch.int32)
    assert_close(moe_tiled(**{**case.call, "expert_map": far}), case)


def test_dead_token_gives_its_residual():
    case = FULL.with_(M=9, routing="dead_token")
    assert torch.equal(run(case)[4], case.tensors["residual"][4])


# ---- faults that tiled MoE kernels elsewhere have had ----


def test_scales_of_every_column_and_group_are_their_own():
    """Scales that are powers of two apart: a column read with a neighbour's would be far off."""
    case = Case(M=5, shape=Shape(H=256, I=128, G=32, T=1, E=1, E_g=1), with_map=False)
    call = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in case.call.items()}
    for name in ("w1_scale", "w2_scale"):
        rows, groups = call[name].shape[1:]
        spread = torch.arange(rows)[:, None] * 3 % 7 + torch.arange(groups) * 5 % 4
        call[name] = (2.0 ** (spread - 14)).half()[None]
    from tests.ops.moe_oracle import moe_reference

    dense = []
    for name in ("w1", "w2"):
        codes = torch.stack((call[name] & 15, call[name] >> 4), -1).flatten(-2)
        dense.append(
            ((codes.double() - 8) * call[f"{name}_scale"].double().repeat_interleave(32, 2)).numpy()
        )
    want = moe_reference(
        call["hidden_states"].numpy(), *dense, call["topk_weights"].double().numpy(),
        call["topk_ids"].numpy(),
    )  # fmt: skip
    rel, largest = errors(moe_tiled(**call), want)
    assert rel <= REL_L2 and largest <= MAX_NORM


@pytest.mark.parametrize("M, T", [
    (13, 10), *(pytest.param(*c, marks=SLOW) for c in ((1, 1), (3, 8), (33, 2))),
])  # fmt: skip
def test_buffers_fit_every_batch_and_top_k(M, T):
    """A block's room for any number of slots: buffers are no byte larger, and none is reused."""
    case = Case(M=M, shape=Shape(T=T, E=12, E_g=12), with_map=False)
    with emulator.checks(uninitialised=True):
        assert_close(run(case, out=None, workspace=None), case)


def test_ids_are_counted_globally_where_there_is_a_map():
    """Ids up to E_g; counting only E of them would lose the experts with high ids."""
    shape = Shape(T=2, E=2, E_g=16)
    case = Case(M=24, shape=shape, seed=3)
    table = case.tensors["expert_map"]
    assert int((table >= 0).nonzero().max()) >= shape.E and case.live()
    assert_close(run(case), case)


def test_results_are_not_views_of_a_shared_buffer():
    case = PLAIN
    first = moe_tiled(**case.call)
    kept = first.clone()
    second = moe_tiled(**{**case.call, "hidden_states": first})  # fed back
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


def test_the_order_of_experts_and_of_tokens_changes_no_bit():
    case = FULL.with_(M=24, with_residual=False, routing="skewed")
    y = run(case)
    order = torch.tensor([2, 0, 3, 1])
    weights = ("w1", "w1_scale", "w1_zp", "w2", "w2_scale", "w2_zp")
    moved = {n: case.tensors[n][order] for n in weights}
    moved["topk_ids"] = torch.argsort(order)[case.tensors["topk_ids"]]
    assert torch.equal(moe_tiled(**{**case.call, **moved}), y)
    turn = torch.arange(23, -1, -1)
    turned = {n: case.tensors[n][turn] for n in ("hidden_states", "topk_ids", "topk_weights")}
    assert torch.equal(moe_tiled(**{**case.call, **turned})[turn], y)


def test_a_row_has_the_bits_that_it_has_alone():
    case = FULL.with_(M=24)
    y = run(case, variant="64")
    assert moe_tiled.batch_invariant
    names = ("hidden_states", "topk_ids", "topk_weights", "residual")
    for m in (0, 7, 23):
        alone = {n: case.tensors[n][m : m + 1] for n in names}
        assert torch.equal(moe_tiled(**{**case.call, **alone})[0], y[m])


# ---- activations, weights on the input ----


@pytest.mark.parametrize("options", [
    {"activation": "gelu_tanh", "limit": 0.4}, {"limit": 0.5, "alpha": 1.702},
    *(pytest.param(o, marks=SLOW) for o in ({"activation": "gelu"}, {"limit": 0.25})),
], ids=str)  # fmt: skip
def test_activations(options):
    case = Case(M=9, scale=1.5, **options)
    assert_close(run(case), case)


def test_router_weights_on_the_input():
    case = Case(M=21, shape=ONE, with_residual=True)
    want = case.with_(with_residual=True).tensors
    weights = want["topk_weights"]
    # The same as weighting a wider input: x is scaled by the oracle, in float64.
    from tests.ops.moe_cases import quantised
    from tests.ops.moe_oracle import moe_reference

    rng = np.random.default_rng(case.seed)
    one, two = (
        quantised(rng, case, rows, K).dense
        for rows, K in ((2 * case.shape.I, case.shape.H), (case.shape.H, case.shape.I))
    )
    x = want["hidden_states"].double().numpy() * weights.double().numpy()
    expected = moe_reference(
        x, one, two, np.ones(weights.shape), want["topk_ids"].numpy(), want["expert_map"].numpy(),
        want["residual"].numpy(),
    )  # fmt: skip
    y = run(case, apply_router_weight_on_input=True)
    rel, largest = errors(y, expected)
    assert rel <= REL_L2 and largest <= MAX_NORM and not torch.equal(y, run(case))


def test_overflow_to_infinity_agrees():
    case = PLAIN.with_(M=9, scale=200.0)
    y, half = run(case), torch.from_numpy(case.expected).half()
    assert half.isinf().any() and torch.equal(y.isinf(), half.isinf())
    assert half.isnan().any() and torch.equal(y.isnan(), half.isnan())


def test_finite_sums_of_partial_sums_beyond_fp16():
    """Two slots whose parts are 1e5 and cancel: partial sums are fp32."""
    shape = Shape(H=64, I=32, T=2, E=2, E_g=2)
    case = Case(M=3, shape=shape, with_map=False, format="f16", scale=20.0)
    call = dict(case.call)
    call["w1"] = call["w1"][:1].repeat(2, 1, 1)
    call["w2"] = torch.stack((call["w2"][0], -call["w2"][0]))
    call["topk_ids"] = torch.tensor([[0, 1]] * 3, dtype=torch.int32)
    call["topk_weights"] = torch.full((3, 2), 4000.0)
    assert float(moe_tiled(**call).abs().max()) < 0.05  # the last bit of 1e5 in fp32
    call["topk_weights"][:, 1] = 0
    assert moe_tiled(**call).isinf().any()


# ---- shapes and forms ----


@pytest.mark.parametrize("shape", [
    pytest.param(Shape(H=2048, I=32, G=32, E=2, E_g=2), marks=SLOW),
    Shape(H=64, I=160, G=32, T=33, E_g=4),
], ids=str)  # fmt: skip
def test_odd_fits(shape):
    case = FULL.with_(M=11, shape=shape)
    assert_close(run(case), case)


@pytest.mark.parametrize("shape, format", [
    (Shape(H=200, I=40, T=3), "i8"), (Shape(H=136, I=104, T=2), "f16"),
    *(pytest.param(Shape(H=136, I=104, T=2), format, marks=SLOW) for format in ("e5m2", "e4m3")),
], ids=str)  # fmt: skip
def test_tails_of_rows(shape, format):
    """K is no whole number of steps, I none of blocks of channels, H none of columns."""
    scales = "group" if format == "f16" else "channel"
    case = Case(M=11, shape=shape, format=format, scales=scales)
    assert_close(run(case), case)


def test_int4_with_one_group_and_a_tail():
    case = FULL.with_(M=11, shape=Shape(H=40, I=40, G=40, E_g=4))
    assert_close(run(case, group_size=-1), case)


@pytest.mark.parametrize("name", [
    "hidden_states", "w1", *(pytest.param(n, marks=SLOW) for n in ("w2", "w1_zp", "w2_scale")),
    "residual", "out",
])  # fmt: skip
def test_misaligned_views(name):
    case = FULL.with_(M=9)
    value = poisoned(9, 256) if name == "out" else case.tensors[name]
    y = moe_tiled(**{**case.call, name: off_by(value, 1)})
    assert_close(y, case)


@pytest.mark.parametrize("name", [
    "hidden_states", "residual", "out", "topk_ids", "topk_weights",
])  # fmt: skip
def test_strided_rows(name):
    case = FULL.with_(M=9)
    value = poisoned(9, 256) if name == "out" else case.tensors[name]
    y = moe_tiled(**{**case.call, name: in_wider_rows(value, 20)})
    assert_close(y, case)


def test_result_may_replace_the_residual():
    case = FULL.with_(M=9)
    y = case.tensors["residual"].clone()
    assert moe_tiled(**{**case.call, "residual": y}, out=y) is y
    assert torch.equal(y, run(case))


def test_chunks_of_tokens(monkeypatch):
    case = FULL.with_(M=70)
    whole = run(case, variant="32")
    monkeypatch.setattr(rdna_jit.ops._moe_tile, "MOST_PARTIAL", 1)  # the least is 64 tokens
    changed = {**case.call, "topk_ids": in_wider_rows(case.tensors["topk_ids"], 4)}
    plan = moe_tiled.plan(**changed, variant="32")
    assert len(plan.launches) >= 7 and "2 chunks of at most 64" in plan.notes[1]
    assert torch.equal(moe_tiled(**changed, variant="32"), whole)


def test_fresh_memory_is_never_read_and_waves_do_not_race():
    for base in (PLAIN, FULL):
        case = base.with_(M=40, routing="dead_token")
        with emulator.checks(uninitialised=True, races=True):
            assert_close(run(case, out=None, workspace=None), case)


def test_without_dot_instructions():
    with rdna_jit.config.scope(arch="gfx1010"):
        assert_close(run(FULL.with_(M=9)), FULL.with_(M=9))


@pytest.mark.parametrize("mode", [
    {"dot2": "exact"}, {"dot2_flush": True}, {"transcendental": "+1ulp"},
], ids=str)  # fmt: skip
def test_rules_that_silicon_may_choose(mode):
    case = FULL.with_(M=9)
    with emulator.modes(**mode):
        assert_close(run(case), case)


def test_empty_batch():
    empty = PLAIN.call
    for name in ("hidden_states", "topk_ids", "topk_weights"):
        empty[name] = empty[name][:0]
    assert moe_tiled(**empty).shape == (0, 256)


@SLOW
@pytest.mark.parametrize("M", [17, 64, 256])
@pytest.mark.parametrize("shape", [
    Shape(2560, 640, 128, 10, 16, 64), Shape(2048, 768, 32, 8, 8, 16),
    Shape(2048, 192, 32, 8, 8, 32), Shape(2048, 128, 32, 8, 8, 32), Shape(3072, 1024, 128, 8, 2, 8),
    Shape(4096, 512, 128, 8, 4, 16),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("routing", ["uniform", "skewed"])
def test_layers_of_models(shape, M, routing):
    case = Case(M=M, shape=shape, routing=routing)
    assert_close(run(case), case)


@SLOW
@pytest.mark.parametrize("format, scales, options", FORMS, ids=[f"{f}-{s}" for f, s, _ in FORMS])
@pytest.mark.parametrize("M", [64, 200])
def test_formats_of_a_whole_layer(format, scales, options, M):
    case = Case(M=M, format=format, scales=scales, shape=Shape(1536, 192, 64, 6, 6, 12), **options)
    assert_close(run(case), case)
