"""Finds the ROCm libraries that compiling, disassembling and launching need, without loading them.

Order: an explicit setting, then for comgr and the builtins the folder of hiprtc (they belong
together), ROCM_PATH, the rocm_sdk and torch packages of this Python, /opt/rocm*, the system
loader, and last Debian's libamdhip64.so.5, which carries hiprtc inside.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import mmap
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .config import config
from .elf import Elf
from .errors import ToolchainError

# Options of every compile. They are part of the compiler's identity and so of cache keys.
DEFAULT_OPTIONS = ("-std=c++17", "-fhip-kernel-arg-name")
# The main file's name and the working directory are pinned: otherwise a random temporary folder
# and the caller's directory would enter the line tables, and equal sources would give different
# bytes. What users see comes from #line.
LINE_TABLES = (
    "-gline-tables-only",
    "-fdebug-compilation-dir=.",
    "-Xclang",
    "-main-file-name",
    "-Xclang",
    "/kernel",
)
_STEMS = {
    "hiprtc": "libhiprtc.so",
    "comgr": "libamd_comgr.so",
    "builtins": "libhiprtc-builtins.so",
    "hip": "libamdhip64.so",
}
_SETTINGS = {"hiprtc": "hiprtc_library", "comgr": "comgr_library", "hip": "hip_library"}
_INSIDE_HIP = "libamdhip64.so.5"
_MAJORS = range(12, 1, -1)
_MAPS = "/proc/self/maps"
_LOADER_CACHE = "/etc/ld.so.cache"
_LOADER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
_OPT_ROCM = "/opt/rocm*"
_APT = "apt install libamdhip64-5 libhiprtc-builtins5 libamd-comgr2"


# LLVM inside comgr keeps its options per process: compiles that overlap get each other's, and
# silently make other code. Whoever enters comgr holds this lock.
llvm_lock = threading.Lock()


def _renew_lock() -> None:
    global llvm_lock
    llvm_lock = threading.Lock()


# A child forked while another thread compiles would wait for that thread for ever.
os.register_at_fork(after_in_child=_renew_lock)


class Library(NamedTuple):
    """A library that was found; `found_by` names the place of the search order."""

    kind: str
    path: Path
    found_by: str

    @property
    def version(self) -> str:
        """Version in the real file's name, such as 5.2.21153; empty when it has none."""
        return self.path.resolve().name.partition(".so.")[2]


def hiprtc() -> Library:
    """The run-time compiler. ToolchainError says what was searched and what to install."""
    return find("hiprtc")


def comgr() -> Library:
    """The code object manager: compiler back end and disassembler."""
    return find("comgr")


def hip() -> Library:
    """The HIP runtime: the copy that this process has mapped already, if it has one."""
    return find("hip")


def find(kind: str) -> Library:
    """Library of a kind: "hiprtc", "comgr", "builtins" or "hip"; ToolchainError if missing."""
    library, searched = _find(kind)
    if library is None:
        raise ToolchainError(
            f"{_STEMS[kind]} was not found",
            library=_STEMS[kind],
            searched=searched,
            install=install_command(),
        )
    return library


def search(kind: str) -> tuple[Library | None, list[str]]:
    """The first library of a kind, and a line for each place tried before it."""
    explicit = getattr(config, _SETTINGS[kind]) if kind in _SETTINGS else None
    if explicit is not None:
        found_by = f"config.{_SETTINGS[kind]} ({config.source(_SETTINGS[kind])})"
        if is_library(explicit):
            return Library(kind, Path(os.path.abspath(explicit)), found_by), []
        what = "not a shared library" if os.path.exists(explicit) else "there is no such file"
        return None, [f"{explicit} ({found_by}): {what}; mend or unset this setting"]
    searched: list[str] = []
    for found_by, folder, names in _places(kind):
        for name in names:
            path = f"{folder}/{name}"
            if is_library(path):
                return Library(kind, Path(path), found_by), searched
        searched.append(f"{folder}/{names[0]}{'[.N]' if names[1:] else ''} ({found_by})")
    return None, searched


def _find(kind: str) -> tuple[Library | None, list[str]]:
    """`search`, remembering what was found until a setting changes."""
    key = (kind, config.version, os.environ.get("LD_LIBRARY_PATH"))
    library = _found.get(key)
    if library is not None:
        return library, []
    library, searched = search(kind)
    if library is not None:
        _found[key] = library
    return library, searched


