from __future__ import annotations

import json

import numpy as np
import pytest

GEOMETRY = ("--set", "SCALE=3", "--grid", "2", "--block", "64")


def test_run_says_what_the_tensors_hold(report, axpy, tmp_path):
    source, result = tmp_path / "x.npy", tmp_path / "y.npy"
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    np.save(source, x)
    found = report(
        "run", axpy, *GEOMETRY, "--arg", f"x=f32[100]:@{source}", "--arg", "y=f32[100]:ones",
        "--arg", "a=0.5", "--arg", "n=i32:90", "--save", f"y={result}",
    )  # fmt: skip
    expected = np.ones(100, np.float32)
    expected[:90] += np.float32(1.5) * x[:90]
    np.testing.assert_allclose(np.load(result), expected, atol=1e-6)
    tensors = found["tensors"]
    assert tensors["x"]["changed"] == 0
    assert tensors["y"]["changed"] == (expected != 1).sum()
    assert tensors["y"]["first"] == pytest.approx(expected[:8].tolist())
    assert found["device"]["backend"] == "emulator"


def test_profile_prints_counters_and_the_hottest_instructions(command, report, axpy):
    arguments = [
        *GEOMETRY, "--arg", "x=f32[128]:normal", "--arg", "y=f32[128]", "--arg", "a=2",
        "--arg", "n=128",
    ]  # fmt: skip
    status, out, errors = command("profile", axpy, *arguments, "--hot", "2")
    assert status == 0, errors
    assert "bound by" in out and "vmem_load 8" in out
    assert out.rstrip().splitlines()[-1].split()[0].endswith("%")
    found = report("profile", axpy, *arguments, "--card", "RX6800")
    assert found["card"] == "RX6800" and found["waves"] == 4
    assert found["bytes_loaded"] >= 2 * 128 * 4


def test_trace_shows_registers(command, report, axpy):
    arguments = [
        *GEOMETRY, "--arg", "x=f32[128]:arange", "--arg", "y=f32[128]", "--arg", "a=2",
        "--arg", "n=128", "--workgroup", "1", "--wave", "1",
    ]  # fmt: skip
    status, out, errors = command("trace", axpy, *arguments, "--at", "global_store")
    assert status == 0, errors
    assert "workgroup (1, 0, 0), wave 1, hit 1" in out
    assert "(576 582 588" in out  # 2 * x * 3 from x = 96
    found = report("trace", axpy, *arguments, "--at", "axpy.hip:5", "--hits", "2")
    assert [stop["hit"] for stop in found] == [1, 2] and found[0]["exec"] == 0xFFFFFFFF
    assert command("trace", axpy, *arguments, "--at", "axpy.hip:1")[0] == 1


def test_a_declared_kernel_brings_its_block(report):
    found = report(
        "run", "probe_values", "--set", "INSTRUCTION=MAX_F32", "--arg", "a=f32[2]:1.5",
        "--arg", "b=f32[2]:2.5", "--arg", "c=f32[2]", "--arg", "out=f32[2]", "--arg", "n=2",
    )  # fmt: skip
    assert found["tensors"]["out"]["first"] == [2.5, 2.5]


@pytest.mark.parametrize(
    ("fill", "first"),
    [
        ("f16[4]:arange", [0, 1, 2, 3]),
        ("u32[2,2]:0x10", [16] * 4),
        ("i8[4]:-3..-3", [-3] * 4),
        ("f64[4]:-0.5", [-0.5] * 4),
        ("u64[4]:ones", [1] * 4),
    ],
)
def test_fills(fill, first):
    from rdna_jit.runtime.arguments import Signature, Slot
    from rdna_jit.tools import buffers

    signature = Signature("k", [Slot("x", "const void*", "P", 0, 8)])
    arguments = buffers.parse([f"x={fill}"], signature, "cpu")
    assert buffers.changes(arguments)["x"]["first"] == first


FINE = {"x": "f32[128]", "y": "f32[128]", "a": "1", "n": "128"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": None}, "no --arg for n"),
        ({"m": "4"}, "no parameter m"),
        ({"n": "many"}, "'many' is no value for int n"),
        ({"n": "f32:4"}, "the kernel declares int n, not f32"),
        ({"n": "f32[4]"}, "is a value, not a pointer"),
        ({"x": "4"}, "is a pointer; write DTYPE[SIZE,...]:FILL or null"),
        ({"x": "bf16[4]"}, "bf16 is no type"),
        ({"x": "f32[-4]"}, "is no shape"),
        ({"x": "f32[4]:gauss"}, "Fills: zeros"),
        ({"x": "f32[128]:@nowhere.npy"}, "nowhere.npy"),
        ({"a": "1e99"}, "float a"),
        ({"x": "f32[64]"}, "past the end of x (256 bytes)"),
        ({"x": "null"}, "a null pointer"),
    ],
)
def test_wrong_arguments_are_explained(command, axpy, change, said):
    values = {name: v for name, v in {**FINE, **change}.items() if v is not None}
    texts = [text for name, value in values.items() for text in ("--arg", f"{name}={value}")]
    status, out, errors = command("run", axpy, *GEOMETRY, *texts)
    assert status in (1, 2) and out == ""
    assert said in errors


def test_an_ops_call_is_for_isa(command):
    status, _, errors = command("profile", "linear.gemv_f16(f16[1,64], f16[8,64])")
    assert status == 2 and "only isa takes an op's call" in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "SCALE=1"], "how many threads has a workgroup?"),
        ([*GEOMETRY, "--block", "1,2,3,4"], "1 to 3 positive numbers"),
        ([*GEOMETRY, "--block", "128"], "__launch_bounds__ allow 64"),
        ([*GEOMETRY, "--save", "z=z.npy"], "--save z=z.npy"),
    ],
)
def test_wrong_geometry_is_explained(command, axpy, arguments, said):
    texts = [text for name, value in FINE.items() for text in ("--arg", f"{name}={value}")]
    status, _, errors = command("run", axpy, *arguments, *texts)
    assert status in (1, 2) and said in errors


def test_checks_and_json_errors(command, tmp_path):
    path = tmp_path / "race.hip"
    path.write_text(
        '#include "common/wave.hip"\n'
        "KERNEL __launch_bounds__(64) void race(u32* out) {\n"
        "  __shared__ u32 words[64];\n"
        "  words[thread_x()] = thread_x();\n"
        "  out[thread_x()] = words[63 - thread_x()];\n}\n"
    )
    arguments = ("run", str(path), "--block", "64", "--arg", "out=u32[64]", "--json")
    assert command(*arguments)[0] == 0
    status, out, _ = command(*arguments, "--checks", "races")
    assert status == 1
    error = json.loads(out)["error"]
    assert error["type"] == "DataRace" and "race.hip:4" in error["message"]
