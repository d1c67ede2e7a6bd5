"""HIP: modules, functions and launches, through ctypes on the library that torch has mapped.

A second copy of libamdhip64 would have its own devices and streams, so the one in the process is
found in its memory map. Torch answers what it knows better (devices, streams, capture): that side
is the small object `torch_side`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rdna_jit import arch as archs
from rdna_jit import toolchain
from rdna_jit.device import Device
from rdna_jit.errors import LaunchError, NoDeviceError, UnsupportedArchError
from rdna_jit.runtime import fast_launch
from rdna_jit.runtime.arguments import Slot
from rdna_jit.runtime.base import (
    Extent,
    LaunchFunction,
    Loaded,
    Program,
    Runtime,
    SlowLaunch,
    check_geometry,
)

# Codes that a launch cannot cause but that a runtime may hand on from an earlier call.
_NOT_OURS = {
    "hipErrorPeerAccessAlreadyEnabled",
    "hipErrorPeerAccessNotEnabled",
    "hipErrorContextAlreadyInUse",
    "hipErrorNotReady",
}
# Codes of work that ran before: HIP reports them at any later call.
_ASYNCHRONOUS = {
    "hipErrorIllegalAddress",
    "hipErrorLaunchFailure",
    "hipErrorLaunchTimeOut",
    "hipErrorAssert",
}


class TorchSide:
    """What the runtime asks of torch. Device indices are torch's."""

    def has_gfx10(self) -> bool:
        """Whether torch is a ROCm build that sees a GPU of a known arch."""
        import torch

        if torch.version.hip is None or not torch.cuda.is_available():
            return False
        names = (self.arch(index) for index in range(torch.cuda.device_count()))
        return any(name in archs.ARCHS for name in names)

    def arch(self, index: int) -> str:
        """The device's own arch name, without feature suffixes."""
        import torch

        return str(torch.cuda.get_device_properties(index).gcnArchName).split(":")[0]

    def name_and_units(self, index: int) -> tuple[str, int]:
        """Marketing name and number of compute units."""
        import torch

        properties = torch.cuda.get_device_properties(index)
        # NOTE: HIP counts workgroup processors on gfx10; a WGP is two compute units.
        return str(properties.name), 2 * int(properties.multi_processor_count)

    def current_device(self) -> int:
        """Index of the calling thread's device."""
        import torch

        return torch.cuda.current_device()

    def device_count(self) -> int:
        """Number of visible devices."""
        import torch

        return torch.cuda.device_count()

    def tensor_index(self, tensor: Any) -> int | None:
        """Device index of a tensor, None when it does not live on a GPU."""
        return int(tensor.get_device()) if tensor.is_cuda else None

    def index_number(self, index: int) -> int:
        """What `Tensor.get_device()` returns for a tensor on device `index`."""
        return index

    def current_stream(self, index: int) -> int:
        """Handle of torch's current stream on a device."""
        import torch

        return int(torch._C._cuda_getCurrentRawStream(index))

    def stream_function(self) -> Any:
        """`current_stream` without a Python frame, for the launch path."""
        import torch

        return getattr(torch._C, "_cuda_getCurrentRawStream", self.current_stream)

    def is_capturing(self) -> bool:
        """Whether the current stream is recording a graph."""
        import torch

        return bool(torch.cuda.is_current_stream_capturing())

    def synchronize(self) -> None:
        """Wait for all work of the current device."""
        import torch

        torch.cuda.synchronize()

    def time_us(self, launch: Callable[[], None]) -> float:
        """Microseconds that the device takes for what `launch` puts on the current stream."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000


torch_side = TorchSide()
"""Replaced by tests that have no GPU."""


class Library:
    """libamdhip64 through ctypes: calls that fail raise LaunchError with HIP's name and text."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
            # NOTE: no argtypes, so that prepared arguments pass unconverted (0.5 us, not 1.6).
            self.launch_kernel = self._library.hipModuleLaunchKernel
        except (OSError, AttributeError) as error:
            raise NoDeviceError(
                f"{path} is no usable HIP library ({error}); point RDNA_JIT_HIP_LIBRARY at "
                "libamdhip64.so or unset it"
            ) from None
        for name in ("hipGetErrorName", "hipGetErrorString"):
            getattr(self._library, name).restype = ctypes.c_char_p

    def load(
        self, data: bytes, symbol: str, kernel: str
    ) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Module and function of a code object, on the current device."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("hipModuleLoadData", kernel, ctypes.byref(module), data)
        name = symbol.encode()
        self.call("hipModuleGetFunction", kernel, ctypes.byref(function), module, name)
        return module, function

    def set_device(self, index: int) -> None:
        """Make `index` the calling thread's device."""
        self.call("hipSetDevice", "", index)

    def get_device(self) -> int:
        """The calling thread's device."""
        index = ctypes.c_int()
        self.call("hipGetDevice", "", ctypes.byref(index))
        return index.value

    def call(self, name: str, kernel: str, *args: object) -> None:
        """One HIP call, judged by its own return code and never by the last error."""
        code = getattr(self._library, name)(*args)
        if code:
            raise self.error(name, code, kernel)

    def error(self, call: str, code: int, kernel: str) -> LaunchError:
        """The error of a call. HIP's last error is taken back, so that torch does not find it."""
        hip_name = (self._library.hipGetErrorName(code) or b"?").decode()
        text = (self._library.hipGetErrorString(code) or b"").decode()
        self._library.hipGetLastError()
        message = f"{call} failed for kernel {kernel}" if kernel else f"{call} failed"
        message += f": {hip_name} ({code}): {text}"
        if hip_name in _NOT_OURS:
            message += ". A launch cannot cause this: an earlier call of the process left it behind"
        elif hip_name in _ASYNCHRONOUS:
            message += (
                ". HIP reports work that failed earlier at any later call; run with "
                "AMD_SERIALIZE_KERNEL=3 to find the kernel"
            )
        return LaunchError(message, kernel=kernel, code=code, hip_name=hip_name)


