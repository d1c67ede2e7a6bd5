"""Int8 weights with one scale per output: made from a float matrix, and back."""

from __future__ import annotations

import torch

from rdna_jit.errors import ContractError

Tensor = torch.Tensor
_ROWS_AT_ONCE = 8192  # bounds the fp32 copies
# Smaller scales would lose bits, or vanish.
_LEAST_SCALE = {torch.float16: 2.0**-14, torch.float32: 1e-8 / 127}


def make_int8_shadow(
    w: Tensor, *, scale_dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor]:
    """Codes int8 `[N, K]` and scales `[N]` of a float matrix `w` `[N, K]`: symmetric, per row.

    scale = max |w| / 127 of its row, rounded to `scale_dtype` (float16 or float32) before the codes
    round(w / scale) are taken, so no error of the scale is left; codes are -127..127. Scales are
    at least 2^-14 in float16, whose smaller numbers have fewer bits. Raises ContractError naming
    the argument, also for weights that are not finite.
    """
    op = "make_int8_shadow"
    if scale_dtype not in _LEAST_SCALE:
        raise ContractError(f"{op}: scale_dtype: expected float16 or float32, got {scale_dtype}")
    if w.dim() != 2 or not w.is_floating_point():
        got = f"{w.dtype} {list(w.shape)}"
        raise ContractError(f"{op}: w: expected a float matrix [N, K], got {got}", name="w")
    codes = torch.empty(w.shape, dtype=torch.int8, device=w.device)
    scale = torch.empty(w.shape[0], dtype=scale_dtype, device=w.device)
    for begin in range(0, w.shape[0], _ROWS_AT_ONCE):
        part = w[begin : begin + _ROWS_AT_ONCE].float()
        largest = part.abs().amax(1) if w.shape[1] else part.new_zeros(part.shape[0])
        s = (largest / 127).clamp(min=_LEAST_SCALE[scale_dtype]).to(scale_dtype)
        if not bool(s.isfinite().all()):
            raise ContractError(
                f"{op}: w: expected finite weights whose scale fits {scale_dtype}, got "
                f"{float(largest.max())} as the largest",
                name="w",
            )
        scale[begin : begin + _ROWS_AT_ONCE] = s
        quotient = part / s.float()[:, None]
        codes[begin : begin + _ROWS_AT_ONCE] = quotient.round_().clamp_(-127, 127).to(torch.int8)
    return codes, scale


def dequantize_i8(w_i8: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.float16) -> Tensor:
    """`w_i8[n, k] * scale[n]` as `dtype` `[N, K]`, rounded once.

    w_i8 int8 `[N, K]`, scale fp16 or fp32 `[N]`. Raises ContractError naming the argument.
    """
    op = "dequantize_i8"
    if w_i8.dim() != 2 or w_i8.dtype != torch.int8:
        got = f"{w_i8.dtype} {list(w_i8.shape)}"
        raise ContractError(f"{op}: w_i8: expected int8 [N, K], got {got}", name="w_i8")
    if scale.shape != w_i8.shape[:1]:
        want = list(w_i8.shape[:1])
        raise ContractError(
            f"{op}: scale: expected shape {want}, got {list(scale.shape)}", name="scale"
        )
    wide = torch.promote_types(torch.float32, dtype)
    return (w_i8.to(wide) * scale.to(wide)[:, None]).to(dtype)
