"""What `python -m rdna_jit check` runs, per op family: random weights at a model's shapes.

Weights of one layer are made once and shared by its cases. Dense layers are cut to `MOST_COLUMNS`
outputs and experts to `MOST_EXPERTS`: columns and experts are independent, and a check that takes
minutes is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from rdna_jit import formats, reference, synthetic
from rdna_jit.check import Case
from rdna_jit.device import device
from rdna_jit.models import Layer, Model
from rdna_jit.ops import linear, moe
from rdna_jit.ops._w4a8 import TILE as W4A8

ROWS = (1, 4, 8, 16)
LAYER_ROWS = (2, 40)
MANY_ROWS = 40  # for ops that go on above the decode kernels' limits
_MANY = (40,)
_ANY_ROWS = ("f16_gemm", "int8_gemm")  # which go on above the decode kernels' limits
MOST_COLUMNS = 2048
MOST_EXPERTS = 16


def linear_int4(model: Model, on: torch.device) -> Iterator[Case]:
    """`gptq_gemm`, `w4a16_gemv`, `awq_gemm` and `w4a8_gemm` on the model's int4 layers."""
    seen: set[tuple[int, int]] = set()
    for tp in sorted(model.dense, reverse=True):
        for layer in model.dense[tp]:
            shape = (min(layer.N, MOST_COLUMNS), layer.K)
            if layer.format == "int4" and layer.K % model.group == 0 and shape not in seen:
                seen.add(shape)
                yield from _int4_layer(layer, *shape, model.group, on)


