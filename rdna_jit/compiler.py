"""hiprtc: source, arch and options in, code object out. The only module that uses hiprtc.

Importing this module loads nothing; the first compile loads hip-python and hiprtc.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import arch as archs
from . import toolchain
from .code_object import CodeObject
from .errors import CompileError, ContractError, ToolchainError

log = logging.getLogger("rdna_jit")

_DEFAULTS, _LINE_TABLES = toolchain.DEFAULT_OPTIONS, toolchain.LINE_TABLES
# hiprtc parses 370 KB of HIP declarations in front of every source, most of the time that a small
# kernel takes. A header of the same name takes their place when the source needs none of them.
_NO_HEADER = "-nogpuinc"
_BUILTIN_HEADER = b"hiprtc_runtime.h"
# Two arch options make two targets; a name that hiprtc does not know aborts the process.
_ARCH_OPTIONS = ("--offload-arch", "--gpu-architecture", "--cuda-gpu-arch", "-march", "-mcpu")
_TEMPORARY = re.compile(r"[^\s\"']*/input/CompileSource")
_FIRST_ERROR = re.compile(r"^(?P<file>.+?):(?P<line>\d+):\d+: (?:fatal )?error: .*$", re.MULTILINE)
_LINE_DIRECTIVE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?')
_CALLS = ((0xFF80FF00, 0xBE802100), (0xFF800000, 0xBB000000))  # s_swappc_b64, s_call_b64


@dataclass(frozen=True)
class CompileResult:
    """What hiprtc made: the code object's bytes, its log with warnings, and the time it took."""

    code_object: bytes
    log: str
    seconds: float


def compiler_identity() -> str:
    """Names the compiler for cache keys; loads nothing. ToolchainError when there is none."""
    return toolchain.identity()


def compile_source(
    source: str,
    *,
    arch: str,
    options: Sequence[str] = (),
    name: str = "kernel.hip",
    kernel: str = "",
) -> CompileResult:
    """Compile HIP text for one arch.

    Threads may call it at once: compiles of one process follow one another, other Python code runs
    meanwhile. Use processes to compile in parallel.

    `name` is the file name shown in messages when the source has no #line of its own, `kernel`
    names the kernel in errors. The result is wave32, holds at least one kernel and calls no
    function; register spills are logged. Equal arguments give equal bytes in any directory.

    The option -nogpuinc leaves out HIP's own declarations, __global__ and threadIdx included: for
    sources that use the compiler's builtins alone it makes small compiles several times faster.
    """
    target = archs.get(arch).name
    kernel = kernel or name
    _check_source(source, name)
    options = _checked_options(options)
    if not _LINE_DIRECTIVE.match(source):
        source = f'#line 1 "{name}"\n{source}'
    flags = [f"--offload-arch={target}", *_DEFAULTS, *_LINE_TABLES, *options]
    start = time.perf_counter()
    code, text = _run(source, flags)
    if code is not None and b"/comgr-" in code:
        log.debug("this hiprtc puts its temporary folder into line tables: compiling without")
        code, text = _run(source, [flag for flag in flags if flag not in _LINE_TABLES])
    seconds = time.perf_counter() - start
    text = _TEMPORARY.sub(name, text)
    if code is None:
        raise _failure(source, text, kernel, target, options)
    try:
        text += _check_result(CodeObject(code), target)
    except ValueError as error:
        raise CompileError(
            str(error), kernel=kernel, arch=target, options=options, log=text
        ) from None
    return CompileResult(code, text, seconds)


def _check_source(source: str, name: str) -> None:
    # NOTE: hiprtc kills the process on an empty source.
    if not isinstance(source, str) or not source.strip() or "\0" in source:
        raise ContractError(
            f"the source of {name} is empty or not text; pass HIP text with at least one "
            '`extern "C" __global__` function',
            name="source",
            expected="HIP text",
            got=repr(source[:20]) if isinstance(source, str) else type(source).__name__,
        )


