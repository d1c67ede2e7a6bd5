"""Scalar arithmetic, logic, comparisons and mode registers."""

from __future__ import annotations

from collections.abc import Callable

from rdna_jit.emulator import float_mode
from rdna_jit.emulator.context import (
    PRIVATE_APERTURE,
    SHARED_APERTURE,
    Context,
    Unsupported,
)
from rdna_jit.emulator.decode import EXEC, Decoded
from rdna_jit.emulator.integers import field_mask, find_bit, mul_high, sign_run
from rdna_jit.emulator.ir import I1, I8, I16, I32, I64, Builder, Type, Value
from rdna_jit.emulator.registry import op, salu
from rdna_jit.emulator.wave import Wave

_INT2 = (I32, I32)
_WIDTHS = (("b32", I32), ("b64", I64))
Pair = tuple[Value, Value]


# Add and subtract
def _add(c: Context, x: Value, y: Value, carry: Value | None = None) -> Pair:
    total = x.zext(I64) + y.zext(I64)
    total = total if carry is None else total + carry.zext(I64)
    return total.trunc(I32), (total >> 32).ne(0)


def _sub(c: Context, x: Value, y: Value, borrow: Value | None = None) -> Pair:
    total = x.zext(I64) - y.zext(I64)
    total = total if borrow is None else total - borrow.zext(I64)
    return total.trunc(I32), total.slt(0)


def _add_signed(c: Context, x: Value, y: Value) -> Pair:
    total = x + y
    return total, ((x ^ total) & (y ^ total)).slt(0)


def _sub_signed(c: Context, x: Value, y: Value) -> Pair:
    total = x - y
    return total, ((x ^ y) & (x ^ total)).slt(0)


salu("s_add_u32", I32, _INT2, _add)
salu("s_sub_u32", I32, _INT2, _sub)
salu("s_addc_u32", I32, _INT2, lambda c, x, y: _add(c, x, y, c.scc()))
salu("s_subb_u32", I32, _INT2, lambda c, x, y: _sub(c, x, y, c.scc()))
salu("s_add_i32", I32, _INT2, _add_signed)
salu("s_sub_i32", I32, _INT2, _sub_signed)
salu("s_abs_i32", I32, (I32,), lambda c, x: _absolute(c, x), scc="nonzero")
salu("s_absdiff_i32", I32, _INT2, lambda c, x, y: _absolute(c, x - y), scc="nonzero")
for _n in (1, 2, 3, 4):
    salu(
        f"s_lshl{_n}_add_u32", I32, _INT2,
        lambda c, x, y, n=_n: _wide_sum((x.zext(I64) << n) + y.zext(I64)),
    )  # fmt: skip


def _wide_sum(total: Value) -> Pair:
    return total.trunc(I32), (total >> 32).ne(0)


def _absolute(b: Builder, x: Value) -> Value:
    return b.select(x.slt(0), 0 - x, x)


# Multiply: SCC is left alone
salu("s_mul_i32", I32, _INT2, lambda c, x, y: x * y)
salu("s_mul_hi_u32", I32, _INT2, lambda c, x, y: mul_high(x, y, False))
salu("s_mul_hi_i32", I32, _INT2, lambda c, x, y: mul_high(x, y, True))


# Minimum and maximum: SCC says whether the first source was taken
def _choose(predicate: str) -> Callable[[Builder, Value, Value], Pair]:
    def compute(b: Builder, x: Value, y: Value) -> Pair:
        first = x.compare(predicate, y)
        return b.select(first, x, y), first

    return compute


salu("s_min_i32", I32, _INT2, _choose("slt"))
salu("s_max_i32", I32, _INT2, _choose("sgt"))
salu("s_min_u32", I32, _INT2, _choose("ult"))
salu("s_max_u32", I32, _INT2, _choose("ugt"))

# Logic, and the forms that combine with EXEC
_LOGIC: dict[str, Callable[[Value, Value], Value]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "andn2": lambda x, y: x & ~y,
    "orn2": lambda x, y: x | ~y,
    "nand": lambda x, y: ~(x & y),
    "nor": lambda x, y: ~(x | y),
    "xnor": lambda x, y: ~(x ^ y),
    "andn1": lambda x, y: ~x & y,
    "orn1": lambda x, y: ~x | y,
}


