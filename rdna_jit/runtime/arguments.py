"""A kernel's argument list: C types from the source, offsets from the code object, packing.

The code object says how many arguments there are, which are pointers, and where each one lies, but
not whether four bytes are an int or a float. That comes from the entry's declaration in the source
(aliases resolved) or from the kernel's spec. What cannot be resolved is refused, never guessed.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rdna_jit.errors import ContractError, ContractTypeError
from rdna_jit.template import without_comments

if TYPE_CHECKING:
    from rdna_jit.code_object import Argument

# C type -> struct code, on the device's data model (LP64).
_CODES = {
    "bool": "?",
    "char": "b",
    "signed char": "b",
    "unsigned char": "B",
    "short": "h",
    "unsigned short": "H",
    "int": "i",
    "unsigned int": "I",
    "long": "q",
    "unsigned long": "Q",
    "float": "f",
    "double": "d",
    "_Float16": "e",
}
_SPELLINGS = {
    "half": "_Float16",
    "__half": "_Float16",
    "__fp16": "_Float16",
    "size_t": "unsigned long",
    "ptrdiff_t": "long",
    "intptr_t": "long",
    "uintptr_t": "unsigned long",
    **{f"int{8 * n}_t": c for n, c in ((1, "signed char"), (2, "short"), (4, "int"), (8, "long"))},
    **{f"uint{8 * n}_t": f"unsigned {c}" for n, c in ((1, "char"), (2, "short"), (4, "int"))},
    "uint64_t": "unsigned long",
}
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|restrict|__restrict__|__restrict|register|GLOBAL|CONSTANT)\b"
    r"|__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\[\[[^\]]*\]\]"
)


def _integer_range(code: str) -> tuple[int, int]:
    bits = 8 * struct.calcsize(f"<{code}")
    return (0, (1 << bits) - 1) if code.isupper() else (-(1 << bits - 1), (1 << bits - 1) - 1)


_INTEGER_RANGES = {code: _integer_range(code) for code in "bBhHiIqQ"}
POINTER = "P"


# Tensors of floats that a pointer to one of these may get; other tensors are taken as bits.
_FLOATS = {"float": "float32", "double": "float64", "_Float16": "float16"}


class Slot(NamedTuple):
    """One argument: `code` is "P" for a pointer, else the struct code of the value. `floats` names
    the one dtype that a tensor of floats must have, if there is one."""

    name: str
    ctype: str
    code: str
    offset: int
    size: int
    floats: str = ""

    def __str__(self) -> str:
        return f"{self.ctype} {self.name}".strip()


class Signature:
    """The argument list of one kernel in one code object.

    `format` packs all arguments at their offsets, the gaps as zeros; `nbytes` is its size.
    """

    def __init__(self, entry: str, slots: Sequence[Slot]) -> None:
        self.entry = entry
        self.slots = tuple(slots)
        text, end = "<", 0
        for slot in self.slots:
            text += "x" * (slot.offset - end) + ("Q" if slot.code == POINTER else slot.code)
            end = slot.offset + slot.size
        self.format = struct.Struct(text)
        self.nbytes = end

    def __str__(self) -> str:
        return f"{self.entry}({', '.join(map(str, self.slots))})"

    @classmethod
    def make(
        cls,
        entry: str,
        arguments: Sequence[Argument],
        declared: Sequence[tuple[str, str]],
        source: str | None = None,
    ) -> Signature:
        """Join the code object's explicit arguments with the declared (ctype, name) pairs.

        With the `source`, which has the aliases, an fp16 tensor for a `float*` is refused.
        """
        if len(declared) != len(arguments):
            raise ContractError(
                f"{entry}: the source declares {len(declared)} parameters, the code object has "
                f"{len(arguments)}; declare the entry once, as a plain __global__ function"
            )
        pairs = zip(arguments, declared, strict=True)
        slots = [_slot(entry, a, ctype, name) for a, (ctype, name) in pairs]
        if source is not None:
            slots = [slot._replace(floats=_floats(slot, source)) for slot in slots]
        return cls(entry, slots)

    def pack(self, args: Sequence[object], address: Callable[[Slot, Any], int]) -> bytearray:
        """Checked arguments as the bytes that the kernel reads; `address` resolves tensors.

        Raises ContractTypeError for a wrong count or type and ContractError for a value out of
        range, with the signature in the message.
        """
        self.check_count(args)
        values = [
            self._pointer(slot, value, address)
            if slot.code == POINTER
            else self._value(slot, value)
            for slot, value in zip(self.slots, args, strict=True)
        ]
        return bytearray(self.format.pack(*values))

    def check_count(self, args: Sequence[object]) -> None:
        """ContractTypeError unless there are as many arguments as parameters."""
        if len(args) != len(self.slots):
            raise ContractTypeError(
                f"{self} takes {len(self.slots)} arguments, got {len(args)}",
                name=self.entry,
                expected=len(self.slots),
                got=len(args),
            )

    def _pointer(self, slot: Slot, value: object, address: Callable[[Slot, Any], int]) -> int:
        if value is None:
            return 0
        if hasattr(value, "data_ptr"):
            dtype = getattr(value, "dtype", None)
            floating = slot.floats and getattr(dtype, "is_floating_point", False)
            if floating and str(dtype) != f"torch.{slot.floats}":
                expected = (
                    f"a {slot.floats} tensor (.view() of another dtype passes bits as they are)"
                )
                raise self.error(slot, value, expected)
            try:
                return address(slot, value)
            except RuntimeError as error:  # torch's, of a tensor without dense storage
                raise self.error(slot, value, f"a dense tensor ({error})") from error
        is_number = hasattr(value, "__index__") and getattr(value, "shape", ()) == ()
        if isinstance(value, bool) or not is_number:
            raise self.error(slot, value, "a tensor, None or an address", ContractTypeError)
        number = operator.index(value)  # type: ignore[arg-type]
        if not 0 <= number < 1 << 64:
            raise self.error(slot, value, "an address from 0 to 2**64 - 1")
        return int(number)

    def _value(self, slot: Slot, value: object) -> bool | int | float:
        if hasattr(value, "data_ptr") or getattr(value, "shape", ()) != ():
            raise self.error(slot, value, "a number, not a tensor", ContractTypeError)
        if slot.code in "efd":
            return self._float(slot, value)
        if type(value).__name__ in ("bool_", "bool"):  # numpy.bool_ has no __index__
            value = bool(value)
        if not hasattr(value, "__index__"):
            raise self.error(slot, value, "an integer", ContractTypeError)
        number = int(operator.index(value))  # type: ignore[call-overload]
        low, high = (0, 1) if slot.code == "?" else _INTEGER_RANGES[slot.code]
        if not low <= number <= high:
            raise self.error(slot, value, f"{low}..{high}")
        return bool(number) if slot.code == "?" else number

    def _float(self, slot: Slot, value: object) -> float:
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
            raise self.error(slot, value, "a number", ContractTypeError)
        number = float(value)  # type: ignore[arg-type]
        try:
            struct.pack(f"<{slot.code}", number)
        except OverflowError:
            raise self.error(slot, value, f"a value that {slot.ctype} can hold") from None
        return number

    def error(
        self,
        slot: Slot,
        value: object,
        expected: str,
        kind: type[ContractError] = ContractError,
    ) -> ContractError:
        """The error for one argument, with the whole signature."""
        got = f"{type(value).__name__} {describe(value)}"
        return kind(
            f"{self}: {slot.name or 'argument ' + str(self.slots.index(slot))} must be {expected}, "
            f"got {got}",
            name=slot.name,
            expected=expected,
            got=value,
        )


def describe(value: object) -> str:
    """Short text of an argument for messages: a tensor's dtype, shape and device, not its data."""
    if hasattr(value, "data_ptr"):
        shape = tuple(getattr(value, "shape", ()))
        return f"{getattr(value, 'dtype', '')} {shape} on {getattr(value, 'device', '?')}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def declared_parameters(source: str, entry: str) -> list[tuple[str, str]]:
    """(ctype, name) of the parameters of `entry` in specialised source, aliases kept.

    ContractError when the source has no single such __global__ function.
    """
    code = without_comments(source)
    found = re.search(rf"\b(?:__global__|KERNEL)\b[^;{{}}]*?\b{re.escape(entry)}\s*\(", code)
    if not found:
        raise ContractError(
            f"the source has no `__global__ ... {entry}(...)`; declare the entry as a plain "
            '`extern "C" __global__ void` function'
        )
    text = code[found.end() : _closing(code, found.end())]
    return [
        _split_declarator(part) for part in _split_commas(text) if part.strip() not in ("", "void")
    ]


