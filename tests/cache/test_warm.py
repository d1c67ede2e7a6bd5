"""`warm` with the real compiler."""

import json
import os

import pytest

from cache_tools import jobs
from rdna_jit import cache, toolchain
from rdna_jit.cache import KernelCache, Key
from rdna_jit.cache.store import Store
from rdna_jit.config import config
from rdna_jit.errors import CompileError, ContractError
from tests.cache.commands import command, command_json
from tests.cache.fakes import must_not_compile
from tests.cache.mounts import tmpfs

pytestmark = pytest.mark.skipif(toolchain.search("hiprtc")[0] is None, reason="needs hiprtc")

# Without HIP's declarations a compile takes a third of the time.
OPTIONS = ("-nogpuinc",)
SOURCE = """#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 64)))
KERNEL void twice(float* x) {
    x[__builtin_amdgcn_workitem_id_x()] *= %d.0f;
}
"""


def write_recorded(path, numbers, arch="gfx1030", source=SOURCE):
    with config.scope(record=path):
        for n in numbers:
            cache.record("twice", {"FACTOR": n}, arch, source=source % n, options=OPTIONS)
    return path


@pytest.fixture
def recorded(tmp_path):
    return write_recorded(tmp_path / "run.jsonl", (2, 3))


def test_recorded_kernels_are_compiled_for_each_arch_and_found(recorded, root, capsys):
    archs = ("--arch", "gfx1030", "--arch", "gfx1010")
    one = write_recorded(recorded.with_name("one.jsonl"), (2,))
    made = command_json(capsys, "warm", "--recorded", one, "--dir", root, *archs)
    assert made["counts"] == {"compiled": 2}
    again = command_json(capsys, "warm", "--recorded", one, "--dir", root, *archs)
    assert again["counts"] == {"present": 2}
    key = Key.make(SOURCE % 2, OPTIONS, "gfx1010", toolchain.identity())
    entry = KernelCache(Store(root)).get_or_compile(key, must_not_compile)
    assert entry.origin == "disk" and entry.code_object[:4] == b"\x7fELF"
    assert entry.metadata["resources"]["twice"]["wavefront_size"] == 32
    listed = command_json(capsys, "list", "--dir", root, "--arch", "gfx1010")
    assert [row["values"] for row in listed] == [{"FACTOR": 2}]
    status, out, _ = command(capsys, "show", key.digest[:10], "--isa", "--dir", root)
    assert status == 0 and "s_endpgm" in out and "vgprs" in out


def test_dry_run_compiles_nothing(recorded, root, capsys):
    planned = command_json(capsys, "warm", "--recorded", recorded, "--dir", root, "--dry-run")
    assert planned["counts"] == {"missing": 2}
    assert not os.path.exists(root)


def test_a_folder_that_cannot_be_written_fails_the_command(recorded, tmp_path, capsys):
    with tmpfs(tmp_path / "mount", "ro,mode=0700") as mount:
        status, out, _ = command(capsys, "warm", "--recorded", recorded, "--dir", mount)
    assert status == 1 and "could not be written" in out


def test_a_kernel_that_does_not_compile_is_reported_and_the_rest_made(recorded, root, capsys):
    write_recorded(recorded, (5,), source='extern "C" __global__ void twice() { oops%d; }')
    status, out, _ = command(capsys, "warm", "--recorded", recorded, "--dir", root, "--jobs", "1")
    assert status == 1 and "failed: twice[FACTOR=5]" in out and "oops5" in out
    assert "2 compiled, 1 failed" in out


@pytest.mark.slow
def test_a_source_that_kills_the_compiler_costs_only_itself(recorded, root, capsys):
    deadly = "#pragma clang __debug llvm_fatal_error\nvoid twice() {} // %d"
    write_recorded(recorded, (6,), source=deadly)
    made = command_json(capsys, "warm", "--recorded", recorded, "--dir", root, status=1)
    assert made["counts"] == {"compiled": 2, "failed": 1}
    [failed] = [kernel for kernel in made["kernels"] if kernel["state"] == "failed"]
    assert failed["values"] == {"FACTOR": 6} and "died" in failed["error"]


