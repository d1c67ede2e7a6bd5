from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rdna_jit
from rdna_jit import CompileError, ContractError, Template, UnsupportedArchError, config
from rdna_jit.cache.format import Record
from rdna_jit.cache.store import KERNELS

SOURCE = """
constexpr int N = ${N};
extern "C" __global__ __launch_bounds__(64) void first(float* x) { x[0] = N; }
__global__ __launch_bounds__(64) void second(float* x, int n) { x[n] = N; }
"""
ONE = SOURCE[: SOURCE.index("__global__ __launch_bounds__(64) void second")]


@pytest.fixture(autouse=True)
def emulator():
    with config.scope(backend="emulator"):
        yield


def kernel(**kwargs):
    return Template(SOURCE, name="two").specialise(N=5, **kwargs)


def test_properties_of_a_compiled_kernel():
    k = kernel(entry="first", arch="gfx1030")
    assert k.compile() is k
    assert k.code_object.startswith(b"\x7fELF")
    assert rdna_jit.CodeObject(k.code_object).arch == "gfx1030"
    assert k.resources.wavefront_size == 32 and k.resources.vgpr_spills == 0
    assert [(a.name, a.kind, a.size, a.offset) for a in k.arguments] == [("x", "pointer", 8, 0)]
    assert k.signature == "first(float* x)"
    assert "global_store_dword" in k.isa() and "s_endpgm" in k.isa()
    assert isinstance(k.log, str)
    assert "constexpr int N = 5;" in k.source


def test_specialising_neither_compiles_nor_loads(monkeypatch):
    monkeypatch.setattr("rdna_jit.compiler.compile_source", None)
    assert repr(kernel()) == "Kernel(two[N=5], arch=None)"


def test_the_arch_without_one_is_the_devices():
    with config.scope(arch="gfx1012"):
        k = kernel(entry="first")
        assert rdna_jit.CodeObject(k.code_object).arch == "gfx1012"


def test_one_kernel_holds_an_object_per_arch():
    k = kernel(entry="first")
    archs = {
        rdna_jit.CodeObject(k.program(a).code_object.data).arch for a in ("gfx1030", "gfx1010")
    }
    assert archs == {"gfx1030", "gfx1010"}


@pytest.mark.parametrize("arch", ["gfx1100", "gfx90a", "", "sm_90", "gfx103"])
def test_unknown_archs_are_refused_with_the_list(arch):
    with pytest.raises(UnsupportedArchError, match="gfx1030"):
        kernel(entry="first", arch=arch)


def test_an_entry_must_be_named_when_there_are_several():
    with pytest.raises(
        ContractError, match="more than one kernel; pass entry= one of first, second"
    ):
        kernel(arch="gfx1030").compile()
    with pytest.raises(ContractError, match="no kernel 'third'; pass entry= one of first, second"):
        kernel(arch="gfx1030", entry="third").compile()


def test_a_kernel_with_a_mangled_name_is_found_by_its_own():
    k = kernel(arch="gfx1030", entry="second")
    assert k.signature == "second(float* x, int n)"
    x = torch.zeros(4)
    k.launch(1, 1, x, 2)
    assert x.tolist() == [0, 0, 5, 0]


def test_a_source_without_a_kernel():
    text = "__device__ int f() { return 1; }\n"
    with pytest.raises((ContractError, CompileError)):
        Template(text, name="none").specialise(arch="gfx1030").compile()


def test_a_compile_error_is_raised_at_every_use_and_names_the_line():
    k = Template("\n" + ONE.replace("x[0]", "y[0]"), name="typo").specialise(N=1, arch="gfx1030")
    for _ in range(2):
        with pytest.raises(CompileError, match=r"typo\.hip:4"):
            k.launch(1, 1, torch.zeros(1))


def test_concurrent_compiles_make_one_object(monkeypatch):
    from rdna_jit import compiler

    real, calls = compiler.compile_source, []
    monkeypatch.setattr(
        compiler, "compile_source", lambda *a, **k: calls.append(1) or real(*a, **k)
    )
    k = Template(ONE + "// concurrent\n", name="one").specialise(N=77, arch="gfx1030")
    with ThreadPoolExecutor(8) as pool:
        objects = set(pool.map(lambda _: k.code_object, range(16)))
    assert len(objects) == 1 and len(calls) == 1


