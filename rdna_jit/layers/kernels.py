"""The kernel classes that a quantised layer chooses from, under the names that vLLM's users know.

A class says which formats it serves, whether it can serve a call, and calls one op of
`rdna_jit.ops.linear`, which chooses its kernel by the number of rows. The order in `KERNELS` is the
order of preference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rdna_jit import formats
from rdna_jit.dispatch import Plan
from rdna_jit.layers.form import Form, Tensors
from rdna_jit.layers.storage import STORAGES, Int4Storage, storage_of
from rdna_jit.ops import linear
from rdna_jit.ops._w4a8 import TILE

Tensor = torch.Tensor
Op = tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]
_MOST_W4A8_GROUP = 65535  # its sum of codes fits 24 bits
_COLUMNS_AT_ONCE = 8192  # of the dequantised weight, in one scratch


@dataclass(frozen=True)
class Call:
    """What a choice depends on: the weight's form, the rows of x and the chip."""

    form: Form
    rows: int
    arch: str


class LinearKernel:
    """A way to compute `y = x @ W.t() + bias`; subclasses are never instantiated.

    A subclass names the formats it serves and overrides `call`, or `apply` when no op of ours
    computes it. The weight's tensors `t` are named as `form.format`'s storage names them.
    """

    op: ClassVar[str] = "quantized_linear"
    formats: ClassVar[tuple[str, ...]] = ()
    opt_in: ClassVar[bool] = False  # whether layers have to ask for it

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        """Whether it can serve the call, and why (not). Formats were looked at before."""
        return True, ""

    @classmethod
    def uses_matmul(cls, call: Call) -> bool:
        """Whether it would serve this call with torch.matmul on dequantised weights."""
        return False

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        """The op that serves it, with its arguments."""
        raise NotImplementedError

    @classmethod
    def has_op(cls) -> bool:
        """Whether an op of ours computes it, which plans and logs its launches."""
        return cls.call.__func__ is not LinearKernel.call.__func__  # type: ignore[attr-defined]

    @classmethod
    def apply(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Tensor:
        """`[M, N]` of x fp16 `[M, K]`."""
        op, args, kwargs = cls.call(x, form, t, bias)
        return op(*args, **kwargs)

    @classmethod
    def plan(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Plan:
        """What `apply` would run."""
        op, args, kwargs = cls.call(x, form, t, bias)
        plan: Plan = op.plan(*args, **kwargs)  # type: ignore[attr-defined]
        return plan


def matmul(x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Tensor:
    """torch.matmul on weights dequantised to fp16, some thousand columns at a time."""
    storage = storage_of(form.format)
    t = {name: t[name] for name in storage.layout(form)}  # a layer's buffers hold its bias too
    out = x.new_empty((x.shape[0], form.N))
    for begin in range(0, form.N, _COLUMNS_AT_ONCE):
        end = min(form.N, begin + _COLUMNS_AT_ONCE)
        part = storage.columns(form, t, begin, end)
        weight = storage.dequantize(*part, x.dtype)
        out[:, begin:end] = torch.nn.functional.linear(
            x, weight, None if bias is None else bias[begin:end]
        )
    return out


def _int4_shape(call: Call) -> tuple[bool, str]:
    form = call.form
    if form.group_size % 32 and form.groups > 1:
        return False, f"needs groups of a multiple of 32 rows, the layer has {form.group_size}"
    return True, f"group {form.group_size}" + (", act-order" if form.act_order else "")


class RDNA2W4A16LinearKernel(LinearKernel):
    """int4 words `[K/8, N]` through gptq_gemm, at every number of rows."""

    op = "gptq_gemm"
    formats = ("int4",)

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        return _int4_shape(call)

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        if form.act_order:
            return linear.gptq_gemm, (x, Int4Storage.weight(form, t)), {"bias": bias}
        operands = (x, t["qweight"], t.get("qzeros"), t["scales"])
        options = {"zero_offset": form.zero_offset, "shuffled": True, "bias": bias}
        return linear.gptq_gemm, operands, options


class RDNAHybridW4A16LinearKernel(RDNA2W4A16LinearKernel):
    """gptq_gemm for few rows, dequantised weights and torch.matmul for more."""

    most_rows: ClassVar[int] = 32

    @classmethod
    def uses_matmul(cls, call: Call) -> bool:
        return call.rows > cls.most_rows

    @classmethod
    def apply(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Tensor:
        if x.shape[0] > cls.most_rows:
            return matmul(x, form, t, bias)
        return super().apply(x, form, t, bias)


class RDNA2AWQW4A16LinearKernel(LinearKernel):
    """int4 in AWQ's order `[K, N/8]` through awq_gemm, without repacking."""

    op = "awq_gemm"
    formats = ("awq",)

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        form = call.form
        if form.groups > 1 and (form.group_size % 2 or form.group_size < 16):
            return False, f"needs even groups of 16 rows or more, the layer has {form.group_size}"
        return True, f"group {form.group_size}"

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        return linear.awq_gemm, (x, t["qweight"], t["qzeros"], t["scales"]), {"bias": bias}


class RDNA2W4A8LinearKernel(LinearKernel):
    """int4 words `[K/8, N]` and x rounded to int8 per row and group, where the layer allows it."""

    op = "w4a8_gemm"
    formats = ("int4",)
    opt_in = True
    least_rows: ClassVar[int] = 33

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        form = call.form
        if form.activation_bits != 8:
            return False, "needs activation_bits = 8, the layer keeps x in fp16"
        if form.act_order:
            return False, "has no act-order"
        if call.rows < cls.least_rows:
            return False, f"pays from {cls.least_rows} rows on, x has {call.rows}"
        if TILE.missing(call.arch):
            return False, f"needs v_dot4_i32_i8, which {call.arch} lacks"
        if form.group_size > _MOST_W4A8_GROUP:
            return (
                False,
                f"sums groups of up to {_MOST_W4A8_GROUP}, the layer has {form.group_size}",
            )
        return _int4_shape(call)

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        operands = (x, t["qweight"], t.get("qzeros"), t["scales"])
        options = {"zero_offset": form.zero_offset, "shuffled": True, "bias": bias}
        return linear.w4a8_gemm, operands, options


class RDNA2W8A16Int8LinearKernel(LinearKernel):
    """int8 codes `[N, K]` through int8_gemm."""

    op = "int8_gemm"
    formats = ("i8",)

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        form = call.form
        if form.zeros:
            return False, "has no zero points: 8-bit codes minus zeros do not fit int8"
        if form.group_size % 8:
            return False, f"needs groups of a multiple of 8 rows, the layer has {form.group_size}"
        return True, str(form)

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        if form.act_order:
            x = x.index_select(1, t["perm"])
        return linear.int8_gemm, (x, t["weight"], t["weight_scale"]), {"bias": bias}


class RDNA2W8A16FP8LinearKernel(LinearKernel):
    """fp8 codes `[N, K]` through fp8_w8a16_gemm: x stays fp16."""

    op = "fp8_w8a16_gemm"
    formats = ("e4m3", "e5m2")

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        block = call.form.block
        if block and block[1] % 8 and block[1] < call.form.K:
            return False, f"needs blocks of a multiple of 8 inputs, the layer has {block[1]}"
        return True, str(call.form)

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        options = {"block": form.block, "bias": bias}
        return linear.fp8_w8a16_gemm, (x, t["weight"], t["weight_scale"]), options


class RDNA2W8A8FP8LinearKernel(RDNA2W8A16FP8LinearKernel):
    """fp8 codes `[N, K]` and x rounded to e4m3, where the layer allows it.

    With the checkpoint's input scale, or one per row of x: max |x| / 448. These chips have no fp8
    arithmetic, so this is for results as a W8A8 checkpoint was calibrated, not for speed.
    """

    op = "fp8_w8a8_gemm"
    opt_in = True

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        if call.form.activation_bits != 8:
            return False, "needs activation_bits = 8, the layer keeps x in fp16"
        return super().can_implement(call)

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        scale = t.get("input_scale")
        if scale is None:
            largest = x.abs().amax(1).float()
            scale = torch.where(largest > 0, largest / 448, 1.0)
        codes = formats.encode_fp8(x.float() / scale.view(-1, 1))
        options = {"block": form.block, "bias": bias}
        return linear.fp8_w8a8_gemm, (codes, scale, t["weight"], t["weight_scale"]), options


class RDNA2W4A16MXFP4LinearKernel(LinearKernel):
    """MXFP4 codes `[N, K/2]` through mxfp4_gemm."""

    op = "mxfp4_gemm"
    formats = ("mxfp4",)

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        return linear.mxfp4_gemm, (x, t["weight"], t["weight_scale"]), {"bias": bias}


class RDNA2FP16LinearKernel(LinearKernel):
    """Plain fp16 `[N, K]` through f16_gemm."""

    op = "f16_gemm"
    formats = ("f16",)

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        if call.form.K % 8:
            return False, f"needs K a multiple of 8, the layer has {call.form.K}"
        return True, f"K = {call.form.K}"

    @classmethod
    def call(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Op:
        return linear.f16_gemm, (x, t["weight"]), {"bias": bias}


class BLASFallbackLinearKernel(LinearKernel):
    """torch.matmul on dequantised weights: every format, every shape."""

    formats = tuple(STORAGES)

    @classmethod
    def can_implement(cls, call: Call) -> tuple[bool, str]:
        return True, "torch.matmul on dequantised weights serves everything"

    @classmethod
    def uses_matmul(cls, call: Call) -> bool:
        return True

    @classmethod
    def apply(cls, x: Tensor, form: Form, t: Tensors, bias: Tensor | None) -> Tensor:
        return matmul(x, form, t, bias)


KERNELS: list[type[LinearKernel]] = [
    RDNA2W4A8LinearKernel,
    RDNA2W4A16LinearKernel,
    RDNA2AWQW4A16LinearKernel,
    RDNAHybridW4A16LinearKernel,
    RDNA2W8A16Int8LinearKernel,
    RDNA2W8A8FP8LinearKernel,
    RDNA2W8A16FP8LinearKernel,
    RDNA2W4A16MXFP4LinearKernel,
    RDNA2FP16LinearKernel,
    BLASFallbackLinearKernel,
]
