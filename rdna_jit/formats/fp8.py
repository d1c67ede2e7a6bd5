"""FP8 weights as checkpoints store them: codes `[N, K]` and their scales.

e4m3 is OCP's float8_e4m3fn (largest 448, no infinity), e5m2 float8_e5m2. A weight is its code
times the scale of its tensor (shape `[]` or `[1]`), of its channel (`[N]` or `[N, 1]`), or of its
block of (bn, bk) weights (`[ceil(N / bn), ceil(K / bk)]`): always a factor, also where a checkpoint
calls it weight_scale_inv. Codes may come as uint8 with `fmt` to say which they are. The fnuz forms
of other hardware are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from rdna_jit.errors import ContractError

Tensor = torch.Tensor
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_NAMES = {"e4m3fn": "e4m3"}  # other spellings
Block = tuple[int, int]


def fp8_format(op: str, name: str, codes: object, fmt: str | None = None) -> str:
    """ "e4m3" or "e5m2", of a float8 tensor, or of uint8 codes and the `fmt` given with them."""
    if not isinstance(codes, Tensor):
        _reject(op, name, "a float8 tensor", "None" if codes is None else type(codes).__name__)
    if fmt is not None:
        fmt = _NAMES.get(fmt, fmt)
        if fmt not in DTYPES:
            _reject(op, "fmt", "'e4m3' or 'e5m2'", repr(fmt))
    if "fnuz" in str(codes.dtype):
        hint = "the fnuz forms have another bias and one NaN; convert the values to float8_e4m3fn"
        _reject(op, name, "OCP float8", f"{codes.dtype} ({hint})")
    own = next((key for key, dtype in DTYPES.items() if dtype == codes.dtype), None)
    if own is None and codes.dtype != torch.uint8:
        _reject(op, name, "float8_e4m3fn, float8_e5m2 or uint8 codes", codes.dtype)
    if own is None and fmt is None:
        _reject(op, "fmt", f"'e4m3' or 'e5m2' beside a uint8 {name}", "None")
    if own is not None and fmt not in (None, own):
        _reject(op, "fmt", f"{own!r}, which {name} is", repr(fmt))
    return own or str(fmt)


def check_fp8(w: Tensor, fmt: str | None = None) -> str:
    """The format of `w`. ContractError for fnuz tensors and codes of NaN or infinity.

    Kernels decode the NaN codes of e4m3 as +-480 unless they are told to keep them, so weights are
    checked once, when they are loaded. Reads the tensor's content.
    """
    found = fp8_format("check_fp8", "w", w, fmt)
    magnitudes = w.view(torch.uint8) & 0x7F
    bad = magnitudes == 0x7F if found == "e4m3" else magnitudes >= 0x7C
    count = int(bad.sum())
    if count:
        _reject("check_fp8", "w", "finite codes", f"{count} of {w.numel()} that are not")
    return found


def encode_fp8(x: Tensor, fmt: str = "e4m3") -> Tensor:
    """The nearest code (ties to even) of fp32, fp16 or bf16 numbers, in torch's float8 type.

    Saturates at 448 or 57344, infinities too; NaN stays NaN and zeros keep their sign.
    """
    if fmt not in DTYPES:
        _reject("encode_fp8", "fmt", "'e4m3' or 'e5m2'", repr(fmt))
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        _reject("encode_fp8", "x", "fp32, fp16 or bf16 numbers", x.dtype)
    return x.float().clamp(-LARGEST[fmt], LARGEST[fmt]).to(DTYPES[fmt])


def encode_e4m3(x: Tensor) -> Tensor:
    """encode_fp8 to float8_e4m3fn."""
    return encode_fp8(x, "e4m3")


def decode_fp8(codes: Tensor, fmt: str | None = None, dtype: torch.dtype = torch.float16) -> Tensor:
    """The numbers of codes, exact in fp16 and wider; NaN codes give NaN."""
    return codes.view(DTYPES[fp8_format("decode_fp8", "codes", codes, fmt)]).to(dtype)


@dataclass(frozen=True)
class ScaleLayout:
    """Which scale a weight has: that of row n // rows and column k // group (0: of column 0)."""

    rows: int
    group: int
    stride: int  # elements from a row of scales to the next


