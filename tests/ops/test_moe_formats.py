"""Values of moe_decode against float64 in every format: scales, codes, shapes, views, epilogues."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rdna_jit import ContractError, emulator
from rdna_jit.ops.moe import moe_decode
from tests.ops.moe_cases import (
    MAX_NORM,
    REL_L2,
    ROUTINGS,
    Case,
    Shape,
    errors,
    in_wider_rows,
    off_by,
    poisoned,
    quantised,
)
from tests.ops.moe_oracle import decoded

slow = pytest.mark.slow
KINDS = [
    ("i8", "channel"), ("i8", "group"), ("e4m3", "block"), ("e4m3", "channel"), ("e4m3", "tensor"),
    ("e5m2", "block"), ("e5m2", "channel"), ("e5m2", "tensor"), ("mxfp4", "group"),
    ("f16", "group"),
]  # fmt: skip
FIRST = [("i8", "channel"), ("e4m3", "block"), ("e5m2", "tensor"), ("mxfp4", "group"),
         ("f16", "group")]  # fmt: skip


def case(format: str, scales: str = "group", M: int = 2, **changes: object) -> Case:
    """Alike where it can be, so that the tests share kernels."""
    return Case(M=M, format=format, scales=scales, **{"with_residual": True, **changes})


def run(made: Case, **changes: object) -> torch.Tensor:
    """The op with everything that it writes poisoned, inputs checked for changes."""
    before = {n: t.clone() for n, t in made.tensors.items() if t is not None}
    s = made.shape
    arguments = {
        **made.call,
        "out": poisoned(made.M, s.H),
        "workspace": poisoned(made.M, s.T, s.I),
        **changes,
    }
    y = moe_decode(**arguments)
    for name, tensor in before.items():
        assert torch.equal(made.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name
    return y


def assert_close(y: torch.Tensor, made: Case) -> None:
    assert made.live() or made.routing == "all_dead", "the case tests nothing"
    assert y.isfinite().all()
    rel, largest = errors(y, made.expected)
    assert rel <= REL_L2 and largest <= MAX_NORM, (rel, largest)


@pytest.mark.parametrize("format, scales", FIRST)
def test_grouped_kernels(format, scales):
    made = case(format, scales)
    assert moe_decode.plan(**made.call).kernel == "moe_grouped"
    y = run(made)
    assert_close(y, made)
    assert torch.equal(y, run(made)), "two runs differ"


@pytest.mark.parametrize("format, scales", FIRST)
def test_plain_kernels(format, scales):
    made = case(format, scales, routing="padding")
    assert_close(run(made, variant="v1"), made)


@slow
@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("M", [1, 2, 6, 9, 16, 17])
@pytest.mark.parametrize("format, scales", KINDS)
def test_numbers_of_tokens(format, scales, M, variant):
    made = case(format, scales, M=M, id_dtype=torch.int64, weight_dtype=torch.float16)
    y = run(made, variant=variant)
    assert_close(y, made)
    assert torch.equal(y, run(made, variant=variant)), "two runs differ"


@slow
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("format, scales", FIRST)
def test_routings(format, scales, routing):
    for M in (2, 4):
        made = case(format, scales, M=M, routing=routing)
        assert_close(run(made), made)


@slow
@pytest.mark.parametrize("format, scales", KINDS)
@pytest.mark.parametrize("shape", [
    Shape(1536, 96, 32, 1, 4, 4), Shape(1536, 160, 32, 2, 4, 4), Shape(1536, 192, 64, 6, 4, 4),
    Shape(736, 96, 32, 3, 4, 4), Shape(320, 160, 160, 8, 4, 4), Shape(2048, 128, 128, 10, 4, 4),
    Shape(512, 64, 32, 32, 4, 4),
], ids=str)  # fmt: skip
def test_odd_fits(shape, format, scales):
    for M in (1, 5):
        made = case(format, scales, M=M, shape=shape, block=(32, 32), with_map=False)
        assert_close(run(made), made)


@slow
@pytest.mark.parametrize("format, scales", FIRST)
@pytest.mark.parametrize("shape", [
    Shape(2560, 640, 128, 10, 4, 4), Shape(2048, 768, 32, 8, 4, 4), Shape(4096, 512, 32, 6, 4, 4),
    Shape(3072, 1024, 128, 8, 2, 2),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("M", [1, 8])
def test_layers_of_models(shape, M, format, scales):
    made = case(
        format, scales, M=M, shape=shape, routing="skewed", block=(128, 128), with_map=False
    )
    assert_close(run(made), made)


@pytest.mark.parametrize("format, scales, changes", [
    ("i8", "group", {"shape": Shape(H=40, I=24, G=8)}),
    ("e4m3", "block", {"block": (24, 40)}),  # rows and columns that nothing divides
    ("f16", "group", {"shape": Shape(H=33, I=17)}),
    pytest.param("i8", "channel", {"shape": Shape(H=36, I=20)}, marks=slow),
    pytest.param("e5m2", "channel", {"shape": Shape(H=33, I=17)}, marks=slow),
    pytest.param("mxfp4", "group", {"shape": Shape(H=64, I=32, T=33)}, marks=slow),
], ids=str)  # fmt: skip
def test_shapes_that_only_the_plain_kernels_take(format, scales, changes):
    made = case(format, scales, M=2, **changes)
    plan = moe_decode.plan(**made.call)
    assert plan.kernel == "moe_any" and plan.fallback
    assert_close(run(made), made)


def test_blocks_cut_by_the_ends():
    made = case("e4m3", "block", block=(96, 96))
    assert moe_decode.plan(**made.call).kernel == "moe_grouped"
    assert_close(run(made), made)


@pytest.mark.parametrize("format, scales", [
    ("e4m3", "tensor"), pytest.param("i8", "group", marks=slow),
])  # fmt: skip
def test_scales_of_the_other_width(format, scales):
    other = torch.float32 if format == "i8" else torch.float16
    made = case(format, scales, scale_dtype=other, scale=8.0 if format == "e4m3" else 1.0)
    assert_close(run(made), made)


def test_channel_scales_with_a_last_dimension():
    made = case("i8", "channel")
    wider = {n: made.tensors[n][..., None] for n in ("w1_scale", "w2_scale")}
    assert torch.equal(run(made, **wider), run(made))


@pytest.mark.parametrize("format, dtype", [
    ("e4m3", torch.uint8), ("e5m2", torch.uint8), ("mxfp4", torch.int32),
])  # fmt: skip
def test_the_same_bytes_under_another_type(format, dtype):
    made = case(format, dict(FIRST)[format])
    views = {n: made.tensors[n].view(dtype) for n in ("w1", "w2")}
    assert torch.equal(run(made, **views), run(made))


def test_e8m0_scales_as_their_own_type():
    made = case("mxfp4")
    views = {n: made.tensors[n].view(torch.float8_e8m0fnu) for n in ("w1_scale", "w2_scale")}
    assert torch.equal(run(made, **views), run(made))


@pytest.mark.parametrize("format, name", [
    ("i8", "w1"), ("f16", "w1"), ("mxfp4", "w1_scale"), pytest.param("e4m3", "w2", marks=slow),
    pytest.param("i8", "hidden_states", marks=slow), pytest.param("f16", "workspace", marks=slow),
])  # fmt: skip
def test_misaligned_views(format, name):
    made = case(format, "channel" if format in ("i8", "e4m3") else "group")
    value = poisoned(2, 4, 64) if name == "workspace" else made.tensors[name]
    assert_close(run(made, **{name: off_by(value, 1)}), made)


@pytest.mark.parametrize("format, name", [
    ("e4m3", "w1_scale"), ("mxfp4", "w2_scale"), pytest.param("i8", "w2", marks=slow),
    pytest.param("f16", "w1", marks=slow),
])  # fmt: skip
def test_strided_rows(format, name):
    made = case(format, "block" if format == "e4m3" else "group")
    value = in_wider_rows(made.tensors[name].view(torch.uint8), 16).view(made.tensors[name].dtype)
    assert_close(run(made, **{name: value}), made)


EPILOGUES = [
    {"activation": "gelu"}, {"activation": "gelu_tanh"}, {"limit": 0.4},
    {"alpha": 1.702, "limit": 0.4}, pytest.param({"alpha": 1.702}, marks=slow),
]  # fmt: skip


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("variant", ["v2", pytest.param("v1", marks=slow)])
def test_epilogues(epilogue, variant):
    made = case("f16", scale=8.0, **epilogue)
    other = made.with_(activation="silu", limit=None, alpha=None)
    assert errors(torch.from_numpy(other.expected), made.expected)[0] > 0.01, "no difference"
    assert_close(run(made, variant=variant), made)


def test_the_limit_keeps_fp16_from_overflowing():
    made = case("f16", scale=3000.0, limit=7.0)
    assert not np.isfinite(made.with_(limit=None).expected).all()
    assert_close(run(made), made)


@pytest.mark.parametrize("mode", [
    {"dot2": "exact"}, {"dot2": "gfx11"}, {"dot2_flush": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("format, scales", FIRST)
def test_rules_that_silicon_may_choose(format, scales, mode):
    made = case(format, scales)
    with emulator.modes(**mode):
        assert_close(run(made), made)


def test_fresh_memory_is_never_read():
    with emulator.checks(uninitialised=True, races=True):
        for format, scales in FIRST:
            made = case(format, scales)
            assert_close(moe_decode(**made.call), made)


@slow
@pytest.mark.parametrize("M", [1, 4])
@pytest.mark.parametrize("format, scales", FIRST)
def test_without_dot_instructions(format, scales, M):
    from rdna_jit import config

    made = case(format, scales, M=M)
    with config.scope(arch="gfx1010"):
        assert_close(run(made), made)


@pytest.mark.parametrize("format", ["int4", "i8", "e4m3", "e5m2", "mxfp4"])
def test_the_cases_have_every_finite_code(format):
    made = case(format, "group" if format in ("int4", "mxfp4") else "channel")
    weights = quantised(np.random.default_rng(0), made, 64, 256).weights.view(torch.uint8)
    if format in ("int4", "mxfp4"):
        weights = torch.cat([weights & 15, weights >> 4])
    missing = {"e4m3": 2, "e5m2": 8}.get(format, 0)
    assert weights.unique().numel() == (16 if format in ("int4", "mxfp4") else 256) - missing


# Codes of 0, 1 and 4, and what all scales are.
UNITS = {
    "int4": (8, 9, 12, 1.0), "i8": (0, 1, 4, 0.0625), "e4m3": (0, 0x38, 0x48, 1.0),
    "e5m2": (0, 0x3C, 0x44, 2.0**-5), "mxfp4": (0, 2, 6, 127),
}  # fmt: skip


@pytest.mark.parametrize("variant", ["v2", pytest.param("v1", marks=slow)])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("format, scales", [*FIRST[:4], ("int4", "group")])
def test_every_code_in_every_place(format, scales, stage, variant):
    """Expert e has code 64 e + n alone in a row, at a place that differs from row to row: result
    64 e + n shows it and nothing else."""
    zero, one, four, scale = UNITS[format]
    nibbles = format in ("int4", "mxfp4")
    made = case(format, scales)
    E, I, H = 4, 64, 256  # noqa: E741
    rows, experts = np.arange(H), np.arange(H) // I
    codes = np.arange(H) % (16 if nibbles else 256)
    values = decoded(codes.astype(np.uint8), format)
    finite = np.abs(values) <= {"e4m3": 448, "e5m2": 57344}.get(format, 256)
    codes[~finite] = zero
    w1 = np.full((E, 2 * I, H), zero, np.uint8)
    w2 = np.full((E, H, I), zero, np.uint8)
    w1[:, :I, 3] = four
    w1[experts, I + rows % I, (rows * 7 + 5) % H] = codes if stage == 1 else one
    w2[experts, rows, rows % I] = one if stage == 1 else codes
    stored = {}
    for name, w in (("w1", w1), ("w2", w2)):
        w = w[..., 0::2] | w[..., 1::2] << 4 if nibbles else w
        stored[name] = torch.from_numpy(w).view(made.tensors[name].dtype)
        stored[f"{name}_scale"] = torch.full_like(made.tensors[f"{name}_scale"], scale)
    ids = (made.tensors["expert_map"] >= 0).nonzero().flatten().int().expand(2, E).contiguous()
    y = moe_decode(**{
        **made.call, **stored, "hidden_states": torch.ones(2, H).half(), "topk_ids": ids,
        "topk_weights": torch.ones(2, E), "residual": torch.zeros(2, H).half(), "variant": variant,
    })  # fmt: skip
    factor = 1.0 if format == "mxfp4" else scale
    gate = 4 * factor
    a = gate / (1 + np.exp(-gate)) * factor * (values if stage == 1 else 1.0)
    expected = a.astype(np.float16).astype(np.float64) if stage == 1 else np.float64(np.float16(a))
    expected = expected * factor * (1.0 if stage == 1 else values)
    expected[~finite] = 0
    error = np.abs(y.double().numpy() - expected)
    assert (error <= 2.0**-10 * np.abs(expected) + 2.0**-24).all()
    assert len(np.unique(y[0, finite].float().numpy())) > 0.8 * len(np.unique(values[finite]))


@pytest.mark.parametrize("format, name, value, message", [
    ("e4m3", "format", "fp8", "one of int4, i8, e4m3"),
    ("i8", "w1", torch.zeros(4, 128, 256), "torch.int8 for format i8, got torch.float32"),
    ("e4m3", "w1", torch.zeros(4, 128, 256).to(torch.float8_e4m3fnuz), "another bias"),
    ("f16", "w2", torch.zeros(4, 256, 64).bfloat16(), r"got torch.bfloat16; call w2.half\(\)"),
    ("f16", "w1_scale", torch.ones(4), "w1_scale: expected None for format f16"),
    ("e4m3", "w1_scale", torch.ones(5), r"w1_scale: expected shape \[4\], got \[5\]"),
    ("e4m3", "w2_scale", torch.ones(4, 255), r"w2_scale: expected shape \[4, 256\]"),
    ("e4m3", "block", (64, 64), r"w1_scale: expected shape \[4, 2, 4\]"),
    ("e4m3", "block", (64,), r"\(rows, columns\)"),
    ("e4m3", "w1_scale", torch.ones(4, 128).bfloat16(), "torch.float32 or torch.float16"),
    ("mxfp4", "w1_scale", torch.ones(4, 128, 8).half(), "w1_scale: expected torch.uint8"),
    ("i8", "group_size", 48, "a divisor of the 256"),
    ("mxfp4", "group_size", 64, "32 or None for mxfp4"),
    ("f16", "group_size", 64, "None for format f16, got 64"),
    ("i8", "block", (128, 128), "block: expected None for format i8"),
    ("i8", "w1_zp", torch.zeros(4, 64, 1, dtype=torch.uint8), "w1_zp: expected None"),
    ("i8", "activation", "relu", "one of silu, gelu, gelu_tanh, got 'relu'"),
    ("i8", "swiglu_limit", -1.0, "swiglu_limit: expected a positive number"),
    ("i8", "swiglu_alpha", 0.0, "swiglu_alpha: expected a positive number"),
])  # fmt: skip
def test_refused(format, name, value, message):
    made = case(format, "channel" if format in ("i8", "e4m3") else "group")
    with pytest.raises(ContractError, match=message) as caught:
        moe_decode(**{**made.call, name: value})
    assert str(caught.value).startswith("moe_decode: ")


def test_alpha_is_for_silu():
    with pytest.raises(ContractError, match="None unless the activation is silu"):
        moe_decode(**{**case("f16").call, "activation": "gelu", "swiglu_alpha": 1.7})


def test_registered_with_torch():
    made = case("mxfp4")
    assert torch.equal(torch.ops.rdna_jit.moe_decode(**made.call), moe_decode(**made.call))
