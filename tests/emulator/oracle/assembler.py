"""gfx10 assembly text to a loadable code object, through comgr's own assembler and linker.

comgr is there wherever the emulator runs, since it is the disassembler too.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache

from rdna_jit import toolchain

_SOURCE, _LOG, _EXECUTABLE = 1, 5, 8
_LINK_EXECUTABLE, _ASSEMBLE = 9, 10
_ISA = "amdgcn-amd-amdhsa--{arch}"

_PROGRAM = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{body}
.L{name}_end:
.size {name}, .L{name}_end-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_private_segment_buffer 1
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_private_segment_wavefront_offset 1
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 100
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_wavefront_size32 1
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_float_denorm_mode_16_64 3
  .amdhsa_ieee_mode 1
  .amdhsa_dx10_clamp 1
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 1]
amdhsa.target: amdgcn-amd-amdhsa--{arch}
amdhsa.kernels:
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {kernarg}
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .kernarg_segment_align: 8
    .wavefront_size: 32
    .sgpr_count: 100
    .vgpr_count: {vgprs}
    .sgpr_spill_count: 0
    .vgpr_spill_count: 0
    .max_flat_workgroup_size: 1024
    .args: [{args}]
...
.end_amdgpu_metadata
"""


class AssemblyError(ValueError):
    """The assembler refused the text. `lines` are the refused lines of the body, counted from 0."""

    def __init__(self, log: str, first_line: int) -> None:
        super().__init__(log)
        found = re.findall(r":(\d+):\d+: error:", log)
        self.lines = sorted({int(n) - first_line for n in found})


class _Handle(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64)]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(toolchain.comgr().path))
    pointer, size, text = ctypes.POINTER(_Handle), ctypes.c_size_t, ctypes.c_char_p
    signatures = {
        "create_data": [ctypes.c_int, pointer],
        "set_data": [_Handle, size, text],
        "set_data_name": [_Handle, text],
        "release_data": [_Handle],
        "create_data_set": [pointer],
        "destroy_data_set": [_Handle],
        "data_set_add": [_Handle, _Handle],
        "create_action_info": [pointer],
        "destroy_action_info": [_Handle],
        "action_info_set_isa_name": [_Handle, text],
        "action_info_set_logging": [_Handle, ctypes.c_bool],
        "do_action": [ctypes.c_int, _Handle, _Handle, _Handle],
        "action_data_count": [_Handle, ctypes.c_int, ctypes.POINTER(size)],
        "action_data_get_data": [_Handle, ctypes.c_int, size, pointer],
        "get_data": [_Handle, ctypes.POINTER(size), text],
    }
    for name, types in signatures.items():
        getattr(library, "amd_comgr_" + name).argtypes = types
    return library


def _call(name: str, *args: object) -> None:
    status = getattr(_library(), "amd_comgr_" + name)(*args)
    if status:
        raise RuntimeError(f"amd_comgr_{name} returned {status}")


def _create(kind: str, *args: object) -> _Handle:
    handle = _Handle()
    _call("create_" + kind, *args, ctypes.byref(handle))
    return handle


def _contents(data_set: _Handle, kind: int) -> bytes:
    """All data of a kind in a set, joined."""
    count, parts = ctypes.c_size_t(), []
    _call("action_data_count", data_set, kind, ctypes.byref(count))
    for index in range(count.value):
        data, size = _Handle(), ctypes.c_size_t()
        _call("action_data_get_data", data_set, kind, index, ctypes.byref(data))
        _call("get_data", data, ctypes.byref(size), None)
        buffer = ctypes.create_string_buffer(size.value)
        _call("get_data", data, ctypes.byref(size), buffer)
        _call("release_data", data)
        parts.append(buffer.raw)
    return b"".join(parts)


def _build(source: bytes, arch: str, first_line: int) -> bytes:
    text = _create("data", _SOURCE)
    sets = [_create("data_set") for _ in range(3)]
    action = _create("action_info")
    try:
        _call("set_data", text, len(source), source)
        _call("set_data_name", text, b"kernel.s")
        _call("data_set_add", sets[0], text)
        _call("action_info_set_isa_name", action, _ISA.format(arch=arch).encode())
        _call("action_info_set_logging", action, True)
        for kind, given, made in ((_ASSEMBLE, *sets[:2]), (_LINK_EXECUTABLE, *sets[1:])):
            with toolchain.llvm_lock:
                status = _library().amd_comgr_do_action(kind, action, given, made)
            if status:
                raise AssemblyError(_contents(made, _LOG).decode(errors="replace"), first_line)
        return _contents(sets[2], _EXECUTABLE)
    finally:
        for data_set in sets:
            _call("destroy_data_set", data_set)
        _call("destroy_action_info", action)
        _call("release_data", text)


ARGUMENTS = ("inputs", "results", "memory")


def assemble(
    body: str,
    *,
    name: str = "probe",
    arguments: tuple[str, ...] = ARGUMENTS,
    vgprs: int = 64,
    lds: int = 0,
    scratch: int = 16,
    arch: str = "gfx1030",
) -> bytes:
    """The code object of one kernel whose arguments are global pointers.

    At entry s[0:3] describe the scratch of `scratch` bytes a lane, s[4:5] point at the argument
    block, s6 is the workgroup's x, s7 the offset of the wave's scratch and v0 the lane's x.
    Raises AssemblyError.
    """
    args = ", ".join(
        f"{{.name: {argument}, .size: 8, .offset: {8 * index}, .value_kind: global_buffer, "
        ".address_space: global}"
        for index, argument in enumerate(arguments)
    )
    first_line = _PROGRAM.split("{body}")[0].count("\n") + 1
    text = _PROGRAM.format(
        arch=arch,
        name=name,
        body=body,
        vgprs=vgprs,
        lds=lds,
        args=args,
        scratch=scratch,
        kernarg=8 * len(arguments),
    )
    return _build(text.encode(), arch, first_line)


def refused_lines(lines: list[str], arch: str = "gfx1030") -> set[int]:
    """Indices of the instruction lines that the assembler does not accept."""
    try:
        assemble("\n".join(lines) + "\ns_endpgm", arch=arch)
    except AssemblyError as error:
        if not error.lines:
            raise
        return set(error.lines)
    return set()
