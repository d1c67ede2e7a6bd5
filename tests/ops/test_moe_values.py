"""Values of moe_int4_decode against float64: shapes, routing, forms of the arguments."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from rdna_jit import emulator
from rdna_jit.ops.moe import moe_int4_decode
from tests.ops.moe_cases import (
    MAX_NORM,
    REL_L2,
    ROUTINGS,
    Case,
    Shape,
    errors,
    in_wider_rows,
    off_by,
    poisoned,
)

PLAIN = Case(M=1)
FULL = Case(
    M=1, asymmetric=True, with_residual=True, id_dtype=torch.int64, weight_dtype=torch.float16,
    with_map=False, shape=Shape(E_g=4),
)  # fmt: skip


def run(case: Case, **changes: object) -> torch.Tensor:
    """The op with everything that it writes poisoned, inputs checked for changes."""
    before = {name: tensor.clone() for name, tensor in case.tensors.items()}
    s = case.shape
    arguments = {
        **case.arguments,
        "out": poisoned(case.M, s.H),
        "workspace": poisoned(case.M, s.T, s.I),
        **changes,
    }
    y = moe_int4_decode(**arguments)
    assert arguments["out"] is None or y is arguments["out"]
    for name, tensor in case.tensors.items():
        assert torch.equal(tensor, before[name]), name
    return y


def assert_close(y: torch.Tensor, case: Case) -> None:
    assert case.live() or case.routing == "all_dead", "the case tests nothing"
    assert y.isfinite().all()
    rel, largest = errors(y, case.expected)
    assert rel <= REL_L2 and largest <= MAX_NORM, (rel, largest)


@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("M", [1, 4])
@pytest.mark.parametrize("base", [PLAIN, FULL], ids=["plain", "full"])
def test_values(base, M, variant):
    case = base.with_(M=M)
    y = run(case, variant=variant)
    assert_close(y, case)
    expected = {"v1": "moe_any", "v2": "moe_grouped"}[variant]
    assert moe_int4_decode.plan(**case.arguments, variant=variant).kernel == expected
    assert torch.equal(y, run(case, variant=variant)), "two runs differ"


@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_routing(routing, variant):
    case = PLAIN.with_(M=3, routing=routing)
    y = run(case, variant=variant)
    if routing == "all_dead":
        assert torch.count_nonzero(y) == 0
    elif routing == "dead_token":
        assert torch.count_nonzero(y[1]) == 0
    assert_close(y, case)


@pytest.mark.parametrize("M", [1, 4])
def test_wide_ids_out_of_range(M):
    case = FULL.with_(M=M, routing="out_of_range")
    assert_close(run(case), case)


def test_dead_token_gives_its_residual():
    case = FULL.with_(M=4, routing="dead_token")
    assert torch.equal(run(case)[2], case.tensors["residual"][2])


@pytest.mark.parametrize("M", [16, 19])
def test_many_tokens(M):
    case = PLAIN.with_(M=M)
    assert_close(run(case), case)


def test_all_tokens_on_one_expert_in_batches():
    case = PLAIN.with_(M=16, routing="one_expert")
    assert_close(run(case), case)


def test_result_may_replace_the_residual():
    case = FULL.with_(M=4)
    y = case.tensors["residual"].clone()
    assert moe_int4_decode(**{**case.arguments, "residual": y}, out=y) is y
    assert torch.equal(y, run(case))


def test_overflow_to_infinity_agrees():
    case = PLAIN.with_(M=1, scale=200.0)
    y, half = run(case), torch.from_numpy(case.expected).half()
    assert half.isinf().any() and torch.equal(y.isinf(), half.isinf())
    assert half.isnan().any() and torch.equal(y.isnan(), half.isnan())


def test_order_of_the_expert_map_does_not_matter():
    case = PLAIN.with_(M=3)
    order = torch.tensor([2, 0, 3, 1])
    table = case.tensors["expert_map"]
    moved = {
        "expert_map": torch.where(table < 0, table, torch.argsort(order)[table.long()].int()),
        **{name: case.tensors[name][order] for name in ("w1", "w1_scale", "w2", "w2_scale")},
    }
    moved_case = moe_int4_decode(**{**case.arguments, **moved})
    assert_close(moved_case, case)


def test_codes_as_words():
    case = PLAIN.with_(code_dtype=torch.int32)
    assert torch.equal(run(case), run(PLAIN))


def test_one_group_per_row():
    case = PLAIN.with_(shape=Shape(H=64, I=64, G=64))
    assert torch.equal(moe_int4_decode(**{**case.arguments, "group_size": -1}), run(case))


ODD_FITS = [
    Shape(H=736, I=96, G=32, T=3),  # one lane per row, blocks of rounds, the last one ragged
    Shape(H=320, I=160, G=160),  # groups that do not line up with rounds
    Shape(H=4096, I=64, G=64, E=3),  # 32 lanes per row
]


@pytest.mark.parametrize("shape", ODD_FITS, ids=str)
def test_odd_fits(shape):
    case = FULL.with_(shape=Shape(**{**vars(shape), "E_g": shape.E}))
    assert_close(run(case), case)


@pytest.mark.slow
@pytest.mark.parametrize("M", [2, 6, 9, 12, 16])
@pytest.mark.parametrize("shape", ODD_FITS, ids=str)
def test_odd_fits_of_many_tokens(shape, M):
    case = FULL.with_(M=M, shape=Shape(**{**vars(shape), "E_g": shape.E}))
    assert_close(run(case), case)


@pytest.mark.slow
@pytest.mark.parametrize("M", [1, 3, 8])
@pytest.mark.parametrize("shape", [
    Shape(2560, 640, 128, 10, 16, 64), Shape(2048, 768, 32, 8, 4, 16),
    Shape(2048, 192, 32, 8, 8, 32), Shape(2048, 128, 32, 8, 8, 32), Shape(3072, 1024, 128, 8, 2, 8),
    Shape(2880, 2880, 32, 4, 2, 8), Shape(7168, 2048, 128, 8, 2, 16),
    Shape(1536, 160, 32, 32, 4, 8),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("routing", ["uniform", "skewed"])
def test_layers_of_models(shape, M, routing):
    case = Case(M=M, shape=shape, routing=routing)
    assert_close(run(case), case)


@pytest.mark.parametrize("shape", [
    Shape(H=40, I=24, G=8),  # octets of codes
    Shape(H=36, I=20, G=4, T=3),  # single codes
    Shape(H=64, I=32, G=32, T=33),  # more choices than lanes
    Shape(H=32, I=32, G=16),
], ids=str)  # fmt: skip
def test_shapes_that_only_the_plain_kernels_take(shape):
    case = FULL.with_(M=2, shape=Shape(**{**vars(shape), "E_g": 4}))
    plan = moe_int4_decode.plan(**case.arguments)
    assert plan.kernel == "moe_any" and plan.fallback
    assert_close(run(case), case)


@pytest.mark.parametrize("name", ["hidden_states", "w1", "w2", "w1_zp", "w2_scale", "workspace"])
def test_misaligned_views(name):
    case = FULL.with_(M=2)
    value = poisoned(2, 4, 64) if name == "workspace" else case.tensors[name]
    y = moe_int4_decode(**{**case.arguments, name: off_by(value, 1)})
    assert_close(y, case)


@pytest.mark.parametrize("name", [
    "hidden_states", "residual", "out", "topk_ids", "topk_weights", "w1", "w2_scale", "w1_zp",
])  # fmt: skip
def test_strided_rows(name):
    case = FULL.with_(M=2)
    value = poisoned(2, 256) if name == "out" else case.tensors[name]
    y = moe_int4_decode(**{**case.arguments, name: in_wider_rows(value, 16)})
    assert_close(y, case)


def test_fresh_memory_is_never_read():
    with emulator.checks(uninitialised=True, races=True):
        for M in (1, 3):
            case = PLAIN.with_(M=M)
            assert_close(run(case, out=None, workspace=None), case)


@pytest.mark.parametrize("M", [1, 4])
def test_without_dot_instructions(M):
    case = PLAIN.with_(M=M)
    with rdna_jit.config.scope(arch="gfx1010"):
        assert_close(run(case), case)


def test_empty_batch():
    empty = PLAIN.with_(M=1).arguments
    for name in ("hidden_states", "topk_ids", "topk_weights"):
        empty[name] = empty[name][:0]
    assert moe_int4_decode(**empty).shape == (0, 256)
