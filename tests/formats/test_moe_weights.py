"""Experts from every checkpoint layout, packed here by other code, and slices of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rdna_jit import ContractError
from rdna_jit.formats.moe_weights import MoEWeights

E, H, I = 3, 128, 64  # noqa: E741
PREFIX = "model.layers.7.mlp"
ROLES = {"gate_proj": (I, H), "up_proj": (I, H), "down_proj": (H, I)}
Tensors = dict[str, torch.Tensor]
AWQ_SLOT = (0, 4, 1, 5, 2, 6, 3, 7)  # of column n % 8


def words(codes: np.ndarray, slots: tuple[int, ...], bits: int = 4) -> torch.Tensor:
    """`[.., n]` codes into int32 `[.., n / per]`, neighbours into the given slots."""
    per = 32 // bits
    octets = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per)
    packed = sum(octets[..., j] << np.uint64(bits * slots[j]) for j in range(per))
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


class Integers:
    """Random codes, zeros and scales of every expert, and what they mean."""

    def __init__(self, G: int, bits: int = 4, low: int = 0, high: int = 16, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.q, self.z, self.s, self.dense = {}, {}, {}, {}
        for e in range(E):
            for role, (N, K) in ROLES.items():
                group = K if G == -1 else G
                q = rng.integers(0, 1 << bits, (N, K))
                z = rng.integers(low, high, (N, K // group))
                s = rng.uniform(0.01, 0.02, z.shape).astype(np.float16)
                key = f"experts.{e}.{role}"
                self.q[key], self.z[key], self.s[key] = q, z, s
                full = [np.repeat(v.astype(np.float64), group, 1) for v in (z, s)]
                self.dense[key] = (q - full[0]) * full[1]

    def check(self, weights: MoEWeights) -> None:
        check(weights, self.dense)


def check(weights: MoEWeights, dense: dict[str, np.ndarray]) -> None:
    w1, w2 = weights.dequantize(torch.float64)
    assert (weights.E, weights.H, weights.I) == (E, H, I)
    for e in range(E):
        gate, up, down = (dense[f"experts.{e}.{role}"] for role in ROLES)
        assert np.array_equal(w1[e].numpy(), np.concatenate((gate, up)))
        assert np.array_equal(w2[e].numpy(), down)


def named(tensors: dict[str, object]) -> Tensors:
    made = {f"{PREFIX}.{k}": torch.as_tensor(v) for k, v in tensors.items()}
    made[f"{PREFIX}.gate.weight"] = torch.zeros(E, H)  # the router and what else a layer has
    made[f"{PREFIX}.shared_expert.gate_proj.qweight"] = torch.zeros(4, 4).int()
    made["model.layers.17.mlp.experts.0.gate_proj.qweight"] = torch.zeros(1).int()
    return made


def gptq(data: Integers, offset: int, bits: int = 4) -> Tensors:
    made: dict[str, object] = {}
    per, order = 32 // bits, tuple(range(8))
    for key, q in data.q.items():
        groups = data.z[key].shape[1]
        made[f"{key}.qweight"] = words(q.reshape(len(q), -1), order, bits).t().contiguous()
        stored = (data.z[key].T - offset) & ((1 << bits) - 1)
        made[f"{key}.qzeros"] = words(stored, order, bits)
        made[f"{key}.scales"] = data.s[key].T.copy()
        made[f"{key}.g_idx"] = (torch.arange(q.shape[1]) // (q.shape[1] // groups)).int()
        assert made[f"{key}.qweight"].shape[0] == q.shape[1] // per  # type: ignore[attr-defined]
    return named(made)


@pytest.mark.parametrize("G", [32, 64, -1])
@pytest.mark.parametrize("offset", [0, 1])
def test_gptq(offset, G):
    data = Integers(G, low=offset, high=16)
    weights = MoEWeights.from_checkpoint(gptq(data, offset), PREFIX, zero_offset=offset)
    assert (weights.format, weights.group_size) == ("int4", G) and weights.w1_zp is not None
    data.check(weights)
    again = MoEWeights.from_gptq(gptq(data, offset), PREFIX + ".", zero_offset=offset)
    assert torch.equal(again.w1_zp, weights.w1_zp) and repr(again) == repr(weights)
    assert repr(weights) == f"MoEWeights(int4, E=3, H=128, I=64, group_size={G})"


def test_symmetric_gptq_has_no_zero_points():
    data = Integers(32, low=8, high=9)
    weights = MoEWeights.from_gptq(gptq(data, 1), PREFIX)
    assert weights.w1_zp is None and weights.w2_zp is None
    data.check(weights)
    without = {k: t for k, t in gptq(data, 1).items() if "qzeros" not in k}
    data.check(MoEWeights.from_gptq(without, PREFIX))


def test_gptq_of_eight_bits():
    data = Integers(32, bits=8, low=128, high=129)
    weights = MoEWeights.from_checkpoint(gptq(data, 1, 8), PREFIX)
    assert weights.format == "i8" and weights.w1_scale.shape == (E, 2 * I, H // 32)
    data.check(weights)
    with pytest.raises(ContractError, match="symmetric 8-bit weights, zero point 128"):
        MoEWeights.from_checkpoint(gptq(Integers(32, bits=8, low=90, high=99), 1, 8), PREFIX)


def test_zero_point_16_is_refused():
    tensors = gptq(Integers(32, low=3, high=9), 1)
    tensors[f"{PREFIX}.experts.1.up_proj.qzeros"][0, 0] = -1
    with pytest.raises(ContractError, match=r"experts.1.up_proj.qzeros: .* got 16 .*zero_offset=0"):
        MoEWeights.from_checkpoint(tensors, PREFIX)


@pytest.mark.parametrize("offset", [0, 1])
def test_a_symmetric_checkpoint_of_the_other_version_is_noticed(offset):
    tensors = gptq(Integers(32, low=8, high=9), offset)
    with pytest.raises(ContractError, match=rf"symmetric v. checkpoint; pass zero_offset={offset}"):
        MoEWeights.from_checkpoint(tensors, PREFIX, zero_offset=1 - offset)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_experts_that_a_server_has_packed(asymmetric):
    """ "moe_wna16": this layout itself."""
    dense = floats(3, 64, 64)
    made = MoEWeights.quantize(*dense, "int4", 32, symmetric=not asymmetric)
    names = {"w1": "w13_qweight", "w1_scale": "w13_scales", "w1_zp": "w13_qzeros",
             "w2": "w2_qweight", "w2_scale": "w2_scales", "w2_zp": "w2_qzeros"}  # fmt: skip
    tensors = {names[n]: t for n, t in made.tensors.items() if t is not None}
    weights = MoEWeights.from_checkpoint(tensors)
    assert weights.group_size == 32
    for a, b in zip(weights.dequantize(), made.dequantize(), strict=True):
        assert torch.equal(a, b)


def test_act_order_is_refused_with_the_reason():
    tensors = gptq(Integers(32, high=15), 0)
    name = f"{PREFIX}.experts.2.down_proj.g_idx"
    tensors[name] = tensors[name].flip(0)
    with pytest.raises(ContractError, match=r"experts.2.down_proj.g_idx: .*act-order.*desc_act"):
        MoEWeights.from_gptq(tensors, PREFIX)
    tensors[name] = torch.empty(0, dtype=torch.int32)  # as files without act-order may have it
    MoEWeights.from_gptq(tensors, PREFIX)


@pytest.mark.parametrize("fused", [False, True])
def test_awq_keeps_zero_points_of_zero(fused):
    data = Integers(32)
    assert any((z == 0).any() for z in data.z.values())
    made: dict[str, object] = {}
    for e in range(E):
        keys = [f"experts.{e}.{role}" for role in ROLES]
        pairs = [([key], key) for key in keys]
        if fused:
            pairs = [(keys[:2], f"experts.{e}.gate_up_proj"), ([keys[2]], keys[2])]
        for parts, name in pairs:
            q, z, s = (np.concatenate([d[p] for p in parts]) for d in (data.q, data.z, data.s))
            made[f"{name}.qweight"] = words(q.T, AWQ_SLOT)
            made[f"{name}.qzeros"] = words(z.T, AWQ_SLOT)
            made[f"{name}.scales"] = s.T.copy()
    data.check(MoEWeights.from_checkpoint(named(made), PREFIX))
    data.check(MoEWeights.from_awq(named(made), PREFIX))


def compressed(data: Integers, bits: int) -> Tensors:
    made: dict[str, object] = {}
    order = tuple(range(8))
    for key, q in data.q.items():
        made[f"{key}.weight_packed"] = words(q, order, bits)
        made[f"{key}.weight_scale"] = torch.from_numpy(data.s[key])
        made[f"{key}.weight_shape"] = torch.tensor(q.shape)
        made[f"{key}.weight_zero_point"] = words(data.z[key].T, order, bits).t().contiguous()
    return named(made)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(bits):
    data = Integers(32, bits, *((0, 16) if bits == 4 else (128, 129)))
    weights = MoEWeights.from_checkpoint(compressed(data, bits), PREFIX)
    assert weights.format == ("int4" if bits == 4 else "i8")
    data.check(weights)


@pytest.mark.parametrize("rows_first", [True, False])
def test_compressed_tensors_stacked_as_servers_do(rows_first):
    data, made = Integers(32), {}
    for kind, name in (("weight_packed",) * 2, ("weight_scale",) * 2, ("weight_zero_point",) * 2):
        tensors = compressed(data, 4)

        def one(e, role, kind=kind, tensors=tensors):
            return tensors[f"{PREFIX}.experts.{e}.{role}.{kind}"]

        w13 = torch.stack([torch.cat([one(e, "gate_proj"), one(e, "up_proj")]) for e in range(E)])
        w2 = torch.stack([one(e, "down_proj") for e in range(E)])
        for matrix, t in (("w13", w13), ("w2", w2)):
            made[f"{matrix}_{name}"] = t if rows_first else t.transpose(1, 2).contiguous()
    data.check(MoEWeights.from_checkpoint(made))
    data.check(
        MoEWeights.from_checkpoint({f"{PREFIX}.experts.{k}": t for k, t in made.items()}, PREFIX)
    )


def test_int8_with_a_scale_per_row():
    rng, made, dense = np.random.default_rng(5), {}, {}
    for e in range(E):
        for role, (N, K) in ROLES.items():
            q = rng.integers(-128, 128, (N, K)).astype(np.int8)
            s = rng.uniform(0.1, 0.2, (N, 1)).astype(np.float32)
            made[f"experts.{e}.{role}.weight"], made[f"experts.{e}.{role}.weight_scale"] = q, s
            dense[f"experts.{e}.{role}"] = q * s.astype(np.float64)
    weights = MoEWeights.from_checkpoint(named(made), PREFIX)
    assert weights.w1_scale.shape == (E, 2 * I) and weights.w1_scale.dtype == torch.float32
    check(weights, dense)


def e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = (8 * (exponent > 0) + mantissa) * 2.0 ** (max(exponent, 1) - 10)
    return -size if byte & 128 else size


E4M3 = [e4m3(byte) for byte in range(256)]


def fp8_experts(kind: str, key: str) -> tuple[Tensors, dict[str, np.ndarray]]:
    rng, made, dense = np.random.default_rng(6), {}, {}
    for e in range(E):
        for role, (N, K) in ROLES.items():
            codes = rng.integers(0, 256, (N, K)).astype(np.uint8)
            codes[codes & 127 == 127] = 1
            shape = {"tensor": (), "one": (1,), "row": (N, 1)}.get(kind, (-(-N // 32), -(-K // 48)))
            s = rng.uniform(0.01, 0.02, shape).astype(np.float32)
            name = f"experts.{e}.{role}"
            made[f"{name}.weight"] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
            made[f"{name}.{key}"] = s
            made[f"{name}.input_scale"] = torch.ones(1)
            full = np.asarray(s, np.float64)
            if kind == "block":
                full = full.repeat(32, 0)[:N].repeat(48, 1)[:, :K]
            dense[name] = np.array(E4M3)[codes] * full
    return named(made), dense


@pytest.mark.parametrize("kind", ["tensor", "one", "row"])
def test_fp8(kind):
    tensors, dense = fp8_experts(kind, "weight_scale")
    weights = MoEWeights.from_checkpoint(tensors, PREFIX)
    # Gate and up of one expert have scales of their own.
    assert weights.format == "e4m3" and weights.w1_scale.shape == (E, 2 * I)
    check(weights, dense)


@pytest.mark.parametrize("key", ["weight_scale", "weight_scale_inv"])
def test_fp8_in_blocks(key):
    tensors, dense = fp8_experts("block", key)
    weights = MoEWeights.from_fp8(tensors, PREFIX, block=(32, 48))
    assert weights.block == (32, 48) and weights.w1_scale.shape == (E, 2 * I // 32, 3)
    check(weights, dense)
    with pytest.raises(ContractError, match=rf"{key}: expected .*blocks of \(128, 128\), got"):
        MoEWeights.from_checkpoint(tensors, PREFIX)


def test_fp8_blocks_of_files_and_gates_that_end_within_one():
    """I = 192 rows of gate are one and a half blocks of 128."""
    rng, made = np.random.default_rng(0), {}
    shapes = {"w1": (192, 256), "w3": (192, 256), "w2": (256, 192)}
    wide = {}
    for role, (N, K) in shapes.items():
        w = torch.from_numpy(rng.integers(0, 126, (N, K)).astype(np.uint8))
        s = torch.from_numpy(rng.uniform(0.5, 1, (-(-N // 128), -(-K // 128))).astype(np.float32))
        made[f"experts.0.{role}.weight"] = w.view(torch.float8_e4m3fn)
        made[f"experts.0.{role}.weight_scale_inv"] = s
        spread = s.double().repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
        wide[role] = torch.tensor(E4M3, dtype=torch.float64)[w.long()] * spread
    weights = MoEWeights.from_checkpoint(made)
    assert weights.block == (64, 128)
    w1, w2 = weights.dequantize(torch.float64)
    assert torch.equal(w1[0], torch.cat((wide["w1"], wide["w3"]))) and torch.equal(
        w2[0], wide["w2"]
    )


def test_fp8_stacked_with_a_scale_for_gate_and_one_for_up():
    w1 = torch.ones(E, 2 * I, H).to(torch.float8_e5m2)
    w2 = torch.ones(E, H, I).to(torch.float8_e5m2)
    s1, s2 = torch.rand(E, 2), torch.rand(E)
    weights = MoEWeights.from_checkpoint(
        {"w13_weight": w1, "w13_weight_scale": s1, "w2_weight": w2, "w2_weight_scale": s2}
    )
    assert weights.format == "e5m2"
    got1, got2 = weights.dequantize()
    assert torch.equal(got1[:, I - 1, 0], s1[:, 0]) and torch.equal(got1[:, I, 0], s1[:, 1])
    assert torch.equal(got2[:, 5, 5], s2)


def test_fp8_codes_without_a_number_are_refused():
    tensors, _ = fp8_experts("row", "weight_scale")
    name = f"{PREFIX}.experts.1.up_proj.weight"
    tensors[name].view(torch.uint8)[3, 5] = 0xFF
    with pytest.raises(ContractError, match=r"1.up_proj.weight: expected finite codes, got 1 of"):
        MoEWeights.from_checkpoint(tensors, PREFIX)
    fnuz = {k: t.view(torch.uint8).view(torch.float8_e4m3fnuz) if k.endswith(".weight") else t
            for k, t in tensors.items()}  # fmt: skip
    with pytest.raises(ContractError, match=r"weight: expected OCP float8, got .*fnuz"):
        MoEWeights.from_checkpoint(fnuz, PREFIX)


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


@pytest.mark.parametrize("form", ["blocks", "stacked", "files", "interleaved"])
def test_mxfp4(form):
    rng, made, dense = np.random.default_rng(7), {}, {}
    codes, scales = {}, {}
    for e in range(E):
        for role, (N, K) in ROLES.items():
            q, k = rng.integers(0, 16, (N, K)), rng.integers(110, 140, (N, K // 32))
            name = f"experts.{e}.{role}"
            dense[name] = np.array(E2M1)[q] * 2.0 ** (k.repeat(32, 1) - 127.0)
            codes[e, role] = torch.from_numpy((q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8))
            scales[e, role] = torch.from_numpy(k.astype(np.uint8))
            if form == "files":
                made[f"{name}.weight"], made[f"{name}.scale"] = codes[e, role], scales[e, role]
    interleaved = form in ("blocks", "interleaved")

    def fused(t: dict, e: int) -> torch.Tensor:
        gate, up = t[e, "gate_proj"], t[e, "up_proj"]
        return torch.stack((gate, up), 1).flatten(0, 1) if interleaved else torch.cat((gate, up))

    if form != "files":
        w1, s1 = (torch.stack([fused(t, e) for e in range(E)]) for t in (codes, scales))
        w2, s2 = (torch.stack([t[e, "down_proj"] for e in range(E)]) for t in (codes, scales))
        if form == "blocks":
            made = {
                "experts.gate_up_proj_blocks": w1.view(E, 2 * I, H // 32, 16),
                "experts.gate_up_proj_scales": s1,
                "experts.down_proj_blocks": w2.view(E, H, I // 32, 16),
                "experts.down_proj_scales": s2,
            }
        else:
            made = {
                "w13_weight": w1,
                "w13_weight_scale": s1,
                "w2_weight": w2,
                "w2_weight_scale": s2,
            }
    tensors = named(made)
    weights = (
        MoEWeights.from_mxfp4(tensors, PREFIX, interleaved=True) if form == "interleaved"
        else MoEWeights.from_checkpoint(tensors, PREFIX)
    )  # fmt: skip
    assert weights.format == "mxfp4"
    check(weights, dense)


@pytest.mark.parametrize("form", ["files", "rows", "columns"])
def test_floats(form):
    rng, made, dense = np.random.default_rng(8), {}, {}
    for e in range(E):
        for role, size in ROLES.items():
            w = rng.normal(0, 1, size).astype(np.float16)
            dense[f"experts.{e}.{role}"] = w.astype(np.float64)
            made[f"experts.{e}.{role}.weight"] = torch.from_numpy(w).bfloat16().float()
            dense[f"experts.{e}.{role}"] = made[f"experts.{e}.{role}.weight"].double().numpy()
    if form != "files":
        turn = (lambda t: t) if form == "rows" else (lambda t: t.transpose(1, 2).contiguous())

        def stack(*roles: str) -> torch.Tensor:
            return torch.stack(
                [torch.cat([made[f"experts.{e}.{r}.weight"] for r in roles]) for e in range(E)]
            )

        made = {
            "experts.gate_up_proj": turn(stack("gate_proj", "up_proj")),
            "experts.down_proj": turn(stack("down_proj")),
        }
    weights = MoEWeights.from_checkpoint(named(made), PREFIX)
    assert weights.format == "f16" and weights.w1_scale is None
    check(weights, dense)


def test_some_experts_of_a_file():
    data = Integers(32)
    weights = MoEWeights.from_checkpoint(gptq(data, 0), PREFIX, zero_offset=0, experts=(2, 0))
    all_of_them = MoEWeights.from_checkpoint(gptq(data, 0), PREFIX, zero_offset=0)
    assert torch.equal(weights.w1, all_of_them.w1[[2, 0]]) and weights.E == 2
    assert torch.equal(weights.w2_zp, all_of_them.w2_zp[[2, 0]])


def test_only_tensors_of_the_experts_are_asked_for():
    class Lazy(dict):
        own = ""

        def __getitem__(self, name: str) -> torch.Tensor:
            assert f"{PREFIX}.experts.{self.own}" in name
            return super().__getitem__(name)

    for own, experts in (("", None), ("1.", [1])):
        tensors = Lazy(gptq(Integers(32), 0))
        tensors.own = own
        MoEWeights.from_checkpoint(tensors, PREFIX, zero_offset=0, experts=experts)


def broken(change) -> Tensors:
    tensors = gptq(Integers(32), 0)
    change(tensors)
    return tensors


REFUSED = [
    (lambda t: t.clear(), r"tensors: expected names like experts.0.gate_proj.qweight .* got 0"),
    (lambda t: t.pop(f"{PREFIX}.experts.1.up_proj.qweight"), r"experts.1.up_proj.qweight: .*none"),
    (lambda t: [t.pop(k) for k in list(t) if "experts.1." in k], r"experts: expected expert 1"),
    (lambda t: [t.pop(k) for k in list(t) if "2.down_proj" in k], r"experts: .*no down of 2"),
    (lambda t: t.update({f"{PREFIX}.experts.0.up_proj.bias": torch.zeros(I)}), "without a bias"),
    (lambda t: t.update({f"{PREFIX}.experts.0.w3.qweight": torch.zeros(I)}), "one tensor per exp"),
    (
        lambda t: [t.update({k: t[k][:, :-1]}) for k in list(t) if "down_proj.qweight" in k],
        r"experts.0.down_proj: expected GPTQ, AWQ.*g_idx torch.int32 \[64\].*qweight torch.int32",
    ),
    (
        lambda t: t.update({f"{PREFIX}.experts.1.up_proj.qzeros": torch.zeros(4, 3).int()}),
        r"experts.1.up_proj.qzeros: expected shape \[4, 8\], as .*0.gate_proj has, got \[4, 3\]",
    ),
    (
        lambda t: t.update({f"{PREFIX}.experts.1.up_proj.scales": torch.full((4, I), 1e6)}),
        "experts.1.up_proj.scales: .*do not fit fp16",
    ),
    (
        lambda t: t.update({f"{PREFIX}.experts.0.gate_up_proj.qweight": torch.zeros(16, 2 * I)}),
        "experts: expected gate and up apart, or both in one matrix",
    ),
    (
        lambda t: [t.update({k: t[k][:1]}) for k in list(t) if "2.up_proj.scales" in k],
        r"experts.2.up_proj.scales: expected shape \[4, 64\], as .*0.gate_proj has, got \[1, 64\]",
    ),
    (
        lambda t: [t.update({k: t[k][:0]}) for k in list(t) if k.endswith("scales")],
        r"0.gate_proj.scales: expected groups that share the 128 rows of K, got 0",
    ),
    (lambda t: t.update({f"{PREFIX}.experts.0.up_proj.scales": 3}), "expected a tensor, got int"),
]  # fmt: skip


@pytest.mark.parametrize("change, message", REFUSED, ids=[m[:20] for _, m in REFUSED])
def test_refused(change, message):
    with pytest.raises(ContractError, match=message):
        MoEWeights.from_checkpoint(broken(change), PREFIX, zero_offset=0)


@pytest.mark.parametrize("offset", [-1, 2])
def test_zero_offset_is_0_or_1(offset):
    with pytest.raises(ContractError, match="zero_offset: expected 1, or 0"):
        MoEWeights.from_checkpoint(gptq(Integers(32), 0), PREFIX, zero_offset=offset)


def test_no_experts_at_all():
    with pytest.raises(ContractError, match="experts: expected at least one"):
        MoEWeights.from_checkpoint(gptq(Integers(32), 0), PREFIX, experts=())


@pytest.mark.parametrize("block", [(0, 128), (128,), (-1, 4), (32.0, 32), 5, "ab"], ids=str)
def test_blocks_that_are_none(block):
    weights = MoEWeights.quantize(*floats(), "e4m3", block=(64, 64))
    for make in (lambda: replace(weights, block=block), lambda: MoEWeights.from_fp8(
        {"w13_weight": weights.w1, "w13_weight_scale": weights.w1_scale, "w2_weight": weights.w2,
         "w2_weight_scale": weights.w2_scale}, block=block)):  # fmt: skip
        with pytest.raises(ContractError, match=r"block: expected \(rows, columns\)"):
            make()


def test_groups_and_blocks_belong_to_formats():
    int4 = MoEWeights.quantize(*floats(), "int4", 32)
    with pytest.raises(ContractError, match="block: expected None for int4"):
        replace(int4, block=(128, 128))
    with pytest.raises(ContractError, match=r"w1_zp: expected torch.uint8"):
        replace(int4, w1_zp=[1])
    with pytest.raises(ContractError, match="group_size: expected -1 for f16"):
        replace(MoEWeights.quantize(*floats(), "f16"), group_size=32)


# ---- made from floats, sliced, checked ----

KINDS = [
    ("int4", {"group_size": 32}), ("int4", {"group_size": 64, "symmetric": False}), ("int4", {}),
    ("i8", {}), ("i8", {"group_size": 64}), ("e4m3", {}), ("e4m3", {"block": (64, 64)}),
    ("e5m2", {"block": (48, 64)}), ("mxfp4", {}), ("f16", {}),
]  # fmt: skip
STEP = {"int4": 0.1, "i8": 0.006, "e4m3": 0.04, "e5m2": 0.08, "mxfp4": 0.16, "f16": 3e-4}


def floats(E: int = 4, H: int = 64, I: int = 128) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
    g = torch.Generator().manual_seed(0)
    return torch.randn(E, 2 * I, H, generator=g), torch.randn(E, H, I, generator=g)


@pytest.mark.parametrize("format, options", KINDS, ids=str)
def test_quantize(format, options):
    dense = floats()
    weights = MoEWeights.quantize(*dense, format, **options)
    for got, want in zip(weights.dequantize(), dense, strict=True):
        error = (got - want).norm() / want.norm()
        assert STEP[format] / 40 < error < STEP[format] * (1.6 if options == {} else 1), error
    assert weights.nbytes == sum(t.nbytes for t in weights.tensors.values() if t is not None)
    assert weights.to("meta").w1.device.type == "meta"


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("format, options", KINDS, ids=str)
def test_slices_over_channels_put_together(format, options, size):
    weights = MoEWeights.quantize(*floats(), format, **options)
    w1, w2 = weights.dequantize(torch.float64)
    ranks = [weights.slice_tp(rank, size) for rank in range(size)]
    assert all(r.I * size == weights.I and r.format == format for r in ranks)
    dense = [r.dequantize(torch.float64) for r in ranks]
    gates, ups = zip(*(d[0].chunk(2, 1) for d in dense), strict=True)
    assert torch.equal(torch.cat((*gates, *ups), 1), w1)
    assert torch.equal(torch.cat([d[1] for d in dense], 2), w2)


def test_a_group_of_128_over_160_channels_becomes_32():
    weights = MoEWeights.quantize(*floats(2, 128, 640), "int4", 128, symmetric=False)
    part = weights.slice_tp(3, 4)
    assert part.group_size == 32 and part.w2_scale.shape == (2, 128, 5)
    assert part.w1_scale.shape == (2, 320, 4) and part.w2_zp.shape == (2, 64, 5)
    assert torch.equal(
        part.dequantize(torch.float64)[1], weights.dequantize(torch.float64)[1][..., 480:]
    )
    with pytest.raises(ContractError, match=r"group_size: expected groups that halve to .* of 80"):
        weights.slice_tp(0, 8)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_slices_over_experts(size):
    weights = MoEWeights.quantize(*floats(), "int4", 32, symmetric=False)
    w1, _ = weights.dequantize()
    seen = 0
    for rank in range(size):
        part, table = weights.slice_ep(rank, size)
        assert table.dtype == torch.int32 and table.shape == (4,)
        for expert, local in enumerate(table.tolist()):
            if local >= 0:
                assert torch.equal(part.dequantize()[0][local], w1[expert])
                seen += 1
    assert seen == 4


def test_wrong_slices():
    weights = MoEWeights.quantize(*floats(), "mxfp4")
    for arguments, message in (
        ((0, 3), "size: expected a divisor of the 128 channels"),
        ((0, 8), "size: expected slices of a multiple of 32 channels, got 128 / 8"),
        ((2, 2), "rank: expected 0 to 1, got 2"),
        ((0, 0), "size: expected a number of ranks"),
    ):
        with pytest.raises(ContractError, match=message):
            weights.slice_tp(*arguments)
    with pytest.raises(ContractError, match="size: expected at most one rank for each of the 4"):
        weights.slice_ep(0, 5)
    blocks = MoEWeights.quantize(*floats(2, 64, 96), "e4m3", block=(64, 64))
    assert blocks.slice_tp(0, 3).block == (32, 32)
    with pytest.raises(ContractError, match=r"block: expected blocks that share 32 .*\(64, 64\)"):
        blocks.slice_tp(0, 2)


def built(**changes: object) -> MoEWeights:
    made = MoEWeights.quantize(*floats(), "int4", 32, symmetric=False)
    return MoEWeights(**{**vars(made), **changes})


@pytest.mark.parametrize("changes, message", [
    ({"format": "int3"}, "format: expected one of int4, i8"),
    ({"w1": torch.zeros(4, 256, 32)}, r"w1: expected torch.uint8 \[E, rows, ..\] for int4, got t"),
    ({"w2": torch.zeros(4, 64, 63).byte()}, r"w2: expected \[E, H, I\] beside w1 \[E, 2 I, H\]"),
    ({"w1_scale": None}, "w1_scale: expected torch.float16 for int4, got None"),
    ({"w2_scale": torch.ones(4, 64, 2).half()}, r"w2_scale: expected \[4, 64, 4\], got torch"),
    ({"w2_zp": torch.ones(4, 64, 4).byte()}, r"w2_zp: expected torch.uint8 \[4, 32, 4\]"),
    ({"group_size": 48}, "group_size: expected a divisor of the 64 weights"),
])  # fmt: skip
def test_fields_are_checked(changes, message):
    with pytest.raises(ContractError, match=f"MoEWeights: {message}"):
        built(**changes)