def _exec_logic(compute: Callable[[Value, Value], Value], old_exec: bool) -> Callable[..., None]:
    """EXEC = op(source, EXEC); D = the old EXEC (saveexec) or the new one (wrexec)."""

    def handler(c: Context, i: Decoded) -> None:
        old = c.sgpr(EXEC)
        new = compute(c.scalar_source(i.operands[1], I32), old)
        c.write(i.operands[0], old if old_exec else new)
        c.set_sgpr(EXEC, new)
        c.set_scc(new.ne(0))

    return handler


for _name, _compute in _LOGIC.items():
    if _name not in ("andn1", "orn1"):
        for _suffix, _type in _WIDTHS:
            salu(
                f"s_{_name}_{_suffix}", _type, (_type, _type),
                lambda c, x, y, f=_compute: f(x, y), scc="nonzero",
            )  # fmt: skip
    op(f"s_{_name}_saveexec_b32")(_exec_logic(_compute, old_exec=True))
for _name in ("andn1", "andn2"):
    op(f"s_{_name}_wrexec_b32")(_exec_logic(_LOGIC[_name], old_exec=False))

# Shifts
for _suffix, _signed, _type in (("b32", "i32", I32), ("b64", "i64", I64)):
    _types = (_type, I32)
    salu(
        f"s_lshl_{_suffix}", _type, _types, lambda c, x, n: x << n.zext_to(x), scc="nonzero"
    )  # fmt: skip
    salu(
        f"s_lshr_{_suffix}", _type, _types, lambda c, x, n: x >> n.zext_to(x), scc="nonzero"
    )  # fmt: skip
    salu(
        f"s_ashr_{_signed}", _type, _types, lambda c, x, n: x.ashr(n.zext_to(x)), scc="nonzero"
    )  # fmt: skip


# Bit fields: offset in the low bits, width in bits 22:16
def _field(c: Context, x: Value, spec: Value, signed: bool) -> Value:
    bits = x.type.bits
    at = (spec & (bits - 1)).zext_to(x)
    width = ((spec >> 16) & 0x7F).zext_to(x)
    if not signed:
        mask = c.select(width.uge(bits), -1, field_mask(c, width))
        return (x >> at) & mask
    # Shift the field to the top and back; one that passes the top bit extends that bit.
    unused = c.minmax("smax", c.const(x.type, bits) - width, 0)
    moved = x.ashr(at)
    return c.select(width.eq(0), 0, (moved << unused).ashr(unused))


for _suffix, _type in (("32", I32), ("64", I64)):
    for _sign in ("u", "i"):
        salu(
            f"s_bfe_{_sign}{_suffix}", _type, (_type, I32),
            lambda c, x, spec, s=_sign == "i": _field(c, x, spec, s), scc="nonzero",
        )  # fmt: skip
    salu(
        f"s_bfm_b{_suffix}", _type, _INT2,
        lambda c, n, at, t=_type: field_mask(c, n.zext_to(t)) << at.zext_to(t),
    )  # fmt: skip

# Select and move
for _suffix, _type in _WIDTHS:
    salu(f"s_mov_{_suffix}", _type, (_type,), lambda c, x: x)
    salu(
        f"s_cselect_{_suffix}", _type, (_type, _type), lambda c, x, y: c.select(c.scc(), x, y)
    )  # fmt: skip
    salu(
        f"s_cmov_{_suffix}", _type, (_type,),
        lambda c, old, x: c.select(c.scc(), x, old), inout=True,
    )  # fmt: skip

