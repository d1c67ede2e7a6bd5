"""Two devices behind one interface: HIP, and the emulator on the CPU.

`current()` chooses by `config.backend`; "auto" takes HIP when torch sees a gfx10 GPU.
"""

from __future__ import annotations

import logging
import threading

from rdna_jit.config import config
from rdna_jit.runtime.base import Loaded, Program, Runtime
from rdna_jit.runtime.fast_launch import allow, state

__all__ = ["Loaded", "Program", "Runtime", "allow", "current", "state"]

_log = logging.getLogger("rdna_jit")
_lock = threading.Lock()
_runtimes: dict[object, Runtime] = {}
_announced = False


def current() -> Runtime:
    """The runtime that the settings ask for; NoDeviceError when it has no device."""
    backend = config.backend
    if backend == "auto":
        backend = _automatic()
    return emulator_runtime() if backend == "emulator" else hip_runtime()


def emulator_runtime() -> Runtime:
    """The CPU's emulator, whatever the settings say."""
    from rdna_jit.runtime.emulator import EmulatorRuntime

    return _get("emulator", EmulatorRuntime)


def hip_runtime() -> Runtime:
    """HIP on the library that the settings name, or on the one that torch has mapped."""
    from rdna_jit.runtime import hip

    path = config.hip_library
    return _get((path, id(hip.torch_side)), lambda: hip.HipRuntime(path))


def _get(key: object, make: type[Runtime] | object) -> Runtime:
    runtime = _runtimes.get(key)
    if runtime is None:
        with _lock:
            runtime = _runtimes.get(key)
            if runtime is None:
                runtime = _runtimes[key] = make()  # type: ignore[operator]
    return runtime


def _automatic() -> str:
    from rdna_jit.runtime import hip

    global _announced
    found = hip.torch_side.has_gfx10()
    if not _announced:
        _announced = True
        choice = "hip" if found else "the emulator: torch sees no gfx10 GPU"
        _log.info("RDNA_JIT_BACKEND=auto takes %s", choice)
    return "hip" if found else "emulator"
