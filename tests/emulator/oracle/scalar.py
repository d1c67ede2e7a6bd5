"""Scalar ALU instructions and their effect on SCC and EXEC."""

from __future__ import annotations

from collections.abc import Callable

from tests.emulator.oracle.table import bit, scalar
from tests.emulator.oracle.types import B32, B64, I8, I16, I32, I64, U16, U32, U64, Anything, Type

ONES = 0xFFFFFFFF
IMMEDIATES = (0, 1, -1, 0x7FFF, -0x8000, 64, 0x1234)


def _fits(total: int, width: int = 32) -> bool:
    return -(1 << (width - 1)) <= total < 1 << (width - 1)


def _unsigned_sum(total: int) -> tuple[int, int]:
    return total, int(not 0 <= total <= ONES)


def _signed_sum(total: int) -> tuple[int, int]:
    return total, int(not _fits(total))


# Sums and products.
scalar("s_add_u32", B32, (U32, U32), lambda a, b: _unsigned_sum(a + b), "given")
scalar("s_sub_u32", B32, (U32, U32), lambda a, b: _unsigned_sum(a - b), "given")
scalar("s_add_i32", B32, (I32, I32), lambda a, b: _signed_sum(a + b), "given")
scalar("s_sub_i32", B32, (I32, I32), lambda a, b: _signed_sum(a - b), "given")
scalar(
    "s_addc_u32", B32, (U32, U32), lambda a, b, c: _unsigned_sum(a + b + c), "given", takes=("scc",)
)
scalar(
    "s_subb_u32", B32, (U32, U32), lambda a, b, c: _unsigned_sum(a - b - c), "given", takes=("scc",)
)
scalar("s_mul_i32", B32, (U32, U32), lambda a, b: a * b)
scalar("s_mul_hi_u32", B32, (U32, U32), lambda a, b: a * b >> 32)
scalar("s_mul_hi_i32", B32, (I32, I32), lambda a, b: a * b >> 32)
for _n in (1, 2, 3, 4):
    scalar(
        f"s_lshl{_n}_add_u32",
        B32,
        (U32, U32),
        lambda a, b, n=_n: _unsigned_sum((a << n) + b),
        "given",
    )


def _absolute_difference(a: int, b: int) -> int:
    """The difference wraps before its sign is taken off."""
    return abs(I32.decode(a - b))


scalar("s_absdiff_i32", B32, (I32, I32), _absolute_difference, "nonzero")
scalar("s_abs_i32", B32, (I32,), abs, "nonzero")
for _suffix, _type in (("i32", I32), ("u32", U32)):
    scalar(f"s_min_{_suffix}", B32, (_type, _type), lambda a, b: (min(a, b), int(a < b)), "given")
    scalar(f"s_max_{_suffix}", B32, (_type, _type), lambda a, b: (max(a, b), int(a > b)), "given")


# Logic, of one word and of two.
LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}


def _wide_quads(a: int, width: int) -> int:
    """All four bits of a quad set where any of them is."""
    return sum(0xF << k for k in range(0, width, 4) if a >> k & 0xF)