def _checked_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str):
        raise ContractError(
            f"options={options!r}: pass a sequence of options, not one string", name="options"
        )
    for option in options:
        if not isinstance(option, str) or not option.strip() or "\0" in option:
            raise ContractError(f"{option!r} is not a compiler option", name="options", got=option)
        if option.startswith(_ARCH_OPTIONS):
            raise ContractError(
                f"option {option}: choose the architecture with arch=", name="options", got=option
            )
    return tuple(options)


def _run(source: str, flags: Sequence[str]) -> tuple[bytes | None, str]:
    """Code (None when refused) and log of one compile."""
    hiprtc = _bindings()
    headers, names = ([b"\n"], [_BUILTIN_HEADER]) if _NO_HEADER in flags else ([], [])
    result, program = hiprtc.hiprtcCreateProgram(
        source.encode(), b"kernel", len(headers), headers, names
    )
    if int(result) != 0:
        raise ToolchainError(f"hiprtcCreateProgram failed: {result.name}", library="hiprtc")
    try:
        encoded = [flag.encode() for flag in flags]
        with toolchain.llvm_lock:
            (result,) = hiprtc.hiprtcCompileProgram(program, len(encoded), encoded)
        text = _fetch(hiprtc.hiprtcGetProgramLogSize, hiprtc.hiprtcGetProgramLog, program)
        code = None
        if int(result) == 0:
            code = _fetch(hiprtc.hiprtcGetCodeSize, hiprtc.hiprtcGetCode, program)
    finally:
        hiprtc.hiprtcDestroyProgram(program.createRef())
    return code, text.rstrip(b"\0").decode(errors="replace")


def _fetch(get_size: Any, get: Any, program: Any) -> bytes:
    result, size = get_size(program)
    buffer = bytearray(size)
    if int(result) == 0 and size:
        (result,) = get(program, buffer)
    if int(result) != 0:
        raise ToolchainError(f"hiprtc does not return its result: {result.name}", library="hiprtc")
    return bytes(buffer)


def _failure(
    source: str, text: str, kernel: str, arch: str, options: tuple[str, ...]
) -> CompileError | ToolchainError:
    if not text.strip():
        return _failure_without_log()
    error = _FIRST_ERROR.search(text)
    message = error.group(0) if error else text.strip().splitlines()[0]
    excerpt = _excerpt(source, error.group("file"), int(error.group("line"))) if error else ""
    return CompileError(
        f"hiprtc refused the source: {message}",
        kernel=kernel,
        arch=arch,
        options=options,
        log=text,
        excerpt=excerpt,
    )


def _failure_without_log() -> ToolchainError:
    """hiprtc is silent when its surroundings are broken: name what is."""
    variable = next((v for v in ("TMPDIR", "TMP", "TEMP", "TEMPDIR") if os.environ.get(v)), "")
    folder = os.environ.get(variable, "/tmp")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        cause = f"{variable or 'the default'}={folder} is not a folder that can be written"
        remedy = f"mkdir -p {folder}, or unset {variable}" if variable else f"mkdir {folder}"
    elif toolchain.search("builtins")[0] is None:
        cause, remedy = "its builtins library is missing", toolchain.install_command()
    else:
        cause, remedy = f"is there space left in {folder}?", "python -m rdna_jit doctor"
    return ToolchainError(
        f"hiprtc failed without a log; {cause}. Try: {remedy}", library="libhiprtc.so"
    )


def located_lines(source: str) -> Iterator[tuple[str, int, str]]:
    """(file, line, text) of every line of a source, as its #line directives number them."""
    file, number = "", 1
    for text in source.splitlines():
        directive = _LINE_DIRECTIVE.match(text)
        if directive:
            file, number = directive.group(2) or file, int(directive.group(1))
        else:
            yield file, number, text
            number += 1


def _excerpt(source: str, file: str, line: int, around: int = 3) -> str:
    """The lines about one place, the place itself marked."""
    rows = [
        f"{'>' if number == line else ' '}{number:6} | {text}"
        for where, number, text in located_lines(source)
        if where == file and abs(number - line) <= around
    ]
    return "\n".join([f"{file}:{line}", *rows]) if rows else ""


