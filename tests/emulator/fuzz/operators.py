"""What random programs are made of: an operation as C text and as a NumPy function.

Every operation is defined for all operands (shift counts are masked, divisors are odd or
guarded, float to integer conversions are clamped), so compilers and the host must agree bit for
bit. NaN are made canonical where floats become bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulator.oracle.floats import DOUBLE, HALF, SINGLE, Format, pack, unpack

DTYPES: dict[str, type] = {
    "u32": np.uint32,
    "u64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
}


@dataclass(frozen=True)
class Operator:
    """`text` has {0}, {1} ... for the operands; `host` gets one array for each."""

    result: str
    operands: tuple[str, ...]
    text: str
    host: Callable[..., np.ndarray]


OPERATORS: list[Operator] = []


def operator(signature: str, text: str, host: Callable[..., np.ndarray]) -> None:
    """Add one: "u32 <- u32 f32" names its types."""
    result, _, operands = signature.partition(" <- ")
    OPERATORS.append(Operator(result, tuple(operands.split()), text, host))


def _signed(a: np.ndarray) -> np.ndarray:
    return a.view(np.int32 if a.dtype == np.uint32 else np.int64)


def _unsigned(a: np.ndarray) -> np.ndarray:
    return a.view(np.uint32 if a.dtype == np.int32 else np.uint64)


def _shift(count: np.ndarray, width: int, of: type) -> np.ndarray:
    return (count & np.uint32(width - 1)).astype(of)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C division of signed integers, toward zero, computed exactly in Python integers."""
    pairs = zip(_signed(a).tolist(), _signed(b).tolist(), strict=True)
    whole = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    return np.array([w & 0xFFFFFFFF for w in whole], np.uint32)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - _quotient(a, b) * b


# Integers of 32 and 64 bits.
for _t, _width in (("u32", 32), ("u64", 64)):
    _of, _s = DTYPES[_t], "int" if _t == "u32" else "long long"
    for _symbol, _ufunc in (
        ("+", np.add),
        ("-", np.subtract),
        ("*", np.multiply),
        ("&", np.bitwise_and),
        ("|", np.bitwise_or),
        ("^", np.bitwise_xor),
    ):
        operator(f"{_t} <- {_t} {_t}", f"({{0}} {_symbol} {{1}})", _ufunc)
    operator(f"{_t} <- {_t}", "(~{0})", np.invert)
    operator(
        f"{_t} <- {_t} u32",
        f"({{0}} << ({{1}} & {_width - 1}u))",
        lambda a, n, w=_width, of=_of: a << _shift(n, w, of),
    )
    operator(
        f"{_t} <- {_t} u32",
        f"({{0}} >> ({{1}} & {_width - 1}u))",
        lambda a, n, w=_width, of=_of: a >> _shift(n, w, of),
    )
    operator(
        f"{_t} <- {_t} u32",
        f"({_t})(({_s}){{0}} >> ({{1}} & {_width - 1}u))",
        lambda a, n, w=_width, of=_of: _unsigned(_signed(a) >> _signed(_shift(n, w, of))),
    )
    # NOTE: the zeros are loaded, so that the compiler knows nothing of the dividend. LLVM 15 takes
    # one with many sign bits for a small positive number and divides in 24 or 32 bits.
    operator(
        f"{_t} <- {_t} {_t}",
        f"(({{0}} ^ zero_{_t}) / ({{1}} | ({_t})1))",
        lambda a, b, of=_of: a // (b | of(1)),
    )
    operator(
        f"{_t} <- {_t} {_t}",
        f"(({{0}} ^ zero_{_t}) % ({{1}} | ({_t})1))",
        lambda a, b, of=_of: a % (b | of(1)),
    )
    operator(f"{_t} <- {_t} {_t}", "({0} < {1} ? {0} : {1})", np.minimum)
    operator(
        f"{_t} <- {_t} {_t}",
        f"(({_s}){{0}} > ({_s}){{1}} ? {{0}} : {{1}})",
        lambda a, b: np.where(_signed(a) > _signed(b), a, b),
    )