def _quads(a: int, width: int) -> int:
    return sum(1 << k // 4 for k in range(0, width, 4) if a >> k & 0xF)


def _find(a: int, width: int, value: int) -> int:
    """The lowest bit of a value, or -1."""
    return next((k for k in range(width) if bit(a, k) == value), -1)


def _leading(a: int, width: int) -> int:
    """Zeros above the highest set bit, or -1."""
    return next((k for k in range(width) if bit(a, width - 1 - k)), -1)


def _sign_run(a: int, width: int) -> int:
    """Bits from the top that equal the sign; -1 when all do."""
    top = bit(a, width - 1)
    return next((k for k in range(width) if bit(a, width - 1 - k) != top), -1)


def _extract(of: Type, offset_bits: int) -> Callable:
    """A bit field at [offset_bits-1:0] of width [22:16] of the second operand.

    What a field wider than the register gives is not stated.
    """

    def extract(a: int, field: int) -> tuple[object, object]:
        offset, width = field & (1 << offset_bits) - 1, field >> 16 & 127
        if width > of.width:
            return Anything(), Anything()
        value = a >> offset & (1 << width) - 1
        if of.kind == "i" and width and bit(value, width - 1):
            value -= 1 << width
        return value, int(value != 0)

    return extract


def _reverse(a: int, width: int) -> int:
    return sum(bit(a, k) << (width - 1 - k) for k in range(width))


for _bits, _word, _u, _i, _count_mask in (
    (32, B32, U32, I32, 31),
    (64, B64, U64, I64, 63),
):
    _b = f"b{_bits}"
    for _name, _logic in LOGIC.items():
        scalar(f"s_{_name}_{_b}", _word, (_u, _u), _logic, "nonzero")
    scalar(f"s_not_{_b}", _word, (_u,), lambda a: ~a, "nonzero")
    scalar(f"s_mov_{_b}", _word, (_u,), lambda a: a)
    scalar(
        f"s_cmov_{_b}", _word, (_u,), lambda a, scc, old: a if scc else old, takes=("scc", "old")
    )
    scalar(f"s_cselect_{_b}", _word, (_u, _u), lambda a, b, scc: a if scc else b, takes=("scc",))
    scalar(f"s_wqm_{_b}", _word, (_u,), lambda a, w=_bits: _wide_quads(a, w), "nonzero")
    scalar(f"s_quadmask_{_b}", _word, (_u,), lambda a, w=_bits: _quads(a, w), "nonzero")
    scalar(f"s_brev_{_b}", _word, (_u,), lambda a, w=_bits: _reverse(a, w))
    scalar(f"s_bcnt0_i32_{_b}", B32, (_u,), lambda a, w=_bits: w - a.bit_count(), "nonzero")
    scalar(f"s_bcnt1_i32_{_b}", B32, (_u,), lambda a: a.bit_count(), "nonzero")
    scalar(f"s_ff0_i32_{_b}", B32, (_u,), lambda a, w=_bits: _find(a, w, 0))
    scalar(f"s_ff1_i32_{_b}", B32, (_u,), lambda a, w=_bits: _find(a, w, 1))
    scalar(f"s_flbit_i32_{_b}", B32, (_u,), lambda a, w=_bits: _leading(a, w))
    scalar(
        "s_flbit_i32" if _bits == 32 else "s_flbit_i32_i64",
        B32,
        (_u,),
        lambda a, w=_bits: _sign_run(a, w),
    )
    scalar(
        f"s_bitset0_{_b}",
        _word,
        (U32,),
        lambda k, old, m=_count_mask: old & ~(1 << (k & m)),
        takes=("old",),
    )
    scalar(
        f"s_bitset1_{_b}",
        _word,
        (U32,),
        lambda k, old, m=_count_mask: old | 1 << (k & m),
        takes=("old",),
    )
    scalar(f"s_lshl_{_b}", _word, (_u, U32), lambda a, n, m=_count_mask: a << (n & m), "nonzero")
    scalar(f"s_lshr_{_b}", _word, (_u, U32), lambda a, n, m=_count_mask: a >> (n & m), "nonzero")
    scalar(
        f"s_ashr_i{_bits}", _word, (_i, U32), lambda a, n, m=_count_mask: a >> (n & m), "nonzero"
    )
    scalar(
        f"s_bfm_{_b}",
        _word,
        (U32, U32),
        lambda w, o, m=_count_mask: ((1 << (w & m)) - 1) << (o & m),
    )
    scalar(f"s_bfe_u{_bits}", _word, (_u, U32), _extract(_u, 5 + _bits // 64), "given")
    scalar(f"s_bfe_i{_bits}", _word, (_i, U32), _extract(_i, 5 + _bits // 64), "given")
    scalar(
        f"s_bitcmp0_{_b}",
        None,
        (_u, U32),
        lambda a, k, m=_count_mask: (0, 1 - bit(a, k & m)),
        "given",
    )
    scalar(
        f"s_bitcmp1_{_b}", None, (_u, U32), lambda a, k, m=_count_mask: (0, bit(a, k & m)), "given"
    )

scalar("s_sext_i32_i8", B32, (I8,), lambda a: a)
scalar("s_sext_i32_i16", B32, (I16,), lambda a: a)
scalar(
    "s_bitreplicate_b64_b32", B64, (U32,), lambda a: sum(3 * bit(a, k) << 2 * k for k in range(32))
)
scalar("s_pack_ll_b32_b16", B32, (U32, U32), lambda a, b: a & 0xFFFF | b << 16)
scalar("s_pack_lh_b32_b16", B32, (U32, U32), lambda a, b: a & 0xFFFF | b & 0xFFFF0000)
scalar("s_pack_hh_b32_b16", B32, (U32, U32), lambda a, b: a >> 16 | b & 0xFFFF0000)

# Compares, with a register or a 16-bit immediate.
COMPARES: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
for _name, _compare in COMPARES.items():
    for _suffix, _type, _short in (("i32", I32, I16), ("u32", U32, U16)):
        scalar(
            f"s_cmp_{_name}_{_suffix}",
            None,
            (_type, _type),
            lambda a, b, f=_compare: (0, int(f(a, b))),
            "given",
        )
        scalar(
            f"s_cmpk_{_name}_{_suffix}",
            None,
            (_type, _short),
            lambda a, b, f=_compare: (0, int(f(a, b))),
            "given",
            immediates=IMMEDIATES,
        )
for _name in ("eq", "lg"):
    scalar(
        f"s_cmp_{_name}_u64",
        None,
        (U64, U64),
        lambda a, b, f=COMPARES[_name]: (0, int(f(a, b))),
        "given",
    )

scalar("s_movk_i32", B32, (I16,), lambda k: k, immediates=IMMEDIATES)
scalar(
    "s_cmovk_i32",
    B32,
    (I16,),
    lambda k, scc, old: k if scc else old,
    takes=("scc", "old"),
    immediates=IMMEDIATES,
)
scalar(
    "s_addk_i32",
    B32,
    (I16,),
    lambda k, old: _signed_sum(k + I32.decode(old)),
    "given",
    takes=("old",),
    immediates=IMMEDIATES,
)
scalar("s_mulk_i32", B32, (I16,), lambda k, old: k * old, takes=("old",), immediates=IMMEDIATES)

# EXEC: the destination gets the old mask (saveexec) or the new one (wrexec).
EXEC_LOGIC = {**LOGIC, "andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b}
for _name, _logic in EXEC_LOGIC.items():
    scalar(
        f"s_{_name}_saveexec_b32",
        B32,
        (U32,),
        lambda a, exec_mask, f=_logic: (exec_mask, f(a, exec_mask) & ONES),
        takes=("exec",),
        sets_exec=True,
    )
for _name in ("andn1", "andn2"):
    scalar(
        f"s_{_name}_wrexec_b32",
        B32,
        (U32,),
        lambda a, exec_mask, f=EXEC_LOGIC[_name]: (f(a, exec_mask), f(a, exec_mask) & ONES),
        takes=("exec",),
        sets_exec=True,
    )
