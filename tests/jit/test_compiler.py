import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdna_jit import arch, compiler, toolchain
from rdna_jit.code_object import CodeObject
from rdna_jit.compiler import compile_source, compiler_identity, located_lines
from rdna_jit.errors import CompileError, ContractError, ToolchainError, UnsupportedArchError

from .sources import AXPY, build, compiled

EMPTY_KERNEL = '#line 1 "empty.hip"\nextern "C" __global__ void __launch_bounds__(32) empty() {}\n'
SPILLING = """#line 1 "spilling.hip"
extern "C" __global__ void __launch_bounds__(1024) spilling(float* out, const float* x) {
  float values[96];
  const int lane = __builtin_amdgcn_workitem_id_x();
#pragma unroll
  for (int i = 0; i < 96; ++i) values[i] = x[lane + i * 1024];
#pragma unroll
  for (int i = 0; i < 96; ++i)
    for (int j = 0; j < 96; j += 24) out[lane + i * 1024] += values[i] * values[j + i % 24];
}
"""


@pytest.mark.parametrize("name", arch.ARCHS)
def test_every_known_arch_compiles(name: str) -> None:
    code = CodeObject(build(EMPTY_KERNEL, arch=name).code_object)
    assert code.arch == name
    assert code.kernels["empty"].resources.wavefront_size == 32


def test_a_result_holds_code_warnings_and_time() -> None:
    source = EMPTY_KERNEL.partition("\n")[2].replace("{}", "{ int x = 3.5; }")
    result = compile_source(source, arch="gfx1030", name="warm.hip")
    assert "warm.hip:1:68: warning: implicit conversion" in result.log
    assert 0 < result.seconds < 30
    assert list(CodeObject(result.code_object).kernels) == ["empty"]


@pytest.mark.parametrize("source", ["", " \n\t", "\0", "int a;\0", None, b"text", 7])
def test_a_source_that_is_no_text_is_refused(source: object) -> None:
    with pytest.raises(ContractError, match="empty or not text"):
        compile_source(source, arch="gfx1030")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gfx9999", "gfx90a", "gfx1100", "", "sm_90", "gfx103 0"])
def test_an_unknown_arch_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(UnsupportedArchError, match=r"gfx1010, .*, gfx1036"):
        compile_source(EMPTY_KERNEL, arch=name)


@pytest.mark.parametrize(
    "options",
    [
        ("--offload-arch=gfx906",),
        ("-mcpu=gfx906",),
        ("-march=native",),
        ("",),
        (7,),
        ("a\0b",),
        "-O2",
    ],
)
def test_options_that_would_break_the_compile_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(ContractError, match="option"):
        compile_source(EMPTY_KERNEL, arch="gfx1030", options=options)


def test_a_compile_error_shows_our_file_line_and_source() -> None:
    broken = AXPY.replace("scaled(tile", "scald(tile")
    with pytest.raises(CompileError) as caught:
        build(broken, options=("-O2",), name="axpy.hip", kernel="axpy")
    error = caught.value
    assert (error.kernel, error.arch, error.options) == (
        "axpy",
        "gfx1030",
        ("-nogpuinc", "-O2"),
    )
    assert "kernels_src/axpy.hip:12:14: error: use of undeclared identifier 'scald'" in error.log
    assert error.excerpt.splitlines() == [
        "kernels_src/axpy.hip:12",
        "      9 |   tile[lane] = x[i];",
        "     10 |   __builtin_amdgcn_s_barrier();",
        "     11 |   if (i < n)",
        ">    12 |     out[i] = scald(tile[255 - lane], a);",
        "     13 | }",
    ]
    assert "undeclared identifier 'scald'" in str(error).splitlines()[0]
    assert "CompileSource" not in str(error)


def test_an_error_in_an_included_part_is_shown_there() -> None:
    source = (
        '#line 1 "kernels_src/k.hip"\n'
        '#line 1 "kernels_src/common/part.hip"\n'
        "__device__ int good();\n"
        "__device__ int bad(] {}\n"
        '#line 2 "kernels_src/k.hip"\n' + EMPTY_KERNEL
    )
    with pytest.raises(CompileError) as caught:
        build(source)
    assert caught.value.excerpt.splitlines() == [
        "kernels_src/common/part.hip:2",
        "      1 | __device__ int good();",
        ">     2 | __device__ int bad(] {}",
    ]


def test_lines_are_located_through_directives() -> None:
    text = 'a\n#line 7 "x.hip"\nb\nc\n  # line 3\nd\n#line 1 "y.hip"\ne'
    assert list(located_lines(text)) == [
        ("", 1, "a"),
        ("x.hip", 7, "b"),
        ("x.hip", 8, "c"),
        ("x.hip", 3, "d"),
        ("y.hip", 1, "e"),
    ]


def test_a_source_without_kernel_is_refused() -> None:
    with pytest.raises(CompileError, match="the source has no kernel"):
        build("int x;")


def test_wavefronts_of_64_are_refused() -> None:
    with pytest.raises(CompileError, match="wavefronts of 64"):
        build(AXPY, options=("-mwavefrontsize64",))


def test_function_calls_are_refused_by_name() -> None:
    source = AXPY.replace("__device__", "__device__ __attribute__((noinline))")
    with pytest.raises(CompileError, match="axpy calls functions; declare them __forceinline__"):
        build(source)


