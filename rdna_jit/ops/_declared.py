"""Parts that the declarations of kernels have in common."""

from __future__ import annotations

from rdna_jit.spec import Parameter
from rdna_jit.template import Legal

FLAG = (False, True)

X = Parameter("x", "const f16*", align=2)
WORDS = Parameter("qweight", "const u32*", align=4)
SCALES = Parameter("scales", "const f16*", align=2)
_BIAS = Parameter("bias", "const f16*", align=2)
_ROWS = Parameter("m", "i32", "size")
RESULT = (_BIAS, Parameter("out", "f16*", "out", align=2), _ROWS)
# Where the launch may write fp32 partial sums instead.
SUMS_OR_RESULT = (_BIAS, Parameter("out", "void*", "out", align=2), _ROWS)


def strides(*names: str) -> dict[str, Legal]:
    """Row strides of the named tensors, in elements."""
    return {f"{name}_STRIDE": range(1 << 40) for name in names}


def sizes(*names: str, ctype: str = "int") -> tuple[Parameter, ...]:
    return tuple(Parameter(name, ctype, "size") for name in names)
