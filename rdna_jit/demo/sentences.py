"""The encoder's part of the demo: quantised linear layers on real sentences."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from rdna_jit.demo import minilm
from rdna_jit.dispatch import dispatch_log
from rdna_jit.layers import QuantizedLinear

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing the violin.",
    "Two men pushed carts through the woods.",
    "A monkey is playing drums.",
    "A cheetah is running behind its prey.",
]
QUERY = "Someone in a gorilla costume is playing a set of drums."
# What --format names: how the layers are quantised, by the label of its results.
FORMATS: dict[str, dict[str, dict[str, Any]]] = {
    "gptq": {
        "int4-g32": {"format": "int4", "group_size": 32},
        "int4-g128": {"format": "int4", "group_size": 128},
    },
    "awq": {"awq-g128": {"format": "awq", "group_size": 128}},
    "int8": {"int8": {"format": "int8"}},
    "fp8": {"fp8": {"format": "fp8"}},
    "mxfp4": {"mxfp4": {"format": "mxfp4"}},
    "f16": {"f16": {"format": "f16"}},
}
# Rounding activations to fp16 is all that separates our layers from torch on the same weights.
LEAST_COSINE = 0.9999


@dataclass
class Result:
    """What one quantisation of the encoder gave; cosines are per sentence, the least of them."""

    cos_fp32_min: float
    cos_dequantised_min: float
    seconds: float
    kernels: Mapping[str, Counter] = field(default_factory=dict)  # layer shape -> kernel counts
    similarity: Tensor = field(default_factory=lambda: torch.empty(0))  # query to each sentence

    @property
    def ok(self) -> bool:
        return self.cos_dequantised_min >= LEAST_COSINE


@dataclass
class Report:
    """Results per format, beside fp32."""

    results: Mapping[str, Result]
    fp32_similarity: Tensor

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results.values())

    def to_dict(self) -> dict:
        return {
            name: {
                "cos_fp32_min": round(result.cos_fp32_min, 6),
                "cos_dequantised_min": round(result.cos_dequantised_min, 6),
                "seconds": round(result.seconds, 2),
            }
            for name, result in self.results.items()
        }

    def table(self) -> str:
        """Kernels per layer shape, cosines per format, and the ranking of the sentences."""
        lines = ["MiniLM-L6, quantised linear layers on our kernels"]
        for name, result in self.results.items():
            lines.append(f"  {name}")
            for shape, kernels in result.kernels.items():
                used = ", ".join(f"{kernel} x{count}" for kernel, count in kernels.items())
                lines.append(f"    {shape:<14}{used}")
        lines.append(f"  {'':<12}{'vs fp32':>10}{'vs same weights':>17}{'seconds':>9}")
        lines += [
            f"  {name:<12}{r.cos_fp32_min:>10.4f}{r.cos_dequantised_min:>17.6f}{r.seconds:>9.1f}"
            for name, r in self.results.items()
        ]
        lines.append(f'  ranking for "{QUERY}"')
        lines.append("  " + "".join(f"{name:>12}" for name in ("fp32", *self.results)))
        for i in self.fp32_similarity.argsort(descending=True).tolist():
            columns = [self.fp32_similarity, *(r.similarity for r in self.results.values())]
            lines.append("  " + "".join(f"{c[i]:>12.4f}" for c in columns) + "  " + SENTENCES[i])
        return "\n".join(lines)


def run(formats: Sequence[str] = ("gptq",), progress: bool = False) -> Report:
    """Encodes the sentences in each format of FORMATS; RdnaJitError when the model is missing."""
    checkpoint = minilm.load()
    tokens = checkpoint.tokenise([QUERY, *SENTENCES])
    fp32 = minilm.Encoder(checkpoint, minilm.torch_linears(checkpoint), torch.float32)(tokens)
    results = {
        label: _quantised(checkpoint, tokens, fp32, label, how, progress)
        for name in formats
        for label, how in FORMATS[name].items()
    }
    return Report(results, fp32[1:] @ fp32[0])


def _quantised(
    checkpoint: minilm.Checkpoint,
    tokens: list[Tensor],
    fp32: Tensor,
    label: str,
    how: Mapping[str, Any],
    show: bool,
) -> Result:
    start = time.perf_counter()
    layers, dequantised = {}, {}
    names = checkpoint.linear_names()
    kernels: dict[str, Counter] = {}
    with tqdm(total=len(names), desc=label, disable=not show) as bar:
        for name in names:
            weight, bias = (checkpoint.weights[f"{name}.{part}"] for part in ("weight", "bias"))
            layer = QuantizedLinear.quantize(weight, bias=bias, **how)
            dequantised[name] = layer.dequantize(torch.float32)
            layers[name] = _counted(layer, kernels, bar)
        ours = minilm.Encoder(checkpoint, layers, torch.float16)(tokens)
    torch_layers = minilm.torch_linears(checkpoint, dequantised)
    same_weights = minilm.Encoder(checkpoint, torch_layers, torch.float32)(tokens)
    return Result(
        cos_fp32_min=float((ours * fp32).sum(1).min()),
        cos_dequantised_min=float((ours * same_weights).sum(1).min()),
        seconds=time.perf_counter() - start,
        kernels=kernels,
        similarity=ours[1:] @ ours[0],
    )


def _counted(layer: QuantizedLinear, kernels: dict[str, Counter], bar: tqdm) -> minilm.Linear:
    def forward(x: Tensor) -> Tensor:
        y: Tensor = layer(x)
        shape = f"{layer.out_features}x{layer.in_features}"
        kernels.setdefault(shape, Counter())[dispatch_log()[-1].kernel] += 1
        bar.update()
        return y

    return forward