# Counting and finding bits
for _suffix, _type in _WIDTHS:
    salu(f"s_not_{_suffix}", _type, (_type,), lambda c, x: ~x, scc="nonzero")
    salu(f"s_brev_{_suffix}", _type, (_type,), lambda c, x: c.unary("bitreverse", x))
    salu(
        f"s_bcnt1_i32_{_suffix}", I32, (_type,),
        lambda c, x: c.unary("ctpop", x).trunc_to(I32), scc="nonzero",
    )  # fmt: skip
    salu(
        f"s_bcnt0_i32_{_suffix}", I32, (_type,),
        lambda c, x: c.unary("ctpop", ~x).trunc_to(I32), scc="nonzero",
    )  # fmt: skip
    for _stem, _intrinsic, _invert in (
        ("ff1", "cttz", False), ("ff0", "cttz", True), ("flbit", "ctlz", False),
    ):  # fmt: skip
        salu(
            f"s_{_stem}_i32_{_suffix}", I32, (_type,),
            lambda c, x, f=_intrinsic, inv=_invert: find_bit(c, f, ~x if inv else x).trunc_to(I32),
        )  # fmt: skip
    salu(
        f"s_bitset0_{_suffix}", _type, (I32,),
        lambda c, old, n: old & ~(c.const(old.type, 1) << n.zext_to(old)), inout=True,
    )  # fmt: skip
    salu(
        f"s_bitset1_{_suffix}", _type, (I32,),
        lambda c, old, n: old | (c.const(old.type, 1) << n.zext_to(old)), inout=True,
    )  # fmt: skip
salu("s_flbit_i32", I32, (I32,), lambda c, x: find_bit(c, "ctlz", sign_run(x)))
salu("s_flbit_i32_i64", I32, (I64,), lambda c, x: find_bit(c, "ctlz", sign_run(x)).trunc_to(I32))
salu("s_sext_i32_i8", I32, (I32,), lambda c, x: x.trunc(I8).sext(I32))
salu("s_sext_i32_i16", I32, (I32,), lambda c, x: x.trunc(I16).sext(I32))


def _any_of_four(x: Value) -> Value:
    """Bit 4k set where any of bits 4k .. 4k+3 is."""
    x = x | (x >> 1)
    x = x | (x >> 2)
    return x & 0x1111_1111_1111_1111


