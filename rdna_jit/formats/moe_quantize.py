"""Float experts rounded to a format: for tests, benchmarks, and models without a checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats import moe as int4
from rdna_jit.formats.fp8 import DTYPES, quantize_fp8
from rdna_jit.formats.int4 import fp16_scales
from rdna_jit.formats.int8 import quantize_int8
from rdna_jit.formats.mxfp4 import quantize_mxfp4

Tensor = torch.Tensor
Parts = tuple[Tensor, Tensor | None, Tensor | None]


def quantize(
    w1: Tensor, w2: Tensor, format: str, group_size: int, symmetric: bool,
    block: tuple[int, int] | None,
) -> dict[str, Any]:  # fmt: skip
    """Fields of MoEWeights."""
    fields: dict[str, Any] = {"format": format}
    if format in ("int4", "i8"):
        fields["group_size"] = group_size
    if format in DTYPES:
        fields["block"] = block
    for name, w in (("w1", w1), ("w2", w2)):
        if not isinstance(w, Tensor) or w.dim() != 3 or not w.is_floating_point():
            raise ContractError(f"quantize: {name}: expected float weights [E, rows, K]", name=name)
        made = [_matrix(m, format, group_size, symmetric, block) for m in w]
        for tail, parts in zip(("", "_scale", "_zp"), zip(*made, strict=True), strict=True):
            fields[name + tail] = None if parts[0] is None else torch.stack(parts)
    return fields


def _matrix(
    w: Tensor, format: str, group_size: int, symmetric: bool, block: tuple[int, int] | None
) -> Parts:
    """Codes, scales and zero points of one expert's `[rows, K]`."""
    if format == "f16":
        return w.half(), None, None
    if format in DTYPES:
        return *quantize_fp8(w, format, block or "channel"), None
    if format == "mxfp4":
        return *quantize_mxfp4(w, rule="ceil"), None
    if format == "i8":
        codes, scale = quantize_int8(w, group_size)
        return codes, scale[:, 0].contiguous() if group_size == -1 else scale, None
    if format != "int4":
        raise ContractError(f"quantize: format: expected a format of MoEWeights, got {format!r}")
    return _int4(w.float(), w.shape[1] if group_size == -1 else group_size, symmetric)


def _int4(w: Tensor, group: int, symmetric: bool) -> Parts:
    K = w.shape[1]
    if type(group) is not int or group < 1 or K % group:
        raise ContractError(f"quantize: group_size: expected a divisor of {K}, got {group}",
                            name="group_size")  # fmt: skip
    groups = w.unflatten(1, (K // group, group))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    span = torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15
    scale = fp16_scales(span.clamp(min=2.0**-24))
    step = scale.float()
    zeros = torch.full_like(step, 8) if symmetric else (-low / step).round().clamp(0, 15)
    codes = ((groups / step[..., None]).round() + zeros[..., None]).clamp(0, 15).to(torch.uint8)
    packed = None if symmetric else int4.pack_zeros(zeros.to(torch.uint8)[None])[0]
    return int4.pack_codes(codes.flatten(1)), scale, packed
