"""Atomics of LDS, global and flat addresses, on the slots of `memory`.

An operation is a function of the memory and the data; the old memory is what is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.emulator.oracle.floats import SINGLE, Number, pack, unpack
from tests.emulator.oracle.lanes import LaneForm
from tests.emulator.oracle.memory import FLAT, GLOBAL, LDS, Effect, Space, form
from tests.emulator.oracle.table import registers
from tests.emulator.oracle.types import (
    F32,
    F64,
    Anything,
    Expected,
    Flushable,
    OneOf,
    Part,
    Type,
)


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def _increment(memory: int, data: int) -> int:
    return 0 if memory >= data else memory + 1


def _decrement(memory: int, data: int) -> int:
    return data if memory == 0 or memory > data else memory - 1


def _arithmetic(width: int) -> dict[str, Callable[[int, int], int]]:
    return {
        "add": lambda m, d: m + d, "sub": lambda m, d: m - d, "rsub": lambda m, d: d - m,
        "inc": _increment, "dec": _decrement,
        "smin": lambda m, d: min(_signed(m, width), _signed(d, width)),
        "smax": lambda m, d: max(_signed(m, width), _signed(d, width)),
        "umin": min, "umax": max, "and": lambda m, d: m & d, "or": lambda m, d: m | d,
        "xor": lambda m, d: m ^ d, "swap": lambda m, d: d,
        "csub": lambda m, d: max(m - d, 0),
    }  # fmt: skip


def _float_extreme(of: Type, largest: bool) -> Callable[[int, int], Expected]:
    """The smaller or larger; NaN and zeros of unlike signs have no stated rule."""

    def choose(memory: int, data: int) -> Expected:
        m, d = of.decode(memory), of.decode(data)
        if m.nan or d.nan:
            return Anything()
        if m.key() == d.key():
            return OneOf((memory, data))
        return data if (d.key() > m.key()) == largest else memory

    return choose


def _float_sum(memory: int, data: int) -> Expected:
    def total(flush: bool) -> Number:
        values = [unpack(SINGLE, bits) for bits in (memory, data)]
        if flush:
            values = [Number(v.sign) if SINGLE.is_subnormal(pack(SINGLE, v)) else v for v in values]
        result = values[0] + values[1]
        small = flush and not result.nan and SINGLE.is_subnormal(pack(SINGLE, result))
        return Number(result.sign) if small else result

    return F32.encode(Flushable(total(False), total(True)))


def _atomic_effect(
    operation: Callable[[int, int], Expected], width: int, returns: bool, offset: int
) -> Effect:
    mask, shift = (1 << width) - 1, 8 * offset

    def effect(slot: int, a: int, _b: int, _old: int) -> tuple[list[Part], int | list[Part]]:
        memory = slot >> shift & mask
        after = operation(memory, a & mask)
        register: list[Part] = [(0, width, memory)] if returns else []
        if isinstance(after, int):
            return register, slot & ~(mask << shift) | (after & mask) << shift
        other = slot & (1 << 64) - 1
        rest: list[Part] = [(32 - shift, 32, other >> 32 - shift & 0xFFFFFFFF)]
        return register, [(shift, width, after), *(rest if width == 32 else [])]

    return effect


def _lds_atomics() -> Iterator[LaneForm]:
    for width, letter, of in ((32, "32", F32), (64, "64", F64)):
        names = {
            "add": "add_{}u",
            "sub": "sub_{}u",
            "rsub": "rsub_{}u",
            "inc": "inc_{}u",
            "dec": "dec_{}u",
            "smin": "min_{}i",
            "smax": "max_{}i",
            "umin": "min_{}u",
            "umax": "max_{}u",
            "and": "and_{}b",
            "or": "or_{}b",
            "xor": "xor_{}b",
            "swap": "wrxchg_{}b",
        }
        operations: dict[str, Callable] = {
            names[key]: f for key, f in _arithmetic(width).items() if key in names
        }
        operations["min_{}f"] = _float_extreme(of, False)
        operations["max_{}f"] = _float_extreme(of, True)
        if width == 32:
            operations["add_{}f"] = _float_sum
        for name, operation in operations.items():
            element = of if name.endswith("f") else Type("u", width)
            yield from _atomic_pair(LDS, name + letter, operation, element)


def _atomic_pair(space: Space, name: str, operation: Callable, of: Type) -> Iterator[LaneForm]:
    width = of.width
    offset = 4 if width == 32 else 0
    address, tail = space.address(offset)
    data, target = registers(10, of), registers(24, of)
    for returns in (False, True):
        if space is LDS:
            full = "ds_" + name.format("rtn_" * returns)
            if "wrxchg" in name and not returns:
                continue
            glc = ""
        else:
            full, glc = f"{space.prefix}_atomic_{name}", " glc" * returns
            if name == "csub" and not returns:
                continue
        head = f"{full} {target}, " if returns else f"{full} "
        yield form(
            space,
            full,
            f"{head}{address}, {data}{tail}{glc}",
            _atomic_effect(operation, width, returns, offset),
            of,
        )


def _global_atomics(space: Space) -> Iterator[LaneForm]:
    for width, suffix, of in ((32, "", F32), (64, "_x2", F64)):
        for name, operation in _arithmetic(width).items():
            if name == "rsub" or (name == "csub" and (width == 64 or space is FLAT)):
                continue
            yield from _atomic_pair(space, name + suffix, operation, Type("u", width))
        for name, largest in (("fmin", False), ("fmax", True)):
            yield from _atomic_pair(space, name + suffix, _float_extreme(of, largest), of)


# Compare and swap, with the operands in either order, as bits or as floats.


def _equal(of: Type) -> Callable[[int, int], bool]:
    if not of.is_float:
        return lambda m, c: m == c

    def compare(memory: int, other: int) -> bool:
        m, c = of.decode(memory), of.decode(other)
        return not m.nan and not c.nan and m.key() == c.key()

    return compare


def _compare_swaps() -> Iterator[LaneForm]:
    for of, ds_name, name in (
        (Type("u", 32), "b32", "cmpswap"),
        (Type("u", 64), "b64", "cmpswap_x2"),
        (F32, "f32", "fcmpswap"),
        (F64, "f64", "fcmpswap_x2"),
    ):
        for returns in (False, True):
            yield from _compare_swap(of, ds_name, name, returns)


def _compare_swap(of: Type, ds_name: str, name: str, returns: bool) -> Iterator[LaneForm]:
    width = of.width
    mask, equal, pair = (1 << width) - 1, _equal(of), Type("b", 2 * width)
    target = registers(24, of) + ", " if returns else ""

    def effect(slot: int, new: int, compare: int) -> tuple[list[Part], int]:
        memory = slot & mask
        register: list[Part] = [(0, width, memory)] if returns else []
        after = new & mask if equal(memory, compare & mask) else memory
        return register, slot & ~mask | after

    full = f"ds_cmpst_{'rtn_' * returns}{ds_name}"
    operands = f"v3, {registers(10, of)}, {registers(12, of)}"
    yield form(
        LDS, full, f"{full} {target}{operands}", lambda slot, a, b, old: effect(slot, b, a), of
    )
    for space in (GLOBAL, FLAT):
        address, tail = space.address(0)
        full = f"{space.prefix}_atomic_{name}"
        # The pair of registers holds the new value, then the compared one.
        copy = "" if width == 64 else "v_mov_b32_e32 v32, v10\nv_mov_b32_e32 v33, v12\n"
        data = registers(10 if width == 64 else 32, pair)
        line = f"{copy}{full} {target}{address}, {data}{tail}{' glc' * returns}"
        written = form(space, full, line, lambda slot, a, b, old: effect(slot, a, b), of)
        yield replace(written, instruction=written.instruction.rpartition("\n")[2])


def atomic_forms() -> list[LaneForm]:
    """Every form of every atomic, with and without a returned value."""
    forms = [*_lds_atomics(), *_compare_swaps()]
    for space in (GLOBAL, FLAT):
        forms += _global_atomics(space)
    return forms