def _gather_bits(x: Value, step: int) -> Value:
    """Bits 0, step, 2*step ... of x, packed together."""
    packed = x & 1
    for n in range(1, x.type.bits // step):
        packed = packed | ((x >> (n * (step - 1))) & (1 << n))
    return packed


def _double_bits(c: Context, x: Value) -> Value:
    """Each bit of x twice."""
    wide, doubled = x.zext(I64), c.const(I64.scalar, 0)
    for n in range(32):
        doubled = doubled | ((wide & (1 << n)) << n)
    return doubled | (doubled << 1)


for _suffix, _type in _WIDTHS:
    salu(f"s_wqm_{_suffix}", _type, (_type,), lambda c, x: _any_of_four(x) * 15, scc="nonzero")
    salu(
        f"s_quadmask_{_suffix}", _type, (_type,),
        lambda c, x: _gather_bits(_any_of_four(x), 4), scc="nonzero",
    )  # fmt: skip
salu("s_bitreplicate_b64_b32", I64, (I32,), _double_bits)

# Packing halves
for _low in ("l", "h"):
    for _high in ("l", "h"):
        if (_low, _high) != ("h", "l"):
            salu(
                f"s_pack_{_low}{_high}_b32_b16", I32, _INT2,
                lambda c, x, y, low=_low, high=_high: (x >> 16 if low == "h" else x & 0xFFFF)
                | (y & 0xFFFF0000 if high == "h" else y << 16),
            )  # fmt: skip

# Comparisons
_PREDICATES = {"eq": "eq", "lg": "ne", "gt": "gt", "ge": "ge", "lt": "lt", "le": "le"}


def _scalar_compare(predicate: str, type: Type) -> Callable[[Context, Decoded], None]:
    def handler(c: Context, i: Decoded) -> None:
        x, y = (c.scalar_source(operand, type) for operand in i.operands)
        c.set_scc(x.compare(predicate, y))

    return handler


def _constant_compare(predicate: str) -> Callable[[Context, Decoded], None]:
    def handler(c: Context, i: Decoded) -> None:
        unsigned = i.mnemonic.endswith("u32")
        value = i.simm16 & 0xFFFF if unsigned else i.simm16
        c.set_scc(c.scalar_source(i.operands[0], I32).compare(predicate, value))

    return handler


for _name, _predicate in _PREDICATES.items():
    for _sign in ("i", "u"):
        _signed_predicate = (
            _predicate if _name in ("eq", "lg") else ("s" if _sign == "i" else "u") + _predicate
        )
        op(f"s_cmp_{_name}_{_sign}32")(_scalar_compare(_signed_predicate, I32))
        op(f"s_cmpk_{_name}_{_sign}32")(_constant_compare(_signed_predicate))
op("s_cmp_eq_u64")(_scalar_compare("eq", I64))
op("s_cmp_lg_u64")(_scalar_compare("ne", I64))


@op("s_bitcmp0_b32", "s_bitcmp1_b32", "s_bitcmp0_b64", "s_bitcmp1_b64")
def _bit_compare(c: Context, i: Decoded) -> None:
    type = I64 if i.mnemonic.endswith("b64") else I32
    x = c.scalar_source(i.operands[0], type)
    chosen = (x >> c.scalar_source(i.operands[1], I32).zext_to(x)).trunc(I1)
    c.set_scc(chosen if "bitcmp1" in i.mnemonic else ~chosen)


# 16-bit immediates
@op("s_movk_i32")
def _movk(c: Context, i: Decoded) -> None:
    c.write(i.operands[0], c.const(I32.scalar, i.simm16))


@op("s_cmovk_i32")
def _cmovk(c: Context, i: Decoded) -> None:
    old = c.scalar_source(i.operands[0], I32)
    c.write(i.operands[0], c.select(c.scc(), i.simm16, old))


@op("s_addk_i32")
def _addk(c: Context, i: Decoded) -> None:
    x = c.scalar_source(i.operands[0], I32)
    total, overflow = _add_signed(c, x, c.const(I32.scalar, i.simm16))
    c.write(i.operands[0], total)
    c.set_scc(overflow)


@op("s_mulk_i32")
def _mulk(c: Context, i: Decoded) -> None:
    c.write(i.operands[0], c.scalar_source(i.operands[0], I32) * i.simm16)


# Hardware registers
_TRAP_STATUS, _MEMORY_BASES, _FLAT_SCRATCH, _SHADER_CYCLES = 3, 15, (20, 21), 29


@op("s_getreg_b32")
def _getreg(c: Wave, i: Decoded) -> None:
    number, offset, mask = float_mode.register_field(i)
    if number == float_mode.MODE_REGISTER:
        value = c.mode_bits()
    elif number == _MEMORY_BASES:
        value = c.const(I32.scalar, SHARED_APERTURE << 16 | PRIVATE_APERTURE)
    elif number == _SHADER_CYCLES:
        value = c.steps_done().trunc(I32)
    else:
        raise Unsupported(f"reading hardware register {number}")
    c.write(i.operands[0], (value >> offset) & mask)


@op("s_setreg_b32", "s_setreg_imm32_b32")
def _setreg(c: Wave, i: Decoded) -> None:
    number, offset, _ = float_mode.register_field(i)
    if number != float_mode.MODE_REGISTER:
        # Prologues of kernels with calls set the scratch base, which addressing here does not use;
        # nothing reads the exception flags.
        if number not in (*_FLAT_SCRATCH, _TRAP_STATUS):
            raise Unsupported(f"writing hardware register {number}")
        return
    field, value = float_mode.written_bits(i)
    if value is None:
        bits = (c.scalar_source(i.operands[1], I32) << offset) & field
    else:
        bits = c.const(I32.scalar, value)
    fixed = field & ~float_mode.FLOAT_BITS
    if fixed:
        c.refuse_if((bits & fixed).ne(0), i, "MODE with bits set above its float bits")
    if float_mode.changes_mode(i):
        _change_mode(c, i, bits)


@op("s_round_mode", "s_denorm_mode")
def _set_mode(c: Context, i: Decoded) -> None:
    _, value = float_mode.written_bits(i)
    assert value is not None
    _change_mode(c, i, c.const(I32.scalar, value))


def _change_mode(c: Context, i: Decoded, bits: Value) -> None:
    """MODE[9:0] = bits where instruction i writes them: what later instructions are translated to,
    and where it is kept, the value at run time."""
    field = float_mode.written_bits(i)[0] & float_mode.FLOAT_BITS
    changed = float_mode.after(i, c.mode)
    if changed != c.mode and not c.tracks_mode:
        raise Unsupported("another mode of rounding or denormals")
    c.set_mode_bits((c.mode_bits() & ~field) | (bits & field))
    c.mode = changed
