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


def quantize_int8(
    w: Tensor, group_size: int, *, scale_dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor]:
    """Codes int8 `[N, K]` and scales `[N, K / G]` of a float matrix: make_int8_shadow's rule for
    every G = group_size neighbours along K (-1: the whole K)."""
    op = "quantize_int8"
    K = w.shape[-1]
    G = K if group_size == -1 else group_size
    if type(group_size) is not int or G <= 0 or K % G:
        got = repr(group_size)
        raise ContractError(f"{op}: group_size: expected a divisor of K = {K}, got {got}")
    if w.dim() != 2:
        raise ContractError(f"{op}: w: expected a float matrix [N, K], got {list(w.shape)}")
    codes, scale = make_int8_shadow(w.reshape(-1, G), scale_dtype=scale_dtype)
    return codes.reshape(w.shape), scale.reshape(w.shape[0], K // G)


def dequantize_i8(w_i8: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.float16) -> Tensor:
    """`w_i8[n, k] * scale[n]`, or `scale[n, k // G]`, as `dtype` `[N, K]`, rounded once.

    w_i8 int8 `[N, K]`, scale fp16 or fp32 `[N]` or `[N, K / G]`. Raises ContractError naming the
    argument.
    """
    op = "dequantize_i8"
    if w_i8.dim() != 2 or w_i8.dtype != torch.int8:
        got = f"{w_i8.dtype} {list(w_i8.shape)}"
        raise ContractError(f"{op}: w_i8: expected int8 [N, K], got {got}", name="w_i8")
    N, K = w_i8.shape
    grouped = scale.dim() == 2 and scale.shape[0] == N and scale.shape[1] > 0
    if not (scale.shape == (N,) or (grouped and K % scale.shape[1] == 0)):
        raise ContractError(
            f"{op}: scale: expected shape [{N}] or [{N}, K / G], got {list(scale.shape)}",
            name="scale",
        )
    wide = torch.promote_types(torch.float32, dtype)
    per_row = scale.to(wide).reshape(N, -1)
    return (w_i8.to(wide) * per_row.repeat_interleave(K // per_row.shape[1], 1)).to(dtype)


def ct_to_int8(weight_packed: Tensor, weight_scale: Tensor) -> tuple[Tensor, Tensor]:
    """compressed-tensors 8-bit "pack-quantized" to int8 `[N, K]` and its scales.

    weight_packed int32 `[N, K / 4]`: byte j of a word is code 4 i + j plus 128. Scales `[N, K / G]`
    keep their type; `[N, 1]` becomes `[N]`.
    """
    codes = _unpack("ct_to_int8", "weight_packed", weight_packed)
    return codes, weight_scale[:, 0] if weight_scale.shape[-1] == 1 else weight_scale


def int8_to_ct(w_i8: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse of ct_to_int8."""
    return _pack("int8_to_ct", w_i8), scale[:, None] if scale.dim() == 1 else scale


def gptq_to_int8(
    qweight: Tensor, scales: Tensor, qzeros: Tensor | None = None, *, zero_offset: int = 1
) -> tuple[Tensor, Tensor]:
    """A symmetric 8-bit GPTQ matrix to int8 `[N, K]` and scales `[N, K / G]`.

    qweight int32 `[K / 4, N]`: byte j of word `[i, n]` is the code of row 4 i + j plus 128. qzeros
    int32 `[K / G, N / 4]` hold 128 - zero_offset (1 in v1 checkpoints, 0 in v2), or are left out.
    ContractError for other zeros: code minus zero would not fit a signed byte.
    """
    op = "gptq_to_int8"
    if qzeros is not None:
        zeros = qzeros.contiguous().view(torch.uint8).int() + zero_offset
        if not bool((zeros == 128).all()):
            low, high = int(zeros.min()), int(zeros.max())
            raise ContractError(
                f"{op}: qzeros: expected zero points of 128 (symmetric weights), got {low}..{high}",
                name="qzeros",
            )
    codes = _unpack(op, "qweight", qweight.t())
    return codes, scales.t().contiguous()


def int8_to_gptq(
    w_i8: Tensor, scale: Tensor, *, zero_offset: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Inverse of gptq_to_int8: `(qweight, scales, qzeros)`; N and K are multiples of 4."""
    words = _pack("int8_to_gptq", w_i8).t().contiguous()
    scales = (scale[:, None] if scale.dim() == 1 else scale).t().contiguous()
    zeros = torch.full(scales.shape, 128 - zero_offset, dtype=torch.uint8, device=scale.device)
    if zeros.shape[1] % 4:
        raise ContractError(f"int8_to_gptq: w_i8: expected N a multiple of 4, got {w_i8.shape[0]}")
    return words, scales, zeros.view(torch.int32)


def _unpack(op: str, name: str, words: Tensor) -> Tensor:
    """Words `[N, K / 4]` of codes plus 128 to int8 `[N, K]`."""
    if words.dtype != torch.int32 or words.dim() != 2:
        got = f"{words.dtype} {list(words.shape)}"
        raise ContractError(f"{op}: {name}: expected an int32 matrix, got {got}", name=name)
    return (words.contiguous().view(torch.uint8) ^ 0x80).view(torch.int8)


def _pack(op: str, w_i8: Tensor) -> Tensor:
    """Inverse of _unpack."""
    if w_i8.dtype != torch.int8 or w_i8.dim() != 2 or w_i8.shape[1] % 4:
        got = f"{w_i8.dtype} {list(w_i8.shape)}"
        message = f"{op}: w_i8: expected int8 [N, K], K a multiple of 4, got {got}"
        raise ContractError(message, name="w_i8")
    return (w_i8.contiguous().view(torch.uint8) ^ 0x80).view(torch.int32)
