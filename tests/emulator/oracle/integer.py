"""Vector integer instructions: 32 and 64 bits, bit fields, shifts, carries, sums of differences."""

from __future__ import annotations

from tests.emulator.oracle.table import bit, vector
from tests.emulator.oracle.types import (
    B16,
    B32,
    B64,
    B128,
    FB32,
    I16,
    I24,
    I32,
    I64,
    U16,
    U24,
    U32,
    U64,
    Anything,
    Pair,
)

ONES = 0xFFFFFFFF


def _bytes(value: int, count: int = 4) -> list[int]:
    return [value >> 8 * k & 255 for k in range(count)]


def _halves(value: int) -> list[int]:
    return [value & 0xFFFF, value >> 16 & 0xFFFF]


def _signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


# Moves and logic.
vector("v_mov_b32", B32, (B32,), lambda a: a)
vector("v_not_b32", B32, (B32,), lambda a: ~a)
vector("v_and_b32", B32, (B32, B32), lambda a, b: a & b)
vector("v_or_b32", B32, (B32, B32), lambda a, b: a | b)
vector("v_xor_b32", B32, (B32, B32), lambda a, b: a ^ b)
vector("v_xnor_b32", B32, (B32, B32), lambda a, b: ~(a ^ b))
vector("v_or3_b32", B32, (B32, B32, B32), lambda a, b, c: a | b | c)
vector("v_xor3_b32", B32, (B32, B32, B32), lambda a, b, c: a ^ b ^ c)
vector("v_and_or_b32", B32, (B32, B32, B32), lambda a, b, c: a & b | c)
vector("v_bfi_b32", B32, (B32, B32, B32), lambda a, b, c: a & b | ~a & c)
vector("v_cndmask_b32", FB32, (FB32, FB32), lambda a, b, chosen: b if chosen else a, carry_in=True)

# Sums and products.
vector("v_add_nc_u32", U32, (U32, U32), lambda a, b: a + b)
vector("v_sub_nc_u32", U32, (U32, U32), lambda a, b: a - b)
vector("v_subrev_nc_u32", U32, (U32, U32), lambda a, b: b - a)
vector("v_add_nc_i32", I32, (I32, I32), lambda a, b: a + b)
vector("v_sub_nc_i32", I32, (I32, I32), lambda a, b: a - b)
vector("v_add3_u32", B32, (U32, U32, U32), lambda a, b, c: a + b + c)
vector("v_xad_u32", B32, (U32, U32, U32), lambda a, b, c: (a ^ b) + c)
vector("v_lshl_add_u32", B32, (U32, U32, U32), lambda a, b, c: (a << (b & 31)) + c)
vector("v_add_lshl_u32", B32, (U32, U32, U32), lambda a, b, c: (a + b) << (c & 31))
vector("v_lshl_or_b32", B32, (U32, U32, U32), lambda a, b, c: a << (b & 31) | c)
vector("v_mul_lo_u32", B32, (U32, U32), lambda a, b: a * b)
vector("v_mul_hi_u32", B32, (U32, U32), lambda a, b: a * b >> 32)
vector("v_mul_hi_i32", B32, (I32, I32), lambda a, b: a * b >> 32)
vector("v_mul_u32_u24", B32, (U24, U24), lambda a, b: a * b)
vector("v_mul_i32_i24", B32, (I24, I24), lambda a, b: a * b)
vector("v_mul_hi_u32_u24", B32, (U24, U24), lambda a, b: a * b >> 32)
vector("v_mul_hi_i32_i24", B32, (I24, I24), lambda a, b: a * b >> 32)
vector("v_mad_u32_u24", U32, (U24, U24, U32), lambda a, b, c: a * b + c)
vector("v_mad_i32_i24", I32, (I24, I24, I32), lambda a, b, c: a * b + c)
vector("v_mad_u32_u16", U32, (U16, U16, U32), lambda a, b, c: a * b + c)
vector("v_mad_i32_i16", I32, (I16, I16, I32), lambda a, b, c: a * b + c)


