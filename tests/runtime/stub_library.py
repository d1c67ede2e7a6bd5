"""The stub HIP library, and CPU tensors standing in for a card's."""

from __future__ import annotations

import ctypes
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdna_jit.runtime.hip import TorchSide

SOURCE = Path(__file__).parent / "stub" / "hip_stub.c"


class _Call(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 32),
        ("text", ctypes.c_char * 128),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("lds", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("thread", ctypes.c_uint64),
        ("device", ctypes.c_int),
        ("owner", ctypes.c_int),
        ("nbytes", ctypes.c_uint64),
        ("bytes", ctypes.POINTER(ctypes.c_ubyte)),
    ]


@dataclass(frozen=True)
class Call:
    """One recorded call."""

    name: str
    text: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    lds: int
    stream: int
    thread: int
    device: int
    owner: int
    data: bytes = field(repr=False)


def build(folder: Path) -> Path:
    """Compile the stub into `folder` unless it is there."""
    library = folder / "libamdhip64_stub.so"
    if not library.exists():
        command = ["gcc", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*command, "-o", library, SOURCE, "-lpthread"], check=True)
    return library


class Stub:
    """Control of the loaded stub."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.stub_call.restype = ctypes.POINTER(_Call)
        self.library.stub_reset()

    def calls(self, name: str | None = None) -> list[Call]:
        """What was called since the reset, in order; only `name` when given."""
        raw = [self.library.stub_call(i).contents for i in range(self.library.stub_count())]
        return [_read(call) for call in raw if name in (None, call.name.decode())]

    @property
    def launches(self) -> list[Call]:
        """The launches since the reset."""
        return self.calls("hipModuleLaunchKernel")

    def fail(self, name: str, code: int, times: int = 1) -> None:
        """Let the next calls of a function return an error."""
        self.library.stub_fail(name.encode(), code, times)


def _read(call: Any) -> Call:
    data = ctypes.string_at(call.bytes, call.nbytes) if call.nbytes else b""
    return Call(
        call.name.decode(),
        call.text.decode(),
        tuple(call.grid),
        tuple(call.block),
        call.lds,
        call.stream,
        call.thread,
        call.device,
        call.owner,
        data,
    )


class HostTensors(TorchSide):
    """CPU tensors count as tensors of the device that `placed` names, else of the current one.

    `device` is the stub's: real per-thread state behind hipSetDevice and hipGetDevice.
    """

    def __init__(self, stub: Stub, devices: int = 1, archs: tuple[str, ...] = ("gfx1030",)) -> None:
        self.stub = stub
        self.devices = devices
        self.archs = archs * devices if len(archs) == 1 else archs
        self.streams: dict[int, int] = defaultdict(int)
        self.capturing = False
        self.placed: dict[int, int] = {}

    def has_gfx10(self) -> bool:
        return True

    def arch(self, index: int) -> str:
        return self.archs[index]

    def name_and_units(self, index: int) -> tuple[str, int]:
        return f"stub {index}", 72

    def current_device(self) -> int:
        index = ctypes.c_int()
        self.stub.library.hipGetDevice(ctypes.byref(index))
        return index.value

    def device_count(self) -> int:
        return self.devices

    def tensor_index(self, tensor: Any) -> int | None:
        if tensor.device.type != "cpu":
            return None
        return self.placed.get(id(tensor), 0)

    def index_number(self, index: int) -> int:
        # torch gives -1 for every CPU tensor, so a fast launch cannot tell placed ones apart.
        return -1 if index == 0 and not self.placed else -2

    def current_stream(self, index: int) -> int:
        return self.streams[index]

    def stream_function(self) -> Callable[[int], int]:
        return self.streams.__getitem__  # built in, as torch's own

    def is_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        return None

    def time_us(self, launch: Callable[[], None]) -> float:
        launch()
        return 1.0
