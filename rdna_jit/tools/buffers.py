"""Kernel arguments written on a command line: `x=f16[64,128]:normal`, `n=4096`, `bias=null`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rdna_jit.tools.command import UsageError, listed

if TYPE_CHECKING:
    import torch

    from rdna_jit.runtime.arguments import Signature, Slot

_TYPES = {
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("i", "int"), ("u", "uint"))
       for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bool": "bool",
}  # fmt: skip
_TENSOR = re.compile(r"([a-z]\w*)\[([^\]]*)\](?::(.*))?", re.S)
_SCALAR = re.compile(r"(?:([a-z]\w*):)?(.+)", re.S)
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
FILLS = (
    "zeros (the default), ones, arange, normal, normal*SCALE, uniform (0 to 1), LOW..HIGH "
    "(integers, both ends included), bits (any pattern), a number, or @FILE.npy"
)
_SHOWN = 8


@dataclass(frozen=True)
class Argument:
    """One launch argument: `value` is what the kernel gets; `before` a tensor's first content."""

    name: str
    value: Any
    before: np.ndarray[Any, Any] | None = None


def parse(texts: Sequence[str], signature: Signature, device: str, seed: int = 0) -> list[Argument]:
    """The arguments in the kernel's order. UsageError says which is missing, unknown or wrong."""
    given = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in given:
            raise UsageError(f"--arg {text}: write each parameter once, as NAME=VALUE. {signature}")
        given[name] = value.strip()
    names = [slot.name for slot in signature.slots]
    missing, unknown = set(names) - set(given), set(given) - set(names)
    if missing or unknown:
        problem = f"no --arg for {listed(missing)}" if missing else ""
        problem += "; " if missing and unknown else ""
        problem += f"no parameter {listed(unknown)}" if unknown else ""
        raise UsageError(f"{problem}. {signature}")
    random = np.random.default_rng(seed)
    return [_argument(slot, given[slot.name], device, random) for slot in signature.slots]


def _argument(slot: Slot, text: str, device: str, random: np.random.Generator) -> Argument:
    from rdna_jit.runtime.arguments import POINTER

    tensor = _TENSOR.fullmatch(text)
    if slot.code != POINTER:
        if tensor:
            raise UsageError(f"--arg {slot.name}={text}: {slot} is a value, not a pointer")
        return Argument(slot.name, _scalar(slot, text))
    if text in ("null", "None", "0"):
        return Argument(slot.name, None)
    if not tensor:
        raise UsageError(
            f"--arg {slot.name}={text}: {slot} is a pointer; write DTYPE[SIZE,...]:FILL or null"
        )
    kind, shape, fill = tensor.groups()
    content = _content(f"--arg {slot.name}={text}", kind, shape, fill, random)
    return Argument(slot.name, _tensor(content, device), content.copy())


def _scalar(slot: Slot, text: str) -> bool | int | float:
    kind, value = _SCALAR.fullmatch(text).groups()  # type: ignore[union-attr]
    where = f"--arg {slot.name}={text}"
    if kind is not None:
        wanted = np.dtype(_TYPES[kind]).char if kind in _TYPES else ""
        if np.dtype(slot.code) != np.dtype(wanted or "V1"):
            raise UsageError(f"{where}: the kernel declares {slot}, not {kind}")
    try:
        if slot.code == "?":
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        return float(value) if slot.code in "efd" else int(value, 0)
    except (ValueError, KeyError):
        raise UsageError(f"{where}: {value!r} is no value for {slot}") from None


def _content(
    where: str, kind: str, shape_text: str, fill: str | None, random: np.random.Generator
) -> np.ndarray[Any, Any]:
    if kind not in _TYPES:
        raise UsageError(f"{where}: {kind} is no type; there are {', '.join(_TYPES)}")
    try:
        shape = tuple(int(extent) for extent in shape_text.split(","))
    except ValueError:
        shape = (-1,)
    if min(shape) < 0:
        raise UsageError(f"{where}: [{shape_text}] is no shape; write [4096] or [64,128]")
    dtype = np.dtype(_TYPES[kind])
    try:
        return np.ascontiguousarray(_filled(fill or "zeros", shape, dtype, random))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}. Fills: {FILLS}") from None


def _filled(
    fill: str, shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator
) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    name, _, scale = fill.partition("*")
    between = _RANGE.fullmatch(fill)
    flat: np.ndarray[Any, Any]
    if fill.startswith("@"):
        content = np.load(fill[1:], allow_pickle=False)
        if content.shape != shape or content.dtype != dtype:
            raise ValueError(f"{fill[1:]} holds {content.dtype} {content.shape}")
        return content  # type: ignore[no-any-return]
    if name == "normal":
        flat = random.standard_normal(count) * float(scale or 1)
    elif fill == "uniform":
        flat = random.random(count)
    elif fill == "arange":
        flat = np.arange(count)
    elif fill == "bits":
        raw = random.integers(0, 256, count * dtype.itemsize, np.uint8)
        return (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)
    elif between:
        flat = random.integers(int(between[1]), int(between[2]), count, endpoint=True)
    else:
        number = {"zeros": "0", "ones": "1"}.get(fill, fill)
        flat = np.full(count, float(number) if dtype.kind == "f" else int(number, 0))
    return flat.astype(dtype).reshape(shape)


def _tensor(content: np.ndarray[Any, Any], device: str) -> torch.Tensor:
    import torch

    return torch.from_numpy(content).to(device)


def after(arguments: Sequence[Argument]) -> dict[str, np.ndarray[Any, Any]]:
    """What the tensors hold now."""
    return {a.name: a.value.cpu().numpy() for a in arguments if a.before is not None}


def changes(arguments: Sequence[Argument]) -> dict[str, dict[str, Any]]:
    """Per tensor: how many elements the kernel changed, and a glance at what it holds."""
    now = after(arguments)
    report: dict[str, dict[str, Any]] = {}
    for a in arguments:
        if a.before is None:
            continue
        held = now[a.name]
        unsigned = f"u{held.itemsize}"
        changed = held.view(unsigned) != a.before.view(unsigned)
        report[a.name] = {
            "dtype": str(held.dtype),
            "shape": list(held.shape),
            "changed": int(changed.sum()),
            "first": held.reshape(-1)[:_SHOWN].tolist(),
            **_extremes(held),
        }
    return report


def _extremes(held: np.ndarray[Any, Any]) -> dict[str, float | int]:
    if held.size == 0 or held.dtype.kind == "b":
        return {}
    if held.dtype.kind != "f":
        return {"min": int(held.min()), "max": int(held.max())}
    nans = int(np.isnan(held).sum())
    if nans == held.size:
        return {"nan": nans}
    found = {"min": float(np.nanmin(held)), "max": float(np.nanmax(held))}
    return {**found, "nan": nans} if nans else found


def describe(report: Mapping[str, Mapping[str, Any]]) -> str:
    """`changes` as text, a line per tensor."""
    lines = []
    for name, row in report.items():
        shape = ",".join(map(str, row["shape"]))
        first = ", ".join(f"{value:.6g}" for value in row["first"])
        more = ", ..." if np.prod(row["shape"]) > _SHOWN else ""
        extremes = "".join(f"  {k} {row[k]:.6g}" for k in ("min", "max", "nan") if k in row)
        head = f"{name}: {row['dtype']}[{shape}]"
        lines.append(f"{head:<28} {row['changed']} changed{extremes}  ({first}{more})")
    return "\n".join(lines)
