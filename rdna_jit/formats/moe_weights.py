"""Weights of one layer's experts: one object from any checkpoint to the MoE ops.

Rows hold the reduction axis K, so that decode and tiles read the same memory. `w1` has the 2 I rows
of gate and then up, K = H; `w2` has H rows, K = I. By `format`:

| format | w `[E, rows, ..]` | scale | zero points |
|---|---|---|---|
| int4 | uint8 `[.., K / 2]`, low nibble = even k | fp16 `[E, rows, K / G]` | uint8 `[E, rows / 2, K / G]`, low nibble = even row; None: 8 |
| i8 | int8 `[.., K]` | fp16 or fp32 `[E, rows]` or `[E, rows, K / G]` | |
| e4m3, e5m2 | float8 `[.., K]` | fp32 `[E]`, `[E, rows]` or `[E, ceil(rows / bn), ceil(K / bk)]` | |
| mxfp4 | uint8 `[.., K / 2]`, low nibble = even k | uint8 `[E, rows, K / 32]`, 2^(byte - 127) | |
| f16 | fp16 `[.., K]` | None | |

Two things differ from what a checkpoint says, and never a value: gate and up with a scale each per
tensor get a scale per row, and groups or blocks that a slice cuts become smaller ones.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats import moe as int4
from rdna_jit.formats.fp8 import DTYPES as FP8_TYPES
from rdna_jit.formats.mxfp4 import BLOCK as MX_GROUP
from rdna_jit.formats.mxfp4 import decode_e2m1, decode_e8m0

Tensor = torch.Tensor
Fields = dict[str, Any]
FORMATS = ("int4", "i8", "e4m3", "e5m2", "mxfp4", "f16")
LEAST_GROUP = 32  # what the kernels take from one scale
_CODE_TYPES = {
    "int4": torch.uint8, "i8": torch.int8, **FP8_TYPES, "mxfp4": torch.uint8, "f16": torch.float16,
}  # fmt: skip
_PER_BYTE = {"int4": 2, "mxfp4": 2}
_SCALE_TYPES = {
    "int4": (torch.float16,),
    "i8": (torch.float16, torch.float32),
    "e4m3": (torch.float32,),
    "e5m2": (torch.float32,),
    "mxfp4": (torch.uint8,),
}


@dataclass(frozen=True, eq=False, repr=False)
class MoEWeights:
    """Experts of one layer on one rank, checked when made (ContractError names the tensor).

    `group_size`: weights along K per scale of int4 and grouped i8; -1: one scale per row. `block`:
    (rows, K) per scale of fp8 in blocks, else None.
    """

    format: str
    w1: Tensor
    w1_scale: Tensor | None
    w2: Tensor
    w2_scale: Tensor | None
    w1_zp: Tensor | None = None
    w2_zp: Tensor | None = None
    group_size: int = -1
    block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            _refuse("format", f"one of {', '.join(FORMATS)}", repr(self.format))
        if self.block is not None:
            check_block(self.format, self.block)
        if self.group_size != -1 and self.format not in ("int4", "i8"):
            _refuse("group_size", f"-1 for {self.format}", self.group_size)
        for name in ("w1", "w2"):
            self._check_codes(name)
        E, rows = self.w1.shape[:2]
        if rows % 2 or tuple(self.w2.shape[:2]) != (E, self.H) or rows != 2 * self.I:
            _refuse(
                "w2",
                f"[E, H, I] beside w1 [E, 2 I, H] = [{E}, {rows}, {self.H}]",
                f"[{self.w2.shape[0]}, {self.w2.shape[1]}, {self.I}]",
            )
        self._check_scale("w1", rows, self.H)
        self._check_scale("w2", self.H, self.I)

    def _check_codes(self, name: str) -> None:
        codes = getattr(self, name)
        want = _CODE_TYPES[self.format]
        if not isinstance(codes, Tensor) or codes.dtype != want or codes.dim() != 3:
            _refuse(name, f"{want} [E, rows, ..] for {self.format}", _seen(codes))
        if not codes.numel():
            _refuse(name, "at least one expert, row and column", _seen(codes))

    def _check_scale(self, name: str, rows: int, K: int) -> None:
        scale, zeros = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zp")
        if zeros is not None and self.format != "int4":
            _refuse(f"{name}_zp", f"None for {self.format}", _seen(zeros))
        if self.format == "f16":
            if scale is not None:
                _refuse(f"{name}_scale", "None for f16", _seen(scale))
            return
        if not isinstance(scale, Tensor) or scale.dtype not in _SCALE_TYPES[self.format]:
            types = " or ".join(str(t) for t in _SCALE_TYPES[self.format])
            _refuse(f"{name}_scale", f"{types} for {self.format}", _seen(scale))
        shapes = self._scale_shapes(rows, K)
        if tuple(scale.shape) not in shapes:
            _refuse(f"{name}_scale", " or ".join(str(list(s)) for s in shapes), _seen(scale))
        if zeros is not None:
            want = (self.E, rows // 2, K // self._group(K))
            fits = isinstance(zeros, Tensor) and zeros.dtype == torch.uint8
            if rows % 2 or not fits or tuple(zeros.shape) != want:
                _refuse(f"{name}_zp", f"torch.uint8 {list(want)}", _seen(zeros))

    def _group(self, K: int) -> int:
        group = MX_GROUP if self.format == "mxfp4" else self.group_size
        group = K if group == -1 else group
        if type(group) is not int or group < 1 or K % group:
            _refuse("group_size", f"a divisor of the {K} weights of a row, or -1", group)
        return group

    def _scale_shapes(self, rows: int, K: int) -> list[tuple[int, ...]]:
        if self.format in FP8_TYPES:
            if self.block is None:
                return [(self.E,), (self.E, rows)]
            bn, bk = self.block
            return [(self.E, -(-rows // bn), -(-K // bk))]
        if self.format == "i8" and self.group_size == -1:
            return [(self.E, rows)]
        return [(self.E, rows, K // self._group(K))]

    # ---- from checkpoints ----

    @classmethod
    def from_checkpoint(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        zero_offset: int = 1,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """The experts below `prefix` ("model.layers.3.mlp"), whatever their format.

        `tensors` are named as in checkpoint files, `experts.{e}.gate_proj.qweight` and the like,
        or stacked over experts as servers name them, `w13_weight`. The format is seen from names,
        dtypes and shapes; ContractError tells what was seen when it is none of those here.
        `zero_offset` is what GPTQ zeros lack: 1, or 0 for "gptq_v2" (their tensors look alike).
        `experts` picks and orders numbered experts, for a rank that loads its own.
        """
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.checkpoint(tensors, prefix, zero_offset, experts))

    @classmethod
    def from_gptq(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        zero_offset: int = 1,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """GPTQ `qweight`, `scales`, `qzeros`, `g_idx`; names as for from_checkpoint.

        Four bits become int4, eight bits (zero point 128) i8. Refused: act-order, whose rows are
        in no order that groups of K could share, and a zero point of 16 (stored 15 in v1), which
        four bits cannot hold.
        """
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.gptq(moe_loaders.collect(tensors, prefix, experts), zero_offset))

    @classmethod
    def from_awq(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """AWQ `qweight`, `scales`, `qzeros`: interleaved columns, zero points as stored, 0 too."""
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.awq(moe_loaders.collect(tensors, prefix, experts)))

    @classmethod
    def from_compressed_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """compressed-tensors `weight_packed`, `weight_scale`, `weight_zero_point` of 4 or 8 bits,
        rows first as in files or K first as some servers stack them, or int8 `weight`."""
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.compressed_tensors(moe_loaders.collect(tensors, prefix, experts)))

    @classmethod
    def from_fp8(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        block: tuple[int, int] | None = None,
        fmt: str | None = None,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """float8 `weight` with `weight_scale` or `weight_scale_inv` (both multiply).

        Scales per tensor, per row, or per block; `block` is (128, 128) where their number says
        blocks. `fmt` "e4m3" or "e5m2" for weights stored as uint8.
        """
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.fp8(moe_loaders.collect(tensors, prefix, experts), block, fmt))

    @classmethod
    def from_mxfp4(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        interleaved: bool | None = None,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """e2m1 bytes `[rows, K / 2]` (`weight`, `weight_packed`, or `blocks` `[rows, K / 32, 16]`)
        with e8m0 scales `[rows, K / 32]`.

        `interleaved`: gate and up rows alternate in a fused matrix; None: only in `blocks`.
        """
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.mxfp4(moe_loaders.collect(tensors, prefix, experts), interleaved))

    @classmethod
    def from_float(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        experts: Sequence[int] | None = None,
    ) -> MoEWeights:
        """Float `weight`, rows or K first, cast to fp16; refused when a value overflows there."""
        from rdna_jit.formats import moe_loaders

        return cls(**moe_loaders.floats(moe_loaders.collect(tensors, prefix, experts)))

    @classmethod
    def quantize(
        cls,
        w1: Tensor,
        w2: Tensor,
        format: str,
        group_size: int = -1,
        *,
        symmetric: bool = True,
        block: tuple[int, int] | None = None,
    ) -> MoEWeights:
        """Round float weights `[E, 2 I, H]` and `[E, H, I]` to a format.

        `group_size` of int4 and i8, -1: a scale per row. fp8 gets a scale per row, or per `block`;
        mxfp4 the scale whose largest code covers the group. `symmetric` is int4's: zero point 8.
        """
        from rdna_jit.formats import moe_quantize

        return cls(**moe_quantize.quantize(w1, w2, format, group_size, symmetric, block))

    # ---- what it is ----

    @property
    def E(self) -> int:
        return self.w1.shape[0]

    @property
    def H(self) -> int:
        return self.w1.shape[2] * _PER_BYTE.get(self.format, 1)

    @property
    def I(self) -> int:  # noqa: E743
        return self.w2.shape[2] * _PER_BYTE.get(self.format, 1)

    def __repr__(self) -> str:
        scaled = f", block={self.block}" if self.block else ""
        if self.format in ("int4", "i8"):
            scaled = f", group_size={self.group_size}"
        return f"MoEWeights({self.format}, E={self.E}, H={self.H}, I={self.I}{scaled})"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values() if t is not None)

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """The tensors by the ops' argument names."""
        return {
            "w1": self.w1, "w1_scale": self.w1_scale, "w2": self.w2, "w2_scale": self.w2_scale,
            "w1_zp": self.w1_zp, "w2_zp": self.w2_zp,
        }  # fmt: skip

    def to(self, device: torch.device | str) -> MoEWeights:
        """The same weights on another device."""
        return replace(self, **_each(self.tensors, lambda t: t.to(device)))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """`w1` `[E, 2 I, H]` and `w2` `[E, H, I]`, rounded once to `dtype`."""
        return self._dense("w1", dtype), self._dense("w2", dtype)

    def _dense(self, name: str, dtype: torch.dtype) -> Tensor:
        codes, scale, zeros = (self.tensors[n] for n in (name, f"{name}_scale", f"{name}_zp"))
        assert codes is not None
        if self.format == "f16":
            return codes.to(dtype)
        assert scale is not None
        if self.format == "int4":
            return int4.dequantize(codes, scale, zeros, torch.float64).to(dtype)
        if self.format == "mxfp4":
            values = decode_e2m1(int4.unpack_codes(codes), torch.float64)
            scale = decode_e8m0(scale, torch.float64)
        else:
            values = (codes.float() if codes.is_floating_point() else codes).double()
        return (values * _spread(scale.double(), values.shape, self.block)).to(dtype)

    # ---- parts of it ----

    def slice_tp(self, rank: int, size: int) -> MoEWeights:
        """This rank's I / size channels of every expert: results of the ranks add up.

        Gate and up are sliced each, `w2` along K. Where a group does not divide the slice it is
        halved until it does, down to 32, and its scales and zero points repeated; blocks likewise.
        ContractError where that is not enough.
        """
        _check_rank(rank, size)
        if size == 1:
            return self
        if self.I % size:
            _refuse("size", f"a divisor of the {self.I} channels of an expert", size)
        width = self.I // size
        if width % _PER_BYTE.get(self.format, 1) or (self.format == "mxfp4" and width % MX_GROUP):
            unit = MX_GROUP if self.format == "mxfp4" else 2
            _refuse("size", f"slices of a multiple of {unit} channels", f"{self.I} / {size}")
        whole = self.with_groups(width)
        first, last = rank * width, (rank + 1) * width

        def columns(t: Tensor | None, of: int) -> Tensor | None:
            """Columns first..last of a `[E, rows, ..]` tensor whose rows cover `of` channels."""
            if t is None or t.dim() < 3 or t.shape[-1] == 1:
                return t
            return t[..., first * t.shape[-1] // of : last * t.shape[-1] // of].contiguous()

        def halves(t: Tensor | None) -> Tensor | None:
            if t is None or t.dim() < 2:
                return t
            n = t.shape[1] // 2
            a, b = first * n // self.I, last * n // self.I
            return torch.cat((t[:, a:b], t[:, n + a : n + b]), 1)

        parts = whole.tensors
        sliced: Fields = {n: halves(parts[n]) for n in ("w1", "w1_scale", "w1_zp")}
        sliced |= {n: columns(parts[n], self.I) for n in ("w2", "w2_scale", "w2_zp")}
        return replace(whole, **sliced)

    def with_groups(self, width: int) -> MoEWeights:
        """The same weights with groups or blocks that `width` channels are a multiple of."""
        if self.block is not None:
            bn, bk = math.gcd(self.block[0], width), math.gcd(self.block[1], width)
            if bk < min(LEAST_GROUP, self.block[1]):
                _refuse("block", f"blocks that share {LEAST_GROUP} channels with {width}",
                        self.block)  # fmt: skip
            return self._with_block((bn, bk)) if (bn, bk) != self.block else self
        if (
            self.format not in ("int4", "i8")
            or self.group_size == -1
            or not width % self.group_size
        ):
            return self
        group = self.group_size
        while width % group and group % 2 == 0 and group > LEAST_GROUP:
            group //= 2
        if width % group:
            _refuse(
                "group_size", f"groups that halve to a divisor of {width}, {LEAST_GROUP} or more",
                self.group_size,
            )  # fmt: skip
        factor = self.group_size // group
        coarse = {n: t for n, t in self.tensors.items() if n.endswith(("scale", "zp"))}
        finer = _each(coarse, lambda t: t.repeat_interleave(factor, -1))
        return replace(self, **finer, group_size=group)

    def _with_block(self, block: tuple[int, int]) -> MoEWeights:
        assert self.block is not None
        ratio = self.block[0] // block[0], self.block[1] // block[1]
        scales = {}
        for name, rows, K in (("w1", 2 * self.I, self.H), ("w2", self.H, self.I)):
            finer = self.tensors[f"{name}_scale"]
            assert finer is not None
            finer = finer.repeat_interleave(ratio[0], 1).repeat_interleave(ratio[1], 2)
            scales[f"{name}_scale"] = finer[:, : -(-rows // block[0]), : -(-K // block[1])]
        return replace(self, **_each(scales, lambda t: t.contiguous()), block=block)

    def slice_ep(self, rank: int, size: int) -> tuple[MoEWeights, Tensor]:
        """This rank's experts, neighbours, and the int32 `[E]` map from all experts to them, -1
        for those of other ranks. Sizes differ by at most one, the first ranks have more."""
        _check_rank(rank, size)
        if size > self.E:
            _refuse("size", f"at most one rank for each of the {self.E} experts", size)
        share, more = divmod(self.E, size)
        first = rank * share + min(rank, more)
        last = first + share + (rank < more)
        expert_map = torch.full((self.E,), -1, dtype=torch.int32, device=self.w1.device)
        expert_map[first:last] = torch.arange(last - first, device=self.w1.device).int()
        return replace(self, **_each(self.tensors, lambda t: t[first:last])), expert_map


def check_block(format: str, block: object) -> None:
    """ContractError unless `block` is (rows, K) of fp8 weights."""
    if format not in FP8_TYPES:
        _refuse("block", f"None for {format}", block)
    if (
        not isinstance(block, (tuple, list))
        or len(block) != 2
        or not all(type(n) is int and n > 0 for n in block)
    ):
        _refuse("block", "(rows, columns) of a block", block)


def _spread(scale: Tensor, shape: Sequence[int], block: tuple[int, int] | None) -> Tensor:
    """Scales of any form of MoEWeights as one per weight, or something that broadcasts so."""
    if block is not None:
        wide = scale.repeat_interleave(block[0], 1).repeat_interleave(block[1], 2)
        return wide[:, : shape[1], : shape[2]]
    if scale.dim() < 3:
        return scale.reshape(*scale.shape, *(1 for _ in range(3 - scale.dim())))
    return scale.repeat_interleave(shape[2] // scale.shape[2], 2)


def _each(tensors: Mapping[str, Tensor | None], change: Callable[[Tensor], Tensor]) -> Fields:
    return {name: None if t is None else change(t) for name, t in tensors.items()}


def _check_rank(rank: int, size: int) -> None:
    if type(size) is not int or size < 1:
        _refuse("size", "a number of ranks", repr(size))
    if type(rank) is not int or not 0 <= rank < size:
        _refuse("rank", f"0 to {size - 1}", repr(rank))


def _seen(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _refuse(name: str, expected: object, got: object) -> NoReturn:
    raise ContractError(
        f"MoEWeights: {name}: expected {expected}, got {got}",
        name=name,
        expected=expected,
        got=got,
    )
