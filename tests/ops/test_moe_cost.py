"""The estimate that fused_moe chooses by: what it counts, and where the kinds of kernels cross."""

from __future__ import annotations

import itertools
import math

import pytest

from benchmarks.moe_layer import Row, measure
from rdna_jit.ops._moe_cost import LAUNCH_US, READ_GBS, Layer, decode_us, tiled_us, tokens_of_expert

# Layers that people serve, on one rank.
FLASH_NEXT = Layer("int4", 1, 10, 2560, 640, 128, 512, 2.53e6)
LAYERS = [
    FLASH_NEXT,
    Layer("int4", 1, 8, 2048, 768, 128, 128, 2.65e6),
    Layer("int4", 1, 8, 2048, 512, 256, 256, 1.77e6),
    Layer("mxfp4", 1, 6, 4096, 512, 256, 256, 3.34e6),
    Layer("e4m3", 1, 8, 7168, 256, 256, 256, 5.5e6),
    Layer("f16", 1, 2, 4096, 3584, 8, 8, 88e6),
]


@pytest.mark.parametrize("M, share", [(1, 0.02), (16, 10 / 512), (16, 0.5), (300, 0.25), (4096, 1)])
def test_tokens_of_an_expert_are_binomial(M, share):
    spread = tokens_of_expert(M, share)
    assert sum(p for _, p in spread) == pytest.approx(1, abs=1e-9)
    assert sum(n * p for n, p in spread) == pytest.approx(M * share, rel=1e-9)
    for n, p in spread[:20]:
        assert p == pytest.approx(math.comb(M, n) * share**n * (1 - share) ** (M - n), rel=1e-9)


def test_what_is_left_out_of_a_large_batch_is_nothing():
    spread = tokens_of_expert(100_000, 0.02)
    assert len(spread) < 1000 and sum(p for _, p in spread) == pytest.approx(1, abs=1e-9)


def test_one_token_is_the_time_of_its_experts_bytes():
    live = 10 * 128 / 512
    assert decode_us(FLASH_NEXT) == pytest.approx(
        live * 2.53e6 / READ_GBS / 1e3 + 2 * LAUNCH_US, rel=1e-6
    )


def test_chunks_read_their_experts_again():
    chunk = decode_us(FLASH_NEXT._replace(M=16))
    assert decode_us(FLASH_NEXT._replace(M=64)) == pytest.approx(4 * chunk)
    assert decode_us(FLASH_NEXT._replace(M=17)) == pytest.approx(chunk + decode_us(FLASH_NEXT))


def test_instructions_bound_an_expert_with_many_tokens():
    one = Layer("i8", 512, 1, 2560, 640, 1, 1, 4.9e6)
    assert tiled_us(one._replace(M=1024)) > 1.8 * tiled_us(one)
    bytes_us = 4.9e6 / READ_GBS / 1e3
    assert decode_us(one._replace(M=16), grouped=False) > 2 * bytes_us


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_where_the_kinds_cross(layer):
    for M in (1, 2, 4, 8, 16):
        assert decode_us(layer._replace(M=M)) < tiled_us(layer._replace(M=M))
    for M in (24, 32, 100, 512, 4096):
        assert decode_us(layer._replace(M=M)) > tiled_us(layer._replace(M=M))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_more_tokens_never_cost_less(layer):
    for cost in (decode_us, tiled_us):
        times = [cost(layer._replace(M=M)) for M in range(1, 80)]
        # Larger blocks decode weights less often: tiles may gain a little there.
        assert all(b >= 0.97 * a for a, b in itertools.pairwise(times))


def assert_near(row: Row) -> None:
    """The estimate, which does not know the routing, and the emulator's model, which does."""
    assert row.decode_estimate == pytest.approx(row.decode_us, rel=0.15)
    if row.M > 1:  # one token: tiles wait for memory, and longer for wider weights
        assert row.tiled_estimate == pytest.approx(row.tiled_us, rel=0.15)
    worse = {"moe_grouped": row.decode_us, "moe_tile": row.tiled_us}[row.chosen]
    assert worse <= 1.1 * min(row.decode_us, row.tiled_us), row


def test_the_estimate_is_near_the_model_of_the_kernels():
    for row in measure("int4", (20,)):
        assert_near(row)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int4", "mxfp4", "i8", "e4m3", "e5m2", "f16"])
def test_the_estimate_of_every_format(format):
    for row in measure(format, (1, 4, 16, 20, 64)):
        assert_near(row)
