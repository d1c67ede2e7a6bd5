"""Typed values that write LLVM IR text.

A `Value` names something already computed in the IR; Python operators on it append one instruction
to its `Builder` and return the result. Types are vectors over the 32 lanes of a wave unless they
are taken as `.scalar`, so one expression serves vector and scalar instructions:

    total = (x + y) & 0xFF          # Python numbers become constants, scalars are splat
    big = total.ugt(7)              # an I1 per lane
    out = b.select(big, x, y)

Nothing here can produce poison: shifts take their count modulo the width, float-to-integer
conversions saturate, no fast-math flag is ever set.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

WAVE: Final = 32

_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "ptr": 64,
         "half": 16, "float": 32, "double": 64}  # fmt: skip
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


class Type:
    """An LLVM scalar type repeated over `lanes` (1: a plain scalar). Interned: use `is`."""

    __slots__ = ("bits", "integer", "is_float", "lanes", "name", "scalar", "suffix", "text")
    _interned: ClassVar[dict[tuple[str, int], Type]] = {}
    name: str
    lanes: int
    bits: int  # of one lane
    text: str
    suffix: str  # in the names of overloaded intrinsics
    is_float: bool
    scalar: Type  # one lane of this type
    integer: Type  # the integer type of the same width and lanes

    def __new__(cls, name: str, lanes: int = WAVE) -> Type:
        known = cls._interned.get((name, lanes))
        if known is not None:
            return known
        self = cls._interned[name, lanes] = super().__new__(cls)
        self.name = name
        self.lanes = lanes
        self.text = name if lanes == 1 else f"<{lanes} x {name}>"
        self.suffix = ("" if lanes == 1 else f"v{lanes}") + _SUFFIX.get(name, name)
        self.bits = _BITS[name]
        self.is_float = name in _SUFFIX
        self.scalar = Type(name, 1)
        self.integer = Type(f"i{self.bits}", lanes)
        return self

    def over(self, lanes: int) -> Type:
        """The same scalar type over another number of lanes."""
        return self if lanes == self.lanes else Type(self.name, lanes)

    def __repr__(self) -> str:
        return self.text


I1, I8, I16, I32, I64 = (Type(name) for name in ("i1", "i8", "i16", "i32", "i64"))
F16, F32, F64 = (Type(name) for name in ("half", "float", "double"))
PTR = Type("ptr", 1)

Number = int | float


def float_bits(value: float, bits: int) -> int:
    """The IEEE pattern of `value`, rounded to nearest, in 16, 32 or 64 bits."""
    fmt, pattern = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]
    return int(struct.unpack(pattern, struct.pack(fmt, value))[0])


class Value:
    """Something computed: `ref` is its LLVM name or constant, `type` its type."""

    __slots__ = ("builder", "ref", "type")

    def __init__(self, builder: Builder, type: Type, ref: str) -> None:
        self.builder = builder
        self.type = type
        self.ref = ref

    def __repr__(self) -> str:
        return f"{self.type.text} {self.ref}"

    # Arithmetic: the float or the integer instruction, by type.
    def _binary(self, integer: str, floating: str, other: Value | Number) -> Value:
        b = self.builder
        x, y = b.match(self, other)
        opcode = floating if x.type.is_float else integer
        if b.directed and (rounded := b.directed(opcode, x.type, (x, y))):
            return rounded
        result = b.emit(x.type, f"{opcode} {x.type.text} {x.ref}, {y.ref}")
        if x.type.is_float and (is_neutral(x) or is_neutral(y) or b.lanes_of_zero):
            # LLVM takes x * 1.0 and x - 0.0 for x, which would let a signalling NaN through.
            return b.quiet(result)
        return result

    def __add__(self, other: Value | Number) -> Value:
        return self._binary("add", "fadd", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._binary("sub", "fsub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self._binary("mul", "fmul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self._binary("", "fdiv", other)

    def __and__(self, other: Value | Number) -> Value:
        return self._binary("and", "", other)

    def __or__(self, other: Value | Number) -> Value:
        return self._binary("or", "", other)

    def __xor__(self, other: Value | Number) -> Value:
        return self._binary("xor", "", other)

    def __rsub__(self, other: Number) -> Value:
        return self.builder.const(self.type, other) - self

    def __rtruediv__(self, other: Number) -> Value:
        return self.builder.const(self.type, other) / self

    __radd__ = __add__
    __rmul__ = __mul__
    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def __invert__(self) -> Value:
        return self ^ -1

    def __neg__(self) -> Value:
        if not self.type.is_float:
            return 0 - self
        return self.builder.emit(self.type, f"fneg {self!r}")

    # Shifts take the count modulo the width, as the machine does.
    def _shift(self, opcode: str, count: Value | int) -> Value:
        if isinstance(count, Constant):
            count = count.pattern
        count = count % self.type.bits if isinstance(count, int) else count & (self.type.bits - 1)
        return self._binary(opcode, "", count)

    def __lshift__(self, count: Value | int) -> Value:
        return self._shift("shl", count)

    def __rshift__(self, count: Value | int) -> Value:
        """Logical shift right."""
        return self._shift("lshr", count)

    def ashr(self, count: Value | int) -> Value:
        """Arithmetic shift right."""
        return self._shift("ashr", count)

    # Comparisons give I1 of the same lanes.
    def compare(self, predicate: str, other: Value | Number) -> Value:
        """`icmp` or `fcmp` with LLVM's predicate name (`slt`, `olt`, `uno` ...)."""
        b = self.builder
        x, y = b.match(self, other)
        opcode = "fcmp" if x.type.is_float else "icmp"
        return b.emit(I1.over(x.type.lanes), f"{opcode} {predicate} {x!r}, {y.ref}")

    def eq(self, other: Value | Number) -> Value:
        return self.compare("oeq" if self.type.is_float else "eq", other)

    def ne(self, other: Value | Number) -> Value:
        """Not equal; true on NaN."""
        return self.compare("une" if self.type.is_float else "ne", other)

    def ult(self, other: Value | int) -> Value:
        return self.compare("ult", other)

    def ugt(self, other: Value | int) -> Value:
        return self.compare("ugt", other)

    def uge(self, other: Value | int) -> Value:
        return self.compare("uge", other)

    def slt(self, other: Value | int) -> Value:
        return self.compare("slt", other)

    def sgt(self, other: Value | int) -> Value:
        return self.compare("sgt", other)

    def flt(self, other: Value | float) -> Value:
        """Ordered less-than: false on NaN."""
        return self.compare("olt", other)

    def fgt(self, other: Value | float) -> Value:
        """Ordered greater-than: false on NaN."""
        return self.compare("ogt", other)

    def isnan(self) -> Value:
        return self.compare("uno", self)

    # Casts keep the lanes: `x.zext(I64)` of a scalar is a scalar.
    def _cast(self, opcode: str, to: Type) -> Value:
        b, to = self.builder, to.over(self.type.lanes)
        if b.directed and (rounded := b.directed(opcode, to, (self,))):
            return rounded
        return b.emit(to, f"{opcode} {self!r} to {to.text}")

    def zext(self, to: Type) -> Value:
        return self._cast("zext", to)

    def sext(self, to: Type) -> Value:
        return self._cast("sext", to)

    def trunc(self, to: Type) -> Value:
        return self._cast("trunc", to)

    def zext_to(self, to: Type | Value) -> Value:
        """Zero-extended to a width that may be its own already."""
        to = to.type if isinstance(to, Value) else to
        return self if self.type.bits == to.bits else self.zext(to)

    def trunc_to(self, to: Type) -> Value:
        """Cut to a width that may be its own already."""
        return self if self.type.bits == to.bits else self.trunc(to)

    def fpext(self, to: Type) -> Value:
        return self._cast("fpext", to)

    def fptrunc(self, to: Type) -> Value:
        return self._cast("fptrunc", to)

    def sitofp(self, to: Type) -> Value:
        return self._cast("sitofp", to)

    def uitofp(self, to: Type) -> Value:
        return self._cast("uitofp", to)

    def fptosi(self, to: Type) -> Value:
        """Toward zero, saturating, NaN -> 0."""
        to = to.over(self.type.lanes)
        return self.builder.intrinsic("fptosi.sat", to, self, overload=(to, self.type))

    def fptoui(self, to: Type) -> Value:
        """Toward zero, saturating, NaN and negatives -> 0."""
        to = to.over(self.type.lanes)
        return self.builder.intrinsic("fptoui.sat", to, self, overload=(to, self.type))

    def bitcast(self, to: Type) -> Value:
        """The same bits; when the scalar width differs, the lanes change in proportion."""
        if to is self.type:
            return self
        to = to.over(self.type.bits * self.type.lanes // to.bits)
        if to is self.type:
            return self
        return self.builder.emit(to, f"bitcast {self!r} to {to.text}")

    @property
    def bits(self) -> Value:
        """The bit pattern as an integer of the same width."""
        return self.bitcast(self.type.integer)


class Constant(Value):
    """The same number in every lane, by its bit pattern."""

    __slots__ = ("pattern",)

    def __init__(self, builder: Builder, type: Type, pattern: int) -> None:
        integer = type.integer
        number = ("true" if pattern else "false") if type.bits == 1 else str(pattern)
        if type.lanes > 1:
            number = f"splat ({integer.name} {number})" if pattern else "zeroinitializer"
        if type.is_float:
            # LLVM's own notation for float constants differs by type and loses NaN payloads.
            number = f"bitcast ({integer.text} {number} to {type.text})"
        super().__init__(builder, type, number)
        self.pattern = pattern

    def bitcast(self, to: Type) -> Value:
        if to.bits == self.type.bits:
            return Constant(self.builder, to.over(self.type.lanes), self.pattern)
        return super().bitcast(to)


def is_neutral(x: Value) -> bool:
    """Whether x is +-0 or +-1, which arithmetic may leave another operand unchanged by."""
    if not isinstance(x, Constant):
        return False
    magnitude = x.pattern & ((1 << (x.type.bits - 1)) - 1)
    return magnitude in (0, float_bits(1.0, x.type.bits))


class Builder:
    """Collects the lines of one function body and the declarations that they need."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        # Set where MODE asks for a rounding that is not LLVM's (see rounding.py): called with
        # opcode, result type and operands; None leaves the instruction as it is.
        self.directed: Callable[[str, Type, tuple[Value, ...]], Value | None] | None = None
        # The instruction's operands have zeros where a lane has no source, which LLVM sees.
        self.lanes_of_zero = False
        self._count = 0

    def emit(self, type: Type, text: str) -> Value:
        """Append an instruction with a result."""
        self._count = count = self._count + 1
        ref = f"%t{count}"
        self.lines.append(f"  {ref} = {text}")
        return Value(self, type, ref)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append("  " + text)

    def new_label(self, prefix: str = "b") -> str:
        self._count += 1
        return f"{prefix}.{self._count}"

    def label(self, name: str) -> None:
        """Start a basic block (the previous one must have ended with a terminator)."""
        self.lines.append(f"{name}:")

    # Constants
    def const(self, type: Type, number: Number) -> Value:
        """A Constant: `number` in every lane. Floats round to the type; integers wrap."""
        if type.is_float:
            return Constant(self, type, float_bits(float(number), type.bits))
        return Constant(self, type, int(number) & ((1 << type.bits) - 1))

    def lane_const(self, type: Type, numbers: Iterable[int]) -> Value:
        """An integer constant per lane."""
        lanes = list(numbers)
        text = ", ".join(f"{type.name} {int(n) & ((1 << type.bits) - 1)}" for n in lanes)
        return Value(self, type.over(len(lanes)), f"<{text}>")

    @property
    def lane_ids(self) -> Value:
        return self.lane_const(I32, range(WAVE))

    def match(self, x: Value, other: Value | Number) -> tuple[Value, Value]:
        """Both operands in one type: numbers become constants, a scalar is splat over lanes."""
        if not isinstance(other, Value):
            return x, self.const(x.type, other)
        if x.type is other.type:
            return x, other
        if other.type.lanes == 1 and other.type.name == x.type.name:
            return x, self.splat(other, x.type.lanes)
        if x.type.lanes == 1 and other.type.name == x.type.name:
            return self.splat(x, other.type.lanes), other
        raise TypeError(f"operands differ in type: {x!r} and {other!r}")

    def ieee(self) -> bool:
        """Whether minima and maxima respect signalling NaN: MODE says (see `Context`)."""
        return True

    # Lanes
    def splat(self, scalar: Value, lanes: int = WAVE) -> Value:
        """A scalar in every lane."""
        if scalar.type.lanes != 1:
            return scalar
        to = scalar.type.over(lanes)
        if isinstance(scalar, Constant):
            return Constant(self, to, scalar.pattern)
        first = self.emit(to, f"insertelement {to.text} poison, {scalar!r}, i32 0")
        return self.shuffle(first, [0] * lanes)

    def shuffle(self, x: Value, indices: Sequence[int], y: Value | None = None) -> Value:
        """Lanes of x (and, from x's lane count on, of y) in the order of constant `indices`."""
        to = x.type.over(len(indices))
        if any(indices):
            order = "<" + ", ".join(f"i32 {i}" for i in indices) + ">"
        else:
            order = "zeroinitializer"
        second = "poison" if y is None else y.ref
        return self.emit(
            to, f"shufflevector {x!r}, {x.type.text} {second}, <{len(indices)} x i32> {order}"
        )

    def lane(self, vector: Value, index: Value | int) -> Value:
        """One lane as a scalar; `index` must be in range."""
        at = index.ref if isinstance(index, Value) else str(index)
        return self.emit(vector.type.scalar, f"extractelement {vector!r}, i32 {at}")

    def with_lane(self, vector: Value, index: Value | int, scalar: Value) -> Value:
        """`vector` with one lane replaced; `index` must be in range."""
        at = index.ref if isinstance(index, Value) else str(index)
        return self.emit(vector.type, f"insertelement {vector!r}, {scalar!r}, i32 {at}")

    # Choices and calls
    def select(self, condition: Value, x: Value | Number, y: Value | Number) -> Value:
        """`condition ? x : y`, per lane where the condition has lanes."""
        if not isinstance(x, Value):
            x, y = self._constant_arm(y, x)
        x, y = self.match(x, y)
        if condition.type.lanes > x.type.lanes:
            x, y = self.splat(x, condition.type.lanes), self.splat(y, condition.type.lanes)
        return self.emit(x.type, f"select {condition!r}, {x!r}, {y!r}")

    def _constant_arm(self, y: Value | Number, x: Number) -> tuple[Value, Value]:
        if not isinstance(y, Value):
            raise TypeError("one arm of a select must be a Value")
        return self.const(y.type, x), y

    def intrinsic(
        self, name: str, type: Type, *args: Value, overload: Sequence[Type] | None = None
    ) -> Value:
        """Call `llvm.<name>`; the overload suffix is the result's type unless given."""
        suffix = ".".join(t.suffix for t in overload or (type,))
        function = f"@llvm.{name}.{suffix}"
        types = ", ".join(a.type.text for a in args)
        self.declarations.add(f"declare {type.text} {function}({types})")
        return self.emit(type, f"call {type.text} {function}({', '.join(map(repr, args))})")

    def quiet(self, x: Value) -> Value:
        """x with a signalling NaN made quiet."""
        mantissa = {16: 10, 32: 23, 64: 52}[x.type.bits]
        quiet = (x.bits | (1 << (mantissa - 1))).bitcast(x.type)
        return self.select(x.isnan(), quiet, x)

    def fma(self, x: Value, y: Value | Number, z: Value | Number) -> Value:
        """x*y + z with one rounding, in f32 or f64 (for f16: `half.fma`)."""
        (x, y), (_, z) = self.match(x, y), self.match(x, z)
        if self.directed and (rounded := self.directed("fma", x.type, (x, y, z))):
            return rounded
        return self.intrinsic("fma", x.type, x, y, z)

    def minmax(self, kind: str, x: Value, y: Value | int) -> Value:
        """Integer `smin`, `smax`, `umin` or `umax`."""
        x, y = self.match(x, y)
        return self.intrinsic(kind, x.type, x, y)

    def unary(self, name: str, x: Value) -> Value:
        """An overloaded intrinsic of one operand (`sqrt`, `floor`, `ctpop`, `bitreverse` ...)."""
        return self.intrinsic(name, x.type, x)

    def count_zeros(self, name: str, x: Value) -> Value:
        """`ctlz` or `cttz`; a zero input gives the width."""
        return self.intrinsic(name, x.type, x, self.const(I1.scalar, 0), overload=(x.type,))
