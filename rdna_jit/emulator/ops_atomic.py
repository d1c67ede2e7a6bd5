"""Atomics on global memory and LDS.

One lane after another in ascending order. Global ones are atomic on the host too, since other
threads run other workgroups; LDS belongs to the thread that runs the workgroup.
"""

from __future__ import annotations

from collections.abc import Callable

from rdna_jit.emulator import layout
from rdna_jit.emulator.decode import Decoded, Operand
from rdna_jit.emulator.ir import F32, F64, I32, I64, PTR, Type, Value
from rdna_jit.emulator.ops_lds import lds_lanes
from rdna_jit.emulator.ops_memory import Lanes, global_lanes, space_of
from rdna_jit.emulator.registry import op
from rdna_jit.emulator.wave import Space, Wave

# One lane: (context, address, data, comparand) -> the old value.
LaneOperation = Callable[[Wave, Value, Value, "Value | None"], Value]

_GLOBAL = {
    "swap": "xchg", "add": "add", "sub": "sub", "csub": "usub_sat", "smin": "min", "smax": "max",
    "umin": "umin", "umax": "umax", "and": "and", "or": "or", "xor": "xor", "inc": "uinc_wrap",
    "dec": "udec_wrap", "fmin": "fmin", "fmax": "fmax",
}  # fmt: skip
_FLOAT = ("fmin", "fmax", "fcmpswap")


def _vectors(c: Wave, data: Operand, first: int, type: Type) -> Value:
    """Lanes of `type` from the registers of an operand, `first` registers in."""
    low = c.vgpr(data.index + first)
    if type.bits == 32:
        return low.bitcast(type)
    high = c.vgpr(data.index + first + 1)
    return (low.zext(I64) | (high.zext(I64) << 32)).bitcast(type)


def run_lanes(
    c: Wave,
    i: Decoded,
    lanes: Lanes,
    space: Space,
    data: Value,
    comparand: Value | None,
    operation: LaneOperation,
    result: Operand | None,
) -> None:
    """Apply `operation` to the memory of each active lane; old values go to `result`."""
    type = data.type
    nbytes = type.bits // 8
    site = c.site(i, nbytes, space, "atomic")
    c.do(f"store {lanes.all(c)!r}, {c.env_pointer('addresses')!r}, align 8")
    exec_bits = c.exec_bits()
    if space == "flat":
        c.check_call(f"@flat_resolve(ptr %env, {exec_bits!r}, {site!r}, i64 {nbytes})")
        exec_bits = c.exec_bits()
    lds = "true" if space == "lds" else "false"
    kind = layout.ATOMIC if result is None else layout.ATOMIC_RETURN
    arguments = f"ptr %env, {exec_bits!r}, {site!r}, i64 {nbytes}, i1 {lds}, i32 {kind}"
    c.check_call(f"@access({arguments})")
    addresses, staging = c.env_pointer("addresses"), c.env_pointer("split")
    second = c.env_pointer("packed")
    c.do(f"store {data!r}, {staging!r}, align 8")
    if comparand is not None:
        c.do(f"store {comparand!r}, {second!r}, align 8")

    def one(lane: Value) -> None:
        address = c.load_scalar(I64.scalar, c.offset(addresses, lane, "i64"))
        pointer = c.emit(PTR, f"inttoptr {address!r} to ptr")
        place = c.offset(staging, lane, type.name)
        mine = c.load_scalar(type.scalar, place, align=nbytes)
        expected = None
        if comparand is not None:
            expected = c.load_scalar(type.scalar, c.offset(second, lane, type.name), align=nbytes)
        c.do(f"store {operation(c, pointer, mine, expected)!r}, {place!r}, align {nbytes}")

    c.each_active_lane(one)
    if result is not None:
        old = c.load_scalar(type, c.env_pointer("split"), align=8).bits
        if type.bits == 32:
            c.set_vgpr(result.index, old)
        else:
            c.set_vgpr(result.index, old.trunc(I32))
            c.set_vgpr(result.index + 1, (old >> 32).trunc(I32))


# Global and flat
def _read_modify_write(name: str) -> LaneOperation:
    def operation(c: Wave, pointer: Value, data: Value, _: Value | None) -> Value:
        return c.emit(data.type, f"atomicrmw {name} {pointer!r}, {data!r} seq_cst")

    return operation


def _compare_swap(c: Wave, pointer: Value, data: Value, expected: Value | None) -> Value:
    assert expected is not None
    pair = c.emit(data.type, f"cmpxchg {pointer!r}, {expected!r}, {data!r} seq_cst seq_cst")
    return c.emit(data.type, f"extractvalue {{{data.type.text}, i1}} {pair.ref}, 0")


def _float_compare_swap(c: Wave, pointer: Value, data: Value, expected: Value | None) -> Value:
    """Compares as numbers, so that -0 equals +0 and NaN nothing."""
    assert expected is not None
    integer = data.type.integer
    align = data.type.bits // 8
    old = c.emit(integer, f"load atomic {integer.text}, {pointer!r} seq_cst, align {align}")
    new = c.select(old.bitcast(data.type).eq(expected), data, old.bitcast(data.type))
    return _compare_swap(c, pointer, new.bits, old).bitcast(data.type)