def _int4_layer(layer: Layer, N: int, K: int, group: int, on: torch.device) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(N * 31 + K)
    x = torch.randn(max(ROWS), K, generator=generator).half().to(on)
    qweight = _words((K // 8, N), generator).to(on)
    qzeros = _words((K // group, N // 8), generator).to(on)
    scales = (0.005 + 0.01 * torch.rand(K // group, N, generator=generator)).half().to(on)
    zero_bytes = formats.unpack_int4(qzeros, dim=1).to(torch.uint8)
    exact: dict[str, Tensor] = {}

    def exact_weights() -> Tensor:
        if not exact:  # made at the first use, kept for the layer's other cases
            exact["w"] = formats.dequantize_w4(
                qweight, qzeros, scales, zero_offset=0, shuffled=False, dtype=torch.float64
            ).cpu()
        return exact["w"]

    def truth(rows: int) -> Tensor:
        return reference.linear(x[:rows].cpu(), exact_weights())

    def gemm(rows: int) -> Tensor:
        return linear.gptq_gemm(x[:rows], qweight, qzeros, scales, zero_offset=0, shuffled=False)

    size = f"N={N} K={K} G={group}"
    for rows in ROWS:
        shape = f"{layer.name} M={rows} {size}"
        yield Case("gptq_gemm", shape, partial(gemm, rows), partial(truth, rows))
    yield Case(
        "w4a16_gemv",
        f"{layer.name} M=1 {size}",
        lambda: linear.w4a16_gemv(x[:1], qweight, scales, zero_bytes, group_size=group),
        partial(truth, 1),
    )
    awq = formats.gptq_to_awq(qweight, qzeros)
    yield Case(
        "awq_gemm",
        f"{layer.name} M=4 {size}",
        lambda: linear.awq_gemm(x[:4], *awq, scales),
        partial(truth, 4),
    )
    if not W4A8.missing(device().arch):
        most = max(ROWS)
        yield Case(
            "w4a8_gemm",
            f"{layer.name} M={most} {size}",
            lambda: linear.w4a8_gemm(x, qweight, qzeros, scales, zero_offset=0, shuffled=False),
            lambda: reference.linear(_rounded(x.cpu(), group), exact_weights()),
        )


def _rounded(x: Tensor, group: int) -> Tensor:
    """x as int8 codes times one scale per row and group, float64."""
    values = x.float().unflatten(1, (-1, group))
    absmax = values.abs().amax(2, keepdim=True)
    codes = (values * torch.where(absmax > 0, 127 / absmax, 0)).round()
    return (codes.double() * (absmax / 127).double()).flatten(1)


def _words(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Words of uniform int4 codes."""
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)


def linear_rows(model: Model, on: torch.device) -> Iterator[Case]:
    """The ops on weights along K, on the model's fp16, int8 and fp8 layers."""
    seen: set[tuple[int, int, str]] = set()
    for tp in sorted(model.dense, reverse=True):
        for layer in model.dense[tp]:
            N, K = min(layer.N, MOST_COLUMNS), layer.K
            if layer.format in ("fp16", "int8", "fp8") and (N, K, layer.format) not in seen:
                seen.add((N, K, layer.format))
                generator = torch.Generator().manual_seed(N * 31 + K)
                x = torch.randn(max(_MANY), K, generator=generator).half().to(on)
                w = (0.05 * torch.randn(N, K, generator=generator)).half().to(on)
                for op, call, exact_x, exact_w in _rows_ops(layer.format, x, w):
                    for rows in _MANY if op in _ANY_ROWS else ROWS:
                        size = f"{layer.name} M={rows} N={N} K={K}"
                        truth = partial(_rows_truth, exact_x, exact_w, rows)
                        yield Case(op, size, partial(call, rows), truth)


def _rows_truth(x: Tensor, w: Tensor, rows: int) -> Tensor:
    return reference.linear(x[:rows].cpu(), w.cpu().T)


def _rows_ops(
    format: str, x: Tensor, w: Tensor
) -> Iterator[tuple[str, Callable[[int], Tensor], Tensor, Tensor]]:
    """Name, call on some rows of x, and what x and w exactly are, of each op for a format."""
    wide = torch.float64
    if format == "fp16":
        yield "gemv_f16", lambda rows: linear.gemv_f16(x[:rows], w), x, w
        yield "f16_gemm", lambda rows: linear.f16_gemm(x[:rows], w), x, w
    if format == "int8":
        codes, scale = formats.make_int8_shadow(w)
        exact = formats.dequantize_i8(codes, scale, dtype=wide)
        yield "gemv_i8", lambda rows: linear.gemv_i8(x[:rows], codes, scale), x, exact
        yield "int8_gemm", lambda rows: linear.int8_gemm(x[:rows], codes, scale), x, exact
    if format != "fp8":
        return
    block = (128, 128)
    codes, scale = formats.quantize_fp8(w, "e4m3", block)
    exact = formats.dequantize_fp8(codes, scale, block, dtype=wide)
    x_codes, x_scale = formats.quantize_fp8(x, "e4m3", (1, block[1]))
    exact_x = formats.dequantize_fp8(x_codes, x_scale, (1, block[1]), dtype=wide)

    def w8a16(rows: int) -> Tensor:
        return linear.fp8_w8a16_gemm(x[:rows], codes, scale, block=block)

    def w8a8(rows: int) -> Tensor:
        return linear.fp8_w8a8_gemm(x_codes[:rows], x_scale[:rows], codes, scale, block=block)

    yield "fp8_w8a16_gemm", w8a16, x, exact
    yield "fp8_w8a8_gemm", w8a8, exact_x, exact
    e2m1, e8m0 = formats.quantize_mxfp4(w)
    exact_e2m1 = formats.dequantize_mxfp4(e2m1, e8m0, wide)
    yield "mxfp4_gemm", lambda rows: linear.mxfp4_gemm(x[:rows], e2m1, e8m0), x, exact_e2m1


def moe_decode(model: Model, on: torch.device) -> Iterator[Case]:
    """`moe_int4_decode`, or `moe_decode` in MXFP4, with the model's experts, per way to split them
    over ranks."""
    shape = model.experts
    if shape is None or shape.format not in ("int4", "mxfp4"):
        return
    op = "moe_decode" if shape.format == "mxfp4" else "moe_int4_decode"
    for split, (experts, intermediate) in shape.splits.items():
        if intermediate % shape.group:
            continue
        ranks = shape.experts // experts
        for rows in ROWS:
            layer = synthetic.moe_layer(
                shape, intermediate, rows, local=min(experts, MOST_EXPERTS), ranks=ranks, on=on
            )
            size = f"H={shape.hidden} I={intermediate} G={shape.group}"
            yield Case(op, f"{split} M={rows} {size}", layer.run, layer.truth)


def moe_layer(model: Model, on: torch.device) -> Iterator[Case]:
    """`fused_moe` with the model's experts, for a decode batch and for one that runs on tiles."""
    shape = model.experts
    if shape is None or shape.format not in ("int4", "mxfp4"):
        return
    split, (experts, intermediate) = next(iter(shape.splits.items()))
    for rows in LAYER_ROWS:
        layer = synthetic.moe_layer(
            shape, intermediate, rows, local=MOST_EXPERTS // 2, ranks=shape.experts // experts,
            on=on,
        )  # fmt: skip
        weights = formats.MoEWeights(
            layer.format, layer.w1, layer.w1_scale, layer.w2, layer.w2_scale,
            group_size=shape.group if layer.format == "int4" else -1,
        )  # fmt: skip
        run = partial(
            moe.fused_moe, layer.x, weights, layer.topk_weights, layer.topk_ids,
            expert_map=layer.expert_map,
        )  # fmt: skip
        size = f"{split} M={rows} H={shape.hidden} I={intermediate}"
        yield Case("fused_moe", size, run, layer.truth)


def moe_routing(model: Model, on: torch.device) -> Iterator[Case]:
    """`topk_router`, as weights per expert, and `moe_align_block_size` of what it chose."""
    shape = model.experts
    if shape is None:
        return
    E, T, block = shape.experts, shape.top_k, 16
    for rows in ROWS:
        generator = torch.Generator().manual_seed(E * 31 + rows)
        logits = torch.randn(rows, E, generator=generator).to(on)

        def weights(logits: Tensor = logits) -> Tensor:
            chosen, ids = moe.topk_router(logits, T)
            return torch.zeros_like(logits).scatter_(1, ids.long(), chosen)

        def scores(logits: Tensor = logits) -> Tensor:
            exact = torch.softmax(logits.double().cpu(), 1)
            best = exact.topk(T)
            kept = best.values / best.values.sum(1, keepdim=True)
            return torch.zeros_like(exact).scatter_(1, best.indices, kept)

        yield Case("topk_router", f"M={rows} E={E} T={T}", weights, scores, 1e-5, 1e-5)
        ids = torch.randint(0, E, (rows, T), generator=generator)

        def slots(ids: Tensor = ids) -> Tensor:
            return moe.moe_align_block_size(ids.to(on), block, E)[0]

        def sort(ids: Tensor = ids) -> Tensor:
            runs = [(ids.flatten() == e).nonzero().flatten() for e in ids.unique()]
            full = [torch.full((-(-len(run) // block) * block,), ids.numel()) for run in runs]
            for padded, run in zip(full, runs, strict=True):
                padded[: len(run)] = run
            capacity = min(ids.numel() * block, ids.numel() + E * (block - 1))
            rest = torch.full((capacity - sum(map(len, full)),), ids.numel())
            return torch.cat([*full, rest]).double()

        yield Case("moe_align", f"M={rows} E={E} T={T} block={block}", slots, sort, 0.0, 0.0)


FAMILIES: tuple[Callable[[Model, torch.device], Iterator[Case]], ...] = (
    linear_int4,
    linear_rows,
    moe_decode,
    moe_layer,
    moe_routing,
)
