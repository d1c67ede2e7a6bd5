"""The check of uninitialised reads knows which parameters of a declared kernel are outputs."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import KernelSpec, Parameter, UninitialisedRead, config, emulator, spec

SOURCE = """
constexpr int N = ${N};
#define __global__ __attribute__((global))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
extern "C" __global__ __launch_bounds__(64) void add(const float* x, float* out) {
  int i = __builtin_amdgcn_workitem_id_x();
  out[i] += x[i] * N;
}
"""


@pytest.fixture
def add(monkeypatch):
    monkeypatch.setattr(spec, "_REGISTRY", {})
    monkeypatch.setattr("rdna_jit.template.read_package_source", lambda file: SOURCE)
    with config.scope(backend="emulator"):
        yield lambda role: KernelSpec(
            name=f"add_{role}",
            file="add.hip",
            entry="add",
            parameters=(Parameter("x", "const float*"), Parameter("out", "float*", role)),
            template={"N": (3,)},
        ).specialise(N=3)


def test_an_output_that_is_read_is_found(add):
    x, out = torch.ones(64), torch.zeros(64)
    with emulator.checks(uninitialised=True), pytest.raises(UninitialisedRead, match="out"):
        add("out").launch(1, 64, x, out)


def test_a_parameter_that_is_also_read_is_taken_as_it_comes(add):
    x, out = torch.ones(64), torch.zeros(64)
    with emulator.checks(uninitialised=True):
        add("inout").launch(1, 64, x, out)
    assert out.eq(3).all()


def test_an_output_on_top_of_an_input_starts_with_it(add):
    x = torch.ones(64)
    with emulator.checks(uninitialised=True):
        add("out").launch(1, 64, x, x)
    assert x.eq(4).all()
