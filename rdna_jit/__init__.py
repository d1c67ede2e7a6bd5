"""HIP kernels for gfx10x GPUs, compiled at first use, and a gfx10 emulator to run them anywhere.

Importing this package touches no GPU, no disk and no library: most names load at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rdna_jit._version import __version__

# NOTE: `config` and `device` share their module's name. Bound here, after their modules, the
# objects stay; loaded lazily, the import system would put the modules in their place.
from rdna_jit.config import config
from rdna_jit.device import Device, device
from rdna_jit.errors import (
    CompileError,
    ContractError,
    DataRace,
    DivergentBarrier,
    EmulationError,
    LaunchError,
    MemoryFault,
    MisalignedAccess,
    NoDeviceError,
    RdnaJitError,
    StepLimit,
    ToolchainError,
    UninitialisedRead,
    UnsupportedArchError,
    UnsupportedInstruction,
)

if TYPE_CHECKING:
    from rdna_jit import cache, emulator, formats, layers, ops
    from rdna_jit.code_object import CodeObject
    from rdna_jit.disassembler import listing as disassemble
    from rdna_jit.dispatch import dispatch_log, explain, warm
    from rdna_jit.emulator.profile import Profile
    from rdna_jit.kernel import Kernel
    from rdna_jit.layers import QuantizedLinear
    from rdna_jit.spec import KernelSpec, Parameter
    from rdna_jit.template import Template

__all__ = [
    "CodeObject",
    "CompileError",
    "ContractError",
    "DataRace",
    "Device",
    "DivergentBarrier",
    "EmulationError",
    "Kernel",
    "KernelSpec",
    "LaunchError",
    "MemoryFault",
    "MisalignedAccess",
    "NoDeviceError",
    "Parameter",
    "Profile",
    "QuantizedLinear",
    "RdnaJitError",
    "StepLimit",
    "Template",
    "ToolchainError",
    "UninitialisedRead",
    "UnsupportedArchError",
    "UnsupportedInstruction",
    "__version__",
    "cache",
    "config",
    "device",
    "disassemble",
    "dispatch_log",
    "emulator",
    "explain",
    "formats",
    "layers",
    "ops",
    "warm",
]

# Name -> its module, or module:attribute where the name differs there.
_HOME = {
    "CodeObject": "code_object",
    "Kernel": "kernel",
    "KernelSpec": "spec",
    "Parameter": "spec",
    "Profile": "emulator.profile",
    "QuantizedLinear": "layers",
    "Template": "template",
    "disassemble": "disassembler:listing",
    "dispatch_log": "dispatch",
    "explain": "dispatch",
    "warm": "dispatch",
}
_SUBMODULES = ("cache", "emulator", "formats", "layers", "ops")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"rdna_jit.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rdna_jit' has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(importlib.import_module(f"rdna_jit.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