class HipRuntime(Runtime):
    """GPUs through HIP. `path` None: the library that the process has mapped already."""

    backend = "hip"

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.torch = torch_side
        self.library = Library(os.fspath(path) if path is not None else find_library())
        if not self.torch.device_count():
            raise NoDeviceError(
                "the backend is hip and torch sees no GPU (check HIP_VISIBLE_DEVICES and the "
                "permissions of /dev/kfd); RDNA_JIT_BACKEND=emulator runs without one"
            )
        self._process = os.getpid()

    def device(self, index: int | None = None) -> Device:
        self._check_process()
        index = self.torch.current_device() if index is None else index
        name, units = self.torch.name_and_units(index)
        return Device(self._arch(index), self.backend, name, units, index)

    def index_of(self, args: Sequence[object]) -> int:
        for arg in args:
            if hasattr(arg, "data_ptr"):
                index = self.torch.tensor_index(arg)
                if index is not None:
                    return index
        return self.torch.current_device()

    def before_load(self, kernel: str) -> None:
        self._check_process()
        if self.torch.is_capturing():
            raise LaunchError(
                f"kernel {kernel} is not loaded yet and the current stream is capturing a graph; "
                "call rdna_jit.warm(op, *args) or kernel.warm() before the capture",
                kernel=kernel,
            )

    def load(self, program: Program, index: int) -> HipLoaded:
        self.before_load(program.name)
        if self._arch(index) != program.arch:
            raise UnsupportedArchError(
                f"kernel {program.name} is compiled for {program.arch}, device {index} is "
                f"{self._arch(index)}; leave arch=None to compile for the tensors' device",
                arch=program.arch,
            )
        with self.on_device(index):
            module, function = self.library.load(
                program.code_object.data, program.info.name, program.name
            )
        return HipLoaded(self, program, index, module, function)

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """The calling thread's device is `index` inside, and what it was afterwards."""
        before = self.library.get_device()
        if before == index:
            yield
            return
        self.library.set_device(index)
        try:
            yield
        finally:
            self.library.set_device(before)

    def _arch(self, index: int) -> str:
        return archs.get(self.torch.arch(index)).name

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise NoDeviceError(
                "HIP was initialised before this process was forked, and does not survive a fork; "
                'start workers with multiprocessing.get_context("spawn")'
            )


