"""Every setting of the package, declared once.

A value comes from the innermost `config.scope(...)` of this thread or task, else from an
assignment in Python, else from the environment variable, else from the default. Nothing is frozen
at import: the environment is read at each access, and `config.version` changes with it, so that
a hot path can memoise on that one integer (about 1 us).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from .errors import ContractError

T = TypeVar("T")

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})
# NOTE: os.environ.get encodes the name at each call, about 1 us; the mapping under it does not.
_environment = os.environ._data.keys()  # type: ignore[attr-defined]
_environment_get = os.environ._data.get  # type: ignore[attr-defined]
_SIZE_SUFFIXES = {"K": 10, "M": 20, "G": 30, "T": 40}
_CHECKS = ("bounds", "races", "uninitialised", "misaligned")


@dataclass(frozen=True)
class Setting:
    """One row of the settings table: Python name, environment variable, type, default, doc."""

    name: str
    env: str
    type: str
    default: object
    doc: str


@dataclass(frozen=True)
class Kind(Generic[T]):
    """How values of one type are read. `convert` takes text or a Python value and is strict:
    it raises ValueError for everything else."""

    name: str
    convert: Callable[[object], T]


def _boolean(value: object) -> bool:
    text = str(value).strip().lower() if isinstance(value, (str, bool)) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("one of 1, 0, true, false, on, off, yes, no")


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip()
    raise ValueError("text")


def _path(value: object) -> Path | None:
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)) and os.fspath(value):
        return Path(value).expanduser()
    raise ValueError("a path")


def _paths(value: object) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(os.pathsep) if part]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"paths separated by {os.pathsep!r}")
    return tuple(Path(part).expanduser() for part in value)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise ValueError("names separated by commas")
    return tuple(stripped for part in value if (stripped := part.strip()))


def _forced(value: object) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        op, colon, kernel = name.partition(":")
        if not (op and colon and kernel):
            raise ValueError("OP:KERNEL pairs separated by commas")
    return names


def _rows(value: object) -> str | int:
    text = value.strip().lower() if isinstance(value, str) else value
    if text in ("auto", "never"):
        return str(text)
    if isinstance(text, str) and text.isdecimal():
        return int(text)
    if type(text) is not int or text < 0:
        raise ValueError("auto, never or a number of rows")
    return text


def _checks(value: object) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        steps = name.removeprefix("steps=")
        if name not in _CHECKS and not (steps != name and steps.isdecimal() and int(steps)):
            raise ValueError(f"a comma list of {', '.join(_CHECKS)}, steps=COUNT")
    return names


def _integer(low: int, high: int | None = None) -> Kind[int]:
    limits = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"

    def convert(value: object) -> int:
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if type(value) is not int or value < low or (high is not None and value > high):
            raise ValueError(limits)
        return value

    return Kind(limits.removeprefix("an "), convert)


def _size(value: object) -> int:
    if isinstance(value, str):
        digits = value.strip().upper().removesuffix("IB").removesuffix("B")
        shift = _SIZE_SUFFIXES.get(digits[-1:], 0)
        digits = digits[:-1] if shift else digits
        value = int(digits) << shift if digits.isdecimal() else None
    if type(value) is not int or value < 0:
        raise ValueError("a number of bytes, optionally with the binary suffix K, M, G or T")
    return value


def _choice(*choices: str) -> Kind[str]:
    def convert(value: object) -> str:
        text = value.strip().lower() if isinstance(value, str) else ""
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return Kind(" | ".join(choices), convert)


BOOLEAN = Kind("boolean", _boolean)
TEXT = Kind("text", _text)
PATH = Kind("path", _path)
PATHS = Kind("path list", _paths)
NAMES = Kind("comma list", _names)
FORCED = Kind("comma list", _forced)
ROWS = Kind("auto | never | integer", _rows)
CHECKS = Kind("comma list", _checks)
SIZE = Kind("bytes", _size)


class Option(Generic[T]):
    """Descriptor of one setting on `Config`."""

    name: str

    def __init__(self, env: str, kind: Kind[T], default: T, doc: str) -> None:
        self.env = env
        self._key = os.environ.encodekey(env)
        self.kind = kind
        self.default = default
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, config: Config, owner: type) -> T: ...
    def __get__(self, config: Config | None, owner: type) -> Option[T] | T:
        if config is None:
            return self
        for values in (_SCOPE.get(), config._assigned):
            if self.name in values:
                return values[self.name]  # type: ignore[no-any-return]
        raw = _environment_get(self._key)
        if raw is None or not raw.strip():
            return self.default
        return self.convert(os.fsdecode(raw), self.env)

    def __set__(self, config: Config, value: T) -> None:
        config._assign({self.name: self.convert(value, f"config.{self.name}")})

    def __delete__(self, config: Config) -> None:
        config._forget(self.name)

    def convert(self, value: object, source: str) -> T:
        """The checked value; ContractError names `source`, the variable or attribute."""
        try:
            return self.kind.convert(value)
        except (ValueError, TypeError) as error:
            raise ContractError(
                f"{source}={value!r} is not valid: expected {error}. "
                f"Change or unset it (environment variable {self.env})",
                name=source,
                expected=str(error),
                got=value,
            ) from None


_SCOPE: ContextVar[Mapping[str, Any]] = ContextVar("rdna_jit_config_scope", default={})  # noqa: B039


class Config:
    """The settings as typed attributes. Use the one instance `config`.

    Assigning an attribute sets it for the process, deleting it goes back to the environment, and
    `with config.scope(name=value):` sets it for the block, in this thread or task only.
    """

    __slots__ = ("_assigned", "_last", "_lock", "_numbers")

    backend = Option(
        "RDNA_JIT_BACKEND",
        _choice("auto", "hip", "emulator"),
        "auto",
        "Device to run on. auto: hip when a gfx10 GPU is visible, else the emulator.",
    )
    arch = Option(
        "RDNA_JIT_ARCH",
        TEXT,
        None,
        "Architecture to emulate or to cross-compile for, such as gfx1030.",
    )
    hsa_override = Option(
        "HSA_OVERRIDE_GFX_VERSION",
        TEXT,
        None,
        "ROCm's own override of a GPU's version, such as 10.3.0. Honoured and reported.",
    )
    cache = Option(
        "RDNA_JIT_CACHE", BOOLEAN, True, "off keeps compiled kernels in memory, not on disk."
    )
    cache_dir = Option(
        "RDNA_JIT_CACHE_DIR", PATH, None, "Root of the disk cache; unset: the user's cache folder."
    )
    cache_readonly = Option(
        "RDNA_JIT_CACHE_READONLY", PATHS, (), "Further cache roots that are only read, in order."
    )
    cache_max_bytes = Option(
        "RDNA_JIT_CACHE_MAX_BYTES",
        SIZE,
        2 << 30,
        "Size cap of the disk cache; the least recently used entries go first.",
    )
    cache_key_file = Option(
        "RDNA_JIT_CACHE_KEY_FILE", PATH, None, "File with the key that signs cache entries."
    )
    no_compile = Option(
        "RDNA_JIT_NO_COMPILE", BOOLEAN, False, "Raise instead of compiling what no cache holds."
    )
    record = Option(
        "RDNA_JIT_RECORD", PATH, None, "File that collects the specialisations a run used."
    )
    strict = Option("RDNA_JIT_STRICT", BOOLEAN, False, "Turn every fallback into an error.")
    checks = Option(
        "RDNA_JIT_CHECKS",
        CHECKS,
        (),
        "Extra emulator checks: races, uninitialised, misaligned, steps=COUNT. Bounds are always "
        "checked.",
    )
    hip_library = Option("RDNA_JIT_HIP_LIBRARY", PATH, None, "The libamdhip64 to launch with.")
    hiprtc_library = Option("RDNA_JIT_HIPRTC_LIBRARY", PATH, None, "The library that holds hiprtc.")
    comgr_library = Option("RDNA_JIT_COMGR_LIBRARY", PATH, None, "The libamd_comgr to use.")
    rocm_path = Option("ROCM_PATH", PATH, None, "Root of a ROCm installation.")
    hiprtc_append = Option(
        "HIPRTC_COMPILE_OPTIONS_APPEND",
        TEXT,
        None,
        "Options that newer hiprtc appends to every compile by itself; part of the cache key.",
    )
    disabled_kernels = Option(
        "VLLM_DISABLED_KERNELS", NAMES, (), "Kernel names that the selector must not choose."
    )
    own_disabled_kernels = Option(
        "RDNA_JIT_DISABLED_KERNELS",
        NAMES,
        (),
        "Kernel classes of layers, or kernels of their ops, that must not be chosen.",
    )
    force_kernel = Option(
        "RDNA_JIT_FORCE_KERNEL",
        FORCED,
        (),
        "OP:KERNEL pairs: layers that call OP (quantized_linear: all) take this class or kernel.",
    )
    linear_blas_rows = Option(
        "RDNA_JIT_LINEAR_BLAS_ROWS",
        ROWS,
        "auto",
        "Rows above which layers use torch.matmul. auto: measured on a card, else modelled.",
    )
    moe_v2 = Option("VLLM_RDNA_MOE_V2", BOOLEAN, False, "Fork-named MoE entry points: pair v2.")
    moe_alias = Option(
        "VLLM_RDNA_MOE_ALIAS",
        BOOLEAN,
        False,
        "Fork-named MoE entry points write straight into the caller's output.",
    )
    moe_skinny_max_m = Option(
        "VLLM_ROCM_MOE_SKINNY_MAX_M",
        _integer(0),
        8,
        "Largest M for the fork-named MoE decode kernels; above 16 counts as 16.",
    )
    decode_m16 = Option(
        "VLLM_RDNA_DECODE_M16",
        BOOLEAN,
        False,
        "Fork-named decode entry points take M up to 16 instead of 8.",
    )
    hc_v2 = Option(
        "VLLM_RDNA_HC_V2", BOOLEAN, False, "The forks' switch; reserved: no op reads it yet."
    )
    dense_int8 = Option(
        "VLLM_RDNA_DENSE_INT8", BOOLEAN, False, "Fork-named linear layers keep int8 shadows."
    )
    use_rdna2_fa = Option(
        "VLLM_USE_RDNA2_FA", BOOLEAN, False, "The forks' switch; reserved: no op reads it yet."
    )

    def __init__(self) -> None:
        self._assigned: dict[str, Any] = {}
        self._last: tuple[Mapping[str, Any], Mapping[str, Any], list[bytes | None], int]
        self._last = ({}, {}, [], -1)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """A number that names the present state of all settings: equal numbers, equal settings."""
        environment: list[bytes | None] = []
        if not _environment.isdisjoint(_ENVIRONMENT_KEYS):  # 0.8 us less when none is set
            environment = [*map(_environment_get, _ENVIRONMENT_KEYS)]
        assigned, scope = self._assigned, _SCOPE.get()
        last = self._last
        if environment == last[2] and assigned is last[0] and scope is last[1]:
            return last[3]
        state = (frozenset(assigned.items()), frozenset(scope.items()), *environment)
        with self._lock:
            number = self._numbers.setdefault(state, len(self._numbers))
        self._last = (assigned, scope, environment, number)
        return number

    @contextmanager
    def scope(self, **values: object) -> Iterator[Config]:
        """Settings for a block, in this thread or task; scopes nest."""
        checked = {name: option(name).convert(v, f"config.{name}") for name, v in values.items()}
        token = _SCOPE.set({**_SCOPE.get(), **checked})
        try:
            yield self
        finally:
            _SCOPE.reset(token)

    def source(self, name: str) -> str:
        """Where the present value comes from: scope, python, environment or default."""
        if name in _SCOPE.get():
            return "scope"
        if name in self._assigned:
            return "python"
        return "environment" if os.environ.get(option(name).env, "").strip() else "default"

    def settings(self) -> list[Setting]:
        """The table of all settings, in order of declaration."""
        return [
            Setting(o.name, o.env, o.kind.name, o.default, str(o.__doc__))
            for o in _OPTIONS.values()
        ]

    # The dict is replaced, never changed, so that `version` can compare by identity.
    def _assign(self, values: Mapping[str, object]) -> None:
        with self._lock:
            self._assigned = {**self._assigned, **values}

    def _forget(self, name: str) -> None:
        with self._lock:
            self._assigned = {k: v for k, v in self._assigned.items() if k != name}


def option(name: str) -> Option[Any]:
    """The declaration of a setting by its Python name."""
    if name not in _OPTIONS:
        raise ContractError(
            f"no setting is called {name!r}; there are {', '.join(_OPTIONS)}", name=name
        )
    return _OPTIONS[name]


_OPTIONS: dict[str, Option[Any]] = {
    name: value for name, value in vars(Config).items() if isinstance(value, Option)
}
_ENVIRONMENT_KEYS = [o._key for o in _OPTIONS.values()]

config = Config()
