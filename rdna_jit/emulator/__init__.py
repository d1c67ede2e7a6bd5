"""The gfx10 machine on the CPU: runs the code objects that the GPU would run.

register(ptr, nbytes)     let kernels touch host memory behind a raw pointer
checks(...)               look for races, uninitialised reads, misaligned accesses, endless loops
modes(...)                the rules that only hardware can settle; tier and threads
profiling()               collects a profile of each launch
Program                   a kernel of a code object, to be launched on host memory
"""

from rdna_jit.emulator.buffers import Buffer, Registration, register
from rdna_jit.emulator.checks import checks, modes
from rdna_jit.emulator.machine import LaunchStats, Program
from rdna_jit.emulator.options import Options
from rdna_jit.emulator.profiling import profiling

__all__ = [
    "Buffer", "LaunchStats", "Options", "Program", "Registration", "checks", "modes",
    "profiling", "register",
]  # fmt: skip
