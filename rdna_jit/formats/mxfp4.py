"""MXFP4 weights: e2m1 codes, 32 neighbours along K under one power of two.

Codes uint8 `[N, K / 2]`, the low nibble for even k: bit 3 is the sign, bits 0..2 choose 0, 0.5, 1,
1.5, 2, 3, 4 or 6. Scales uint8 or float8_e8m0fnu `[N, K / 32]`: byte b is 2^(b - 127), 255 is NaN.
Kernels of the forks keep words int32 `[K / 8, N]` (code k in bits 4 * (k % 8)) and scales `[K / 32,
N]`: mxfp4_to_k_major and back. The bytes of those words are `[K / 8, 4 N]`; transposed checkpoint
bytes, `[K / 2, N]`, are something else and refused.
"""

from __future__ import annotations

from typing import Literal, NoReturn

import torch

from rdna_jit.errors import ContractError

Tensor = torch.Tensor
BLOCK = 32  # weights along K under one scale
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NAN = 255
_E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)


def scale_bytes(op: str, name: str, scale: object) -> Tensor:
    """Scales as uint8; ContractError for another type."""
    if not isinstance(scale, Tensor):
        _reject(op, name, "a tensor", "None" if scale is None else type(scale).__name__)
    if scale.dtype not in (torch.uint8, _E8M0):
        _reject(op, name, "e8m0 scales (uint8 or float8_e8m0fnu)", scale.dtype)
    return scale.view(torch.uint8)


def check_mxfp4(w: Tensor, scale: Tensor) -> None:
    """ContractError unless codes and scales fit each other and no scale is NaN (byte 255).

    Reads the scales' content: once, when weights are loaded.
    """
    op = "check_mxfp4"
    _check(op, w, scale)
    count = int((scale_bytes(op, "scale", scale) == _NAN).sum())
    if count:
        _reject(op, "scale", "bytes 0..254", f"{count} of 255, which is NaN")


