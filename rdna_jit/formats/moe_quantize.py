"""Float experts rounded to a format: for tests, benchmarks, and models without a checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats import moe as int4
from rdna_jit.formats.moe_weights import E2M1, FORMATS, FP8_TYPES, MX_GROUP, spread

Tensor = torch.Tensor


def quantize(
    w1: Tensor, w2: Tensor, format: str, group_size: int, symmetric: bool,
    block: tuple[int, int] | None,
) -> dict[str, Any]:  # fmt: skip
    """Fields of MoEWeights."""
    if format not in FORMATS:
        raise ContractError(
            f"quantize: format: expected one of {', '.join(FORMATS)}, got {format!r}"
        )
    fields: dict[str, Any] = {"format": format}
    if format in ("int4", "i8"):
        fields["group_size"] = group_size
    if format in FP8_TYPES:
        fields["block"] = block
    for name, w in (("w1", w1), ("w2", w2)):
        if not isinstance(w, Tensor) or w.dim() != 3 or not w.is_floating_point():
            raise ContractError(f"quantize: {name}: expected float weights [E, rows, K]", name=name)
        made = _matrix(w.float(), format, group_size, symmetric, block)
        fields |= {name + tail: t for tail, t in zip(("", "_scale", "_zp"), made, strict=True)}
    return fields


def _matrix(
    w: Tensor, format: str, group_size: int, symmetric: bool, block: tuple[int, int] | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Codes, scales and zero points of `[E, rows, K]`."""
    if format == "f16":
        return w.half(), None, None
    K = w.shape[2]
    if format in FP8_TYPES:
        dtype = FP8_TYPES[format]
        scale = _largest(w, block) / torch.finfo(dtype).max
        scale = scale.clamp(min=2.0**-100)
        codes = (w / spread(scale, w.shape, block)).to(dtype)
        return codes, scale, None
    group = MX_GROUP if format == "mxfp4" else K if group_size == -1 else group_size
    if group < 1 or K % group:
        raise ContractError(
            f"quantize: group_size: expected a divisor of {K}, got {group}", name="group_size"
        )
    groups = w.unflatten(2, (K // group, group))
    if format == "mxfp4":
        # 2^s is the least power of two under which no code saturates.
        exponent = torch.frexp(groups.abs().amax(3) / 6)[1]
        exponent = torch.where(groups.abs().amax(3) > 0, exponent, -126).clamp(-126, 127)
        values = torch.ldexp(groups, -exponent[..., None])
        codes = _e2m1(values).flatten(2)
        return int4.pack_codes(codes), (exponent + 127).to(torch.uint8), None
    if format == "i8":
        scale = (groups.abs().amax(3) / 127).clamp(min=2.0**-14).half()
        codes = (groups / scale.float()[..., None]).round().clamp(-127, 127).to(torch.int8)
        return codes.flatten(2), scale[..., 0] if group_size == -1 else scale, None
    low, high = groups.amin(3).clamp(max=0), groups.amax(3).clamp(min=0)
    step = torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15
    scale = step.clamp(min=2.0**-14).half()
    zeros = torch.full_like(step, 8) if symmetric else (-low / scale.float()).round().clamp(0, 15)
    codes = (groups / scale.float()[..., None]).round() + zeros[..., None]
    packed_zeros = None if symmetric else int4.pack_zeros(zeros.to(torch.uint8))
    return int4.pack_codes(codes.clamp(0, 15).to(torch.uint8).flatten(2)), scale, packed_zeros


def _largest(w: Tensor, block: tuple[int, int] | None) -> Tensor:
    """max |w| of each row `[E, rows]`, or of each block."""
    if block is None:
        return w.abs().amax(2)
    (E, rows, K), (bn, bk) = w.shape, block
    grid = (-(-rows // bn), -(-K // bk))
    room = w.new_zeros(E, grid[0] * bn, grid[1] * bk)
    room[:, :rows, :K] = w.abs()
    return room.view(E, grid[0], bn, grid[1], bk).amax((2, 4))


def _e2m1(values: Tensor) -> Tensor:
    """Codes of the nearest magnitudes; a tie goes to the even code."""
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code in range(7):
        middle = (E2M1[code] + E2M1[code + 1]) / 2
        above = magnitude >= middle if code % 2 else magnitude > middle
        codes += above.to(torch.uint8)
    return codes | ((values < 0).to(torch.uint8) << 3)
