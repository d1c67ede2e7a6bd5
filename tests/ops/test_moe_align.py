"""moe_align_block_size against a sort in plain Python: every output, every element."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, emulator
from rdna_jit.ops._moe_routing import ALIGN, align_waves
from rdna_jit.ops.moe import moe_align_block_size

from .clang import compile_with_clang

POISON = 0x5A5A5A5A
Lists = list[list[int]]


def reference(
    ids: torch.Tensor, B: int, E: int, table: torch.Tensor | None, pad: bool, drop: bool
) -> Lists:
    """The six results as lists."""
    slots, mapping = ids.numel(), None if table is None else table.tolist()
    runs: dict[int, list[int]] = {}
    for slot, i in enumerate(ids.flatten().tolist()):
        local = i if mapping is None or not 0 <= i < E else mapping[i]
        if 0 <= i < E and (local >= 0 or not drop):
            runs.setdefault(local if drop else i, []).append(slot)
    rows: list[int] = []
    experts: list[int] = []
    for expert in sorted(runs):
        run = runs[expert]
        count = -(-len(run) // B)
        rows += run + [slots] * (count * B - len(run))
        experts += [expert if drop or mapping is None else mapping[expert]] * count
    capacity = slots + E * (B - 1)
    if pad:
        capacity = -(-capacity // B) * B
    if slots < E:
        capacity = min(capacity, slots * B)
    blocks = -(-capacity // B)
    where = {slot: row for row, slot in enumerate(rows) if slot < slots}
    active = [b for b, expert in enumerate(experts) if expert >= 0]
    return [
        rows + [slots] * (capacity - len(rows)),
        experts + [-1] * (blocks - len(experts)),
        [len(rows)],
        [where.get(slot, -1) for slot in range(slots)],
        active + [-1] * (blocks - len(active)),
        [len(active)],
    ]


def routed(M: int, T: int, E: int, dtype: torch.dtype = torch.int32, seed: int = 0) -> torch.Tensor:
    """Ids of which a few are negative or too large."""
    generator = torch.Generator().manual_seed(seed * 7919 + M * 31 + E)
    ids = torch.randint(0, E, (M, T), generator=generator)
    odd = torch.rand(M, T, generator=generator)
    ids[odd < 0.05], ids[odd > 0.97] = -1, E
    if dtype == torch.int64:  # low halves that are valid
        ids[odd > 0.985] = 2**32
    return ids.to(dtype)


def half_local(E: int, seed: int = 0) -> torch.Tensor:
    """A map that keeps about half of the experts, in another order."""
    generator = torch.Generator().manual_seed(seed + E)
    table = torch.full((E,), -1, dtype=torch.int32)
    kept = torch.randperm(E, generator=generator)[: (E + 1) // 2]
    table[kept] = torch.arange(len(kept), dtype=torch.int32)
    return table


def check(
    ids: torch.Tensor, B: int, E: int, table: torch.Tensor | None = None,
    pad: bool = False, drop: bool = False,
) -> None:  # fmt: skip
    """All results, with and without the inverse, from poisoned memory, and the same bits again."""
    expected = reference(ids, B, E, table, pad, drop)
    before = ids.clone()
    plan = moe_align_block_size.plan(ids, B, E, table, pad, drop, True)
    outputs = [torch.full((len(want),), POISON, dtype=torch.int32) for want in expected]
    sizes = ids.numel(), len(expected[0]), len(expected[1])
    plan.launches[0](ids, table, *outputs, *sizes)
    for output, want in zip(outputs, expected, strict=True):
        assert output.tolist() == want
    again = moe_align_block_size(ids, B, E, table, pad, drop, return_inverse=True)
    assert all(torch.equal(a.flatten(), b) for a, b in zip(again, outputs, strict=True))
    assert again[3].shape == ids.shape and torch.equal(ids, before)


@pytest.mark.parametrize("M, T, E, B", [
    (3, 16, 257, 128), (40, 10, 512, 8), (2256, 2, 160, 32),
    pytest.param(1, 1, 1, 4, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
def test_small_slice_of_the_grid(M, T, E, B):
    check(routed(M, T, E), B, E)


GRID = list(product((1, 3, 256, 2256, 4096), (32, 160, 256, 257), (1, 2, 16, 32), (32, 128)))


@pytest.mark.slow
@pytest.mark.parametrize("M, E, T, B", GRID, ids=str)
def test_grid(M, E, T, B):
    check(routed(M, T, E), B, E)


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("E", [64, 512, 1024, 2048])
@pytest.mark.parametrize("B", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("M", [1, 16, 2048])
def test_grid_with_a_map(M, B, E, drop):
    check(routed(M, 8, E, torch.int64), B, E, half_local(E), True, drop)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("M", [1, 33])
def test_experts_of_other_ranks(M, drop):
    check(routed(M, 8, 64, torch.int64), 4, 64, half_local(64), pad=True, drop=drop)


def test_dropping_without_a_map_changes_nothing():
    check(routed(9, 8, 64), 4, 64, drop=True)


@pytest.mark.parametrize("fill", [-1, 0, 63])
def test_all_slots_alike(fill):
    check(torch.full((33, 8), fill, dtype=torch.int32), 4, 64)


def test_more_slots_than_a_wave_counts_in_one_go():
    generator = torch.Generator().manual_seed(3)
    check(torch.randint(0, 8, (700, 32), generator=generator).int(), 16, 8)


def test_maps_out_of_range_give_no_expert():
    table = torch.tensor([0, 4, -7, 1], dtype=torch.int32)
    ids = torch.tensor([[0, 1], [2, 3], [1, 0]], dtype=torch.int32)
    sorted_ids, experts, rows, *_ = moe_align_block_size(ids, 1, 4, table)
    assert sorted_ids.tolist() == [0, 5, 1, 4, 2, 3] and experts.tolist() == [0, 0, -1, -1, -1, 1]
    sorted_ids, experts, rows = moe_align_block_size(ids, 1, 4, table, False, True)
    assert sorted_ids.tolist() == [0, 5, 3, 6, 6, 6] and experts.tolist() == [0, 0, 1, -1, -1, -1]
    assert rows.tolist() == [3]


def test_the_order_of_experts_on_a_rank_does_not_move_slots_between_experts():
    ids, table = routed(20, 4, 64, torch.int64), half_local(64)
    turned = torch.where(table < 0, table, 31 - table)
    found = []
    for mapping in (table, turned):
        rows, experts, *_ = moe_align_block_size(ids, 4, 64, mapping, True, True, True)
        pairs = zip(rows.view(-1, 4).tolist(), experts.tolist(), strict=True)
        found.append([(row, expert) for row, expert in pairs if expert >= 0])
    assert sorted(found[0]) == sorted((row, 31 - expert) for row, expert in found[1])


@pytest.mark.parametrize("wide", [
    torch.int64, pytest.param(torch.int32, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
def test_strided_rows(wide):
    ids = routed(9, 6, 64, wide)
    room = torch.full((9, 10), 5, dtype=wide)
    room[:, :6] = ids
    found = moe_align_block_size(room[:, :6], 4, 64, return_inverse=True)
    for got, want in zip(found, reference(ids, 4, 64, None, False, False), strict=True):
        assert got.flatten().tolist() == want


def test_fresh_memory_is_never_read_and_waves_do_not_race():
    ids, table = routed(60, 8, 64, torch.int64), half_local(64)
    plan = moe_align_block_size.plan(ids, 4, 64, table, False, True, True)
    assert plan.values["WAVES"] == 4
    with emulator.checks(uninitialised=True, races=True):
        found = moe_align_block_size(ids, 4, 64, table, False, True, return_inverse=True)
    for got, want in zip(found, reference(ids, 4, 64, table, False, True), strict=True):
        assert got.flatten().tolist() == want


def test_empty_batch():
    results = moe_align_block_size(torch.empty(0, 8, dtype=torch.int32), 16, 64)
    assert [r.tolist() for r in results] == [[], [], [0]]


IDS = torch.zeros(2, 2, dtype=torch.int32)
BAD = [
    ({"topk_ids": IDS.short()}, "topk_ids: expected torch.int32 or torch.int64, got torch.int16"),
    ({"topk_ids": IDS[0]}, r"topk_ids: expected shape \[any, any\], got \[2\]"),
    ({"topk_ids": IDS.t().repeat(1, 2).t()[::2].t()}, "topk_ids: expected a contiguous last"),
    ({"topk_ids": None}, "topk_ids: expected a torch.int32 tensor"),
    ({"block_size": 0}, "block_size: expected a number from 1 to 65535, got 0"),
    ({"block_size": 4.0}, "block_size: expected a number"),
    ({"num_experts": 2049}, "num_experts: expected a number from 1 to 2048, got 2049"),
    # the local count with a map of global ids loses experts
    ({"expert_map": torch.zeros(16, dtype=torch.int32)}, "expert_map: .* the 8 experts, got 16 en"),
    ({"expert_map": torch.zeros(8)}, "expert_map: expected torch.int32, got torch.float32"),
    ({"expert_map": torch.zeros(8, dtype=torch.int32, device="meta")}, "expert_map: .* on cpu"),
]


@pytest.mark.parametrize("changes, message", BAD, ids=[m[:24] for _, m in BAD])
def test_refused(changes, message):
    arguments = {"topk_ids": IDS, "block_size": 4, "num_experts": 8, **changes}
    with pytest.raises(ContractError, match=f"moe_align_block_size: {message}"):
        moe_align_block_size(**arguments)


@pytest.mark.parametrize("inverse", [False, True])
def test_registered_with_torch(inverse):
    ids = routed(40, 10, 64)
    direct = moe_align_block_size(ids, 4, 64, return_inverse=inverse)
    through = torch.ops.rdna_jit.moe_align_block_size(ids, 4, 64, return_inverse=inverse)
    fake = torch.ops.rdna_jit.moe_align_block_size(ids.to("meta"), 4, 64, return_inverse=inverse)
    for a, b, c in zip(direct, through, fake, strict=True):
        assert torch.equal(a, b) and (a.shape, a.dtype) == (c.shape, c.dtype)


@pytest.mark.slow
def test_under_torch_compile():
    ids = routed(40, 10, 512)
    traced = torch.compile(moe_align_block_size, fullgraph=True, backend="aot_eager")
    compiled = traced(ids, 8, 512, None, False, False, True)
    direct = moe_align_block_size(ids, 8, 512, return_inverse=True)
    assert all(torch.equal(a, b) for a, b in zip(direct, compiled, strict=True))


def test_explain_and_one_launch_for_512_experts():
    plan = moe_align_block_size.plan(routed(1, 10, 512), 4, 512)
    assert len(plan.launches) == 1 and plan.launches[0].grid == 1
    text = str(rdna_jit.explain(moe_align_block_size, routed(1, 10, 512), 4, 512))
    assert "runs moe_align[NUM_EXPERTS=512" in text


def test_waves_fit_lds():
    assert [align_waves(131072, E) for E in (32, 256, 512, 1024, 2048)] == [32, 32, 16, 8, 4]
    assert align_waves(8, 512) == 4 and align_waves(1024, 64) == 8


CORNERS = [
    (512, 8, False, True), (2048, 128, True, False), (256, 64, True, True), (1, 1, False, False),
]  # fmt: skip


def corner(E: int, B: int, has_map: bool, drop: bool) -> dict[str, object]:
    return {
        "NUM_EXPERTS": E, "BLOCK_SIZE": B, "TOP_K": 1, "ID_STRIDE": 1, "ID_TYPE": "long long",
        "HAS_MAP": has_map, "DROP_INVALID": has_map and drop, "HAS_INVERSE": True,
        "WAVES": align_waves(1 << 20, E),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("values", CORNERS, ids=str)
@pytest.mark.parametrize("arch", ["gfx1010", "gfx1030"])
def test_no_spills(values, arch, tmp_path):
    kernel = ALIGN.specialise(arch, **corner(*values))
    for info in (
        kernel.program().info,
        compile_with_clang(kernel, tmp_path, arch).kernels["moe_align"],
    ):
        r = info.resources
        assert r.vgpr_spills == r.sgpr_spills == r.scratch_bytes == 0 and r.wavefront_size == 32