def test_warm_cache_is_all_that_a_process_without_compiler_rights_needs(recorded, root, capsys):
    command(capsys, "warm", "--recorded", recorded, "--dir", root, "--jobs", "1")
    key = Key.make(SOURCE % 2, OPTIONS, "gfx1030", toolchain.identity())
    with config.scope(no_compile=True, cache_dir=root):
        assert cache.default().get_or_compile(key, must_not_compile).origin == "disk"
        other = Key.make(SOURCE % 7, OPTIONS, "gfx1030", toolchain.identity())
        with pytest.raises(CompileError, match="RDNA_JIT_NO_COMPILE"):
            cache.default().get_or_compile(other, must_not_compile)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"spec": "a"}',
        '{"spec": "no_such_kernel", "values": {}}',
        '{"values": 1}',
    ],
)
def test_a_bad_line_is_named(line):
    with pytest.raises(ContractError, match="run line 2"):
        list(jobs.from_recorded(["\n", line], "run", ["gfx1030"]))


@pytest.mark.parametrize(
    "call, problem",
    [
        ("1 + 1", "no call"),
        ("linear.w4a16_gemv(", "never closed"),
        ("os.system('ls')", "no op"),
        ("linear.__import__('os')", "no op"),
        ("linear.no_such_op(f16[1])", "no op"),
        ("linear.w4a16_gemv(x)", "malformed"),
        ("linear.w4a16_gemv(f99[1])", "no dtype"),
        ("linear.w4a16_gemv(f16[open('x')])", "malformed"),
    ],
)
def test_a_bad_call_is_named(call, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        list(jobs.from_calls(["# comment", call], "calls", ["gfx1030"]))
    assert "calls line 2" in str(caught.value)


def test_lines_come_from_standard_input_too(root, capsys, monkeypatch):
    import io

    fact = {"spec": "twice", "values": {"FACTOR": 4}, "source": SOURCE % 4, "options": OPTIONS}
    line = json.dumps(fact)
    monkeypatch.setattr("sys.stdin", io.StringIO(line))
    made = command_json(capsys, "warm", "--recorded", "-", "--dir", root, "--jobs", "1")
    assert made["counts"] == {"compiled": 1} and made["kernels"][0]["arch"] == "gfx1030"


def test_kernels_record_themselves_and_warm_makes_them(tmp_path, root, capsys):
    """A user's own template: record a run, warm an empty cache from it, run without a compiler."""
    from rdna_jit import Template

    text = "constexpr int FACTOR = ${FACTOR};\n" + SOURCE.replace("%d.0f", "FACTOR")
    path, target = tmp_path / "run.jsonl", {"arch": "gfx1031", "options": OPTIONS}
    with config.scope(record=path, cache=False):
        kernel = Template(text, name="scale").specialise(FACTOR=3, **target).compile()
    made = command_json(capsys, "warm", "--recorded", path, "--dir", root, "--jobs", "1")
    assert made["counts"] == {"compiled": 1}
    assert made["kernels"][0]["values"] == {"FACTOR": 3}
    with config.scope(no_compile=True, cache_dir=root):
        again = Template(text, name="scale").specialise(FACTOR=3, **target).compile()
        assert again.code_object == kernel.code_object
        with pytest.raises(CompileError, match="FACTOR=4"):
            Template(text, name="scale").specialise(FACTOR=4, **target).compile()


CALL = "linear.gptq_gemm(f16[2,256], i32[32,64], None, f16[2,64], zero_offset=0, shuffled=True)"


def test_op_calls_are_all_that_the_ops_need(tmp_path, root, capsys):
    import torch

    from rdna_jit.ops import linear

    calls = tmp_path / "calls.txt"
    calls.write_text(f"# one layer\n\n{CALL}  # decode\n")
    made = command_json(capsys, "warm", "--calls", calls, "--dir", root, "--arch", "gfx1031")
    assert made["counts"] == {"compiled": len(made["kernels"])}
    x, q = torch.zeros(2, 256, dtype=torch.float16), torch.zeros(32, 64, dtype=torch.int32)
    scales = torch.zeros(2, 64, dtype=torch.float16)
    with config.scope(no_compile=True, cache_dir=root, backend="emulator", arch="gfx1031"):
        plan = linear.gptq_gemm.plan(x, q, None, scales, zero_offset=0, shuffled=True)
        for launch in plan.launches:
            launch.kernel.compile()
    assert plan.launches


def test_model_shapes_become_kernels_for_each_arch(root, capsys):
    options = ("--model", "qwen3-8b", "--rows", "1", "--dir", root, "--dry-run")
    one = command_json(capsys, "warm", *options)
    two = command_json(capsys, "warm", *options, "--arch", "gfx1030", "--arch", "gfx1010")
    # Four layers, with and without zeros.
    assert one["counts"]["missing"] == 8 and two["counts"]["missing"] == 16
    sizes = {(k["values"]["N"], k["values"]["K"]) for k in one["kernels"]}
    assert sizes == {(6144, 4096), (24576, 4096), (4096, 4096), (4096, 12288)}
