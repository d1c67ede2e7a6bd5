"""Linear layers under the names and argument orders that the vLLM RDNA2 forks call.

The forks keep fp8 and MXFP4 weights K-major (`[K, N]` bytes, `[K / 8, N]` words). The kernels here
read them along K, so such a weight is turned at its first call, and the copy, as large as the
weight, is kept on the tensor until it dies or it or its scales change. A graph capture must come
after a first call. Where the forks add to a zeroed `c`, `c` is overwritten here.

Where a function does not say otherwise, activations `[M, K]`, results `[M, N]` and biases `[N]` are
fp16, and the rest is as the op of `linear` that it names has it. A wrong operand raises
ContractError, under that op's name for it where it is passed on as it is. Switches:

- VLLM_RDNA_DECODE_M16: decode takes up to 16 rows instead of 8. Without it gemv_f16_rdna2 and
  gemv_i8_rdna2 run 9..15 rows as eight and the rest, as the forks do (with the same bits).
- VLLM_RDNA_DENSE_INT8: rdna_dense_gemm uses int8 shadows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rdna_jit.config import config
from rdna_jit.dispatch import Candidate, Plan
from rdna_jit.formats import fp8_from_k_major, mxfp4_from_k_major
from rdna_jit.ops import linear
from rdna_jit.ops._contract import check_tensor, reject
from rdna_jit.ops._gemv import launch_shadow, plan_decode, plan_shadow
from rdna_jit.ops._op import public_op

__all__ = [
    "decode_rows",
    "gemm_w8a8_fp8_dense",
    "gemm_w8a16_fp8_dense",
    "gemv_f16_rdna2",
    "gemv_i8_rdna2",
    "gptq_gemm_rdna2",
    "mxfp4_gemm_rdna2",
    "rdna_dense_gemm",
    "w4a8_act_quant_rdna2",
    "w4a8_gemm_rdna2",
]

Tensor = torch.Tensor
_BYTE_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # of the forks' int8 activations, in each eight of K


def decode_rows() -> int:
    """Rows of x up to which the forks' layers call the decode kernels."""
    return 16 if config.decode_m16 else 8


