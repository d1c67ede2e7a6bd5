"""Known faults of other MoE decode kernels and their glue, each as a case that shows it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rdna_jit import ContractError
from rdna_jit.ops.moe import moe_decode, moe_int4_decode
from tests.ops.moe_cases import MAX_NORM, REL_L2, Case, Shape, errors, poisoned
from tests.ops.moe_oracle import decoded, moe_reference

slow = pytest.mark.slow


def assert_close(y: torch.Tensor, expected: np.ndarray) -> None:
    rel, largest = errors(y, expected)
    assert rel <= REL_L2 and largest <= MAX_NORM, (rel, largest)


@pytest.mark.parametrize("zero", [0, 8, 15])
def test_codes_at_their_zero_point_weigh_exactly_nothing(zero):
    """Scale and zero point baked into fp16 constants leave an offset of up to half a step."""
    made = Case(M=1, asymmetric=True)
    byte = zero | zero << 4
    flat = {n: torch.full_like(made.tensors[n], byte) for n in ("w1", "w1_zp", "w2", "w2_zp")}
    assert torch.count_nonzero(moe_decode(**{**made.call, **flat})) == 0


@pytest.mark.parametrize("format, scales", [
    ("e4m3", "block"), ("mxfp4", "group"), pytest.param("int4", "group", marks=slow),
    pytest.param("i8", "group", marks=slow),
])  # fmt: skip
def test_a_scale_serves_its_own_rows_and_group(format, scales):
    """Scales staged for the wrong columns: invisible while all scales are alike. Here one scale of
    the down projection, and one only, is not zero."""
    base = Case(M=1, format=format, scales=scales, routing="one_expert", shape=Shape(T=1))
    rows, group = (64, 32) if scales == "block" else (1, 32)
    _, expert = base.live()[0]
    activation = poisoned(1, 1, 64)
    for row, column in ((0, 0), (77, 1), (255, 1)):
        scale = torch.zeros_like(base.tensors["w2_scale"])
        value = 120 if format == "mxfp4" else 0.01
        scale[expert, row // rows, column] = value
        y = moe_decode(**{**base.call, "w2_scale": scale}, workspace=activation)
        # mxfp4 has no zero scale: byte 0 is 2^-127, which rounds away.
        changed = set(y[0].nonzero().flatten().tolist())
        first = row // rows * rows
        assert changed and changed <= set(range(first, first + rows)), (row, changed)
        codes = base.tensors["w2"][expert].contiguous().view(torch.uint8)
        if format in ("int4", "mxfp4"):
            codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        part = decoded(codes.numpy(), format)[first : first + rows, column * group :][:, :group]
        a = activation_in_order(activation[0, 0].double().numpy(), format)[column * group :][:group]
        factor = 2.0**-7 if format == "mxfp4" else float(scale[expert, row // rows, column])
        expected = float(base.tensors["topk_weights"][0, 0]) * factor * (part @ a)
        assert_close(y[:, first : first + rows], expected[None])


def activation_in_order(stored: np.ndarray, format: str) -> np.ndarray:
    """Stage 1 stores the pairs that int4 and e4m3 decode to: octets, or quads, of halves."""
    size = {"int4": 4, "e4m3": 2}.get(format)
    return stored if size is None else stored.reshape(-1, size, 2).transpose(0, 2, 1).reshape(-1)


@pytest.mark.parametrize("low, high", [(1, 7), (0x78, 0x7E)], ids=["subnormal", "256..448"])
def test_both_ends_of_e4m3(low, high):
    """Tables that were wrong for subnormals and made NaN of the top binade."""
    made = Case(M=2, format="e4m3", scales="channel", with_map=False, shape=Shape(E_g=4))
    rng = np.random.default_rng(0)
    stored, dense = {}, {}
    for name in ("w1", "w2"):
        shape = made.tensors[name].shape
        codes = rng.integers(low, high + 1, shape) | rng.choice((0, 128), shape)
        codes = codes.astype(np.uint8)
        scale = made.tensors[f"{name}_scale"] * (2.0**14 if high < 8 else 1.0)
        stored |= {name: torch.from_numpy(codes), f"{name}_scale": scale}
        dense[name] = decoded(codes, "e4m3") * scale.double().numpy()[..., None]
    t = {name: made.tensors[name].numpy() for name in ("hidden_states", "topk_weights", "topk_ids")}
    expected = moe_reference(t["hidden_states"], dense["w1"], dense["w2"],
                             t["topk_weights"].astype(np.float64), t["topk_ids"])  # fmt: skip
    for variant in ("v1", "v2"):
        assert_close(moe_decode(**{**made.call, **stored}, variant=variant), expected)


@pytest.mark.parametrize("scale_bytes, factor", [
    ((1, 90, 123), 1.0),  # the small ones must vanish, not wrap
    ((127,), 2.0**-7),
    ((140,), 2.0**-22),
    ((90, 99, 128, 129), 2.0**-8),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_mxfp4_scales_outside_fp16(scale_bytes, factor, variant):
    """Scales built in fp16 wrap silently outside 99..128."""
    made = Case(M=1, format="mxfp4", scale_bytes=scale_bytes)
    x = (made.tensors["hidden_states"].float() * factor).half()
    t = {n: v.numpy() for n, v in made.tensors.items() if n.startswith(("topk", "expert"))}
    dense = [mxfp4(made.tensors[n], made.tensors[f"{n}_scale"]) for n in ("w1", "w2")]
    expected = moe_reference(x.numpy(), *dense, t["topk_weights"].astype(np.float64),
                             t["topk_ids"], t["expert_map"])  # fmt: skip
    y = moe_decode(**{**made.call, "hidden_states": x}, variant=variant)
    assert np.abs(expected).max() > 0.001 and y.isfinite().all()
    assert_close(y, expected)


def mxfp4(codes: torch.Tensor, scale: torch.Tensor) -> np.ndarray:
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).numpy()
    return decoded(nibbles, "mxfp4") * np.exp2(scale.numpy().astype(float) - 127).repeat(32, -1)


def test_the_largest_mxfp4_scales_overflow_as_they_should():
    made = Case(M=1, format="mxfp4", scale_bytes=(200,))
    y, half = moe_decode(**made.call), torch.from_numpy(made.expected).half()
    assert not half.isfinite().all()
    assert torch.equal(y.isinf(), half.isinf()) and torch.equal(y.isnan(), half.isnan())


def test_transposed_bytes_of_mxfp4_are_refused():
    """`[E, K / 2, N]` holds other words than `[E, N, K / 2]`."""
    made = Case(M=1, format="mxfp4", shape=Shape(H=320))
    turned = made.tensors["w1"].transpose(1, 2).contiguous()
    with pytest.raises(ContractError, match="w1: expected shape"):
        moe_decode(**{**made.call, "w1": turned})


def test_a_map_takes_global_ids_beyond_the_local_count():
    """Glue that checks ids against the local count before mapping loses experts."""
    made = Case(M=2, shape=Shape(E=2, E_g=16, T=8), seed=3)
    ids = made.tensors["topk_ids"]
    assert any(int(ids.flatten()[slot]) >= 2 for slot, _ in made.live())
    assert_close(moe_int4_decode(**made.arguments), made.expected)


def test_ten_choices_of_thirteen_tokens():
    """Buffers sized for 8 choices of 16 tokens overflow at 13."""
    made = Case(M=13, shape=Shape(T=10, E_g=16))
    assert_close(moe_decode(**made.call, workspace=poisoned(13, 10, 64)), made.expected)
    with pytest.raises(ContractError, match="workspace"):
        moe_decode(**made.call, workspace=poisoned(16, 8, 64))


def test_a_kept_result_survives_the_next_call():
    """A view of one process-wide buffer would not, also when it is the next input."""
    made = Case(M=2)
    first = moe_int4_decode(**made.arguments)
    kept = first.clone()
    second = moe_int4_decode(**{**made.arguments, "hidden_states": first})
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_an_id_beyond_the_map_reads_nothing(variant):
    """The map has a neighbour in memory that would send such ids to a live expert; the emulator's
    bounds end with the view."""
    made = Case(M=2, routing="out_of_range", id_dtype=torch.int64)
    table = made.tensors["expert_map"]
    room = torch.zeros(64, dtype=torch.int32)
    room[: len(table)] = table
    y = moe_int4_decode(**{**made.arguments, "expert_map": room[: len(table)]}, variant=variant)
    assert_close(y, made.expected)


@pytest.mark.parametrize("I", [96, pytest.param(160, marks=slow)])
def test_waves_without_channels_leave_before_any_barrier(I):  # noqa: E741
    """Columns that no tile divides: barriers after a divergent exit hang."""
    made = Case(M=2, format="i8", scales="channel", shape=Shape(H=160, I=I))
    assert_close(moe_decode(**made.call), made.expected)


@pytest.mark.parametrize("format", ["int4", pytest.param("f16", marks=slow)])
def test_order_of_calls_leaves_no_trace(format):
    """Caches keyed by shape alone: calls in between, in either kernel, change no bit."""
    one, other = Case(M=2, format=format), Case(M=2, format=format, seed=9)
    before = moe_decode(**one.call)
    moe_decode(**other.call)
    moe_decode(**other.call, variant="v1")
    assert torch.equal(moe_decode(**one.call), before)