def _carry(total: int) -> tuple[int, int]:
    """A 32-bit sum or difference and its carry or borrow."""
    return total, int(not 0 <= total <= ONES)


vector("v_add_co_u32", U32, (U32, U32), lambda a, b: _carry(a + b), carry_out=True)
vector("v_sub_co_u32", U32, (U32, U32), lambda a, b: _carry(a - b), carry_out=True)
vector("v_subrev_co_u32", U32, (U32, U32), lambda a, b: _carry(b - a), carry_out=True)
vector(
    "v_add_co_ci_u32",
    U32,
    (U32, U32),
    lambda a, b, c: _carry(a + b + c),
    carry_in=True,
    carry_out=True,
)
vector(
    "v_sub_co_ci_u32",
    U32,
    (U32, U32),
    lambda a, b, c: _carry(a - b - c),
    carry_in=True,
    carry_out=True,
)
vector(
    "v_subrev_co_ci_u32",
    U32,
    (U32, U32),
    lambda a, b, c: _carry(b - a - c),
    carry_in=True,
    carry_out=True,
)
vector(
    "v_mad_u64_u32",
    B64,
    (U32, U32, U64),
    lambda a, b, c: (a * b + c, a * b + c >> 64),
    carry_out=True,
)
vector(
    "v_mad_i64_i32", B64, (I32, I32, I64), lambda a, b, c: (a * b + c, Anything()), carry_out=True
)

# Order.
for _type, _suffix in ((U32, "u32"), (I32, "i32")):
    vector(f"v_min_{_suffix}", _type, (_type, _type), min)
    vector(f"v_max_{_suffix}", _type, (_type, _type), max)
    vector(f"v_min3_{_suffix}", _type, (_type, _type, _type), min)
    vector(f"v_max3_{_suffix}", _type, (_type, _type, _type), max)
    vector(f"v_med3_{_suffix}", _type, (_type, _type, _type), lambda *x: sorted(x)[1])

# Shifts: the count is the first operand of the "rev" forms.
vector("v_lshlrev_b32", B32, (U32, U32), lambda n, a: a << (n & 31))
vector("v_lshrrev_b32", B32, (U32, U32), lambda n, a: a >> (n & 31))
vector("v_ashrrev_i32", B32, (U32, I32), lambda n, a: a >> (n & 31))
vector("v_lshlrev_b64", B64, (U32, U64), lambda n, a: a << (n & 63))
vector("v_lshrrev_b64", B64, (U32, U64), lambda n, a: a >> (n & 63))
vector("v_ashrrev_i64", B64, (U32, I64), lambda n, a: a >> (n & 63))
vector("v_alignbit_b32", B32, (U32, U32, U32), lambda a, b, n: (a << 32 | b) >> (n & 31))
vector("v_alignbyte_b32", B32, (U32, U32, U32), lambda a, b, n: (a << 32 | b) >> 8 * (n & 3))


# Bit fields, counts and searches.
def _bfe_u32(a: int, offset: int, width: int) -> int:
    return a >> (offset & 31) & (1 << (width & 31)) - 1


def _bfe_i32(a: int, offset: int, width: int) -> int:
    width &= 31
    return _signed(a >> (offset & 31), width) if width else 0


def _first_set(a: int) -> int:
    return next((k for k in range(32) if bit(a, k)), -1)


def _leading_zeros(a: int) -> int:
    return next((k for k in range(32) if bit(a, 31 - k)), -1)


def _sign_run(a: int) -> int:
    """How many leading bits equal the sign bit; -1 when all do."""
    return next((k for k in range(32) if bit(a, 31 - k) != bit(a, 31)), -1)


def _reverse(a: int) -> int:
    return sum(bit(a, k) << (31 - k) for k in range(32))


