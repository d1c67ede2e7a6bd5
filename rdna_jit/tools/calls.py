"""Op calls as text: `linear.w4a16_gemv(f16[1,4096], i32[512,4096], f16[32,4096], group_size=128)`.

Tensors are written DTYPE[size, ...] and are empty; objects that ops take are written as they are
made, `MoEWeights('f16', f16[4,64,128], None, f16[4,128,32], None)`; the rest is Python literals.
"""

from __future__ import annotations

import ast
import importlib
from typing import Any

from rdna_jit.ops import _FAMILIES as FAMILIES

DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
OBJECTS = {"MoEWeights": "rdna_jit.formats", "SharedExpert": "rdna_jit.ops.moe"}


def parse(text: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """The op, its arguments and its keyword arguments; ValueError or SyntaxError says why not."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call):
        raise ValueError("it is no call")
    return find_op(ast.unparse(tree.func)), *_arguments(tree)


def _arguments(call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    args = [_value(node) for node in call.args]
    return args, {keyword.arg or "": _value(keyword.value) for keyword in call.keywords}


def find_op(name: str) -> Any:
    """The public op FAMILY.OP of rdna_jit.ops; ValueError when there is none."""
    family, _, op = name.removeprefix("rdna_jit.ops.").partition(".")
    if family not in FAMILIES or not op.isidentifier():
        raise ValueError(f"{name} is no op; write FAMILY.OP with one of {', '.join(FAMILIES)}")
    found = getattr(importlib.import_module(f"rdna_jit.ops.{family}"), op, None)
    if not hasattr(found, "plan"):
        raise ValueError(f"rdna_jit.ops.{family} has no op {op}")
    return found


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name not in OBJECTS:
            raise ValueError(f"{name} is no object of ops; known are {', '.join(OBJECTS)}")
        args, kwargs = _arguments(node)
        return getattr(importlib.import_module(OBJECTS[name]), name)(*args, **kwargs)
    if isinstance(node, ast.Subscript):
        import torch

        name = ast.unparse(node.value)
        dtype = getattr(torch, DTYPES.get(name, name), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} is no dtype; known are {', '.join(DTYPES)}")
        sizes = ast.literal_eval(node.slice)
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"{ast.unparse(node)}: sizes are integers from 0 on")
        return torch.empty(sizes, dtype=dtype)
    return ast.literal_eval(node)
