"""The choice of the MoE kernels: a pure function of sizes, strides and alignments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, config
from rdna_jit.dispatch import FallbackError
from rdna_jit.ops import _moe_decode
from rdna_jit.ops._moe_contract import Matrix
from rdna_jit.ops._moe_decode import (
    ANY,
    DOWN,
    GATE_UP,
    GROUPED,
    MoeCall,
    Shared,
    choose,
    down_values,
    gate_up_values,
)
from rdna_jit.ops.moe import moe_int4_decode
from rdna_jit.ops.moe_compat import moe_skinny_int4_decode, moe_skinny_int4_decode_v2
from tests.ops.clang import compile_with_clang
from tests.ops.moe_cases import Case, Shape, errors, poisoned

# H, I on one rank, G, T of layers that people serve, and odd fits.
LAYERS = [
    (2560, 640, 128, 10), (2560, 160, 32, 10), (2048, 768, 32, 8), (2048, 384, 32, 8),
    (2048, 192, 32, 8), (2048, 512, 32, 8), (2048, 128, 32, 8), (3072, 1024, 128, 8),
    (4096, 512, 32, 6), (4096, 512, 128, 8), (4096, 256, 128, 8), (7168, 2048, 128, 8),
    (6144, 2560, 128, 8), (2880, 2880, 32, 4), (1536, 96, 32, 1), (1536, 160, 32, 2),
    (1536, 192, 64, 32), (5120, 1536, 128, 6), (8192, 4096, 128, 2), (2560, 640, 640, 10),
]  # fmt: skip


def call(M: int, H: int, I: int, G: int, T: int, **changes: object) -> MoeCall:  # noqa: E741
    def matrix(rows: int, K: int) -> Matrix:
        strides = (rows * K // 2, rows * (K // G), 0)
        return Matrix(G, 1, 2, False, True, 16, 16, strides, (K // 2, K // G, 0))

    made = MoeCall(
        M=M, T=T, H=H, I=I, E=64, format="int4", w1=matrix(2 * I, H), w2=matrix(H, I),
        id_type="int", id_stride=T, weight_type="float", weight_stride=T, has_map=True,
        has_residual=False, x_align=16, act_align=16, row_strides=(H, H, H),
    )  # fmt: skip
    return replace(made, **changes)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("M", [1, 2, 3, 8, 9, 16, 40])
def test_grouped_kernels_cover_the_layer(layer, M):
    H, I = layer[:2]  # noqa: E741
    choice = choose(call(M, *layer), "auto")
    assert choice.kernel == GROUPED and not choice.fallback
    tokens = 0
    for first, last, gate_up, down in choice.chunks:
        assert first == tokens and 0 < last - first <= gate_up.kernel.values["TOKENS"] <= 16
        one, two = gate_up.kernel.values, down.kernel.values
        channels = one["PAIRS"] * 32 // one["LANES"] * one["WAVES"]
        assert (gate_up.grid[0] - 1) * channels < I <= gate_up.grid[0] * channels
        assert gate_up.grid[1] == (last - first) * layer[3]
        assert down.grid[0] * two["ROWS"] * 32 // two["LANES"] == H
        tokens = last
    assert tokens == M


@pytest.mark.parametrize("K", [96, 128, 160, 640, 1536, 2048, 2560, 2880, 4096, 7168])
def test_lanes_leave_few_idle(K):
    lanes = _moe_decode.tile_lanes(K, "int4")
    rounds = -(-K // (32 * lanes))
    assert rounds * lanes * 32 <= 1.06 * K


REASONS = [
    ({"T": 33}, "top-k 33 is above 32"),
    ({"H": 2568}, "no multiple of 32"),
    ({"x_align": 8}, "hidden_states are not 16-byte aligned"),
    ({"act_align": 2}, "workspace is not 16-byte aligned"),
    ({"E": 1 << 20}, "too many experts"),
    ({"row_strides": (2560, 2560, 1 << 27)}, "offsets of rows need more than 32 bits"),
]


@pytest.mark.parametrize("changes, reason", REASONS)
def test_reasons_for_the_plain_kernels(changes, reason):
    choice = choose(replace(call(2, 2560, 640, 128, 10), **changes), "auto")
    assert choice.kernel == ANY and reason in choice.fallback
    taken = [c.kernel for c in choice.candidates if c.taken]
    assert taken == [ANY] and all(c.reason for c in choice.candidates)


@pytest.mark.parametrize("change, reason", [
    ({"group": 16}, "group size"), ({"dense": False}, "strided"), ({"base_align": 4}, "aligned"),
])  # fmt: skip
def test_reasons_in_one_matrix(change, reason):
    base = call(2, 2560, 640, 128, 10)
    for name in ("w1", "w2"):
        choice = choose(replace(base, **{name: getattr(base, name)._replace(**change)}), "v2")
        assert choice.kernel == ANY and reason in choice.fallback


def test_asking_for_the_plain_kernels_is_no_fallback():
    choice = choose(call(2, 2560, 640, 128, 10), "v1")
    assert choice.kernel == ANY and not choice.fallback


@pytest.mark.parametrize("option, name", [
    ("disabled_kernels", "VLLM_DISABLED_KERNELS"),
    ("own_disabled_kernels", "RDNA_JIT_DISABLED_KERNELS"),
])  # fmt: skip
def test_disabled_kernels(option, name):
    case = Case(M=1)
    with config.scope(**{option: (GROUPED,)}):
        plan = moe_int4_decode.plan(**case.arguments)
        assert plan.kernel == ANY and plan.fallback == f"{name} names it"
    assert moe_int4_decode.plan(**case.arguments).kernel == GROUPED


def test_strict_forbids_the_fallback():
    case = Case(M=1, shape=Shape(H=40, I=24, G=8))
    with config.scope(strict=True), pytest.raises(FallbackError, match="no multiple of 32"):
        moe_int4_decode(**case.arguments)


def test_explain_says_which_and_why():
    text = str(rdna_jit.explain(moe_int4_decode, **Case(M=40).arguments))
    assert "runs moe_grouped[FORMAT=int4, TOKENS=16" in text and "moe_down: grid" in text
    assert "40 tokens run in 3 chunks of at most 16" in text


@pytest.mark.parametrize("switch, kernel", [(False, ANY), (True, GROUPED)])
def test_fork_named_entry_points(switch, kernel):
    case = Case(M=1, with_residual=True)
    given = dict(case.tensors)
    table, residual = given.pop("expert_map"), given.pop("residual")
    act, out = poisoned(1, 4, 64), poisoned(1, 256)
    with config.scope(moe_v2=switch):
        moe_skinny_int4_decode(*given.values(), act, out, 32, table, residual)
    assert rdna_jit.dispatch_log()[-1].kernel == kernel
    assert errors(out, case.expected)[0] <= 5e-4
    again = poisoned(1, 256)
    moe_skinny_int4_decode_v2(*given.values(), act, again, 32, table, residual)
    assert rdna_jit.dispatch_log()[-1].kernel == GROUPED
    assert errors(again, case.expected)[0] <= 5e-4


def test_registered_with_torch():
    case = Case(M=3)
    direct = moe_int4_decode(**case.arguments)
    assert torch.equal(torch.ops.rdna_jit.moe_int4_decode(**case.arguments), direct)
    out = poisoned(3, 256)
    torch.ops.rdna_jit.moe_int4_decode.out(**case.arguments, out=out)
    assert torch.equal(out, direct)


# A format, what its scales serve, zero points.
KINDS = [
    ("int4", "group", False), ("int4", "group", True), ("i8", "channel", False),
    ("i8", "group", False), ("e4m3", "channel", False), ("e4m3", "block", False),
    ("e5m2", "tensor", False), ("mxfp4", "group", False), ("f16", "none", False),
]  # fmt: skip


def call_of(M: int, layer: tuple[int, ...], kind: tuple[str, str, bool]) -> MoeCall:
    format, scales, zeros = kind

    def matrix(rows: int, K: int, G: int) -> Matrix:
        group, scale_rows, scale_bytes = {
            "group": (G, 1, 1 if format == "mxfp4" else 2), "channel": (K, 1, 4),
            "block": (128 if K % 128 == 0 else 32, 128, 4), "tensor": (K, rows, 4),
            "none": (K, 1, 0),
        }[scales]  # fmt: skip
        return Matrix(group, scale_rows, scale_bytes, zeros, True, 16, 16, (0,) * 3, (0,) * 3)

    H, I, G, T = layer  # noqa: E741
    G = 32 if format == "mxfp4" else G
    one, two = matrix(2 * I, H, G), matrix(H, I, G)
    return call(M, H, I, G, T, format=format, w1=one, w2=two)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_grouped_kernels_cover_the_layer_in_every_format(layer, kind):
    for M in (1, 2, 16):
        choice = choose(call_of(M, layer, kind), "auto")
        assert choice.kernel == GROUPED and not choice.fallback
        _, _, gate_up, down = choice.chunks[0]
        two = down.kernel.values
        assert down.grid[0] * two["ROWS"] * 32 // two["LANES"] == layer[0]
        assert gate_up.kernel.values["FORMAT"] == kind[0]


def kernels(M: int, layer: tuple[int, ...], kind: tuple[str, str, bool], shared: int = 0):
    made = call_of(M, layer, kind)
    if shared:
        made = replace(made, shared=Shared(shared, 2, True, False, ""))
    values = gate_up_values(made, M), down_values(made, M)
    return [
        spec.specialise("gfx1030", **v) for spec, v in zip((GATE_UP, DOWN), values, strict=True)
    ]


def assert_lean(kernel, tmp_path) -> None:
    """No spills and no calls, with either compiler."""
    for info in (kernel.program().info, *compile_with_clang(kernel, tmp_path).kernels.values()):
        r = info.resources
        assert r.vgpr_spills == r.sgpr_spills == r.scratch_bytes == 0 and r.wavefront_size == 32
    assert "s_swappc" not in kernel.isa()


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[7]], ids=str)
def test_flash_next_kernels_do_not_spill(kind, tmp_path):
    for kernel in kernels(8, (2560, 640, 128, 10), kind):
        assert_lean(kernel, tmp_path)


def test_kernels_without_dot_instructions_do_not_spill():
    choice = choose(call(8, 2560, 640, 128, 10), "auto")
    for launch, spec in zip(choice.chunks[0][2:], (GATE_UP, DOWN), strict=True):
        resources = spec.specialise("gfx1010", **launch.kernel.values).resources
        assert resources.vgpr_spills == resources.sgpr_spills == resources.scratch_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS[::3], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_layer_spills(layer, kind, tmp_path):
    for M, shared in ((1, 0), (1, 640), (2, 0), (2, 640), (4, 0), (8, 0), (16, 0)):
        for kernel in kernels(M, layer, kind, shared):
            assert_lean(kernel, tmp_path)


@pytest.mark.parametrize("entry", [moe_skinny_int4_decode, moe_skinny_int4_decode_v2])
@pytest.mark.parametrize("missing", ["act_buf", "output"])
def test_fork_named_entry_points_need_their_buffers(entry, missing):
    buffers = {"act_buf": torch.empty(1, 1, 32).half(), "output": torch.empty(1, 32).half()}
    buffers[missing] = None
    with pytest.raises(ContractError, match=missing):
        entry(*[None] * 7, **buffers, group_size=32)