def scale_layout(
    op: str, name: str, scale: object, N: int, K: int, block: Block | None = None
) -> ScaleLayout:
    """The layout that the shape of `scale`, and `block`, mean for codes `[N, K]`."""
    if not isinstance(scale, Tensor):
        _reject(op, name, "a tensor", "None" if scale is None else type(scale).__name__)
    if scale.dtype not in (torch.float32, torch.float16):
        _reject(op, name, "fp32 or fp16 scales", scale.dtype)
    shape = tuple(scale.shape)
    if block is None:
        if scale.numel() == 1 and scale.dim() <= 2:
            return ScaleLayout(max(N, 1), 0, 1)
        if shape in ((N,), (N, 1)):
            return ScaleLayout(1, 0, scale.stride(0))
        hint = "pass block=(bn, bk) for a scale per block" if scale.dim() == 2 else ""
        _reject(op, name, f"shape [1], [{N}] or [{N}, 1]", _listed(shape), hint)
    bn, bk = check_block(op, block)
    rows, columns = -(-N // bn), -(-K // bk)
    if shape != (rows, columns):
        hint = "leave block out for a scale per tensor or channel" if scale.dim() < 2 else ""
        expected = f"shape [{rows}, {columns}], as blocks of {(bn, bk)} in [{N}, {K}]"
        _reject(op, name, expected, _listed(shape), hint)
    if columns > 1 and scale.stride(1) != 1:
        _reject(op, name, "a contiguous last dimension", f"strides {scale.stride()}")
    stride = scale.stride(0) if rows > 1 else columns
    return ScaleLayout(min(bn, max(N, 1)), bk if columns > 1 else 0, stride)


def check_block(op: str, block: object) -> Block:
    """A pair of positive ints."""
    pair = tuple(block) if isinstance(block, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(size) is int and size > 0 for size in pair):
        _reject(op, "block", "two positive integers (rows, columns)", repr(block))
    return pair


def quantize_fp8(
    w: Tensor, fmt: str = "e4m3", scale: str | Block = "channel"
) -> tuple[Tensor, Tensor]:
    """Codes float8 `[N, K]` and fp32 scales of a float matrix `w` `[N, K]`.

    `scale`: "tensor" (`[1]`), "channel" (`[N]`) or a block (bn, bk) (`[ceil(N / bn), ceil(K /
    bk)]`). A scale is the largest |w| it covers over the format's largest number, 1 where all are
    zero. ContractError naming the argument, also for weights that are not finite.
    """
    op = "quantize_fp8"
    if fmt not in DTYPES:
        _reject(op, "fmt", "'e4m3' or 'e5m2'", repr(fmt))
    if w.dim() != 2 or not w.is_floating_point():
        _reject(op, "w", "a float matrix [N, K]", f"{w.dtype} {_listed(tuple(w.shape))}")
    N, K = w.shape
    if isinstance(scale, str):
        if scale not in ("tensor", "channel"):
            _reject(op, "scale", "'tensor', 'channel' or a block (rows, columns)", repr(scale))
        block = (max(N, 1) if scale == "tensor" else 1, max(K, 1))
    else:
        block = check_block(op, scale)
    bn, bk = block
    rows, columns = -(-N // bn), -(-K // bk)
    padded = torch.zeros(rows * bn, columns * bk, device=w.device)
    padded[:N, :K] = w
    largest = padded.abs().reshape(rows, bn, columns, bk).amax((1, 3))
    if not bool(largest.isfinite().all()):
        _reject(op, "w", "finite weights", float(largest.max()))
    step = (largest / LARGEST[fmt]).clamp(min=2.0**-126)
    step = torch.where(largest > 0, step, 1.0)
    codes = encode_fp8(w.float() / _spread(step, (N, K), block), fmt)
    return codes, step if not isinstance(scale, str) else step.flatten()


def dequantize_fp8(
    w: Tensor,
    scale: Tensor,
    block: Block | None = None,
    *,
    fmt: str | None = None,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """Code times scale as `dtype` `[N, K]`, rounded once; scales as at the head of this module."""
    op = "dequantize_fp8"
    codes = decode_fp8(w, fp8_format(op, "w", w, fmt), torch.float64)
    if codes.dim() != 2:
        _reject(op, "w", "codes [N, K]", _listed(tuple(w.shape)))
    N, K = codes.shape
    scale_layout(op, "scale", scale, N, K, block)
    wide = scale.double()
    factor = wide.reshape(-1, 1) if block is None else _spread(wide, (N, K), block)
    return (codes * factor).to(dtype)


def expand_block_scales(scale: Tensor, block: Block, N: int) -> Tensor:
    """Block scales `[ceil(N / bn), ceil(K / bk)]` to a row per K block, `[ceil(K / bk), N]`: the
    form of kernels that keep weights K-major."""
    bn, _ = check_block("expand_block_scales", block)
    if scale.dim() != 2 or scale.shape[0] != -(-N // bn):
        expected = f"{-(-N // bn)} rows for N = {N}"
        _reject("expand_block_scales", "scale", expected, _listed(tuple(scale.shape)))
    return scale.repeat_interleave(bn, 0)[:N].t().contiguous()


def collapse_block_scales(expanded: Tensor, block: Block) -> Tensor:
    """Inverse of expand_block_scales. ContractError where columns of a block differ."""
    bn, _ = check_block("collapse_block_scales", block)
    scale = expanded[:, ::bn].t().contiguous()
    if not torch.equal(expand_block_scales(scale, block, expanded.shape[1]), expanded):
        _reject("collapse_block_scales", "expanded", f"{bn} equal columns per block", "others")
    return scale


def fp8_to_k_major(w: Tensor) -> Tensor:
    """Codes `[N, K]` to bytes uint8 `[K, N]`, as the forks' kernels take them."""
    return w.view(torch.uint8).t().contiguous()


def fp8_from_k_major(w: Tensor, fmt: str) -> Tensor:
    """Inverse of fp8_to_k_major."""
    fp8_format("fp8_from_k_major", "w", w, fmt)
    return w.view(torch.uint8).t().contiguous().view(DTYPES[_NAMES.get(fmt, fmt)])


def _spread(scale: Tensor, shape: tuple[int, int], block: Block) -> Tensor:
    """One scale per weight."""
    (N, K), (bn, bk) = shape, block
    return scale.repeat_interleave(bn, 0)[:N].repeat_interleave(bk, 1)[:, :K]


def _listed(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _reject(op: str, name: str, expected: object, got: object, hint: str = "") -> NoReturn:
    message = f"{op}: {name}: expected {expected}, got {got}" + (f"; {hint}" if hint else "")
    raise ContractError(message, name=name, expected=expected, got=got)
