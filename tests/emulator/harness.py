"""Compile HIP text and run it on the emulator over NumPy arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

import numpy as np

from rdna_jit import compiler
from rdna_jit.code_object import CodeObject
from rdna_jit.emulator import Buffer, LaunchStats, Program

PRELUDE = """
#define KERNEL(block) extern "C" __global__ __launch_bounds__(block) void
typedef unsigned int u32; typedef unsigned long long u64;
__device__ inline u32 lane_x() { return __builtin_amdgcn_workitem_id_x(); }
__device__ inline u32 group_x() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ inline void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#line 1 "kernel.hip"
"""


@cache
def compiled(source: str, options: tuple[str, ...] = ()) -> CodeObject:
    if "noinline" in source:  # the package's own compiles refuse calls
        code, log = compiler._run(PRELUDE + source, ["--offload-arch=gfx1030", *options])
        assert code is not None, log
        return CodeObject(code)
    result = compiler.compile_source(PRELUDE + source, arch="gfx1030", options=options)
    return CodeObject(result.code_object)


@cache
def program(source: str, entry: str = "k", options: tuple[str, ...] = ()) -> Program:
    return Program(compiled(source, options), entry)


def mnemonics(source: str, entry: str = "k", options: tuple[str, ...] = ()) -> set[str]:
    return {i.mnemonic for i in program(source, entry, options).code}


def pack(p: Program, args: Sequence[object]) -> tuple[bytes, list[Buffer]]:
    """The argument block for arrays, ints and floats, and the buffers behind the arrays."""
    block = bytearray(sum(a.size + 8 for a in p.info.arguments))
    buffers = []
    assert len(args) == len(p.info.arguments)
    for argument, value in zip(p.info.arguments, args, strict=True):
        if isinstance(value, np.ndarray):
            buffers.append(Buffer(value.ctypes.data, value.nbytes, argument.name))
            raw = struct.pack("<Q", value.ctypes.data)
        elif isinstance(value, float):
            raw = struct.pack("<f" if argument.size == 4 else "<d", value)
        else:
            raw = (int(value) % (1 << 8 * argument.size)).to_bytes(argument.size, "little")
        block[argument.offset : argument.offset + argument.size] = raw
    return bytes(block), buffers


def run(
    source: str,
    *args: object,
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    entry: str = "k",
    options: tuple[str, ...] = (),
    dynamic_lds: int = 0,
    profile: bool = False,
    uninitialised: Sequence[np.ndarray] = (),
) -> LaunchStats:
    """Launch `entry` of `source`; arrays are changed in place."""
    p = program(source, entry, options)
    kernarg, buffers = pack(p, args)
    addresses = {a.ctypes.data for a in uninitialised}
    buffers = [Buffer(b.address, b.nbytes, b.name, b.address not in addresses) for b in buffers]
    g = grid if isinstance(grid, tuple) else (grid, 1, 1)
    b = block if isinstance(block, tuple) else (block, 1, 1)
    return p.launch(g, b, kernarg, buffers, dynamic_lds=dynamic_lds, profile=profile)