_found: dict[tuple[str, int, str | None], Library] = {}


def is_library(path: str | Path) -> bool:
    """Whether the file can be opened and starts as an ELF file."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def install_command() -> str:
    """What to run here to get hiprtc and comgr."""
    try:
        system = Path("/etc/os-release").read_text()
    except OSError:
        system = ""
    if re.search(r"^ID(_LIKE)?=.*\b(debian|ubuntu)\b", system, re.MULTILINE):
        return f"{_APT}   (or ROCm 6 or newer, then set ROCM_PATH)"
    return f"ROCm 6 or newer, then set ROCM_PATH (on Debian 12 and 13: {_APT})"


def mapped(stem: str) -> Path | None:
    """Path of a library of that name that this process has mapped, such as torch's own copy.

    A copy that is only here because hiprtc is inside it comes last.
    """
    try:
        with open(_MAPS) as maps:
            paths = [line[73:].rstrip("\n") for line in maps if "/" in line]
    except OSError:
        return None
    compilers = {
        os.path.realpath(found.path) for found in _found.values() if found.kind == "hiprtc"
    }
    names = dict.fromkeys(path for path in paths if os.path.basename(path).startswith(stem))
    return next((Path(name) for name in sorted(names, key=compilers.__contains__)), None)


def identity() -> str:
    """Build ids of hiprtc, comgr and builtins, and the options of every compile: two compilers
    that may differ have two identities.

    The versions that hiprtc reports are not enough: releases with different output share them.
    """
    ids = []
    for kind in ("hiprtc", "comgr", "builtins"):
        # The builtins are data that some releases build into hiprtc itself.
        library = find(kind) if kind != "builtins" else _find(kind)[0]
        ids.append(f"{kind}={build_id(library.path) if library else 'none'}")
    return " ".join((*ids, *DEFAULT_OPTIONS, *LINE_TABLES))


def build_id(path: Path) -> str:
    """ELF build id of a library, or a digest of its content; memoised by path, size and mtime."""
    status = os.stat(path)
    key = (str(path), status.st_size, status.st_mtime_ns)
    if key not in _build_ids:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            _build_ids[key] = Elf(data).build_id() or hashlib.sha256(data).hexdigest()
    return _build_ids[key]


_build_ids: dict[tuple[str, int, int], str] = {}


def _places(kind: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(what decided on it, folder, file names) in order of preference."""
    stem = _STEMS[kind]
    names = (stem, *(f"{stem}.{major}" for major in _MAJORS))
    if kind == "hip" and (path := mapped(stem)) is not None:
        yield "mapped by this process", str(path.parent), (path.name,)
    if kind in ("comgr", "builtins") and (rtc := _find("hiprtc")[0]) is not None:
        for path in dict.fromkeys((rtc.path, rtc.path.resolve())):
            yield "beside hiprtc", str(path.parent), names
    if config.rocm_path is not None:
        for folder in _library_folders(str(config.rocm_path)):
            yield "ROCM_PATH", folder, names
    for package in ("_rocm_sdk_core", "_rocm_sdk_devel", "torch"):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations if spec is not None else None) or ():
            yield f"Python package {package}", f"{root}/lib", names
    for root in sorted(glob.glob(_OPT_ROCM), key=_version_key, reverse=True):
        for folder in _library_folders(root):
            yield _OPT_ROCM, folder, names
    loader = _loader_folders()
    for folder in loader:
        yield "system loader", folder, names
    if kind == "hiprtc":
        for folder in loader:
            yield f"hiprtc inside {_INSIDE_HIP}", folder, (_INSIDE_HIP,)


def _library_folders(root: str) -> list[str]:
    candidates = [f"{root}/lib", f"{root}/lib64", f"{root}/lib/x86_64-linux-gnu"]
    return [folder for folder in candidates if os.path.isdir(folder)] or candidates[:1]


def _version_key(path: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", os.path.basename(path))], path


def _loader_folders() -> list[str]:
    """Folders in which the system's loader looks, without repeats."""
    try:
        with open(_LOADER_CACHE, "rb") as file:
            cached = re.findall(
                rb"(/[^\0]*)/lib(?:hiprtc|amdhip64|amd_comgr)[^\0/]*\0", file.read()
            )
    except OSError:
        cached = []
    folders = [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        *(os.fsdecode(folder) for folder in cached),
        *_LOADER_FOLDERS,
    ]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in folders))
