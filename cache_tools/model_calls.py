"""A model's shapes as op calls, in the notation of `warm --calls`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rdna_jit.errors import ContractError
from rdna_jit.models import Experts, Layer, Model
from rdna_jit.ops._moe_tile import TILE_ROWS


def calls(model: Model, split: str | None, rows: Sequence[int]) -> list[str]:
    """Every call of a rank, for each split of the model or the named one, at each row count.

    Layers of formats that no op serves are left out. ContractError when the split is unknown or
    nothing is left.
    """
    names = {f"TP{tp}" for tp in model.dense} | set(model.experts.splits if model.experts else ())
    if split is not None and split not in names:
        raise ContractError(f"{model.name} has no split {split}; there are {', '.join(names)}")
    made: list[str] = []
    for tp, layers in model.dense.items():
        if split in (None, f"TP{tp}"):
            made += [c for layer in layers for c in _dense(layer, model.group, rows)]
    if model.experts is not None:
        for name, (experts, intermediate) in model.experts.splits.items():
            if split in (None, name):
                made += _experts(model.experts, experts, intermediate, rows)
    if not made:
        raise ContractError(f"no op serves the formats of {model.name} {split or ''} yet")
    return list(dict.fromkeys(made))


def _dense(layer: Layer, group: int, rows: Sequence[int]) -> Iterator[str]:
    N, K, groups = layer.N, layer.K, layer.K // group
    if layer.format == "fp16":
        yield from (f"linear.gemv_f16(f16[{M},{K}], f16[{N},{K}])" for M in rows if M <= 32)
        yield from (f"linear.f16_gemm(f16[{M},{K}], f16[{N},{K}])" for M in rows if M > 16)
    if layer.format == "int8":
        codes = f"i8[{N},{K}], f16[{N}]"
        yield from (f"linear.gemv_i8(f16[{M},{K}], {codes})" for M in rows if M <= 16)
        yield from (f"linear.int8_gemm(f16[{M},{K}], {codes})" for M in rows if M > 16)
    if layer.format == "fp8":
        codes = f"u8[{N},{K}], f32[{-(-N // 128)},{-(-K // 128)}], fmt='e4m3', block=(128, 128)"
        yield from (f"linear.fp8_w8a16_gemm(f16[{M},{K}], {codes})" for M in rows)
    if layer.format != "int4":
        return
    for M in rows:
        for zeros in ("None", f"i32[{groups},{N // 8}]"):
            yield (
                f"linear.gptq_gemm(f16[{M},{K}], i32[{K // 8},{N}], {zeros}, f16[{groups},{N}], "
                "zero_offset=0, shuffled=True)"
            )


def _experts(shape: Experts, experts: int, intermediate: int, rows: Sequence[int]) -> Iterator[str]:
    H, I, G, T, E = shape.hidden, intermediate, shape.group, shape.top_k, shape.experts  # noqa: E741
    mapped = f", expert_map=i32[{E}]" if experts != E else ""
    stored = _STORED.get(shape.format)
    for M in rows:
        yield f"moe.topk_router(f16[{M},{E}], {T})"
        yield from (f"moe.moe_align_block_size(i32[{M},{T}], {n}, {E}{mapped})" for n in TILE_ROWS)
        if stored is None:
            continue
        name, dtype, per_byte, scale = stored
        weights = ", ".join(
            f"{dtype}[{experts},{N},{K // per_byte}], "
            + (f"{scale}[{experts},{N},{K // G}]" if scale else "None")
            for N, K in ((2 * I, H), (H, I))
        )
        group = f", group_size={G}" if name in ("int4", "i8") else ""
        routing = f"f32[{M},{T}], i32[{M},{T}]"
        op, form = (
            ("moe_int4_decode", "") if name == "int4" else ("moe_decode", f', format="{name}"')
        )
        for residual in ("", f", residual=f16[{M},{H}]"):
            end = f"{mapped}{residual})"
            yield f"moe.{op}(f16[{M},{H}], {weights}, {routing}{form}{group}{end}"
            held = f'formats.MoEWeights("{name}", {weights}{group})'
            yield f"moe.fused_moe(f16[{M},{H}], {held}, {routing}{end}"


# A model's word for a format: that of MoEWeights, dtype, weights per element, dtype of scales. Not
# fp8, whose scales serve a tensor, a row or a block.
_STORED = {
    "int4": ("int4", "u8", 2, "f16"),
    "int8": ("i8", "i8", 1, "f16"),
    "mxfp4": ("mxfp4", "u8", 2, "u8"),
    "fp16": ("f16", "f16", 1, ""),
}
