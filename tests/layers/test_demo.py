"""The demo's encoder on a small checkpoint with random weights: every format, and the report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from rdna_jit.demo import __main__ as command
from rdna_jit.demo import minilm, moe_layer, sentences
from tests.layers.packing import generator

H, WORDS = 128, 40


class SmallCheckpoint(minilm.Checkpoint):
    """One layer, a few words of each text instead of a tokenizer."""

    def tokenise(self, texts):
        return [
            torch.tensor([sum(map(ord, word)) % WORDS for word in text.split()[:3]])
            for text in texts
        ]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    g = generator(0)

    def random(*shape):
        return torch.randn(shape, generator=g) / shape[-1] ** 0.5

    config = {"num_hidden_layers": 1, "num_attention_heads": 4, "layer_norm_eps": 1e-12}
    weights = {
        "embeddings.word_embeddings.weight": random(WORDS, H),
        "embeddings.position_embeddings.weight": random(64, H),
        "embeddings.token_type_embeddings.weight": random(1, H),
    }
    checkpoint = SmallCheckpoint(weights, config, Path("none"))
    for name in checkpoint.linear_names():
        weights[f"{name}.weight"] = random(H, H)
        weights[f"{name}.bias"] = random(H)
    for name in ("attention.output", "output"):
        weights[f"encoder.layer.0.{name}.LayerNorm.weight"] = torch.ones(H)
        weights[f"encoder.layer.0.{name}.LayerNorm.bias"] = torch.zeros(H)
    weights["embeddings.LayerNorm.weight"] = torch.ones(H)
    weights["embeddings.LayerNorm.bias"] = torch.zeros(H)
    monkeypatch.setattr(minilm, "load", lambda: checkpoint)


SLOW = {"gptq", "awq", "f16"}  # the first and the last run in test_the_table


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in sentences.FORMATS],
)
def test_a_format(name, capsys):
    assert command.main(["--format", name, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and list(report["minilm"]) == list(sentences.FORMATS[name])
    for result in report["minilm"].values():
        assert result["cos_dequantised_min"] > 0.9999
        assert 0.9 < result["cos_fp32_min"] <= 1.000001


def test_the_table(capsys):
    assert command.main(["--format", "f16,gptq"]) == 0
    text = capsys.readouterr().out
    assert "int4-g128" in text and sentences.QUERY in text
    int4 = text.partition("int4-g32")[2]
    assert re.search(r"128x128 +(w4a16_decode|dense_tile) x6", int4)
    assert text.rstrip().endswith("demo: ok")


def test_the_moe_layer_runs_without_a_format(capsys, monkeypatch):
    class Failed:
        ok = False

        def table(self):
            return "moe table"

    monkeypatch.setattr(moe_layer, "run", Failed)
    monkeypatch.setitem(sentences.FORMATS, "gptq", {"f16": {"format": "f16"}})
    assert command.main(["--no-progress"]) == 1
    text = capsys.readouterr().out
    assert "f16" in text and "moe table" in text and text.rstrip().endswith("FAILED")


def test_an_unknown_format_is_named(capsys):
    with pytest.raises(SystemExit):
        command.main(["--format", "gptq,int5"])
    assert "'int5': expected some of gptq, awq, int8" in capsys.readouterr().err
