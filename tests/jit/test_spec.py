from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rdna_jit import ContractError, KernelSpec, Parameter, UnsupportedArchError, spec

SOURCE = """
constexpr int N = ${N};
#define __global__ __attribute__((global))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
extern "C" __global__ __launch_bounds__(64) void fill(float* out, int value) {
  out[__builtin_amdgcn_workitem_id_x()] = value + N;
}
"""
PARAMETERS = (Parameter("out", "float*", "out", align=4), Parameter("value", "int", "size"))


@pytest.fixture
def declare(monkeypatch):
    monkeypatch.setattr(spec, "_REGISTRY", {})
    monkeypatch.setattr("rdna_jit.template.read_package_source", lambda file: SOURCE)

    def make(**changes):
        fields = {
            "name": "fill",
            "file": "fill.hip",
            "entry": "fill",
            "parameters": PARAMETERS,
            "template": {"N": range(1, 9)},
            "block": 64,
        }
        return KernelSpec(**{**fields, **changes})

    return make


def test_specialise_is_memoised_per_arch_and_values(declare):
    fill = declare()
    one = fill.specialise("gfx1030", N=1)
    assert fill.specialise("gfx1030", N=1) is one
    assert fill.specialise("gfx1031", N=1) is not one
    assert fill.specialise("gfx1030", N=2) is not one
    assert (one.name, one.entry, one.options, one.values) == (
        "fill",
        "fill",
        fill.options,
        {"N": 1},
    )


def test_many_threads_get_one_kernel(declare):
    fill = declare()
    with ThreadPoolExecutor(8) as pool:
        kernels = set(pool.map(lambda _: fill.specialise("gfx1030", N=3), range(64)))
    assert len(kernels) == 1


def test_declared_and_compiled_agree(declare):
    kernel = declare().specialise("gfx1030", N=1).compile()
    assert kernel.signature == "fill(float* out, int value)"


@pytest.mark.parametrize(
    "parameters",
    [
        PARAMETERS[:1],
        (*PARAMETERS, Parameter("more", "int")),
        PARAMETERS[::-1],
        (Parameter("out", "float*"), Parameter("number", "int")),
        (Parameter("out", "long"), Parameter("value", "int")),
    ],
)
def test_a_declaration_that_differs_from_the_code_object_is_refused(declare, parameters):
    with pytest.raises(ContractError, match="kernel fill: the declaration has the parameters"):
        declare(parameters=parameters).specialise("gfx1030", N=1).compile()


def test_a_wrong_value_type_is_refused(declare):
    parameters = (PARAMETERS[0], Parameter("value", "long"))
    with pytest.raises(ContractError, match=r"'value' of type 'long' \(4 bytes by value\)"):
        declare(parameters=parameters).specialise("gfx1030", N=1).compile()


def test_a_placeholder_without_declared_values_is_refused(declare):
    with pytest.raises(ContractError, match="placeholder N without declared values"):
        declare(template={}).specialise("gfx1030", N=1)


def test_values_for_no_placeholder_are_refused(declare):
    with pytest.raises(ContractError, match="'K'"):
        declare(template={"N": range(9), "K": (1,)}).specialise("gfx1030", N=1, K=1)


def test_requirements_are_checked_per_arch(declare):
    fill = declare(requires=frozenset({"dot2"}))
    assert fill.missing("gfx1010") == ("dot2",) and fill.missing("gfx1030") == ()
    with pytest.raises(UnsupportedArchError, match="kernel fill needs dot2, which gfx1013"):
        fill.specialise("gfx1013", N=1)
    with pytest.raises(UnsupportedArchError, match="gfx906"):
        fill.specialise("gfx906", N=1)


def test_launch_shape_may_depend_on_the_values(declare):
    fill = declare(block=lambda v: 32 * v["N"], dynamic_lds=lambda v: 4 * v["N"])
    assert fill.block_of({"N": 3}) == 96 and fill.dynamic_lds_of({"N": 3}) == 12
    plain = declare(name="plain")
    assert plain.block_of({"N": 3}) == 64 and plain.dynamic_lds_of({"N": 3}) == 0


def test_names_are_unique(declare):
    declare()
    with pytest.raises(ContractError, match="registered already"):
        declare()
