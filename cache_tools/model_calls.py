"""A model's shapes as op calls, in the notation of `warm --calls`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rdna_jit.errors import ContractError
from rdna_jit.models import Experts, Layer, Model


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
    if layer.format == "int8":
        yield from (f"linear.gemv_i8(f16[{M},{K}], i8[{N},{K}], f16[{N}])" for M in rows if M <= 16)
    if layer.format != "int4":
        return
    for M in rows:
        for zeros in ("None", f"i32[{groups},{N // 8}]"):
            yield (
                f"linear.gptq_gemm(f16[{M},{K}], i32[{K // 8},{N}], {zeros}, f16[{groups},{N}], "
                "zero_offset=0, shuffled=True)"
            )


def _experts(shape: Experts, experts: int, intermediate: int, rows: Sequence[int]) -> Iterator[str]:
    if shape.format != "int4":
        return
    H, I, G, E, T = shape.hidden, intermediate, shape.group, experts, shape.top_k  # noqa: E741
    mapped = f", expert_map=i32[{shape.experts}]" if experts != shape.experts else ""
    for M, residual in itertools.product(rows, ("", f", residual=f16[{{M}},{H}]")):
        yield (
            f"moe.moe_int4_decode(f16[{M},{H}], u8[{E},{2 * I},{H // 2}], "
            f"f16[{E},{2 * I},{H // G}], u8[{E},{H},{I // 2}], f16[{E},{H},{I // G}], "
            f"f32[{M},{T}], i32[{M},{T}], group_size={G}{mapped}{residual.format(M=M)})"
        )