class HipLoaded(Loaded):
    """A function of a module on one device."""

    def __init__(
        self,
        runtime: HipRuntime,
        program: Program,
        index: int,
        module: ctypes.c_void_p,
        function: ctypes.c_void_p,
    ) -> None:
        super().__init__(program)
        self.runtime = runtime
        self.index = index
        self.module = module
        self.function = function
        self._fast: LaunchFunction | None = None

    def launch(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        stream: object,
    ) -> None:
        self.runtime._check_process()
        packed = self.program.signature.pack(args, self._address)
        buffer = ArgumentBuffer(packed)
        geometry = check_geometry(self.program, grid, block, dynamic_lds)
        with self.runtime.on_device(self.index):
            self._launch(buffer.arguments(self.function, geometry, self.stream_handle(stream)))

    def _launch(self, arguments: tuple[object, ...]) -> None:
        code = self.runtime.library.launch_kernel(*arguments)
        if code:
            raise self.error(code)

    def error(self, code: int) -> LaunchError:
        """The error of a launch that returned `code`."""
        return self.runtime.library.error("hipModuleLaunchKernel", code, self.program.name)

    def stream_handle(self, stream: object) -> int:
        """HIP handle of a torch stream, an int, or (None) torch's current stream."""
        if stream is None:
            return self.runtime.torch.current_stream(self.index)
        return int(getattr(stream, "cuda_stream", stream))  # type: ignore[call-overload]

    def _address(self, slot: Slot, tensor: Any) -> int:
        if self.runtime.torch.tensor_index(tensor) != self.index:
            expected = f"a tensor on cuda:{self.index}, the device of this launch"
            raise self.program.signature.error(slot, tensor, expected)
        return int(tensor.data_ptr())

    def fast_launch(self, slow: SlowLaunch) -> LaunchFunction:
        if self._fast is None:
            self._fast = fast_launch.make(self, slow)
        return self._fast


class ArgumentBuffer:
    """Memory that a launch reads its arguments from, and HIP's description of it.

    HIP copies the bytes before the call returns, so a buffer serves one launch after another, but
    never two threads at once: ctypes releases the interpreter lock during the call.
    """

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self._pin = (ctypes.c_char * max(len(data), 1)).from_buffer(data or bytearray(1))
        self._size = ctypes.c_size_t(len(data))
        self.extra = (ctypes.c_void_p * 5)(
            1, ctypes.addressof(self._pin), 2, ctypes.addressof(self._size), 3
        )

    def arguments(
        self,
        function: ctypes.c_void_p,
        geometry: tuple[tuple[int, int, int], tuple[int, int, int], int],
        stream: int,
    ) -> tuple[object, ...]:
        """All arguments of hipModuleLaunchKernel, as ctypes takes them without conversion."""
        grid, block, dynamic_lds = geometry
        # NOTE: without argtypes a Python int passes as a C int, so extents up to 2**31 - 1 and
        # LDS bytes pass as they are; the stream is a pointer.
        handle = ctypes.c_void_p(stream)
        return (function, *grid, *block, dynamic_lds, handle, None, self.extra)


def find_library() -> str:
    """A library through which torch's own copy of HIP is reached; NoDeviceError without one.

    NOTE: a process may map two copies of libamdhip64, since Debian's carries hiprtc as well. The
    symbols of torch's own library are those of the copy that torch is linked to.
    """
    import torch

    torch_library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10_hip.so")
    if os.path.exists(torch_library):
        return torch_library
    mapped = toolchain.mapped("libamdhip64") if torch.version.hip is not None else None
    if mapped is not None:
        return str(mapped)
    raise NoDeviceError(
        f"this process has no HIP to launch with: torch {torch.__version__} is no ROCm build. "
        "Install a ROCm build of torch, set RDNA_JIT_HIP_LIBRARY, or use RDNA_JIT_BACKEND=emulator"
    )