@op(
    *(
        f"{prefix}_atomic_{name}{width}"
        for prefix in ("global", "flat")
        for name in (*_GLOBAL, "cmpswap", "fcmpswap")
        for width in ("", "_x2")
        if (name, width) != ("csub", "_x2")
    ),
    modifiers=("offset", "glc", "slc", "dlc"),
)
def _global_atomic(c: Wave, i: Decoded) -> None:
    name = i.mnemonic.split("_atomic_", 1)[1].removesuffix("_x2")
    wide = i.mnemonic.endswith("_x2")
    integer, floating = (I64, F64) if wide else (I32, F32)
    type = floating if name in _FLOAT else integer
    operands = list(i.operands)
    result = operands.pop(0) if "glc" in i.modifiers else None
    address, data, *base = operands
    comparand = None
    if name.endswith("cmpswap"):
        comparand = _vectors(c, data, 2 if wide else 1, type)
        operation: LaneOperation = _float_compare_swap if name == "fcmpswap" else _compare_swap
    else:
        operation = _read_modify_write(_GLOBAL[name])
    lanes = global_lanes(c, i, address, base[0] if base else None)
    run_lanes(c, i, lanes, space_of(i), _vectors(c, data, 0, type), comparand, operation, result)


# LDS
Compute = Callable[[Wave, Value, Value], Value]


def _inc(c: Wave, old: Value, data: Value) -> Value:
    return c.select(old.uge(data), 0, old + 1)


def _dec(c: Wave, old: Value, data: Value) -> Value:
    return c.select(old.eq(0) | old.ugt(data), data, old - 1)


_LDS_INTEGER: dict[str, Compute] = {
    "add_u": lambda c, old, data: old + data,
    "sub_u": lambda c, old, data: old - data,
    "rsub_u": lambda c, old, data: data - old,
    "inc_u": _inc,
    "dec_u": _dec,
    "min_i": lambda c, old, data: c.minmax("smin", old, data),
    "max_i": lambda c, old, data: c.minmax("smax", old, data),
    "min_u": lambda c, old, data: c.minmax("umin", old, data),
    "max_u": lambda c, old, data: c.minmax("umax", old, data),
    "and_b": lambda c, old, data: old & data,
    "or_b": lambda c, old, data: old | data,
    "xor_b": lambda c, old, data: old ^ data,
    "wrxchg_b": lambda c, old, data: data,
}
_LDS_FLOAT: dict[str, Compute] = {
    "add_f": lambda c, old, data: old + data,
    "min_f": lambda c, old, data: c.intrinsic("minimumnum", data.type, old, data),
    "max_f": lambda c, old, data: c.intrinsic("maximumnum", data.type, old, data),
}


def _plain(compute: Compute) -> LaneOperation:
    def operation(c: Wave, pointer: Value, data: Value, _: Value | None) -> Value:
        old = c.load_scalar(data.type, pointer)
        c.do(f"store {compute(c, old, data)!r}, {pointer!r}")
        return old

    return operation


def _lds_compare(c: Wave, pointer: Value, data: Value, expected: Value | None) -> Value:
    assert expected is not None
    old = c.load_scalar(data.type, pointer)
    c.do(f"store {c.select(old.eq(expected), data, old)!r}, {pointer!r}")
    return old


def _lds_names(name: str, width: int) -> list[str]:
    """`ds_add_u32` and `ds_add_rtn_u32`; an exchange always returns."""
    stem, kind = name.rsplit("_", 1)
    returning = f"ds_{stem}_rtn_{kind}{width}"
    return [returning] if stem == "wrxchg" else [f"ds_{name}{width}", returning]


def _lds_atomic(c: Wave, i: Decoded, operation: LaneOperation, type: Type) -> None:
    operands = list(i.operands)
    result = operands.pop(0) if "_rtn_" in i.mnemonic else None
    address, *data = operands
    lanes = lds_lanes(c, address, c.address_offset(i))
    # the comparand comes first here, unlike in global memory
    values = [_vectors(c, d, 0, type) for d in reversed(data)]
    comparand = values[1] if len(values) > 1 else None
    run_lanes(c, i, lanes, "lds", values[0], comparand, operation, result)


def _register_lds(name: str, compute: Compute, type: Type) -> None:
    operation = _plain(compute)

    @op(*_lds_names(name, type.bits), modifiers=("offset",))
    def handler(c: Wave, i: Decoded) -> None:
        _lds_atomic(c, i, operation, type)


for _name, _compute in _LDS_INTEGER.items():
    _register_lds(_name, _compute, I32)
    _register_lds(_name, _compute, I64)
for _name, _compute in _LDS_FLOAT.items():
    _register_lds(_name, _compute, F32)
    if _name != "add_f":
        _register_lds(_name, _compute, F64)


@op(
    *(f"ds_cmpst{rtn}_{kind}" for rtn in ("", "_rtn") for kind in ("b32", "b64", "f32", "f64")),
    modifiers=("offset",),
)
def _lds_compare_swap(c: Wave, i: Decoded) -> None:
    types = {"b32": I32, "b64": I64, "f32": F32, "f64": F64}
    _lds_atomic(c, i, _lds_compare, types[i.mnemonic.rsplit("_", 1)[1]])