vector("v_bfe_u32", B32, (U32, U32, U32), _bfe_u32)
vector("v_bfe_i32", B32, (I32, U32, U32), _bfe_i32)
vector("v_bfm_b32", B32, (U32, U32), lambda w, o: ((1 << (w & 31)) - 1) << (o & 31))
vector("v_bfrev_b32", B32, (U32,), _reverse)
vector("v_ffbl_b32", B32, (U32,), _first_set)
vector("v_ffbh_u32", B32, (U32,), _leading_zeros)
vector("v_ffbh_i32", B32, (U32,), _sign_run)
vector("v_bcnt_u32_b32", B32, (U32, U32), lambda a, b: a.bit_count() + b)


# Bytes.
def _perm(a: int, b: int, selector: int) -> int:
    """Each byte of the selector picks a byte of {a, b}, a sign, zero or ones."""
    data = _bytes(b) + _bytes(a)

    def pick(code: int) -> int:
        if code < 8:
            return data[code]
        if code < 12:
            return 0xFF * bit(data[2 * (code - 8) + 1], 7)
        return 0 if code == 12 else 0xFF

    return sum(pick(code) << 8 * k for k, code in enumerate(_bytes(selector)))


def _sad(a: int, b: int) -> int:
    return sum(abs(x - y) for x, y in zip(_bytes(a), _bytes(b), strict=True))


def _msad(a: int, b: int, c: int) -> int:
    """Bytes of the reference (the second operand) that are zero do not count."""
    return c + sum(abs(x - y) for x, y in zip(_bytes(a), _bytes(b), strict=True) if y)


def _windows(a: int) -> list[int]:
    """The four 32-bit windows of a 64-bit value, a byte apart."""
    return [a >> 8 * k & ONES for k in range(4)]


def _qsad(a: int, b: int, c: int) -> int:
    parts = [_sad(window, b) + (c >> 16 * k & 0xFFFF) for k, window in enumerate(_windows(a))]
    return sum((part & 0xFFFF) << 16 * k for k, part in enumerate(parts))


def _mqsad(a: int, b: int, c: int) -> int:
    parts = [_msad(window, b, c >> 16 * k & 0xFFFF) for k, window in enumerate(_windows(a))]
    return sum((part & 0xFFFF) << 16 * k for k, part in enumerate(parts))


def _mqsad_u32(a: int, b: int, c: int) -> int:
    parts = [_msad(window, b, c >> 32 * k & ONES) for k, window in enumerate(_windows(a))]
    return sum((part & ONES) << 32 * k for k, part in enumerate(parts))


def _lerp(a: int, b: int, c: int) -> int:
    """Byte averages, rounded up where bit 0 of the third operand's byte is set."""
    triples = zip(_bytes(a), _bytes(b), _bytes(c), strict=True)
    return sum((x + y + (z & 1) >> 1) << 8 * k for k, (x, y, z) in enumerate(triples))


def _saturated_bytes(a: int) -> tuple[int, Anything]:
    """A 16-bit result; whether the other half stays or becomes zero is not stated."""
    low, high = (min(max(_signed(half, 16), 0), 255) for half in _halves(a))
    return low | high << 8, Anything()


vector("v_perm_b32", B32, (U32, U32, U32), _perm)
vector("v_lerp_u8", B32, (U32, U32, U32), _lerp)
vector("v_sad_u8", B32, (U32, U32, U32), lambda a, b, c: _sad(a, b) + c)
vector("v_sad_hi_u8", B32, (U32, U32, U32), lambda a, b, c: (_sad(a, b) << 16) + c)
vector(
    "v_sad_u16",
    B32,
    (U32, U32, U32),
    lambda a, b, c: c + sum(abs(x - y) for x, y in zip(_halves(a), _halves(b), strict=True)),
)
vector("v_sad_u32", B32, (U32, U32, U32), lambda a, b, c: abs(a - b) + c)
vector("v_msad_u8", B32, (U32, U32, U32), _msad)
vector("v_qsad_pk_u16_u8", B64, (U64, U32, U64), _qsad)
vector("v_mqsad_pk_u16_u8", B64, (U64, U32, U64), _mqsad)
vector("v_mqsad_u32_u8", B128, (U64, U32, B128), _mqsad_u32)
vector("v_sat_pk_u8_i16", Pair(B16), (U32,), _saturated_bytes)
