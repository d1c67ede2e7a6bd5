"""The machinery of public ops, on a small op that runs a real kernel."""

from __future__ import annotations

import inspect

import pytest
import torch

import rdna_jit
from rdna_jit import Template, config, dispatch
from rdna_jit.ops._op import Candidate, Launch, Plan, public_op

SCALE = Template(
    """
constexpr int WIDTH = ${WIDTH};
extern "C" __global__ __launch_bounds__(64) void scale(
    const float* x, const float* bias, float* y, float a, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < n) y[i] = a * x[i] + (bias ? bias[i % WIDTH] : 0.0f);
}
""",
    name="scale",
)
planned = []


def _plan(x, a, bias=None, *, way="fast", out=None):
    planned.append(tuple(x.shape))
    if x.dtype != torch.float32:
        raise rdna_jit.ContractError(f"x: expected float32, got {x.dtype}")
    kernel = SCALE.specialise(WIDTH=x.shape[-1])
    launch = Launch(kernel, -(-x.numel() // 64), 64)
    return Plan(
        op="test_scale",
        kernel="scale",
        values=kernel.values,
        launches=(launch,) if x.numel() else (),
        candidates=(
            Candidate("scale_wide", False, "rows are no multiple of 16 bytes"),
            Candidate("scale", True),
        ),
        notes=("bias is broadcast",),
        shape={"n": x.numel()},
        fallback="the slow way was asked for" if way == "slow" else "",
    )


def _fake(x, a, bias=None, *, way="fast"):
    return torch.empty_like(x)


@public_op(
    "test_scale(Tensor x, float a, Tensor? bias=None, *, str way='fast') -> Tensor",
    plan=_plan,
    fake=_fake,
    batch_invariant=True,
)
def scale(plan, x, a, bias=None, *, way="fast", out=None):
    """y = a * x + bias."""
    y = torch.empty_like(x) if out is None else out
    for launch in plan.launches:
        launch(x, bias, y, a, x.numel())
    return y


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", set())
    rdna_jit.dispatch_log(clear=True)
    planned.clear()
    scale.plan.__globals__["plans"].clear()
    with config.scope(backend="emulator", strict=False):
        yield


X = torch.randn(3, 8)
BIAS = torch.randn(8)


def test_eager_call():
    assert torch.equal(scale(X, 2.0), X * 2)
    assert torch.equal(scale(X, 2.0, BIAS), torch.addcmul(BIAS, X, torch.tensor(2.0)))
    assert scale.__name__ == "scale" and scale.__doc__ == "y = a * x + bias."
    assert list(inspect.signature(scale).parameters) == ["x", "a", "bias", "way", "out"]
    assert scale.batch_invariant is True


def test_out_is_filled_and_returned():
    out = torch.full_like(X, torch.nan)
    assert scale(X, 3.0, out=out) is out
    assert torch.equal(out, X * 3)


def test_registered_overloads():
    assert torch.equal(torch.ops.rdna_jit.test_scale(X, 2.0), X * 2)
    out = torch.empty_like(X)
    assert torch.ops.rdna_jit.test_scale.out(X, 2.0, way="fast", out=out) is None
    assert torch.equal(out, X * 2)


def test_torchs_own_checks_of_the_registration():
    torch.library.opcheck(torch.ops.rdna_jit.test_scale.default, (X, 2.0, BIAS))
    torch.library.opcheck(torch.ops.rdna_jit.test_scale.out, (X, 2.0), {"out": torch.empty_like(X)})


def test_compiled_graphs_keep_the_choice_inside_the_op():
    @torch.compile(backend="eager", fullgraph=True, dynamic=True)
    def model(x, out):
        return scale(x, 2.0) + scale(x, 3.0, out=out)

    for rows in (2, 5, 7):
        x = torch.randn(rows, 8)
        assert torch.allclose(model(x, torch.empty_like(x)), x * 5)
    assert {shape[0] for shape in planned} == {2, 5, 7}
    assert len(rdna_jit.dispatch_log()) == 6


def test_optional_written_arguments_under_inductor():
    @public_op(
        "test_scratch(Tensor x, *, Tensor(w!)? workspace=None, float a=2.0) -> Tensor",
        plan=lambda x, *, workspace=None, a=2.0, out=None: Plan(op="test_scratch", kernel="none"),
        fake=_fake_scratch,
    )
    def scratch(plan, x, *, workspace=None, a=2.0, out=None):
        if workspace is not None:
            workspace.fill_(a)
        y = torch.empty_like(x) if out is None else out
        return torch.mul(x, a, out=y)

    compiled = torch.compile(lambda *a, **k: scratch(*a, **k), fullgraph=True)
    assert torch.equal(compiled(X, a=3.0), X * 3)
    workspace, out = torch.empty(4), torch.empty_like(X)
    assert torch.equal(compiled(X, workspace=workspace), X * 2) and (workspace == 2).all()
    compiled(X, workspace=workspace, a=4.0, out=out)
    assert torch.equal(out, X * 4) and (workspace == 4).all()
    torch.library.opcheck(torch.ops.rdna_jit.test_scratch.fresh, (X,), {"a": 3.0})


def _fake_scratch(x, *, workspace=None, a=2.0):
    return torch.empty_like(x)


def test_a_plan_is_made_once_per_kind_of_call():
    for _ in range(3):
        scale(X, 2.0)
    assert len(planned) == 1
    scale(X, 2.5)
    scale(torch.randn(4, 8), 2.0)
    scale(X.t(), 2.0)
    scale(torch.randn(25)[1:].view(3, 8), 2.0)
    scale(X, 2.0, BIAS)
    scale(X, 2.0, out=torch.empty_like(X))
    assert len(planned) == 7
    with config.scope(arch="gfx1031"):
        scale(X, 2.0)
    assert len(planned) == 8
    scale(X, 2.0)
    assert len(planned) == 8


def test_equal_numbers_of_another_type_are_planned_apart():
    scale(X, 1)
    scale(X, 1.0)
    scale(X, True)
    assert len(planned) == 3  # so that a plan can refuse one of them


def test_lists_are_planned_once():
    sizes = []

    def plan(x, block=None):
        sizes.append(block)
        return Plan(op="test_blocks", kernel="none")

    @public_op(
        "test_blocks(Tensor x, int[]? block=None) -> Tensor",
        plan=plan,
        fake=lambda x, block=None: torch.empty_like(x),
    )
    def blocks(plan, x, block=None):
        return x.clone()

    for block in ((2, 4), [2, 4]):
        blocks(X, block)
        torch.ops.rdna_jit.test_blocks(X, block)
    assert sizes == [(2, 4)]
    for block in ((2, 5), (2, 4.0), None, (), 2):
        blocks(X, block)
    assert sizes[1:] == [(2, 5), (2, 4.0), None, (), 2]


def test_contract_errors_are_raised_at_every_call():
    for _ in range(2):
        with pytest.raises(rdna_jit.ContractError, match="expected float32"):
            scale(X.half(), 2.0)
    with pytest.raises(TypeError):
        scale(X)
    with pytest.raises(TypeError):
        scale(X, 2.0, nonsense=1)


def test_dispatch_log_and_counts():
    for _ in range(3):
        scale(X, 2.0)
    scale(torch.randn(2, 8), 2.0)
    log = rdna_jit.dispatch_log()
    assert [str(d) for d in log] == ["test_scale(n=24) -> scale[WIDTH=8]"] * 3 + [
        "test_scale(n=16) -> scale[WIDTH=8]"
    ]
    assert log.counts == {
        ("test_scale", "scale", "n=24"): 3,
        ("test_scale", "scale", "n=16"): 1,
    }
    assert "3  test_scale(n=24) -> scale" in str(log)
    rdna_jit.dispatch_log(clear=True)
    assert rdna_jit.dispatch_log() == [] and rdna_jit.dispatch_log().counts == {}


def test_the_log_is_bounded(monkeypatch):
    plan = scale.plan(X, 2.0)
    for _ in range(dispatch._LATEST + 50):
        dispatch.note(plan)
        plan.counter[0] += 1
    log = rdna_jit.dispatch_log()
    assert len(log) == dispatch._LATEST
    assert log.counts["test_scale", "scale", "n=24"] == dispatch._LATEST + 50


def test_counted_shapes_are_bounded(monkeypatch):
    monkeypatch.setattr(dispatch, "_counters", {})
    monkeypatch.setattr(dispatch, "_MOST_COUNTED", 2)
    for rows in range(1, 6):
        dispatch.accept(Plan("o", "k", shape={"M": rows})).counter[0] += 1
    assert rdna_jit.dispatch_log().counts == {
        ("o", "k", "M=1"): 1,
        ("o", "k", "M=2"): 1,
        ("o", "k", "other shapes"): 3,
    }


def test_explain_prints_choice_values_and_reasons():
    explanation = rdna_jit.explain(scale, X, 2.0, way="slow")
    assert str(explanation) == str(explanation.plan)
    assert str(explanation).splitlines() == [
        "test_scale(n=24) runs scale[WIDTH=8]",
        "  launch   scale: grid 1, block 64",
        "  not taken scale_wide: rows are no multiple of 16 bytes",
        "  taken    scale",
        "  fallback the slow way was asked for",
        "  note     bias is broadcast",
    ]
    assert rdna_jit.dispatch_log() == []
    with pytest.raises(rdna_jit.ContractError, match="no op"):
        rdna_jit.explain(torch.add, X, X)


def test_a_fallback_warns_once_per_op_and_reason(caplog):
    with caplog.at_level("WARNING", logger="rdna_jit"):
        for rows in (1, 2, 2, 3):
            scale(torch.randn(rows, 8), 2.0, way="slow")
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 1
    assert "test_scale(n=8) falls back to scale: the slow way was asked for" in messages[0]


def test_strict_turns_a_fallback_into_an_error():
    scale(X, 2.0, way="slow")
    with config.scope(strict=True):
        scale(X, 2.0)
        with pytest.raises(rdna_jit.RdnaJitError, match="RDNA_JIT_STRICT"):
            scale(X, 2.0, way="slow")
    scale(X, 2.0, way="slow")


def test_warm_compiles_and_launches_nothing():
    out = torch.full((2, 24), torch.nan)
    plan = rdna_jit.warm(scale, torch.randn(2, 24), 2.0, out=out)
    assert out.isnan().all() and rdna_jit.dispatch_log() == []
    assert plan.launches[0].kernel._loaded


def test_an_empty_batch_launches_nothing():
    assert scale(torch.empty(0, 8), 2.0).shape == (0, 8)


def test_views_of_other_strides_have_their_own_plan():
    wide = torch.randn(3, 16)[:, :8]
    scale.plan(wide, 2.0)
    scale.plan(wide.contiguous(), 2.0)
    assert len(planned) == 2
