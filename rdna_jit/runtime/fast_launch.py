"""The launch path of a loaded HIP kernel, written out for its signature: below 3 us of host time.

Python spends its time in loops and calls, so one function per signature is generated: type and
device checks, addresses, one `struct` call into a buffer made once, one ctypes call with arguments
prepared once. It never decides that something is wrong: in any doubt it hands over to the checked
way (`slow`), which does the launch or raises the error that explains itself.

Buffers lie in a pool and belong to one call from `pop` to `push` (both atomic), so no two threads
share one, however many launch at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rdna_jit.config import _SCOPE, config
from rdna_jit.runtime.arguments import POINTER, Signature
from rdna_jit.runtime.base import Extent, LaunchFunction, SlowLaunch, check_geometry

if TYPE_CHECKING:
    from rdna_jit.runtime.hip import HipLoaded

_MOST_PREPARED = 256  # (grid, block, LDS, stream) combinations kept per buffer

_TEXT = """\
def launch(grid, block, *args, dynamic_lds=0, stream=None):
    slot = arguments = None
    try:
        seen = STATE
        {unpack} = args
        if {checks}:
            slot = pop()
            pack, buffer, prepared, _ = slot
            pack(buffer, 0, {values})
            raw = current_stream(INDEX) if stream is None else stream_handle(stream)
            arguments = prepared[grid, block, dynamic_lds, raw]
    except Exception:
        pass
    if arguments is None:
        return miss(slot, grid, block, args, dynamic_lds, stream)
    code = launch_kernel(*arguments)
    push(slot)
    if code:
        raise error(code)
"""

_VALUE_CHECK = {
    "?": "type({0}) is bool",
    **dict.fromkeys("efd", "(type({0}) is float or type({0}) is int)"),
}

# Emptied in a forked child, where no function of the parent's modules may be called.
_alive = [True]


def _after_fork() -> None:
    global _alive
    _alive.clear()
    _alive = [True]


os.register_at_fork(after_in_child=_after_fork)


def make(loaded: HipLoaded, slow: SlowLaunch) -> LaunchFunction:
    """The launch function of a kernel on its device; `allow` says under which settings."""
    import torch

    runtime, signature = loaded.runtime, loaded.program.signature
    several = runtime.torch.device_count() > 1
    pool: list[tuple[object, ...]] = []

    def miss(
        slot: tuple[object, ...] | None,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        stream: object,
    ) -> None:
        slow(grid, block, args, dynamic_lds, stream)
        # Nothing is to be prepared when the checks failed, which leaves the pool as it was.
        if slot is not None or not pool:
            pool.append(_prepare(loaded, slot, grid, block, dynamic_lds, stream))

    names = {
        "miss": miss,
        "pop": pool.pop,
        "push": pool.append,
        "STATE": state(),
        "scope": _SCOPE.get,
        "config": config,
        "INDEX": loaded.index,
        "NUMBER": runtime.torch.index_number(loaded.index),
        "current_device": runtime.torch.current_device,
        "current_stream": runtime.torch.stream_function(),
        "stream_handle": loaded.stream_handle,
        "get_device": torch.Tensor.get_device,
        "data_ptr": torch.Tensor.data_ptr,
        "launch_kernel": runtime.library.launch_kernel,
        "error": loaded.error,
        **{slot.floats: getattr(torch, slot.floats) for slot in signature.slots if slot.floats},
    }
    text = source(signature, several)
    exec(compile(text, f"<launch of {signature.entry}>", "exec"), names)
    return names["launch"]  # type: ignore[return-value]


def state() -> tuple[object, ...]:
    """What decides which runtime serves a launch: this process, and the settings in force here.

    NOTE: settings made in Python are followed at once. The environment is left out, since looking
    takes 0.5 us: a backend variable that changes meanwhile counts for kernels not launched yet.
    """
    return _alive, _SCOPE.get(), config._assigned


def allow(launch: LaunchFunction, under: tuple[object, ...]) -> None:
    """Let the function launch while `state()` is what it was when the runtime was chosen."""
    launch.__globals__["STATE"] = under  # type: ignore[attr-defined]


def source(signature: Signature, several_devices: bool) -> str:
    """Text of the launch function for a signature."""
    checks = ["seen[0]", "scope() is seen[1]", "config._assigned is seen[2]"]
    if several_devices:
        checks.append("current_device() == INDEX")
    names, values = [], []
    for index, slot in enumerate(signature.slots):
        name = f"a{index}"
        names.append(name)
        if slot.code == POINTER:
            tensor = f"get_device({name}) == NUMBER"
            if slot.floats:
                dtype = f"({name}.dtype is {slot.floats} or not {name}.is_floating_point())"
                tensor = f"({tensor} and {dtype})"
            checks.append(f"({name} is None or {tensor})")
            values.append(f"0 if {name} is None else data_ptr({name})")
        else:
            checks.append(_VALUE_CHECK.get(slot.code, "type({0}) is int").format(name))
            values.append(name)
    unpack = f"({', '.join(names)},)" if names else "()"
    return _TEXT.format(unpack=unpack, checks=" and ".join(checks), values=", ".join(values))


def _prepare(
    loaded: HipLoaded,
    slot: tuple[object, ...] | None,
    grid: Extent,
    block: Extent,
    dynamic_lds: int,
    stream: object,
) -> tuple[object, ...]:
    """The slot (or a new one), with the arguments of this launch shape kept in it."""
    from rdna_jit.runtime.hip import ArgumentBuffer

    signature = loaded.program.signature
    if slot is None:
        buffer = ArgumentBuffer(bytearray(signature.nbytes))
        slot = (signature.format.pack_into, buffer.data, {}, buffer)
    prepared, buffer = slot[2], slot[3]  # type: ignore[assignment]
    raw = loaded.stream_handle(stream)
    key = (_hashable(grid), _hashable(block), dynamic_lds, raw)
    if len(prepared) >= _MOST_PREPARED:  # type: ignore[arg-type]
        prepared.clear()  # type: ignore[attr-defined]
    geometry = check_geometry(loaded.program, grid, block, dynamic_lds)
    prepared[key] = buffer.arguments(loaded.function, geometry, raw)  # type: ignore[index]
    return slot


def _hashable(extent: Extent) -> object:
    return tuple(extent) if isinstance(extent, list) else extent
