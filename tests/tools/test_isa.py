from __future__ import annotations

import json
from pathlib import Path

import pytest

import rdna_jit


def test_listing_with_what_the_kernel_occupies(command, axpy):
    status, out, _ = command("isa", axpy, "--set", "SCALE=3")
    assert status == 0
    head, listing = out.split("axpy:\n", 1)
    assert "axpy for gfx1030" in head and "SCALE=3" in head
    assert "axpy(const float* x, float* y, float a, int n)" in head
    assert "vmem_load 2, vmem_store 1" in head
    assert "; axpy.hip:5" in listing and "0x40400000" in listing  # the 3.0f of its line
    assert listing.rstrip().endswith("s_endpgm")


def test_values_options_and_arch_reach_the_compiler(report, axpy):
    plain = report("isa", axpy, "--set", "SCALE=3", "--arch", "gfx1031")
    assert plain["arch"] == "gfx1031" and plain["values"] == {"SCALE": 3}
    slow = report("isa", axpy, "--set", "SCALE=3", "--options", "-O0")
    assert slow["options"] == ["-O0"]
    assert slow["bytes"] > 2 * plain["bytes"]
    texts = [row["text"] for row in plain["instructions"]]
    assert (
        sum(text.startswith("global_load_dword") for text in texts) == plain["classes"]["vmem_load"]
    )
    assert {"name": "n", "kind": "value"}.items() <= plain["arguments"][3].items()


def test_a_code_object_is_listed_like_its_kernel(command, axpy, tmp_path):
    kernel = rdna_jit.Template.from_file(axpy).specialise(arch="gfx1030", SCALE=3)
    path = tmp_path / "axpy.co"
    path.write_bytes(kernel.code_object)
    _, of_file, _ = command("isa", str(path))
    assert of_file.endswith(kernel.isa() + "\n")
    assert rdna_jit.disassemble(kernel.code_object) == kernel.isa()


def test_an_op_shows_the_kernels_that_it_would_launch(report):
    call = "linear.gptq_gemm(f16[1,512], i32[64,256], None, f16[4,256], shuffled=True)"
    found = report("isa", call)
    assert found["kernel"] == "w4a16_decode"
    assert found["values"]["K"] == 512 and found["classes"]["dot"] > 0


def test_source_is_what_the_compiler_gets(command, axpy):
    _, out, _ = command("isa", axpy, "--set", "SCALE=7", "--source")
    assert out.startswith('#line 1 "axpy.hip"') and "constexpr int SCALE = 7;" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.hip"], "neither a file nor a kernel"),
        (["w4a16_decod"], "did you mean w4a16_decode?"),
        (["AXPY"], "no value for the placeholder SCALE"),
        (["AXPY", "--set", "SCALE"], "write NAME=VALUE"),
        (["AXPY", "--set", "SCALE=1", "--set", "WIDTH=2"], "WIDTH=2"),
        (["AXPY", "--set", "SCALE=1", "--arch", "gfx900"], "gfx900"),
        (["AXPY", "--set", "SCALE=1", "--entry", "axpi"], "axpi"),
        (["linear.gptq_gem(f16[1,512])"], "no op gptq_gem"),
        (["linear.gptq_gemm(f16[1,512"], "linear.gptq_gemm"),
    ],
)
def test_mistakes_are_explained(command, axpy, arguments, said):
    arguments = [axpy if a == "AXPY" else a for a in arguments]
    status, out, errors = command("isa", *arguments)
    assert status in (1, 2) and out == ""
    assert said in errors and errors.startswith("rdna_jit isa: ")


def test_a_kernel_that_does_not_compile(command, tmp_path: Path):
    path = tmp_path / "broken.hip"
    path.write_text('extern "C" __attribute__((global)) void broken(int* x) { *x = y; }\n')
    status, out, errors = command("isa", str(path), "--json")
    assert status == 1
    assert json.loads(out)["error"]["type"] == "CompileError"
    assert "broken.hip" in errors and "undeclared identifier" in errors