operator(
    "u32 <- u32 u32",
    "(u32)((int){0} / (int)(({1} & 0xffffu) + 1u))",
    lambda a, b: _quotient(a, (b & np.uint32(0xFFFF)) + np.uint32(1)),
)
operator(
    "u32 <- u32 u32",
    "(u32)((int){0} % (int)(({1} & 0xffffu) + 1u))",
    lambda a, b: _remainder(a, (b & np.uint32(0xFFFF)) + np.uint32(1)),
)
operator(
    "u32 <- u32 u32",
    "(u32)(((u64){0} * {1}) >> 32)",
    lambda a, b: (a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32),
)
operator(
    "u64 <- u32 u32 u64",
    "((u64){0} * {1} + {2})",
    lambda a, b, c: a.astype(np.uint64) * b.astype(np.uint64) + c,
)
operator(
    "u64 <- u32 u32",
    "((u64){0} << 32 | {1})",
    lambda a, b: a.astype(np.uint64) << np.uint64(32) | b.astype(np.uint64),
)
operator("u32 <- u64", "(u32){0}", lambda a: a.astype(np.uint32))
operator("u32 <- u64", "(u32)({0} >> 32)", lambda a: (a >> np.uint64(32)).astype(np.uint32))
operator(
    "u32 <- u32",
    "(u32)(int)(signed char){0}",
    lambda a: a.astype(np.int8).astype(np.int32).view(np.uint32),
)
operator(
    "u32 <- u32",
    "(u32)(int)(short){0}",
    lambda a: a.astype(np.int16).astype(np.int32).view(np.uint32),
)
operator(
    "u32 <- u32 u32",
    "(u32)(unsigned short)((u32)(unsigned short){0} * (unsigned short){1})",
    lambda a, b: a * b & np.uint32(0xFFFF),
)


# Bits.
def _per_element(of: Callable[..., int]) -> Callable[..., np.ndarray]:
    def run(*columns: np.ndarray) -> np.ndarray:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([of(*row) & 0xFFFFFFFF for row in rows], np.uint32)

    return run


def _bytes(a: int) -> list[int]:
    return [a >> 8 * k & 255 for k in range(4)]


def _signed_byte_dot(a: int, b: int, c: int) -> int:
    signed = (
        (x - (x >> 7 << 8), y - (y >> 7 << 8)) for x, y in zip(_bytes(a), _bytes(b), strict=True)
    )
    return sum(x * y for x, y in signed) + c


operator("u32 <- u32", "(u32)__builtin_popcount({0})", _per_element(int.bit_count))
operator(
    "u32 <- u32", "(u32)__builtin_clz({0} | 1u)", _per_element(lambda a: 32 - (a | 1).bit_length())
)
operator(
    "u32 <- u32",
    "(u32)__builtin_ctz({0} | 0x80000000u)",
    _per_element(lambda a: ((a | 1 << 31) & -(a | 1 << 31)).bit_length() - 1),
)
operator(
    "u32 <- u32", "__builtin_bitreverse32({0})", _per_element(lambda a: int(f"{a:032b}"[::-1], 2))
)
operator(
    "u32 <- u32 u32",
    "__builtin_amdgcn_perm({0}, {1}, 0x05020700u)",
    _per_element(
        lambda a, b: (b & 255) | (a >> 24) << 8 | (b >> 16 & 255) << 16 | (a >> 8 & 255) << 24
    ),
)
operator(
    "u32 <- u32 u32 u32",
    "__builtin_amdgcn_alignbit({0}, {1}, {2})",
    _per_element(lambda a, b, n: (a << 32 | b) >> (n & 31)),
)
operator(
    "u32 <- u32 u32 u32",
    "((u32)__builtin_amdgcn_sdot4((int){0}, (int){1}, (int){2}, false))",
    _per_element(_signed_byte_dot),
)
operator(
    "u32 <- u32 u32 u32",
    "__builtin_amdgcn_udot4({0}, {1}, {2} & 0xffffu, false)",
    _per_element(
        lambda a, b, c: sum(x * y for x, y in zip(_bytes(a), _bytes(b), strict=True)) + (c & 0xFFFF)
    ),
)
operator(
    "u32 <- u32 u32",
    "__builtin_amdgcn_sad_u8({0}, {1}, 7u)",
    _per_element(
        lambda a, b: 7 + sum(abs(x - y) for x, y in zip(_bytes(a), _bytes(b), strict=True))
    ),
)


