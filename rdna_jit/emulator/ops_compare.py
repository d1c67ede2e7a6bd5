"""Vector comparisons: v_cmp writes a lane mask, v_cmpx narrows EXEC."""

from __future__ import annotations

from rdna_jit.emulator import floats
from rdna_jit.emulator.context import Context
from rdna_jit.emulator.decode import EXEC, Decoded
from rdna_jit.emulator.ir import F16, F32, F64, I1, I16, I32, I64, Builder, Type, Value
from rdna_jit.emulator.registry import Compute, op, valu
from rdna_jit.emulator.vector import OP_SEL, SOURCE_SIGN, VectorAccess

# Names of the machine to predicates of LLVM; an n in front negates, so it is true on NaN.
_FLOAT = {
    "f": "false", "lt": "olt", "eq": "oeq", "le": "ole", "gt": "ogt", "lg": "one", "ge": "oge",
    "o": "ord", "u": "uno", "nge": "ult", "nlg": "ueq", "ngt": "ule", "nle": "ugt", "neq": "une",
    "nlt": "uge", "tru": "true",
}  # fmt: skip
_INTEGER = {"lt": "lt", "eq": "eq", "le": "le", "gt": "gt", "ne": "ne", "ge": "ge"}


def _comparison(condition: str, suffix: str, sources: tuple[Type, Type], compute: Compute) -> None:
    """v_cmp_<condition>_<suffix> and its v_cmpx form."""
    modifiers = {"src0_sel", "src1_sel"}
    modifiers |= SOURCE_SIGN if sources[0].is_float else {"sext"}
    if sources[0].bits == 16:
        modifiers |= OP_SEL
    valu(f"v_cmp_{condition}_{suffix}", I1, sources, compute, modifiers=modifiers)

    def narrow_exec(c: Context, i: Decoded) -> None:
        # NOTE: gfx10 prints no destination; some disassemblers add one, always EXEC.
        access = VectorAccess(c, i, i.operands[-2:])
        holds = compute(c, *(access.source(k, type) for k, type in enumerate(sources)))
        c.set_lane_mask(EXEC, holds & c.exec_mask())

    op(f"v_cmpx_{condition}_{suffix}", modifiers=modifiers)(narrow_exec)


for _suffix, _type in (("f16", F16), ("f32", F32), ("f64", F64)):
    for _name, _predicate in _FLOAT.items():
        _comparison(
            _name, _suffix, (_type, _type), lambda b, x, y, p=_predicate: x.compare(p, y)
        )  # fmt: skip


def _class(b: Builder, x: Value, wanted: Value) -> Value:
    """Whether x's class is among the bits of `wanted`."""
    return (floats.classify(b, x) & wanted).ne(0)


_comparison("class", "f16", (F16, I16), _class)
_comparison("class", "f32", (F32, I32), _class)
_comparison("class", "f64", (F64, I32), lambda b, x, wanted: _class(b, x, wanted.zext(I64)))

for _bits, _type in ((16, I16), (32, I32), (64, I64)):
    for _sign in ("i", "u"):
        for _name, _predicate in _INTEGER.items():
            if _name not in ("eq", "ne"):
                _predicate = ("s" if _sign == "i" else "u") + _predicate
            _comparison(
                _name, f"{_sign}{_bits}", (_type, _type),
                lambda b, x, y, p=_predicate: x.compare(p, y),
            )  # fmt: skip
        if _bits > 16:
            _comparison(
                "f", f"{_sign}{_bits}", (_type, _type), lambda b, x, y: b.const(I1, 0)
            )  # fmt: skip
            _comparison(
                "t", f"{_sign}{_bits}", (_type, _type), lambda b, x, y: b.const(I1, 1)
            )  # fmt: skip
