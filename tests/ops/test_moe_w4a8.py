"""moe_tiled with int8 activations: against the same rounding in float64, and against the layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, emulator
from rdna_jit.ops._moe_tile import DOWN_W4A8, GATE_UP_W4A8
from rdna_jit.ops.moe import moe_tiled
from tests.ops.clang import compile_with_clang
from tests.ops.moe_cases import Case, Shape, errors, poisoned, quantised
from tests.ops.moe_oracle import gated, local_expert

# Activations near the middle between two codes may round either way: sums before them are fp32.
AS_ROUNDED, AS_EXACT = 1e-3, 2e-2
CASE = Case(M=23, asymmetric=True, with_residual=True, shape=Shape(H=256, I=128, G=128))


def rounded(values: np.ndarray, group: int) -> np.ndarray:
    """To int8 codes per group of the last axis, times their scale, in fp32 as the kernels do."""
    groups = values.astype(np.float32).reshape(*values.shape[:-1], -1, group)
    largest = np.abs(groups).max(-1, keepdims=True)
    inverse = np.float32(127) / np.where(largest > 0, largest, np.float32(np.inf))
    codes = np.rint(groups * inverse).astype(np.float64)
    return (codes * (largest / np.float32(127))).reshape(values.shape)


def expected(case: Case) -> np.ndarray:
    """The layer in float64 with both roundings."""
    s, rng, t = case.shape, np.random.default_rng(case.seed), case.tensors
    w1, w2 = quantised(rng, case, 2 * s.I, s.H).dense, quantised(rng, case, s.H, s.I).dense
    x = rounded(t["hidden_states"].numpy(), s.G)
    table = t["expert_map"].numpy() if "expert_map" in t else None
    y = t["residual"].double().numpy() if case.with_residual else np.zeros(x.shape)
    for m, ids in enumerate(t["topk_ids"].tolist()):
        for j, i in enumerate(ids):
            e = local_expert(i, table, s.E)
            if e is not None:
                gate, up = np.split(w1[e] @ x[m], 2)
                a = gated(gate, up, case.activation, case.limit, case.alpha)
                part = w2[e] @ rounded(a, 64 if s.G % 64 == 0 else 32)
                y[m] += float(t["topk_weights"][m, j]) * part
    return y


def run(case: Case, **changes: object) -> torch.Tensor:
    arguments = {**case.call, "variant": "w4a8", "out": poisoned(case.M, case.shape.H), **changes}
    size = moe_tiled.workspace_bytes(**arguments)
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8)
    return moe_tiled(**{"workspace": workspace, **arguments})


def assert_close(y: torch.Tensor, case: Case) -> None:
    assert y.isfinite().all()
    assert errors(y, expected(case))[0] <= AS_ROUNDED
    assert errors(y, case.expected)[0] <= AS_EXACT


SLOW = pytest.mark.slow


@pytest.mark.parametrize("shape, asymmetric", [
    (Shape(H=256, I=128, G=128), True), (Shape(H=192, I=96, G=32, T=3), False),
    pytest.param(Shape(H=192, I=96, G=32, T=3), True, marks=SLOW),
    pytest.param(Shape(H=320, I=192, G=64, T=2), False, marks=SLOW),
    pytest.param(Shape(H=640, I=160, G=160, T=2), True, marks=SLOW),
], ids=str)  # fmt: skip
def test_values(shape, asymmetric):
    case = CASE.with_(M=23, shape=shape, asymmetric=asymmetric)
    y = run(case)
    assert_close(y, case)
    assert torch.equal(y, run(case)), "two runs differ"


@pytest.mark.parametrize("routing", ["skewed", "one_expert", "all_dead", "dead_token", "padding"])
def test_routing(routing):
    case = CASE.with_(routing=routing)
    y = run(case)
    if routing == "all_dead":
        assert torch.equal(y, case.tensors["residual"])
    assert_close(y, case)


@pytest.mark.parametrize("options", [
    {"limit": 0.5, "alpha": 1.702}, pytest.param({"activation": "gelu_tanh"}, marks=SLOW),
], ids=str)  # fmt: skip
def test_activations(options):
    case = CASE.with_(M=9, **options)
    assert_close(run(case), case)


def test_a_weight_that_is_its_zero_point_is_exactly_zero():
    call = dict(CASE.call)
    for name in ("w1", "w2"):
        call[name], call[f"{name}_zp"] = (
            torch.full_like(call[n], 0x77) for n in (name, f"{name}_zp")
        )
    assert torch.equal(moe_tiled(**call, variant="w4a8"), call["residual"])


def test_an_infinity_reaches_its_token_and_no_other():
    x = CASE.tensors["hidden_states"].clone()
    token = CASE.live()[0][0] // CASE.shape.T
    x[token, 200] = float("inf")
    y, plain = run(CASE, hidden_states=x), run(CASE)
    assert y[token].isnan().any()
    others = torch.arange(CASE.M) != token
    assert torch.equal(y[others], plain[others])


@SLOW
def test_router_weights_on_the_input():
    shape = Shape(H=256, I=128, G=64, T=1, E=2, E_g=4)
    case = CASE.with_(M=21, shape=shape, with_residual=False)
    on_input = run(case, apply_router_weight_on_input=True)
    exact = moe_tiled(**case.call, apply_router_weight_on_input=True)
    assert errors(on_input, exact.double().numpy())[0] <= AS_EXACT
    assert errors(on_input, run(case).double().numpy())[0] > 2 * AS_EXACT


@SLOW
def test_strided_and_misaligned_rows():
    from tests.ops.test_moe_values import in_wider_rows, off_by

    want = run(CASE)
    for name in ("hidden_states", "residual"):
        for change in (lambda t: in_wider_rows(t, 20), lambda t: off_by(t, 1)):
            assert torch.equal(run(CASE, **{name: change(CASE.tensors[name])}), want)


def test_chunks_of_tokens(monkeypatch):
    case = CASE.with_(M=70)
    whole = run(case)
    monkeypatch.setattr(rdna_jit.ops._moe_tile, "MOST_PARTIAL", 1)
    call = dict(case.call)
    room = torch.empty(70, 264).half()[:, :256]
    call["hidden_states"] = room.copy_(case.tensors["hidden_states"])
    assert len(moe_tiled.plan(**call, variant="w4a8").launches) > 6
    assert torch.equal(moe_tiled(**call, variant="w4a8"), whole)


def test_a_row_has_the_bits_that_it_has_alone():
    y = run(CASE)
    names = ("hidden_states", "topk_ids", "topk_weights", "residual")
    for m in (0, 22):
        alone = {n: CASE.tensors[n][m : m + 1] for n in names}
        assert torch.equal(moe_tiled(**{**CASE.call, **alone}, variant="w4a8")[0], y[m])


def test_fresh_memory_is_never_read_and_waves_do_not_race():
    case = CASE.with_(routing="dead_token")
    with emulator.checks(uninitialised=True, races=True):
        assert_close(moe_tiled(**case.call, variant="w4a8"), case)


REFUSED = [
    (Case(M=2, format="i8"), "format i8 is not int4"),
    (Case(M=2, shape=Shape(H=64, I=32, G=16)), "group size"),
]


@pytest.mark.parametrize("case, message", REFUSED, ids=[m for _, m in REFUSED])
def test_refused(case, message):
    with pytest.raises(ContractError, match=message):
        moe_tiled(**case.call, variant="w4a8")


def test_a_chip_without_dot4_is_named():
    with (
        rdna_jit.config.scope(arch="gfx1010"),
        pytest.raises(ContractError, match="gfx1010 has no v_dot4_i32_i8"),
    ):
        moe_tiled.plan(**CASE.call, variant="w4a8")


@SLOW
def test_budget_at_flash_next():
    """64 slots per expert: about half of what exact activations take."""
    shape = Shape(H=2560, I=640, G=128, T=2, E=2, E_g=2)
    call = Case(M=64, shape=shape, with_map=False).call
    call["topk_ids"] = torch.tensor([[0, 1]] * 64, dtype=torch.int32)
    with emulator.profiling() as profiles:
        moe_tiled(**call, variant="w4a8")
    for profile, most, size in zip(profiles[2:4], (0.32, 0.35), (2 * 640, 640), strict=True):
        assert profile.valu * 32 <= most * 128 * size * 2560


@SLOW
@pytest.mark.parametrize("arch, rows", [("gfx1030", 64), ("gfx1030", 32), ("gfx1012", 64)])
def test_no_spills(arch, rows, tmp_path):
    shape = Shape(H=2560, I=640, G=128, T=10, E=1, E_g=1)
    case = Case(M=rows * 2, shape=shape, with_map=False, asymmetric=True)
    launches = moe_tiled.plan(**case.call, variant="w4a8").launches
    for launch, spec in zip(launches[2:4], (GATE_UP_W4A8, DOWN_W4A8), strict=True):
        kernel = spec.specialise(arch, **{**launch.kernel.values, "ROWS": rows})
        other = compile_with_clang(kernel, tmp_path, arch).kernels[spec.entry]
        for info in (kernel.program().info, other):
            r = info.resources
            assert r.vgpr_spills == r.sgpr_spills == r.scratch_bytes == 0, (spec.name, r)
            assert r.wavefront_size == 32 and r.vgprs <= 128, (spec.name, r.vgprs)
