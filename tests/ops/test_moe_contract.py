"""Bad input to moe_int4_decode: an error that names the tensor, expected and got."""

from __future__ import annotations

import pytest
import torch

from rdna_jit import ContractError, config
from rdna_jit.ops.moe import moe_decode, moe_int4_decode, moe_tiled
from rdna_jit.ops.moe_compat import moe_skinny_decode_supported

M, H, I, G, T, E = 2, 64, 32, 32, 2, 3  # noqa: E741


def halves(*shape: int) -> torch.Tensor:
    return torch.ones(shape).half()


def codes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def ids(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full(shape, -1, dtype=dtype)


def decode(**changes: object) -> torch.Tensor:
    arguments = {
        "hidden_states": halves(M, H),
        "w1": codes(E, 2 * I, H // 2),
        "w1_scale": halves(E, 2 * I, H // G),
        "w2": codes(E, H, I // 2),
        "w2_scale": halves(E, H, I // G),
        "topk_weights": torch.ones(M, T),
        "topk_ids": ids(M, T),
        "group_size": G,
        **changes,
    }
    return moe_int4_decode(**arguments)


BAD = [
    # the argument, its bad value, what the message says
    ("hidden_states", halves(M, H).bfloat16(), r"got torch.bfloat16; call hidden_states.half\(\)"),
    ("hidden_states", torch.ones(M, H), r"call hidden_states.half\(\)"),
    ("hidden_states", None, "expected a torch.float16 tensor"),
    ("hidden_states", halves(H), r"expected shape \[any, any\], got \[64\]"),
    ("hidden_states", halves(H, M).t(), "contiguous last dimension"),
    ("w1", codes(E, 2 * I, H // 2 - 1), r"expected shape \[any, any, 32\], got \[3, 64, 31\]"),
    ("w1", codes(E, 2 * I - 1, H // 2), "an even number of rows, gate and up, got 63 rows"),
    ("w1", halves(E, 2 * I, H // 2), "expected uint8 or int32 codes, got torch.float16"),
    ("w1", codes(E, H // 2, 2 * I).transpose(1, 2), "contiguous last dimension"),
    ("w1", codes(E, 2 * I, H // 2).to("meta"), "expected a tensor on cpu"),
    ("w1", codes(0, 2 * I, H // 2), "at least one expert"),
    ("w1", None, "w1: expected a torch.uint8 tensor"),
    ("w2", codes(E + 1, H, I // 2), r"expected shape \[3, 64, 16\], got \[4, 64, 16\]"),
    ("w2", codes(E, I, H // 2), r"expected shape \[3, 64, 16\], got \[3, 32, 32\]"),
    ("w2", torch.zeros(E, H, I // 8, dtype=torch.int64), "uint8 or int32 codes, got torch.int64"),
    ("w1_scale", halves(E, 2 * I, 1), r"expected shape \[3, 64, 2\], got \[3, 64, 1\]"),
    ("w1_scale", halves(E, 2 * I, 2).bfloat16(), r"call w1_scale.half\(\)"),
    ("w1_scale", None, "w1_scale: expected a torch.float16 tensor"),
    ("w2_scale", halves(E, I // G, H).transpose(1, 2).expand(E, H, 1)[:, :-1], "expected shape"),
    ("w2_scale", torch.ones(E, H, 1), r"call w2_scale.half\(\)"),
    ("w1_zp", codes(E, 2 * I, H // G), r"expected shape \[3, 32, 2\], got \[3, 64, 2\]"),
    ("w2_zp", torch.zeros(E, H // 2, 1, dtype=torch.int32), "expected torch.uint8, got torch.int3"),
    ("topk_ids", ids(M + 1, T), r"expected shape \[2, any\], got \[3, 2\]"),
    ("topk_ids", ids(M, 0), "at least one choice per token"),
    ("topk_ids", ids(M, T, dtype=torch.int16), "expected torch.int32 or torch.int64, got torch.in"),
    ("topk_ids", torch.ones(M, T), "expected torch.int32 or torch.int64, got torch.float32"),
    ("topk_ids", None, "topk_ids: expected a torch.int32 tensor"),
    ("topk_weights", torch.ones(M, T + 1), r"expected shape \[2, 2\], got \[2, 3\]"),
    ("topk_weights", torch.ones(M, T).bfloat16(), r"got torch.bfloat16; call topk_weights.half\("),
    ("topk_weights", None, "topk_weights: expected a torch.float32 tensor"),
    ("expert_map", ids(4, dtype=torch.int64), "expected torch.int32, got torch.int64"),
    ("expert_map", ids(4, 2), r"expected shape \[any\], got \[4, 2\]"),
    ("expert_map", ids(8)[::2], "contiguous last dimension"),
    ("residual", halves(M, H + 1), r"expected shape \[2, 64\], got \[2, 65\]"),
    ("workspace", halves(M, T, I - 1), r"expected shape \[any, 2, 32\], got \[2, 2, 31\]"),
    ("workspace", halves(1, T, I), "at least"),
    ("workspace", halves(M, 2 * T, I)[:, :T], "contiguous"),
    ("out", torch.ones(M, H), "out: expected torch.float16, got torch.float32"),
    ("out", halves(M + 1, H), r"expected shape \[2, 64\], got \[3, 64\]"),
    ("out", halves(H, M).t(), "contiguous last dimension"),
    ("out", halves(1, H).expand(M, H), "rows apart from each other"),
    ("expert_map", ids(0), "an entry for each of all experts"),
    ("group_size", 0, "a positive number"),
    ("group_size", 48, "a divisor of the 64 codes in a row of w1, got 48; repeat the scales"),
    ("group_size", 64, r"w1_scale: expected shape \[3, 64, 1\]"),
    ("group_size", 32.0, "a positive number"),
    ("variant", "v3", "one of auto, v1, v2, got 'v3'"),
]


@pytest.mark.parametrize(
    "name, value, message", BAD, ids=[f"{i}-{name}" for i, (name, _, _) in enumerate(BAD)]
)
def test_refused(name, value, message):
    with pytest.raises(ContractError, match=message) as caught:
        decode(**{name: value})
    assert caught.value.name and caught.value.expected is not None
    assert str(caught.value).startswith("moe_int4_decode: ")


def test_tokens_are_bounded():
    M = (1 << 24) + 1
    many = {n: t[:1].expand(M, -1) for n, t in
            {"hidden_states": halves(1, H), "topk_weights": torch.ones(1, T), "topk_ids": ids(1, T)
             }.items()}  # fmt: skip
    with pytest.raises(ContractError, match="hidden_states: expected at most 16777216 tokens"):
        decode(**many)


@pytest.mark.parametrize("name, value, message", [
    ("format", ["int4"], "format: expected one of int4"),
    ("swiglu_limit", "7", "swiglu_limit: expected a positive number"),
    ("swiglu_alpha", "1", "swiglu_alpha: expected a positive number"),
])  # fmt: skip
@pytest.mark.parametrize("op", [moe_decode, moe_tiled])
def test_values_of_the_wrong_type(op, name, value, message):
    arguments = {
        "hidden_states": halves(M, H), "w1": codes(E, 2 * I, H // 2),
        "w1_scale": halves(E, 2 * I, H // G), "w2": codes(E, H, I // 2),
        "w2_scale": halves(E, H, I // G), "topk_weights": torch.ones(M, T), "topk_ids": ids(M, T),
        "group_size": G, "format": "int4", name: value,
    }  # fmt: skip
    with pytest.raises(ContractError, match=message):
        op(**arguments)


def test_group_size_must_divide_both_sides():
    with pytest.raises(ContractError, match="divisor of the 32 codes in a row of w2"):
        decode(group_size=64, w1_scale=halves(E, 2 * I, 1))


def test_rows_must_fill_words():
    with pytest.raises(ContractError, match="w2: expected rows of a multiple of 8 codes"):
        decode(
            w1=codes(E, 2 * 36, H // 2), w1_scale=halves(E, 72, H // G),
            w2=torch.zeros(E, H, 4, dtype=torch.int32),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["hidden_states", "workspace", "w1_scale"])
def test_result_may_not_overlap(name):
    buffer = torch.zeros(1 << 12, dtype=torch.float16)
    shape = {"hidden_states": (M, H), "workspace": (M, T, I), "w1_scale": (E, 2 * I, H // G)}[name]
    size = torch.Size(shape).numel()
    with pytest.raises(ContractError, match=f"out: expected memory apart from {name}"):
        decode(**{name: buffer[:size].view(shape), "out": buffer[8 : 8 + M * H].view(M, H)})


def test_result_may_not_overlap_a_shifted_residual():
    buffer = halves((M + 1) * H)
    with pytest.raises(ContractError, match="out: expected memory apart from residual"):
        decode(residual=buffer[: M * H].view(M, H), out=buffer[H:].view(M, H))


def test_workspace_may_not_overlap_the_input():
    buffer = halves(M * H)
    with pytest.raises(ContractError, match="workspace: expected memory apart from hidden_states"):
        decode(hidden_states=buffer.view(M, H), workspace=buffer.view(M, T, I))


def test_most_tokens_of_the_forks_dispatch():
    scales = halves(E, 2 * I, 2)

    def supported(M: int, **changes: object) -> bool:
        arguments = {"block_shape": [0, G], "num_experts": E, **changes}
        return moe_skinny_decode_supported(halves(M, H), scales, scales, **arguments)

    assert supported(8) and not supported(9) and not supported(0)
    with config.scope(moe_skinny_max_m=64):
        assert supported(16) and not supported(17)
    assert not supported(1, activation="gelu")
    assert not supported(1, apply_router_weight_on_input=True)
    assert not supported(1, block_shape=[128])
    assert not supported(1, w13_zp=codes(1))
    assert not supported(1, global_num_experts=8)
    assert supported(1, global_num_experts=8, expert_map=ids(8))