def resolve_type(ctype: str, source: str) -> str:
    """Builtin spelling of a value type: follows `using`, `typedef` and object-like macros."""
    name = _builtin(ctype)
    for _ in range(16):  # a cycle of aliases would not compile
        if name in _CODES:
            return name
        if not name.isidentifier():
            return ctype
        escaped = re.escape(name)
        alias = (
            re.search(rf"\busing\s+{escaped}\s*=\s*([^;]+);", source)
            or re.search(rf"\btypedef\s+([^;]*?)\b{escaped}\s*;", source)
            or re.search(rf"^[ \t]*#[ \t]*define[ \t]+{escaped}[ \t]+(\S[^\n]*)$", source, re.M)
        )
        if not alias:
            return ctype
        name = _builtin(alias[1])
    return ctype


def _slot(entry: str, argument: Argument, ctype: str, name: str) -> Slot:
    ctype = " ".join(_strip_qualifiers_keep_const(ctype).split())
    if argument.kind == "pointer":
        return Slot(name, ctype, POINTER, argument.offset, argument.size)
    code = _CODES.get(_builtin(ctype))
    if code is None or struct.calcsize(f"<{code}") != argument.size:
        raise ContractError(
            f"{entry}: the parameter {name!r} of type {ctype!r} ({argument.size} bytes by value) "
            "is no builtin number; pass structs and vectors through a pointer, and give aliases "
            "as `using NAME = builtin;`"
        )
    return Slot(name, ctype, code, argument.offset, argument.size)


