"""Disassembly of code objects through comgr, which comes with every hiprtc."""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import dataclass

from . import toolchain
from .code_object import CodeObject
from .errors import ContractError, ToolchainError

_READ = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p
)
_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_ANNOTATE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: address and size in bytes, its 32-bit words, and its text."""

    address: int
    size: int
    words: tuple[int, ...]
    text: str


class _Info(ctypes.Structure):
    _fields_ = (("handle", ctypes.c_uint64),)


class _Disassembler:
    """comgr's disassembler for one arch. Creating it costs 20 to 50 ms, an instruction 4 us."""

    def __init__(self, arch: str) -> None:
        self._code = b""
        self._start = 0
        self._text = b""
        library = toolchain.comgr().path
        try:
            comgr = ctypes.CDLL(str(library))
            self._step = comgr.amd_comgr_disassemble_instruction
            create = comgr.amd_comgr_create_disassembly_info
        except (OSError, AttributeError) as error:
            raise ToolchainError(
                f"{library} cannot be used as comgr: {error}",
                library="libamd_comgr.so",
                searched=(str(library),),
                install=toolchain.install_command(),
            ) from None
        self._step.argtypes = (
            _Info,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_uint64),
        )
        # NOTE: comgr keeps only addresses of the callbacks, so this object has to keep them.
        self._callbacks = (_READ(self._read), _PRINT(self._print), _ANNOTATE(lambda *_: None))
        self._info = _Info()
        isa = f"amdgcn-amd-amdhsa--{arch}".encode()
        with toolchain.llvm_lock:
            status = create(isa, *self._callbacks, ctypes.byref(self._info))
        if status:
            raise ToolchainError(
                f"{library} cannot disassemble {arch} (status {status}); use a newer comgr",
                library="libamd_comgr.so",
            )

    def _read(self, address: int, target: int, count: int, _: object) -> int:
        offset = address - self._start
        chunk = self._code[offset : offset + count]
        ctypes.memmove(target, chunk, len(chunk))
        return len(chunk)

    def _print(self, text: bytes, _: object) -> None:
        self._text = text

    def run(self, code: bytes, start: int) -> list[Instruction]:
        """All instructions of `code`, whose first byte has the address `start`."""
        result = []
        size = ctypes.c_uint64()
        with toolchain.llvm_lock:
            self._code, self._start = code, start
            address, end = start, start + len(code)
            while address < end:
                if self._step(self._info, address, None, ctypes.byref(size)):
                    size.value = 4
                    (word,) = struct.unpack_from("<I", code, address - start)
                    self._text = f".long {word:#x}".encode()
                words = struct.unpack_from(f"<{size.value // 4}I", code, address - start)
                text = self._text.decode().strip()
                result.append(Instruction(address, size.value, words, text))
                address += size.value
        return result


_disassemblers: dict[str, _Disassembler] = {}
_lock = threading.Lock()


def disassemble(code_object: CodeObject | bytes, kernel: str | None = None) -> list[Instruction]:
    """Instructions of one function or kernel, or of all functions in order of address.

    Words that are no instruction come back as ".long".
    """
    if not isinstance(code_object, CodeObject):
        code_object = CodeObject(code_object)
    functions = code_object.functions
    if kernel is not None and kernel not in functions:
        raise ContractError(
            f"the code object has no function {kernel!r}; it has {', '.join(functions)}",
            name="kernel",
            got=kernel,
        )
    ranges = functions.values() if kernel is None else [functions[kernel]]
    with _lock:
        if code_object.arch not in _disassemblers:
            _disassemblers[code_object.arch] = _Disassembler(code_object.arch)
        disassembler = _disassemblers[code_object.arch]
    return [
        instruction
        for va, size in ranges
        for instruction in disassembler.run(code_object.read(va, size), va)
    ]


def listing(code_object: CodeObject | bytes, kernel: str | None = None) -> str:
    """Disassembly for reading: address, words, text, and the source line where it changes."""
    if not isinstance(code_object, CodeObject):
        code_object = CodeObject(code_object)
    starts = {va: name for name, (va, _) in code_object.functions.items()}
    lines = []
    place = None
    for instruction in disassemble(code_object, kernel):
        if instruction.address in starts:
            lines.append(f"{starts[instruction.address]}:")
        source = code_object.source_lines.get(instruction.address)
        if source is not None and source != place:
            lines.append(f"  ; {source}")
            place = source
        words = " ".join(f"{word:08x}" for word in instruction.words)
        lines.append(f"  {instruction.address:6x}  {words:<26}  {instruction.text}")
    return "\n".join(lines) + "\n"
