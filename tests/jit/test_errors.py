import inspect
import pickle

import pytest

from rdna_jit import errors

ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.RdnaJitError)
]


def test_the_tree_has_one_root_and_emulation_errors_have_one_parent() -> None:
    assert {c.__name__ for c in errors.EmulationError.__subclasses__()} == {
        "MemoryFault",
        "UnsupportedInstruction",
        "DataRace",
        "UninitialisedRead",
        "DivergentBarrier",
        "StepLimit",
    }
    assert issubclass(errors.ContractError, ValueError)
    assert issubclass(errors.ContractTypeError, TypeError)
    assert not issubclass(errors.RdnaJitError, ValueError)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_with_its_attributes(kind: type[Exception]) -> None:
    given = {
        name: 7 if "int" in str(parameter.annotation) else name
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    error = kind("what happened", **given)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == str(error)
    assert vars(copy) == vars(error) and set(vars(copy)) == set(given)


def test_a_contract_error_describes_the_difference() -> None:
    assert str(errors.ContractError(name="x", expected="float16", got="float32")) == (
        "x: expected float16, got float32"
    )


def test_a_compile_error_shows_target_excerpt_and_log() -> None:
    error = errors.CompileError(
        "refused", kernel="k", arch="gfx1030", options=("-O1",), log="the log\n", excerpt="> 3 | x"
    )
    assert str(error) == "refused (kernel k for gfx1030 with -O1)\n> 3 | x\nthe log"


def test_a_toolchain_error_lists_places_and_remedy() -> None:
    error = errors.ToolchainError("missing", searched=("/a", "/b"), install="apt install x")
    assert str(error).splitlines() == [
        "missing",
        "searched:",
        "  /a",
        "  /b",
        "install it with: apt install x",
    ]


def test_a_memory_fault_says_where() -> None:
    error = errors.MemoryFault(
        "load outside x",
        kernel="k",
        instruction="global_load_dword v0, v[1:2], off",
        pc=0x1600,
        source_line="kernels_src/k.hip:7",
        workgroup=(1, 0, 0),
        wave=2,
        lane=31,
        address=4096,
        buffer="x",
        buffer_nbytes=64,
    )
    assert str(error).splitlines() == [
        "load outside x",
        "  kernel       k",
        "  instruction  global_load_dword v0, v[1:2], off at 0x1600",
        "  source       kernels_src/k.hip:7",
        "  where        workgroup (1, 0, 0), wave 2, lane 31",
    ]
    assert (error.address, error.buffer, error.buffer_nbytes) == (4096, "x", 64)
