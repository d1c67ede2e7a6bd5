"""What a wave starts with: arguments, ids, packets, for every code object version."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rdna_jit.code_object import Argument, CodeObject
from rdna_jit.emulator import Buffer, Program, launch_state
from rdna_jit.emulator.context import PRIVATE_APERTURE, SHARED_APERTURE
from rdna_jit.emulator.launch_state import Geometry
from rdna_jit.errors import ContractError, UnsupportedInstruction
from tests.emulator import harness

GEOMETRY = Geometry((3, 2, 1), (24, 3, 1), dynamic_lds=512)


def test_geometry() -> None:
    assert (GEOMETRY.workgroups, GEOMETRY.work_items, GEOMETRY.waves) == (6, 72, 3)
    assert GEOMETRY.last_exec == 0xFF
    assert Geometry((1, 1, 1), (64, 1, 1)).last_exec == 0xFFFFFFFF


def test_dispatch_packet() -> None:
    packet = launch_state.dispatch_packet(GEOMETRY)
    assert len(packet) == 64
    assert struct.unpack_from("<3H", packet, 4) == (24, 3, 1)
    assert struct.unpack_from("<3I", packet, 12) == (72, 6, 1)


def test_hidden_arguments_go_where_the_metadata_says() -> None:
    info = harness.program("KERNEL(64) k(u32* out) { out[0] = 1; }").info
    kinds = {
        "hidden_block_count_x": (8, 4), "hidden_group_size_y": (12, 2),
        "hidden_remainder_x": (14, 2), "hidden_grid_dims": (16, 2),
        "hidden_dynamic_lds_size": (20, 4),
        "hidden_shared_base": (24, 4), "hidden_private_base": (28, 4), "hidden_heap_v1": (32, 8),
    }  # fmt: skip
    hidden = tuple(Argument("", kind, size, at) for kind, (at, size) in kinds.items())
    info = info._replace(hidden=hidden, descriptor=info.descriptor._replace(kernarg_bytes=48))
    block = launch_state.argument_block(info, struct.pack("<Q", 77), GEOMETRY)
    assert struct.unpack_from("<QIHHHxxIIIQ", block) == (
        77, 3, 3, 0, 2, 512, SHARED_APERTURE << 16, PRIVATE_APERTURE << 16, 0,
    )  # fmt: skip


def test_host_calls_are_refused() -> None:
    # The word noinline makes the harness compile what the package refuses: printf makes calls.
    source = """/* noinline */ KERNEL(64) k(int* out) {
      if (out[1]) printf("%d\\n", out[0]);
      out[0] = 7; }"""
    out = np.array([0, 0], np.int32)
    harness.run(source, out, block=64)
    assert out[0] == 7, "a kernel that could print but does not runs"
    out[1] = 1
    with pytest.raises(UnsupportedInstruction, match="printf"):
        harness.run(source, out, block=64)


def test_work_item_ids() -> None:
    ids = np.array(launch_state.work_item_ids((24, 3, 1), 2)).reshape(3, 3, 32)
    n = np.arange(96).reshape(3, 32)
    assert (ids[:, 0] == n % 24).all() and (ids[:, 1] == n // 24 % 3).all()
    assert (ids[:, 2] == 0xFDFDFDFD).all(), "what the kernel did not ask for is poison"


def test_unknown_kernels_and_wave64() -> None:
    source = "KERNEL(64) k(u32* out) { out[lane_x()] = 1; }"
    with pytest.raises(ContractError, match="it has k"):
        Program(harness.compiled(source), "missing")
    p = harness.program(source)
    co = CodeObject(p.code_object.data)
    descriptor = p.info.descriptor
    descriptor = descriptor._replace(properties=descriptor.properties & ~(1 << 10))
    co.kernels["k"] = p.info._replace(descriptor=descriptor)
    with pytest.raises(ContractError, match="wave64"):
        Program(co, "k")


CLANG = shutil.which("clang-22")
SOURCE = """
#define DEVICE __attribute__((device))
typedef unsigned u32;
extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 256))) void k(u32* out) {
  if (__builtin_amdgcn_workitem_id_x() | __builtin_amdgcn_workgroup_id_x()) return;
  out[0] = __builtin_amdgcn_workgroup_size_x(); out[1] = __builtin_amdgcn_workgroup_size_y();
  out[2] = __builtin_amdgcn_grid_size_x(); out[3] = __builtin_amdgcn_grid_size_y();
}
"""


@pytest.mark.skipif(CLANG is None, reason="needs clang-22")
@pytest.mark.parametrize("version", [4, 5, 6])
def test_sizes_in_objects_of_a_newer_compiler(version: int, tmp_path: Path) -> None:
    source, binary = tmp_path / "k.hip", tmp_path / "k.co"
    source.write_text(SOURCE)
    flags = "-x hip --offload-arch=gfx1030 -nogpuinc -nogpulib --cuda-device-only -O2"
    command = [str(CLANG), *flags.split(), "--no-gpu-bundle-output", str(source), "-o", str(binary)]
    subprocess.run([*command, f"-mcode-object-version={version}"], check=True)
    co = CodeObject(binary.read_bytes())
    assert co.version == version
    out = np.zeros(4, np.uint32)
    Program(co, "k").launch(
        (5, 2, 1), (96, 2, 1), struct.pack("<Q", out.ctypes.data), [Buffer(out.ctypes.data, 16)]
    )
    assert list(out) == [96, 2, 480, 4]


def test_an_object_of_version_3() -> None:
    """No compiler at hand makes one. It is a version 4 object with another byte in its header, and
    with metadata of version 1.0, which name no target."""
    data = bytearray(harness.compiled("KERNEL(64) k(u32* out) { out[lane_x()] = 7; }").data)
    assert data[8] == 2
    data[8] = 1
    for name, found, wanted in (
        (b"amdhsa.version", b"\x92\x01\x01", b"\x92\x01\x00"),
        (b"\xadamdhsa.target", b"", b"\xadamdhsa.taxget"),
    ):
        at = data.index(name)
        if found:
            at = data.index(found, at)
        data[at : at + len(wanted)] = wanted
    co = CodeObject(bytes(data))
    assert co.version == 3 and co.arch == "gfx1030"
    out = np.zeros(64, np.uint32)
    Program(co, "k").launch(
        (1, 1, 1), (64, 1, 1), struct.pack("<Q", out.ctypes.data), [Buffer(out.ctypes.data, 256)]
    )
    assert (out == 7).all()
