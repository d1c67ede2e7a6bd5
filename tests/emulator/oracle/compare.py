"""Vector compares: v_cmp writes a lane mask, v_cmpx the EXEC mask."""

from __future__ import annotations

from collections.abc import Callable

from tests.emulator.oracle.floats import Format, Number, unpack
from tests.emulator.oracle.table import vector
from tests.emulator.oracle.types import B32, F16, F32, F64, I16, I32, I64, U16, U32, U64, Type

# Predicate of an ordered pair as (less, equal, greater), and of an unordered one.
FLOAT_PREDICATES = {
    "f": (0, 0, 0, 0), "lt": (1, 0, 0, 0), "eq": (0, 1, 0, 0), "le": (1, 1, 0, 0),
    "gt": (0, 0, 1, 0), "lg": (1, 0, 1, 0), "ge": (0, 1, 1, 0), "o": (1, 1, 1, 0),
    "u": (0, 0, 0, 1), "nge": (1, 0, 0, 1), "nlg": (0, 1, 0, 1), "ngt": (1, 1, 0, 1),
    "nle": (0, 0, 1, 1), "neq": (1, 0, 1, 1), "nlt": (0, 1, 1, 1), "tru": (1, 1, 1, 1),
}  # fmt: skip
INTEGER_PREDICATES = {
    "f": (0, 0, 0), "lt": (1, 0, 0), "eq": (0, 1, 0), "le": (1, 1, 0),
    "gt": (0, 0, 1), "ne": (1, 0, 1), "ge": (0, 1, 1), "t": (1, 1, 1),
}  # fmt: skip


def _float(predicate: tuple[int, ...]) -> Callable[[Number, Number], int]:
    def compare(a: Number, b: Number) -> int:
        if a.nan or b.nan:
            return predicate[3]
        x, y = a.key(), b.key()
        return predicate[0 if x < y else 1 if x == y else 2]

    return compare


def _integer(predicate: tuple[int, ...]) -> Callable[[int, int], int]:
    return lambda a, b: predicate[0 if a < b else 1 if a == b else 2]


def float_class(form: Format) -> Callable[[int, int], int]:
    """Whether the number's class is among those that the mask's ten bits name."""

    def test(bits: int, mask: int) -> int:
        a = unpack(form, bits)
        if a.nan:
            return mask >> (0 if a.signalling else 1) & 1
        kind = 0 if a.infinite else 3 if a.zero else 2 if form.is_subnormal(bits) else 1
        return mask >> (2 + kind if a.sign else 9 - kind) & 1

    return test


def _both(name: str, srcs: tuple[Type, ...], meaning: Callable) -> None:
    vector(f"v_cmp_{name}", B32, srcs, meaning, result="mask")
    vector(f"v_cmpx_{name}", B32, srcs, meaning, result="exec")


for _suffix, _type in (("f16", F16), ("f32", F32), ("f64", F64)):
    for _name, _predicate in FLOAT_PREDICATES.items():
        _both(f"{_name}_{_suffix}", (_type, _type), _float(_predicate))
    _bits = Type("fb", _type.width)
    _both(f"class_{_suffix}", (_bits, U32), float_class(_type.format))
for _suffix, _type in (
    ("i16", I16),
    ("u16", U16),
    ("i32", I32),
    ("u32", U32),
    ("i64", I64),
    ("u64", U64),
):
    for _name, _predicate in INTEGER_PREDICATES.items():
        if _type.width > 16 or _name not in ("f", "t"):
            _both(f"{_name}_{_suffix}", (_type, _type), _integer(_predicate))