# Floats. Only operations that IEEE rounds correctly.
def _quiet(host: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def run(*columns: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return host(*columns)

    return run


for _t in ("f16", "f32", "f64"):
    for _symbol, _ufunc in (("+", np.add), ("-", np.subtract), ("*", np.multiply)):
        operator(f"{_t} <- {_t} {_t}", f"({{0}} {_symbol} {{1}})", _quiet(_ufunc))
    operator(f"{_t} <- {_t}", "(-({0}))", np.negative)
    operator(
        f"{_t} <- {_t} {_t}", "({0} < {1} ? {0} : {1})", _quiet(lambda a, b: np.where(a < b, a, b))
    )
    operator(
        f"u32 <- {_t} {_t}", "(u32)({0} < {1})", _quiet(lambda a, b: (a < b).astype(np.uint32))
    )
    operator(
        f"u32 <- {_t} {_t}",
        "(u32)!({0} >= {1})",
        _quiet(lambda a, b: (~(a >= b)).astype(np.uint32)),
    )
operator("f32 <- f32 f32", "({0} / {1})", _quiet(np.divide))
operator("f64 <- f64 f64", "({0} / {1})", _quiet(np.divide))
operator("f32 <- f32", "__builtin_fabsf({0})", np.abs)
operator("f32 <- f32", "__builtin_floorf({0})", _quiet(np.floor))
operator("f32 <- f32", "__builtin_truncf({0})", _quiet(np.trunc))
operator("f32 <- f32", "__builtin_rintf({0})", _quiet(np.rint))
operator("f32 <- u32", "(float){0}", lambda a: a.astype(np.float32))
operator("f32 <- u32", "(float)(int){0}", lambda a: a.view(np.int32).astype(np.float32))
operator("f64 <- u32", "(double){0}", lambda a: a.astype(np.float64))
operator("f64 <- f32", "(double){0}", _quiet(lambda a: a.astype(np.float64)))
operator("f32 <- f64", "(float){0}", _quiet(lambda a: a.astype(np.float32)))
operator("f16 <- f32", "(f16){0}", _quiet(lambda a: a.astype(np.float16)))
# NOTE: LLVM 22 multiplies halves as a mixed multiply-add with +0, which loses the sign of a zero:
# zeros of halves are made positive where they would show.
operator(
    "f32 <- f16", "((float){0} + 0.0f)", _quiet(lambda a: a.astype(np.float32) + np.float32(0))
)
operator(
    "f32 <- u32",
    "from_bits(({0} & 0x807fffffu) | 0x3f800000u)",
    lambda a: (a & np.uint32(0x807FFFFF) | np.uint32(0x3F800000)).view(np.float32),
)
operator(
    "f16 <- u32",
    "(f16)(float)(int)({0} & 0x7ffu)",
    lambda a: (a & np.uint32(0x7FF)).astype(np.float16),
)
operator(
    "u32 <- f32",
    "to_bits({0})",
    lambda a: np.where(np.isnan(a), np.uint32(0x7FC00000), a.view(np.uint32)),
)
operator(
    "u32 <- f32",
    "(u32)(int)clip({0}, -1e9f, 1e9f)",
    lambda a: (
        np.where(a > -1e9, np.where(a < 1e9, a, np.float32(1e9)), np.float32(-1e9))
        .astype(np.int32)
        .view(np.uint32)
    ),
)


def _fused(form: Format, dtype: type) -> Callable[..., np.ndarray]:
    """A multiply-add with one rounding, in the oracle's exact arithmetic."""
    bits = {HALF: np.uint16, SINGLE: np.uint32, DOUBLE: np.uint64}[form]

    def run(*columns: np.ndarray) -> np.ndarray:
        rows = zip(*(column.view(bits).tolist() for column in columns), strict=True)
        numbers = ([unpack(form, x) for x in row] for row in rows)
        return np.array([pack(form, a * b + c) for a, b, c in numbers], bits).view(dtype)

    return run


operator("f32 <- f32 f32 f32", "__builtin_fmaf({0}, {1}, {2})", _fused(SINGLE, np.float32))
operator("f64 <- f64 f64 f64", "__builtin_fma({0}, {1}, {2})", _fused(DOUBLE, np.float64))
operator("f16 <- f16 f16 f16", "(f16)__builtin_fmaf16({0}, {1}, {2})", _fused(HALF, np.float16))
for _name, _ufunc in (("+", np.add), ("*", np.multiply)):
    # The high half of a packed operation.
    operator(
        "f16 <- f16 f16 f16 f16",
        f"(pair({{0}}, {{1}}) {_name} pair({{2}}, {{3}}))[1]",
        _quiet(lambda a, b, c, d, f=_ufunc: f(b, d)),
    )


def canonical(of: str, a: np.ndarray) -> np.ndarray:
    """The bits of a value as the program stores them, in 32-bit words."""
    if of in ("u32", "u64"):
        return a
    bits = a.view({"f16": np.uint16, "f32": np.uint32, "f64": np.uint64}[of])
    if of == "f16":
        bits = np.where(a == 0, np.uint16(0), bits)
    nan = {"f16": 0x7E00, "f32": 0x7FC00000, "f64": 0x7FF8000000000000}[of]
    return np.where(np.isnan(a), np.array(nan, bits.dtype), bits)