def test_equal_kernels_share_a_cache_entry():
    one, two = kernel(entry="first", arch="gfx1030"), kernel(entry="second", arch="gfx1030")
    assert one.digest == two.digest
    assert kernel(entry="first", arch="gfx1031").digest != one.digest


def test_an_entry_that_is_whole_but_no_code_object_is_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("RDNA_JIT_CACHE_DIR", str(tmp_path))
    digest = Template(ONE).specialise(N=7).compile().digest
    rdna_jit.cache.default().store.publish(Record(digest, KERNELS, {}, b"no code"))
    rdna_jit.cache.default().forget()
    k = Template(ONE).specialise(N=7)
    assert k.code_object.startswith(b"\x7fELF") and k.digest == digest
    assert rdna_jit.cache.default().store.check(KERNELS, digest).payload == k.code_object


def test_no_compile_is_honoured():
    k = Template(ONE + "// never compiled\n", name="one").specialise(N=123, arch="gfx1030")
    with config.scope(no_compile=True), pytest.raises(CompileError, match="RDNA_JIT_NO_COMPILE"):
        k.compile()


def test_options_reach_the_compiler_and_the_key():
    plain = Template(ONE, name="one").specialise(N=1, arch="gfx1030")
    defined = Template(ONE.replace("${N}", "${N} + EXTRA"), name="one")
    k = defined.specialise(N=1, arch="gfx1030", options=("-DEXTRA=2",))
    x = torch.zeros(1)
    k.launch(1, 1, x)
    assert x.item() == 3.0
    assert k.digest != plain.digest


LIGHT_IMPORT = """
import builtins, os, sys
import torch
torch.cuda.is_available()
before = set(sys.modules)
opened = []
real_open, real_stat = os.open, os.listdir
sys.addaudithook(lambda event, args: opened.append((event, args)) if armed else None)
armed = True
import rdna_jit
rdna_jit.config, rdna_jit.device, rdna_jit.ContractError, dir(rdna_jit)
armed = False
ours = os.path.dirname(rdna_jit.__file__)
heavy = {"hip", "hiprtc", "llvmlite", "filelock", "platformdirs", "numpy.testing"}
loaded = {m.split(".")[0] for m in set(sys.modules) - before}
assert not loaded & heavy, loaded & heavy
assert not any(m.startswith("rdna_jit.cache") for m in sys.modules)
for event, args in opened:
    if event == "open":
        path = str(args[0])
        assert path.startswith((ours, sys.prefix, sys.base_prefix)), path
    assert not event.startswith(("ctypes.dlopen", "subprocess", "socket")), (event, args)
    assert event not in ("os.mkdir", "os.rename", "os.remove", "shutil.rmtree"), (event, args)
"""


def test_importing_touches_no_gpu_no_disk_and_no_library():
    subprocess.run([sys.executable, "-c", LIGHT_IMPORT], check=True)


FIRST_CALL = """
import sys
import torch, rdna_jit
from rdna_jit.runtime import hip
from tests.runtime.stub_library import HostTensors, Stub
from pathlib import Path
stub = Stub(Path(sys.argv[1]))
hip.torch_side = HostTensors(stub)
rdna_jit.config.backend, rdna_jit.config.hip_library = "hip", stub.path
from tests.runtime.kernels import add
before = set(sys.modules)
add(step=int(sys.argv[2])).launch(1, 128, torch.ones(8), None, torch.ones(8), 1.0, 8)
assert len(stub.launches) == 1
new = {m.split(".")[0] for m in sys.modules}
print(sorted(new & {"hip", "hiprtc", "llvmlite", "filelock", "platformdirs", "numpy.testing"}))
"""


def test_the_first_call_with_a_warm_cache_needs_no_compiler(tmp_path):
    from tests.runtime.kernels import add
    from tests.runtime.stub_library import build

    add(step=3).program("gfx1030")
    command = [sys.executable, "-c", FIRST_CALL, str(build(tmp_path)), "3"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
