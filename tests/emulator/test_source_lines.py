"""Source lines of code that comes from inlined functions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rdna_jit import compiler
from rdna_jit.code_object import CodeObject
from rdna_jit.emulator import Program
from tests.emulator import harness

HIP = """extern "C" __global__ void k(float* x, float* y) {
  int t = threadIdx.x;
  float v = x[t];
  v += __shfl_xor(v, 1);
  y[t] = expf(v) + sinf(v);
}
"""


def test_functions_of_headers_count_as_the_line_that_calls_them() -> None:
    code = CodeObject(compiler.compile_source(HIP, arch="gfx1030").code_object)
    p = Program(code, "k")
    lines = {i.address: p.source_at(i.address) for i in p.code}
    assert set(lines.values()) <= {f"kernel.hip:{n}" for n in range(1, 7)}
    rows = {str(place) for _, place in code.source_lines.rows}
    assert any(row.startswith("/") for row in rows), "the table itself names the headers"
    exp = [lines[i.address] for i in p.code if i.mnemonic == "v_exp_f32"]
    assert exp == ["kernel.hip:5"]
    swaps = [lines[i.address] for i in p.code if i.mnemonic == "ds_bpermute_b32"]
    assert swaps == ["kernel.hip:4"]


def test_functions_of_a_kernel_keep_their_own_lines() -> None:
    source = """__device__ inline u32 twice(u32 x) {
      return __builtin_amdgcn_alignbit(x, x, 5) * 2; }
    KERNEL(32) k(u32* out) {
      out[lane_x()] = twice(out[lane_x()]); }"""
    p = harness.program(source)
    [where] = [p.source_at(i.address) for i in p.code if i.mnemonic == "v_alignbit_b32"]
    assert where == "kernel.hip:2"


@pytest.mark.skipif(shutil.which("clang-22") is None, reason="needs clang-22")
def test_objects_of_a_newer_compiler(tmp_path: Path) -> None:
    header, source, binary = (tmp_path / name for name in ("h.h", "k.hip", "k.co"))
    header.write_text(
        "static __attribute__((device)) int f(int x) {\n  return __builtin_popcount(x) * 3;\n}\n"
    )
    source.write_text(
        f'#line 1 "{header}"\n{header.read_text()}#line 1 "k.hip"\n'
        'extern "C" __attribute__((global)) void k(int* x) {\n  x[0] = f(x[1]);\n  x[2] = 5;\n}\n'
    )
    flags = "-x hip --offload-arch=gfx1030 -nogpuinc -nogpulib --cuda-device-only -O2"
    command = ["clang-22", *flags.split(), "--no-gpu-bundle-output", "-gline-tables-only"]
    command.append("-fdebug-compilation-dir=.")
    subprocess.run([*command, str(source), "-o", str(binary)], check=True)
    p = Program(CodeObject(binary.read_bytes()), "k")
    places = {p.source_at(i.address) for i in p.code if "bcnt" in i.mnemonic}
    assert len(places) == 1 and places.pop().endswith("k.hip:2"), places
    assert {p.source_at(i.address)[0] for i in p.code} != {"/"}


def test_damaged_tables_are_no_reason_to_stop() -> None:
    data = bytearray(compiler.compile_source(HIP, arch="gfx1030").code_object)
    section = CodeObject(bytes(data))._elf.sections[".debug_abbrev"]
    data[section.offset : section.offset + section.size] = b"\xff" * section.size
    p = Program(CodeObject(bytes(data)), "k")
    assert all(p.source_at(i.address) for i in p.code)