def _floats(slot: Slot, source: str) -> str:
    pointer = re.sub(_QUALIFIERS, " ", slot.ctype).strip()
    if not pointer.endswith("*"):
        return ""
    return _FLOATS.get(resolve_type(pointer[:-1].rstrip(), source), "")


def _strip_qualifiers_keep_const(ctype: str) -> str:
    return re.sub(_QUALIFIERS, lambda m: "const" if m[0] == "const" else " ", ctype)


def _builtin(ctype: str) -> str:
    """Canonical spelling of an integer or float type, qualifiers dropped."""
    words = re.sub(_QUALIFIERS, " ", ctype).split()
    name = " ".join(words)
    if name in _SPELLINGS:
        return _SPELLINGS[name]
    if not words or not set(words) <= {"unsigned", "signed", "char", "short", "int", "long"}:
        return name
    sign = "unsigned " if "unsigned" in words else ""
    for base in ("char", "short", "long"):
        if base in words:
            return ("signed " if base == "char" and "signed" in words else sign) + base
    return sign + "int"


def _closing(code: str, start: int) -> int:
    depth = 1
    for index in range(start, len(code)):
        depth += (code[index] == "(") - (code[index] == ")")
        if depth == 0:
            return index
    return len(code)


def _split_commas(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "(<[") - (char in ")>]")
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def _split_declarator(text: str) -> tuple[str, str]:
    """("const float*", "x") of "const float* __restrict__ x"."""
    text = text.strip()
    named = re.fullmatch(r"(.*?[\s*&])([A-Za-z_]\w*)(\s*\[\s*\d*\s*\])?", text, re.S)
    if not named or named[2] in ("int", "float", "double", "char", "short", "long", "unsigned"):
        return text, ""
    return named[1].strip() + ("*" if named[3] else ""), named[2]