def test_a_literal_that_looks_like_a_call_is_not_one() -> None:
    source = AXPY.replace(
        "return a * x + 1.0f", "return a * x + __builtin_bit_cast(float, 0xBB0000F0)"
    )
    code = CodeObject(build(source).code_object)
    assert 0xBB0000F0.to_bytes(4, "little") in code.text


def test_spills_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rdna_jit"):
        result = build(SPILLING)
    spills = CodeObject(result.code_object).kernels["spilling"].resources.vgpr_spills
    assert spills > 0
    message = f"spilling spills {spills} vector and 0 scalar registers"
    assert f"warning: {message}" in result.log
    assert [message in record.message for record in caplog.records] == [True]


def test_equal_sources_give_equal_bytes_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compiled(AXPY)
    monkeypatch.chdir(tmp_path)
    assert build(AXPY).code_object == expected
    folder = tmp_path / "a temporary folder with a long name"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    code = build(AXPY).code_object
    assert code == expected
    for place in (
        b"/tmp",
        b"comgr-",
        os.fsencode(tmp_path.name),
        os.fsencode(Path(__file__).parent),
    ):
        assert place not in code


def test_line_tables_do_not_change_the_machine_code() -> None:
    assert CodeObject(compiled(AXPY, options=("-g0",))).text == CodeObject(compiled(AXPY)).text


def test_a_compiler_that_leaks_its_folder_loses_the_line_tables_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "_LINE_TABLES", ("-gline-tables-only",))
    code = build(AXPY).code_object
    assert b"comgr-" not in code and CodeObject(code).text == CodeObject(compiled(AXPY)).text


def test_without_the_builtin_header_the_code_is_the_same_and_sooner_there() -> None:
    bare = build(AXPY)
    whole = compile_source(AXPY, arch="gfx1030")
    assert CodeObject(bare.code_object).text == CodeObject(whole.code_object).text
    assert bare.seconds < whole.seconds
    with pytest.raises(CompileError, match="unknown type name '__device__'"):
        compile_source(AXPY, arch="gfx1030", options=("-nogpuinc",))


def test_hips_own_declarations_are_there_by_default() -> None:
    source = (
        'extern "C" __global__ void __launch_bounds__(64) k(__half2* out, float4 v) {\n'
        "  out[blockIdx.x * blockDim.x + threadIdx.x] = __floats2half2_rn(v.x, __expf(v.w));\n}"
    )
    assert compile_source(source, arch="gfx1030", name="own.hip").log == ""


def test_a_missing_temporary_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(ToolchainError, match=f"TMPDIR={tmp_path}/gone is not a folder"):
        build(EMPTY_KERNEL)
    monkeypatch.undo()
    assert build(EMPTY_KERNEL).code_object


def test_threads_that_compile_at_once_get_what_one_thread_gets() -> None:
    jobs = [(AXPY, name, (f"-O{level}",)) for name in ("gfx1030", "gfx1010") for level in (1, 3)]
    expected = [build(*job).code_object for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: build(*job).code_object, jobs * 4))
    assert results == expected * 4


def test_a_child_forked_during_a_compile_can_compile() -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(compile_source, AXPY, arch="gfx1030")
        while not toolchain.llvm_lock.locked() and not running.done():
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            os._exit(0 if toolchain.llvm_lock.acquire(timeout=0) else 1)
        assert os.waitpid(child, 0) == (child, 0)
        assert running.result().code_object


def test_the_interpreter_runs_while_hiprtc_compiles() -> None:
    longest = 0.0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(build, AXPY)
        last = time.monotonic()
        while not running.done():
            time.sleep(0.001)
            longest = max(longest, time.monotonic() - last)
            last = time.monotonic()
    assert longest < running.result().seconds / 2


CHILD = """
import sys
import rdna_jit.compiler as compiler
assert not {"hip", "rocm", "torch"} & set(sys.modules)
from rdna_jit.config import config
from rdna_jit.errors import ToolchainError
config.hiprtc_library = sys.argv[1]
try:
    compiler.compile_source("extern \\"C\\" __global__ void k() {}", arch="gfx1030")
except ToolchainError as error:
    print(error)
else:
    print("compiled by", compiler.loaded_library().path)
"""


def run_child(library: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(library)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_an_explicit_library_is_the_one_that_compiles(tmp_path: Path) -> None:
    link = tmp_path / "my-own-name.so"
    link.symlink_to(toolchain.hiprtc().path)
    assert run_child(link) == f"compiled by {link}\n"


def test_a_library_without_hiprtc_is_named(tmp_path: Path) -> None:
    assert "cannot be used as hiprtc" in run_child(toolchain.comgr().path)
    said = run_child(tmp_path / "absent.so")
    assert "there is no such file" in said and "mend or unset this setting" in said


def test_the_identity_is_known_without_compiling() -> None:
    assert compiler_identity() == toolchain.identity()
    assert all(option in compiler_identity() for option in toolchain.DEFAULT_OPTIONS)


def test_a_missing_hip_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_loaded", None)
    for module in ("rocm.bindings", "rocm", "hip"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ToolchainError, match="hip-python cannot be imported") as caught:
        build(AXPY)
    assert caught.value.install == "pip install hip-python"


def test_printf_is_refused_by_name() -> None:
    source = 'extern "C" __global__ __launch_bounds__(64) void k(float* x) { printf("%d", 1); }'
    with pytest.raises(CompileError, match="printf and assert need a host service"):
        compiler.compile_source(source, arch="gfx1030", kernel="k")