def encode_e2m1(x: Tensor) -> Tensor:
    """The nearest code (ties to even) of each number, uint8 0..15; saturates at 6."""
    size = x.abs()
    # Between two values the middle goes to the even code: below it for codes 0, 2, 4, 6.
    code = (size > 0.25).to(torch.uint8)
    for limit, even_above in ((0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        code += (size >= limit) if even_above else (size > limit)
    return torch.where(x.signbit(), code | 8, code)


def decode_e2m1(codes: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """The numbers of codes 0..15."""
    table = torch.tensor([*VALUES, *(-v for v in VALUES)], dtype=dtype, device=codes.device)
    return table[codes.long()]


def decode_e8m0(scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """2^(b - 127) of scale bytes; 255 gives NaN."""
    b = scale_bytes("decode_e8m0", "scale", scale)
    value = torch.ldexp(torch.ones(b.shape, dtype=torch.float64, device=b.device), b.int() - 127)
    return torch.where(b == _NAN, torch.nan, value).to(dtype)


def quantize_mxfp4(w: Tensor, *, rule: Literal["floor", "ceil"] = "floor") -> tuple[Tensor, Tensor]:
    """Codes uint8 `[N, K / 2]` and scales uint8 `[N, K / 32]` of a float matrix, K in blocks of 32.

    `rule` chooses the shared exponent of a block whose largest magnitude is m: "floor" is OCP's
    floor(log2(m)) - 2, where numbers above 6 times the scale saturate; "ceil" is ceil(log2(m / 6)),
    where none does. Codes are the nearest, ties to even. ContractError naming the argument, also
    for weights that are not finite.
    """
    op = "quantize_mxfp4"
    if rule not in ("floor", "ceil"):
        _reject(op, "rule", "'floor' or 'ceil'", repr(rule))
    if w.dim() != 2 or not w.is_floating_point():
        _reject(op, "w", "a float matrix [N, K]", f"{w.dtype} {list(w.shape)}")
    N, K = w.shape
    if K % BLOCK:
        _reject(op, "w", f"K a multiple of {BLOCK}", f"K = {K}")
    blocks = w.double().reshape(N, K // BLOCK, BLOCK)
    largest = blocks.abs().amax(-1)
    if not bool(largest.isfinite().all()):
        _reject(op, "w", "finite weights", float(largest.max()))
    # frexp is exact: largest = fraction * 2^exponent with fraction in [0.5, 1).
    fraction, exponent = torch.frexp(largest)
    shared = exponent - 3 if rule == "floor" else exponent - 3 + (fraction > 0.75)
    stored = torch.where(largest > 0, shared, 0).clamp(-127, 127)
    codes = encode_e2m1(torch.ldexp(blocks, -stored[..., None]))
    codes = codes.reshape(N, K)
    return codes[:, 0::2] | codes[:, 1::2] << 4, (stored + 127).to(torch.uint8)


def dequantize_mxfp4(w: Tensor, scale: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """`e2m1 * 2^(b - 127)` as `dtype` `[N, K]`, rounded once."""
    N, K = _check("dequantize_mxfp4", w, scale)
    w = w.view(torch.uint8)
    codes = torch.stack((w & 15, w >> 4), dim=-1).reshape(N, K // BLOCK, BLOCK)
    values = decode_e2m1(codes, torch.float64) * decode_e8m0(scale, torch.float64)[..., None]
    return values.reshape(N, K).to(dtype)


def mxfp4_to_k_major(w: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Checkpoint codes and scales to words int32 `[K / 8, N]` and scales uint8 `[K / 32, N]`."""
    _check("mxfp4_to_k_major", w, scale)
    words = w.contiguous().view(torch.int32).t().contiguous()
    return words, scale.view(torch.uint8).t().contiguous()


def mxfp4_from_k_major(words: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse of mxfp4_to_k_major: uint8 `[N, K / 2]` and `[N, K / 32]`.

    `words` is int32 `[K / 8, N]`, or its bytes `[K / 8, 4 N]`.
    """
    op = "mxfp4_from_k_major"
    stored = scale_bytes(op, "scale", scale)
    if stored.dim() != 2 or words.dim() != 2:
        _reject(op, "words", "matrices [K / 8, N] and [K / 32, N]", f"{words.dim()} dimensions")
    rows, N = stored.shape[0] * (BLOCK // 8), stored.shape[1]
    if words.dtype in (torch.uint8, torch.int8):
        if tuple(words.shape) != (rows, 4 * N):
            hint = ""
            if tuple(words.shape) == (4 * rows, N):
                hint = "these are checkpoint bytes transposed: transpose their int32 view instead"
            expected = f"the bytes [{rows}, {4 * N}] of words [K / 8, N]"
            _reject(op, "words", expected, list(words.shape), hint)
        words = words.contiguous().view(torch.int32)
    if words.dtype not in (torch.int32, getattr(torch, "uint32", torch.int32)):
        _reject(op, "words", "int32 words or their bytes", words.dtype)
    if tuple(words.shape) != (rows, N):
        _reject(op, "words", f"shape [{rows}, {N}], as scale", list(words.shape))
    codes = words.view(torch.int32).t().contiguous().view(torch.uint8)
    return codes, stored.t().contiguous()


def _check(op: str, w: object, scale: object) -> tuple[int, int]:
    """N and K of checkpoint codes and scales."""
    if not isinstance(w, Tensor) or w.dtype not in (torch.uint8, torch.int8) or w.dim() != 2:
        got = f"{w.dtype} {list(w.shape)}" if isinstance(w, Tensor) else type(w).__name__
        _reject(op, "w", "codes uint8 [N, K / 2]", got)
    N, K = w.shape[0], w.shape[1] * 2
    if K % BLOCK:
        _reject(op, "w", f"K a multiple of {BLOCK}", f"K = {K}")
    stored = scale_bytes(op, "scale", scale)
    if tuple(stored.shape) != (N, K // BLOCK):
        expected = f"shape [{N}, {K // BLOCK}]"
        hint = ""
        if tuple(stored.shape) == (K // BLOCK, N):
            hint = "scales [K / 32, N] belong to K-major words: mxfp4_from_k_major"
        _reject(op, "scale", expected, list(stored.shape), hint)
    return N, K


def _reject(op: str, name: str, expected: object, got: object, hint: str = "") -> NoReturn:
    message = f"{op}: {name}: expected {expected}, got {got}" + (f"; {hint}" if hint else "")
    raise ContractError(message, name=name, expected=expected, got=got)