def _check_result(code_object: CodeObject, arch: str) -> str:
    """Lines for the log; ValueError when the object is not what the package can launch."""
    if code_object.arch != arch:
        raise ValueError(f"hiprtc made code for {code_object.arch} instead of {arch}")
    if not code_object.kernels:
        raise ValueError('the source has no kernel: add an `extern "C" __global__` function')
    lines = []
    for name, info in code_object.kernels.items():
        resources = info.resources
        if resources.wavefront_size != 32:
            raise ValueError(
                f"{name} was compiled for wavefronts of {resources.wavefront_size}: "
                "only 32 is supported, remove -mwavefrontsize64"
            )
        if resources.vgpr_spills or resources.sgpr_spills:
            lines.append(
                f"\nwarning: {name} spills {resources.vgpr_spills} vector and "
                f"{resources.sgpr_spills} scalar registers to memory; "
                "state __launch_bounds__ or use fewer registers"
            )
    for line in lines:
        log.warning("%s", line.strip().removeprefix("warning: "))
    callers = _functions_with_calls(code_object)
    host_services = sorted(n for n in callers if "hostcall" in n or "printf" in n or "assert" in n)
    if host_services:
        raise ValueError(
            f"printf and assert need a host service that is not there ({', '.join(host_services)} "
            "was linked in); store what you want to see in a buffer, or call __builtin_trap()"
        )
    if callers:
        raise ValueError(
            f"{', '.join(callers)} calls functions; declare them __forceinline__, and use "
            "builtins instead of the headers' index getters when compiling with -mno-cumode"
        )
    return "".join(lines)


def _functions_with_calls(code_object: CodeObject) -> list[str]:
    """Functions with a call instruction. Only a suspicious word costs a disassembly."""
    suspects = []
    for name, (va, size) in code_object.functions.items():
        words = struct.unpack(f"<{size // 4}I", code_object.read(va, size // 4 * 4))
        if any(word & mask == value for word in words for mask, value in _CALLS):
            suspects.append(name)
    if not suspects:
        return []
    from .disassembler import disassemble

    return [
        name
        for name in suspects
        if any(
            instruction.text.startswith(("s_swappc_b64", "s_call_b64"))
            for instruction in disassemble(code_object, name)
        )
    ]


_lock = threading.Lock()
_loaded: tuple[Any, toolchain.Library] | None = None


def _bindings() -> Any:
    """hip-python's hiprtc module, bound to the library that the toolchain search chose."""
    global _loaded
    with _lock:
        if _loaded is None:
            library = toolchain.hiprtc()
            _loaded = _bind(str(library.path)), library
    return _loaded[0]


def loaded_library() -> toolchain.Library | None:
    """The hiprtc of this process; a process keeps the first one that it used."""
    return _loaded[1] if _loaded else None


def _bind(path: str) -> Any:
    """Import hip-python and make it open `path` at its first call.

    Debian's hiprtc has a name that hip-python does not look for, and an explicit setting has to
    win over what hip-python would find by itself.
    """
    hiprtc: Any
    try:
        try:
            from rocm.bindings import hiprtc
            from rocm.bindings.util import paths
        except ImportError:  # hip-python before 10
            from hip import chiprtc, hiprtc

            chiprtc.DLL = os.fsencode(path)
            hiprtc.hiprtcVersion()
        else:
            find = paths.get_library_path
            paths.get_library_path = lambda *_, **__: os.fsencode(path)
            try:
                hiprtc.hiprtcVersion()
            finally:
                paths.get_library_path = find
    except ImportError as error:
        raise ToolchainError(
            f"hip-python cannot be imported ({error})",
            library="hip-python",
            install="pip install hip-python",
        ) from None
    except RuntimeError as error:
        raise ToolchainError(
            f"{path} cannot be used as hiprtc: {error}",
            library="libhiprtc.so",
            searched=(path,),
            install=toolchain.install_command(),
        ) from None
    return hiprtc
