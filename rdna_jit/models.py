"""Shapes of models that people serve on these cards: what `warm --model` and `check --model` run.

Sizes are elements. A layer's N (outputs) and K (inputs) are those of one rank. `inferred` marks
models whose geometry follows from the family's published configuration and was not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rdna_jit.errors import ContractError

DECODE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Tokens per call in decoding: streams, and verify batches of speculative decoding."""
PREFILL_ROWS = (32, 64, 512, 2048)
"""Tokens per call whose kernels are nearly all that other large numbers need."""


@dataclass(frozen=True)
class Layer:
    """A dense layer of one rank, y[M, N] = x[M, K] . W. `format` is int4, int8, fp8 or fp16."""

    name: str
    N: int
    K: int
    format: str


@dataclass(frozen=True)
class Experts:
    """Routed experts: `top_k` of `experts` per token, each hidden -> 2 x intermediate -> hidden.

    `splits` names the ways to spread them over ranks, with (experts, intermediate) per rank.
    `group` weights share a scale; `shared` is the shared expert's intermediate size, or 0.
    """

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    group: int
    format: str
    splits: dict[str, tuple[int, int]] = field(hash=False)
    shared: int = 0


@dataclass(frozen=True)
class Model:
    """One checkpoint: `dense` has the layers of one rank per tensor-parallel size."""

    name: str
    title: str
    hidden: int
    layers: int
    group: int
    dense: dict[int, tuple[Layer, ...]] = field(default_factory=dict, hash=False)
    experts: Experts | None = None
    inferred: bool = False


def get(name: str) -> Model:
    """The model of this name. ContractError lists the names."""
    if name not in MODELS:
        raise ContractError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]


def _split(
    ranks: Iterable[int], by_output: Iterable[Layer], by_input: Iterable[Layer]
) -> dict[int, tuple[Layer, ...]]:
    """Per rank count: layers split over their outputs, then layers split over their inputs."""
    by_output, by_input = tuple(by_output), tuple(by_input)
    return {
        tp: (
            *(Layer(la.name, la.N // tp, la.K, la.format) for la in by_output),
            *(Layer(la.name, la.N, la.K // tp, la.format) for la in by_input),
        )
        for tp in ranks
    }


def _transformer(hidden: int, qkv: int, intermediate: int) -> dict[int, tuple[Layer, ...]]:
    return _split(
        (1,),
        (Layer("qkv", qkv, hidden, "int4"), Layer("gate_up", 2 * intermediate, hidden, "int4")),
        (Layer("o", hidden, hidden, "int4"), Layer("down", hidden, intermediate, "int4")),
    )


_FLASH_NEXT_TP4 = (
    Layer("gdn_in_qkvz", 4096, 2560, "fp16"),
    Layer("gdn_in_qkv", 2560, 2560, "fp16"),
    Layer("gdn_z", 1536, 2560, "fp16"),
    Layer("gdn_out", 2560, 1536, "fp16"),
    Layer("attn_qkv", 3584, 2560, "fp16"),
    Layer("attn_q", 3072, 2560, "fp16"),
    Layer("attn_o", 2560, 1536, "fp16"),
    Layer("router", 512, 2560, "fp16"),
    Layer("shared_gate_up", 1280, 2560, "fp16"),
    Layer("shared_down", 2560, 640, "fp16"),
    Layer("hc_down", 320, 10240, "int8"),
    Layer("hc_down_inject", 336, 10240, "int8"),
    Layer("hc_up", 10240, 320, "int8"),
    Layer("lm_head", 62080, 2560, "fp16"),
)

_QWEN_27B = _split(
    (1, 2, 4),
    (
        Layer("attn_qkv", 14336, 5120, "int4"),
        Layer("gdn_in_qkvz", 16384, 5120, "int4"),
        Layer("gate_up", 34816, 5120, "int4"),
        Layer("gdn_ba", 96, 5120, "fp16"),
        Layer("lm_head", 248320, 5120, "fp16"),
    ),
    (
        Layer("attn_o", 5120, 6144, "int4"),
        Layer("gdn_out", 5120, 6144, "int4"),
        Layer("down", 5120, 17408, "int4"),
    ),
)

_ALL = (
    Model(
        "flash-next",
        "Qwen3.8-Flash-Next, W4A16 experts",
        2560,
        48,
        128,
        {4: _FLASH_NEXT_TP4},
        Experts(2560, 640, 512, 10, 128, "int4", {"EP4": (128, 640), "PP3": (512, 640)}, 640),
    ),
    Model("qwen3.8-27b", "Qwen3.8-27B AWQ int4", 5120, 64, 32, _QWEN_27B, inferred=True),
    Model(
        "qwen3-30b-a3b",
        "Qwen3-30B-A3B AWQ int4",
        2048,
        48,
        32,
        experts=Experts(
            2048,
            768,
            128,
            8,
            32,
            "int4",
            {"TP1": (128, 768), "TP2": (128, 384), "TP4": (128, 192)},
        ),
    ),
    Model(
        "qwen3.6-35b-a3b",
        "Qwen3.5/3.6-35B-A3B GPTQ W4A16",
        2048,
        40,
        32,
        experts=Experts(
            2048,
            512,
            256,
            8,
            32,
            "int4",
            {"TP1": (256, 512), "TP2": (256, 256), "TP4": (256, 128)},
            512,
        ),
        inferred=True,
    ),
    Model(
        "qwen3.5-122b-a10b",
        "Qwen3.5-122B-A10B int4",
        3072,
        48,
        128,
        experts=Experts(3072, 1024, 256, 8, 128, "int4", {"PP3": (256, 1024)}, 1024),
        inferred=True,
    ),
    Model(
        "glm-5.3-flash",
        "GLM-5.3-Flash AWQ int4",
        4096,
        0,
        128,
        experts=Experts(4096, 2048, 288, 8, 128, "int4", {"TP4": (288, 512), "TP8": (288, 256)}),
        inferred=True,
    ),
    Model(
        "deepseek-v4-flash",
        "DeepSeek-V4-Flash, MXFP4 experts, FP8 dense layers",
        4096,
        43,
        32,
        {
            4: (
                Layer("attn_a", 1536, 4096, "fp8"),
                Layer("attn_b", 8192, 1024, "fp8"),
                Layer("o", 4096, 2048, "fp8"),
                Layer("wo_a", 1024, 4096, "fp8"),
            )
        },
        Experts(4096, 2048, 256, 6, 32, "mxfp4", {"TP4": (256, 512)}, 2048),
    ),
    Model("qwen3-8b", "Qwen3-8B W4A16", 4096, 36, 128, _transformer(4096, 6144, 12288)),
    Model("smollm2-1.7b", "SmolLM2-1.7B AWQ", 2048, 24, 32, _transformer(2048, 6144, 8192)),
    Model(
        "qwen2.5-14b",
        "Qwen2.5-14B AWQ",
        5120,
        48,
        128,
        _transformer(5120, 7168, 13824),
        inferred=True,
    ),
    Model(
        "llama-3.1-8b",
        "Llama-3.1-8B int4",
        4096,
        32,
        128,
        _transformer(4096, 6144, 14336),
        inferred=True,
    ),
)
MODELS = {model.name: model for model in _ALL}
"""All models by name."""