def gemv_f16_rdna2(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """linear.gemv_f16."""
    return _in_eights(linear.gemv_f16, x, w, bias)


def gemv_i8_rdna2(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """linear.gemv_i8."""
    return _in_eights(linear.gemv_i8, x, w, scale, bias)


def _in_eights(op: Callable[..., Tensor], x: Tensor, w: Tensor, *rest: Tensor | None) -> Tensor:
    """Nine to fifteen rows as eight and the rest, unless VLLM_RDNA_DECODE_M16 is on."""
    matrices = all(isinstance(t, Tensor) and t.dim() == 2 for t in (x, w))  # else op says so
    split = matrices and 8 < x.shape[0] < 16 and not torch.compiler.is_compiling()
    if not split or config.decode_m16:
        return op(x, w, *rest)
    out = x.new_empty((x.shape[0], w.shape[0]))
    for part in (slice(0, 8), slice(8, None)):
        op(x[part], w, *rest, out=out[part])
    return out


def _plan_dense(
    x: Tensor, w: Tensor, w_i8: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Plan:
    op, most = "rdna_dense_gemm", decode_rows()
    off = "VLLM_RDNA_DENSE_INT8 is off"
    if config.dense_int8 or (isinstance(w, Tensor) and not w.numel()):
        return plan_shadow(op, most, x, w, w_i8, scale, bias)
    check_tensor(op, "x", x, torch.float16, (None, None))
    check_tensor(op, "w", w, torch.float16, (None, x.shape[1]), x.device)
    shadow = Candidate("gemv_i8", False, off)
    (M, K), N = x.shape, w.shape[0]
    if 0 < M <= most and K % 8 == 0 and K:
        plan = plan_decode(op, x, w, bias, None, format="f16")
        plan.candidates = (shadow, *plan.candidates)
        return plan
    return Plan(
        op, "torch.matmul", candidates=(shadow, Candidate("matmul on w", True, f"{M} rows")),
        shape={"M": M, "N": N, "K": K}, extra=(M, N),
    )  # fmt: skip


def _fake_dense(x: Tensor, w: Tensor, w_i8: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], w_i8.shape[0] or w.shape[0]))


@public_op(
    "rdna_dense_gemm(Tensor x, Tensor w, Tensor w_i8, Tensor scale, Tensor? bias=None) -> Tensor",
    plan=_plan_dense,
    fake=_fake_dense,
)
def _dense(
    plan: Plan, x: Tensor, w: Tensor, w_i8: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Rows `[M, K]`; see rdna_dense_gemm."""
    return launch_shadow(plan, x, w, w_i8, scale, bias)


def rdna_dense_gemm(
    x: Tensor, weight: Tensor, weight_i8: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """linear.dense_gemm_int8 on x `[.., K]`, up to decode_rows() rows on the shadow.

    With VLLM_RDNA_DENSE_INT8 off the fp16 `weight` is used for every number of rows, unless it was
    released (is empty).
    """
    if not isinstance(x, Tensor) or not x.dim():
        reject("rdna_dense_gemm", "x", "a tensor [.., K]", _kind(x))
    y = _dense(x.reshape(-1, x.shape[-1]), weight, weight_i8, scale, bias)  # type: ignore[call-arg]
    return y.reshape(*x.shape[:-1], y.shape[-1])


def gemm_w8a16_fp8_dense(
    a: Tensor, b_q: Tensor, b_scales: Tensor, c: Tensor, group_size: int
) -> None:
    """linear.fp8_w8a16_gemm into `c`: e4m3 bytes uint8 `[K, N]`, scales `[K / group_size, N]`, or
    with group_size 0 `[N]`, `[1, N]` or one number."""
    op = "gemm_w8a16_fp8_dense"
    w, scale, block = _fp8_rows(op, b_q, b_scales, group_size)
    linear.fp8_w8a16_gemm(a, w, scale, block=block, out=_written(op, c))


def gemm_w8a8_fp8_dense(
    a_q: Tensor,
    a_scale: Tensor,
    b_q: Tensor,
    b_scales: Tensor,
    c: Tensor,
    group_size: int,
    a_scale_K_groups: int = 1,
) -> None:
    """linear.fp8_w8a8_gemm into `c`: gemm_w8a16_fp8_dense with e4m3 bytes uint8 `[M, K]` and scales
    `[1]`, `[M]` or, with a_scale_K_groups above 1, `[M, a_scale_K_groups]`."""
    op = "gemm_w8a8_fp8_dense"
    w, scale, block = _fp8_rows(op, b_q, b_scales, group_size)
    M = _matrix(op, "a_q", a_q).shape[0]
    if not isinstance(a_scale, Tensor):
        reject(op, "a_scale", "a tensor", _kind(a_scale))
    shape = (M, a_scale_K_groups) if a_scale_K_groups > 1 else (-1,)
    if a_scale_K_groups > 1 and a_scale.numel() != M * a_scale_K_groups:
        reject(op, "a_scale", f"shape [{M}, {a_scale_K_groups}]", list(a_scale.shape))
    x_scale = a_scale.float().reshape(shape)
    linear.fp8_w8a8_gemm(a_q, x_scale, w, scale, fmt="e4m3", block=block, out=_written(op, c))


def mxfp4_gemm_rdna2(
    a: Tensor,
    c: Tensor,
    b_q_weight: Tensor,
    b_scales: Tensor,
    size_m: int,
    size_n: int,
    size_k: int,
) -> None:
    """linear.mxfp4_gemm into `c`: words int32 `[K / 8, N]` or their bytes, scales `[K / 32, N]`."""
    op = "mxfp4_gemm_rdna2"
    for name, operand in (("a", a), ("b_q_weight", b_q_weight), ("b_scales", b_scales)):
        _matrix(op, name, operand)
    w, scale = _kept(b_q_weight, b_scales, mxfp4_from_k_major)
    for name, size, got in (
        ("size_m", size_m, a.shape[0]),
        ("size_n", size_n, w.shape[0]),
        ("size_k", size_k, w.shape[1] * 2),
    ):
        if size != got:
            reject(op, name, f"{got}, as the tensors have it", size)
    linear.mxfp4_gemm(a, w, scale, out=_written(op, c))


def gptq_gemm_rdna2(
    a: Tensor,
    b_q_weight: Tensor,
    b_qzeros: Tensor,
    b_scales: Tensor,
    b_g_idx: Tensor | None,
    use_v2_format: bool,
) -> Tensor:
    """linear.gptq_gemm on shuffled words; empty `b_g_idx` are none, empty `b_qzeros` all 8.

    b_q_weight int32 `[K / 8, N]`, b_qzeros int32 `[K / G, N / 8]`, b_scales fp16 `[K / G, N]`,
    b_g_idx int32 `[K]`. `use_v2_format`: stored zeros are the zeros, not one less.
    """
    return linear.gptq_gemm(
        a, b_q_weight, _given(b_qzeros), b_scales, _given(b_g_idx),
        zero_offset=0 if use_v2_format else 1, shuffled=True,
    )  # fmt: skip


def w4a8_gemm_rdna2(
    a: Tensor,
    b_q_weight: Tensor,
    b_qzeros: Tensor,
    b_scales: Tensor,
    b_g_idx: Tensor | None,
    use_v2_format: bool,
) -> Tensor:
    """linear.w4a8_gemm with gptq_gemm_rdna2's operands; act-order is refused."""
    if _given(b_g_idx) is not None:
        reject("w4a8_gemm_rdna2", "b_g_idx", "none, or an empty tensor", list(b_g_idx.shape))  # type: ignore[union-attr]
    return linear.w4a8_gemm(  # type: ignore[call-arg]
        a, b_q_weight, _given(b_qzeros), b_scales,  # type: ignore[arg-type]
        zero_offset=0 if use_v2_format else 1, shuffled=True,
    )  # fmt: skip


def w4a8_act_quant_rdna2(
    x: Tensor, group_size: int, a_i8: Tensor, a_scale: Tensor, a_asum: Tensor
) -> Tensor:
    """linear.quantize_int8_grouped in the forks' tiles of eight rows, T = ceil(M / 8).

    Fills a_i8 int8 `[T, K / 8, 8, 8]`, the bytes of each eight of K in the order 0, 4, 1, 5, 2, 6,
    3, 7; a_scale fp32 and a_asum int32 `[T, K / G, 8]`; rows past M are 0. Returns a_i8. The gemm
    here takes x itself, so this serves tests and comparisons.
    """
    codes, scale, sums = linear.quantize_int8_grouped(x, group_size)  # type: ignore[call-arg,arg-type]
    (M, K), tiles = x.shape, -(-x.shape[0] // 8)

    def padded(t: Tensor) -> Tensor:
        return torch.nn.functional.pad(t, (0, 0, 0, tiles * 8 - M)).reshape(tiles, 8, -1)

    octets = padded(codes).reshape(tiles, 8, K // 8, 8)[..., list(_BYTE_ORDER)]
    for name, target, values in (
        ("a_i8", a_i8, octets.transpose(1, 2)),
        ("a_scale", a_scale, padded(scale).transpose(1, 2)),
        ("a_asum", a_asum, padded(sums).transpose(1, 2)),
    ):
        given = isinstance(target, Tensor) and (target.dtype, target.numel())
        if given != (values.dtype, values.numel()):
            expected = f"{values.dtype} {list(values.shape)}"
            reject("w4a8_act_quant_rdna2", name, expected, given or _kind(target))
        target.view(values.shape).copy_(values)
    return a_i8


def _given(t: Tensor | None) -> Tensor | None:
    return None if t is None or not t.numel() else t


def _kind(value: object) -> str:
    return f"{value.dim()} dimensions" if isinstance(value, Tensor) else type(value).__name__


def _matrix(op: str, name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.dim() != 2:
        reject(op, name, "a matrix", _kind(value))
    return value


def _written(op: str, c: object) -> Tensor:
    if not isinstance(c, Tensor):
        reject(op, "c", "a tensor, which the call fills", type(c).__name__)
    return c


def _fp8_rows(
    op: str, b_q: Tensor, b_scales: Tensor, group_size: int
) -> tuple[Tensor, Tensor, tuple[int, int] | None]:
    """Codes `[N, K]`, their scales and their block."""
    K, N = _matrix(op, "b_q", b_q).shape
    if not isinstance(b_scales, Tensor):
        reject(op, "b_scales", "a tensor", _kind(b_scales))
    if type(group_size) is not int:
        reject(op, "group_size", "an integer", repr(group_size))
    per_row = b_scales.numel() in (1, N)
    groups = 1 if per_row or not b_scales.dim() else b_scales.shape[0]
    if not per_row and (
        group_size <= 0 or tuple(b_scales.shape) != (groups, N) or groups * group_size != K
    ):
        expected = f"shape [K / {group_size}, {N}] for K = {K}, [{N}] or [1]"
        reject(op, "b_scales", expected, list(b_scales.shape))
    w, scale = _kept(b_q, b_scales, _turn_fp8)
    return w, scale, None if per_row else (1, group_size)


def _turn_fp8(b_q: Tensor, b_scales: Tensor) -> tuple[Tensor, Tensor]:
    per_row = b_scales.numel() in (1, b_q.shape[1])
    scale = b_scales.reshape(-1) if per_row else b_scales.t().contiguous()
    return fp8_from_k_major(b_q, "e4m3"), scale


def _kept(
    weight: Tensor, scales: Tensor, turn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """`turn(weight, scales)`, made once for this state of both tensors and kept on the weight."""
    state = [
        (t.data_ptr(), t.shape, -1 if t.is_inference() else t._version) for t in (weight, scales)
    ]
    known = getattr(weight, "_rdna_jit_rows", None)
    # Holding the scales keeps their address from another tensor.
    if known is None or known[0] is not scales or known[1] != state:
        known = (scales, state, turn(weight, scales))
        weight._rdna_jit_rows = known  # type: ignore[attr-defined]
    return known[2]  # type: ignore[no-any-return]
