"""The tensors of each format: which there are, what they mean, and how they are cut.

One class per format, all static: a `Form` says what is stored and a dict holds the tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from math import gcd
from typing import Any

import torch

from rdna_jit import formats
from rdna_jit.layers.form import ALIASES, Form, Tensors, cut_groups, refuse

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
_INT, _HALF = torch.int32, torch.float16
_LEAST_BLOCK = 32  # inputs that a kernel takes under one scale


class Storage(ABC):
    """What the layer needs to know of a format."""

    # Outputs and inputs come in multiples of these.
    columns_of: int = 1
    rows_of: int = 8

    @staticmethod
    @abstractmethod
    def layout(form: Form) -> Layout:
        """Shape and dtype of each tensor, by name."""

    @staticmethod
    @abstractmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """The weights `[N, K]` in the order of x's columns, rounded once to `dtype`."""

    @staticmethod
    @abstractmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        """Outputs `begin` to `end`, as views."""

    @staticmethod
    @abstractmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        """Inputs `begin` to `end`; act-order has been refused."""

    @staticmethod
    @abstractmethod
    def quantize(weight: torch.Tensor, group_size: int | None, **how: Any) -> tuple[Form, Tensors]:
        """Round a float matrix `[N, K]` to the format."""


class Int4Storage(Storage):
    """Words `[K/8, N]` in shuffled order, rows sorted by group."""

    columns_of = 8

    @staticmethod
    def layout(form: Form) -> Layout:
        N, K, groups = form.N, form.K, form.groups
        tensors: Layout = {"qweight": ((K // 8, N), _INT), "scales": ((groups, N), _HALF)}
        if form.zeros:
            tensors["qzeros"] = ((groups, N // 8), _INT)
        if form.act_order:
            tensors["perm"] = ((K,), _INT)
        return tensors

    @staticmethod
    def of(weight: formats.Int4Weight) -> tuple[Form, Tensors]:
        """From the packers' object."""
        given = {
            "qweight": weight.qweight,
            "scales": weight.scales,
            "qzeros": weight.qzeros,
            "perm": weight.perm,
        }
        form = Form(
            "int4",
            weight.N,
            weight.K,
            weight.group_size,
            scale="group",
            zeros=weight.qzeros is not None,
            zero_offset=weight.zero_offset if weight.qzeros is not None else 0,
            act_order=weight.perm is not None,
        )
        return form, {name: t for name, t in given.items() if t is not None}

    @staticmethod
    def weight(form: Form, t: Tensors) -> formats.Int4Weight:
        """The object that gptq_gemm takes."""
        return formats.Int4Weight(
            t["qweight"], t["scales"], t.get("qzeros"), t.get("perm"), form.zero_offset
        )

    @staticmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        return Int4Storage.weight(form, t).dequantize(dtype).t()

    @staticmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        cut = {name: t[name][:, begin:end] for name in ("qweight", "scales")}
        if form.zeros:
            cut["qzeros"] = t["qzeros"][:, begin // 8 : end // 8]
        if form.act_order:
            cut["perm"] = t["perm"]
        return replace(form, N=end - begin), cut

    @staticmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        made = cut_groups(form, begin, end, 32)
        cut = {"qweight": t["qweight"][begin // 8 : end // 8]}
        for name in ("scales", "qzeros"):
            if name in t:
                cut[name] = _cut_scales(t[name], form, made, begin, dim=0)
        return made, cut

    @staticmethod
    def quantize(weight: torch.Tensor, group_size: int | None, **how: Any) -> tuple[Form, Tensors]:
        size = 128 if group_size is None else group_size
        return Int4Storage.of(formats.quantize_int4(weight, size, **how))


class AwqStorage(Storage):
    """AWQ's words `[K, N/8]`, columns interleaved."""

    columns_of = 8

    @staticmethod
    def layout(form: Form) -> Layout:
        N, K, groups = form.N, form.K, form.groups
        return {
            "qweight": ((K, N // 8), _INT),
            "scales": ((groups, N), _HALF),
            "qzeros": ((groups, N // 8), _INT),
        }

    @staticmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        words, zeros = formats.awq_to_gptq(t["qweight"], t["qzeros"])
        return formats.dequantize_w4(words, zeros, t["scales"], zero_offset=0, dtype=dtype).t()

    @staticmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        cut = {name: t[name][:, begin // 8 : end // 8] for name in ("qweight", "qzeros")}
        return replace(form, N=end - begin), {**cut, "scales": t["scales"][:, begin:end]}

    @staticmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        made = cut_groups(form, begin, end, 32)
        cut = {n: _cut_scales(t[n], form, made, begin, dim=0) for n in ("scales", "qzeros")}
        return made, {**cut, "qweight": t["qweight"][begin:end]}

    @staticmethod
    def quantize(weight: torch.Tensor, group_size: int | None, **how: Any) -> tuple[Form, Tensors]:
        form, t = Int4Storage.quantize(weight, group_size, **how)
        if not form.zeros:
            refuse("symmetric", "False: AWQ always stores zeros", True, 'use format "int4"')
        words, zeros = formats.gptq_to_awq(formats.gptq_unshuffle(t["qweight"]), t["qzeros"])
        made = {"qweight": words, "scales": t["scales"], "qzeros": zeros}
        return replace(form, format="awq"), made


class Int8Storage(Storage):
    """Codes `[N, K]`, scales `[N]` or `[N, K/G]`; zeros, where there are any, as int16."""

    @staticmethod
    def layout(form: Form) -> Layout:
        N, K = form.N, form.K
        shape = (N, form.groups) if form.scale == "group" else (N,)
        tensors: Layout = {
            "weight": ((N, K), torch.int8),
            "weight_scale": (shape, getattr(torch, form.scale_dtype)),
        }
        if form.zeros:
            tensors["weight_zero"] = (shape, torch.int16)
        if form.act_order:
            tensors["perm"] = ((K,), _INT)
        return tensors

    @staticmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        # Products of a code, or a difference of codes, and a scale are exact in fp32 for fp16
        # scales; fp64 keeps fp32 ones from being rounded twice.
        wide = torch.float32 if form.scale_dtype == "float16" else torch.float64
        wide = torch.promote_types(wide, dtype)
        codes = t["weight"].to(wide).unflatten(1, (form.groups, form.K // form.groups))
        scale, zero = t["weight_scale"].to(wide), t.get("weight_zero")
        if zero is not None:
            codes = codes - zero.to(wide).view(form.N, -1, 1)
        values = (codes * scale.view(form.N, -1, 1)).flatten(1).to(dtype)
        if form.act_order:
            values = values[:, torch.argsort(t["perm"].long())]
        return values

    @staticmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        cut = {name: x if name == "perm" else x[begin:end] for name, x in t.items()}
        return replace(form, N=end - begin), cut

    @staticmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        cut = {**t, "weight": t["weight"][:, begin:end]}
        if form.scale != "group":
            return replace(form, K=end - begin), cut
        made = cut_groups(form, begin, end, 32)
        for name in ("weight_scale", "weight_zero"):
            if name in t:
                cut[name] = _cut_scales(t[name], form, made, begin, dim=1)
        return made, cut

    @staticmethod
    def quantize(weight: torch.Tensor, group_size: int | None, **how: Any) -> tuple[Form, Tensors]:
        N, K = weight.shape
        grouped = group_size not in (None, -1, 0, K)
        size = int(group_size or K) if grouped else K
        if size <= 0 or K % size:
            refuse("group_size", f"a divisor of K = {K}", group_size)
        codes, scale = formats.quantize_int8(weight, size, **how)
        dtype = str(scale.dtype).removeprefix("torch.")
        kind = "group" if grouped else "channel"
        form = Form("i8", N, K, size if grouped else 0, scale=kind, scale_dtype=dtype)
        return form, {
            "weight": codes,
            "weight_scale": scale if grouped else scale[:, 0].contiguous(),
        }


class F16Storage(Storage):
    """Plain fp16 `[N, K]`."""

    @staticmethod
    def layout(form: Form) -> Layout:
        return {"weight": ((form.N, form.K), _HALF)}

    @staticmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        return t["weight"].to(dtype)

    @staticmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        return replace(form, N=end - begin), {"weight": t["weight"][begin:end]}

    @staticmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        return replace(form, K=end - begin), {"weight": t["weight"][:, begin:end]}

    @staticmethod
    def quantize(weight: torch.Tensor, group_size: int | None, **how: Any) -> tuple[Form, Tensors]:
        if how:
            refuse(next(iter(how)), "nothing beside the weight", how, "fp16 has no options")
        half = weight.half()
        if not bool(half.isfinite().all()):
            largest = float(weight.abs().max())
            refuse("weight", "finite values that fit fp16", f"{largest:g} as the largest")
        return Form("f16", *weight.shape), {"weight": half.contiguous()}


class Fp8Storage(Storage):
    """Codes float8 `[N, K]`, fp32 scales per tensor `[1]`, per output `[N]` or per block."""

    fmt = "e4m3"

    @staticmethod
    def layout(form: Form) -> Layout:
        N, K = form.N, form.K
        shape: tuple[int, ...] = (N,) if form.scale == "channel" else (1,)
        if form.block:
            shape = (-(-N // form.block[0]), -(-K // form.block[1]))
        tensors: Layout = {
            "weight": ((N, K), formats.fp8.DTYPES[form.format]),
            "weight_scale": (shape, torch.float32),
        }
        if form.input_scale:
            tensors["input_scale"] = ((1,), torch.float32)
        return tensors

    @staticmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        return formats.dequantize_fp8(t["weight"], t["weight_scale"], form.block, dtype=dtype)

    @staticmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        cut = {**t, "weight": t["weight"][begin:end]}
        made = replace(form, N=end - begin)
        if form.scale == "channel":
            cut["weight_scale"] = t["weight_scale"][begin:end]
        elif form.block:
            size, cut["weight_scale"] = _cut_blocks(t["weight_scale"], form, begin, end, dim=0)
            made = replace(made, block=(size, form.block[1]))
        return made, cut

    @staticmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        cut = {**t, "weight": t["weight"][:, begin:end]}
        made = replace(form, K=end - begin)
        if form.block:
            size, cut["weight_scale"] = _cut_blocks(t["weight_scale"], form, begin, end, dim=1)
            made = replace(made, block=(form.block[0], size))
        return made, cut

    @classmethod
    def quantize(
        cls, weight: torch.Tensor, group_size: int | None, **how: Any
    ) -> tuple[Form, Tensors]:
        if group_size is not None:
            hint = 'say scale="tensor", "channel" or a block (rows, columns)'
            refuse("group_size", "None for fp8", group_size, hint)
        codes, scale = formats.quantize_fp8(weight, cls.fmt, **how)
        kind = how.get("scale", "channel")
        block = None if isinstance(kind, str) else (int(kind[0]), int(kind[1]))
        N, K = weight.shape
        form = Form(cls.fmt, N, K, scale="block" if block else kind, block=block)
        return form, {"weight": codes, "weight_scale": scale}


class E5M2Storage(Fp8Storage):
    """The other fp8: more range, less precision."""

    fmt = "e5m2"


class Mxfp4Storage(Storage):
    """e2m1 codes uint8 `[N, K/2]`, a power of two uint8 `[N, K/32]` for 32 of them."""

    rows_of = 32

    @staticmethod
    def layout(form: Form) -> Layout:
        N, K = form.N, form.K
        return {
            "weight": ((N, K // 2), torch.uint8),
            "weight_scale": ((N, K // 32), torch.uint8),
        }

    @staticmethod
    def dequantize(form: Form, t: Tensors, dtype: torch.dtype) -> torch.Tensor:
        return formats.dequantize_mxfp4(t["weight"], t["weight_scale"], dtype)

    @staticmethod
    def columns(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        return replace(form, N=end - begin), {name: x[begin:end] for name, x in t.items()}

    @staticmethod
    def rows(form: Form, t: Tensors, begin: int, end: int) -> tuple[Form, Tensors]:
        return replace(form, K=end - begin), {
            "weight": t["weight"][:, begin // 2 : end // 2],
            "weight_scale": t["weight_scale"][:, begin // 32 : end // 32],
        }

    @staticmethod
    def quantize(weight: torch.Tensor, group_size: int | None, **how: Any) -> tuple[Form, Tensors]:
        if group_size not in (None, 32):
            refuse("group_size", "32, as in every MXFP4 matrix", group_size)
        codes, scale = formats.quantize_mxfp4(weight, **how)
        N, K = weight.shape
        form = Form("mxfp4", N, K, 32, scale="group")
        return form, {"weight": codes, "weight_scale": scale}


STORAGES: dict[str, type[Storage]] = {
    "int4": Int4Storage,
    "awq": AwqStorage,
    "i8": Int8Storage,
    "e4m3": Fp8Storage,
    "e5m2": E5M2Storage,
    "mxfp4": Mxfp4Storage,
    "f16": F16Storage,
}


def storage_of(format: str) -> type[Storage]:
    """The storage of a format, by its name or an alias; ContractError with the list."""
    found = STORAGES.get(ALIASES.get(format, format))
    if found is None:
        refuse("format", f"one of {', '.join((*STORAGES, *ALIASES))}", repr(format))
    return found


def complete(format: str, N: int, K: int, group_size: int | None, **details: Any) -> Form:
    """The form that `QuantizedLinear(...)` asks for, with what each format implies filled in."""
    storage_of(format)
    name = ALIASES.get(format, format)
    if name in ("int4", "awq"):
        size = 128 if group_size is None else K if group_size == -1 else group_size
        details = {"scale": "group", "zeros": name == "awq", **details}
    elif name == "mxfp4":
        size, details = 32, {"scale": "group", **details}
    else:
        size = group_size if group_size not in (None, -1, K) else 0  # type: ignore[assignment]
        if name in ("i8", "e4m3", "e5m2"):
            kind = "block" if details.get("block") else "group" if size else "channel"
            details = {"scale": kind, **details}
    if size < 0 or (size and K % size):
        refuse("group_size", f"a divisor of in_features = {K}, or -1 for all of it", group_size)
    return Form(name, N, K, size, **details)


def _cut_scales(
    scales: torch.Tensor, form: Form, made: Form, begin: int, *, dim: int
) -> torch.Tensor:
    """Scales (or zeros) of the groups of `made`, which starts at row `begin` of `form`."""
    parts = form.group_size // made.group_size
    fine = scales.repeat_interleave(parts, dim) if parts > 1 else scales
    return fine.narrow(dim, begin // made.group_size, made.groups)


def _cut_blocks(
    scale: torch.Tensor, form: Form, begin: int, end: int, *, dim: int
) -> tuple[int, torch.Tensor]:
    """The block size along `dim` after a cut, and its scales; blocks that it splits become smaller.

    The last block may be a part of one, as in the whole.
    """
    assert form.block is not None
    size, length = form.block[dim], (form.N, form.K)[dim]
    least = 1 if dim == 0 else _LEAST_BLOCK
    cut = gcd(size, begin, 0 if end == length else end)
    if cut != size and cut % least:
        refuse(
            "slice", f"cuts of K on multiples of {least} inputs",
            f"inputs {begin}..{end} in blocks of {size}",
            "use another number of ranks, or replicate the layer",
        )  # fmt: skip
    fine = scale.repeat_interleave(size // cut, dim) if cut != size else scale
    return cut, fine.narrow(dim, begin // cut, -(-end // cut) - begin // cut)
