# %% [markdown]
# # A mixture-of-experts layer
#
# From the tensors of a checkpoint to a layer that runs: one object for the weights, a router, one
# call for any number of tokens. Then which kernels it takes and why, what they cost, and the same
# layer spread over four ranks. It needs no GPU: without one, the same machine code runs on the
# emulator.

# %%
import torch

import rdna_jit
from rdna_jit import emulator, formats
from rdna_jit.ops import moe

DEVICE = "cuda" if rdna_jit.device().backend == "hip" else "cpu"
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, GROUP = 512, 256, 16, 4, 64
PREFIX = "model.layers.0.mlp"
random = torch.Generator().manual_seed(0)
print(rdna_jit.device())

# %% [markdown]
# ## A checkpoint
#
# A real one comes from `safetensors.torch.load_file`. This one has random experts in the GPTQ
# format: four-bit codes in words along K, zero points stored as one less, a scale per group.


# %%
def gptq_matrix(name: str, rows: int, K: int) -> dict[str, torch.Tensor]:
    """A random linear layer of `rows` outputs and K inputs as GPTQ stores it."""
    w = torch.randn(K, rows, generator=random) / K**0.5
    grouped = w.view(K // GROUP, GROUP, rows)
    scales = (grouped.abs().amax(1) / 7).half()
    codes = (grouped / scales[:, None] + 8).round().clamp(0, 15).view(K, rows)
    return {
        f"{name}.qweight": formats.pack_int4(codes.to(torch.uint8)),
        f"{name}.qzeros": formats.pack_zeros(torch.full_like(scales, 8).int(), zero_offset=1),
        f"{name}.scales": scales,
        f"{name}.g_idx": torch.arange(K, dtype=torch.int32) // GROUP,
    }


checkpoint = {}
for e in range(EXPERTS):
    for name, rows, K in (
        ("gate_proj", INTERMEDIATE, HIDDEN),
        ("up_proj", INTERMEDIATE, HIDDEN),
        ("down_proj", HIDDEN, INTERMEDIATE),
    ):
        checkpoint |= gptq_matrix(f"{PREFIX}.experts.{e}.{name}", rows, K)
router = torch.randn(EXPERTS, HIDDEN, generator=random).half()
print(f"{len(checkpoint)} tensors, such as {next(iter(checkpoint))}")

# %% [markdown]
# ## Weights
#
# The format is seen from names, dtypes and shapes. Rows then hold the reduction axis, so that the
# kernels for few tokens and those for many read the same memory.

# %%
weights = formats.MoEWeights.from_checkpoint(checkpoint, PREFIX).to(DEVICE)
print(weights, f"{weights.nbytes / 1e6:.1f} MB")

# %% [markdown]
# ## Run and check


# %%
def tokens(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Activations of some tokens, their experts' weights and ids."""
    x = torch.randn(count, HIDDEN, generator=random).half()
    logits = (x.float() @ router.float().T / HIDDEN**0.5).half()
    return x.to(DEVICE), *moe.topk_router(logits.to(DEVICE), TOP_K)


def reference(x, topk_weights, topk_ids) -> torch.Tensor:
    """The layer in torch, in fp32 on dequantised weights."""
    w1, w2 = (w.cpu() for w in weights.dequantize())
    y = torch.zeros(x.shape)
    for m, ids in enumerate(topk_ids.tolist()):
        for weight, e in zip(topk_weights[m].tolist(), ids, strict=True):
            gate, up = (w1[e] @ x[m].cpu().float()).chunk(2)
            activation = (torch.nn.functional.silu(gate) * up).half().float()
            y[m] += weight * (w2[e] @ activation)
    return y


batches = {count: tokens(count) for count in (1, 6, 96)}
results = {}
for count, (x, topk_weights, topk_ids) in batches.items():
    results[count] = moe.fused_moe(x, weights, topk_weights, topk_ids)
    expected = reference(x, topk_weights, topk_ids)
    error = (results[count].cpu().float() - expected).norm() / expected.norm()
    print(f"{count:>3} tokens: relative L2 error against torch in fp32: {error:.1e}")
    assert error < 5e-4

# %% [markdown]
# ## Which kernels, and why not the others
#
# Few tokens take two launches per 16 of them; many are sorted by expert and run on tiles. The
# choice is made inside the op, also in a graph that torch.compile made of another batch.

# %%
for count in (1, 96):
    print(rdna_jit.explain(moe.fused_moe, batches[count][0], weights, *batches[count][1:]), "\n")
print(rdna_jit.dispatch_log())

# %% [markdown]
# ## What does not fit is refused by name

# %%
x, topk_weights, topk_ids = batches[6]
for attempt in (
    lambda: moe.fused_moe(x.float(), weights, topk_weights, topk_ids),
    lambda: moe.fused_moe(x, weights, topk_weights[:, :2], topk_ids),
    lambda: moe.fused_moe(x, weights, topk_weights, topk_ids, out=x),
):
    try:
        attempt()
    except rdna_jit.ContractError as problem:
        print(problem)

# %% [markdown]
# ## Profile
#
# Counters are exact, times are a model's. A decode batch should cost little more than reading the
# experts that it needs.

# %%
for count in (1, 96):
    x, topk_weights, topk_ids = (t.cpu() for t in batches[count])
    with rdna_jit.config.scope(backend="emulator"), emulator.profiling() as profiles:
        moe.fused_moe(x, weights.to("cpu"), topk_weights, topk_ids)
    per_slot = sum(p.valu for p in profiles) * 32 / (count * TOP_K * 3 * HIDDEN * INTERMEDIATE)
    print(f"{count} tokens: {per_slot:.2f} vector instructions per weight and slot")
    for p in profiles:
        print(f"  {p.kernel:<18}{p.time_us:>6.1f} us on a {p.card.name}, bound by {p.bound_by}")

# %% [markdown]
# ## Four ranks
#
# Each rank keeps a quarter of the experts, and a map from the router's ids to them. Its result is a
# part: `torch.distributed.all_reduce` would add up what the loop adds up here.

# %%
RANKS = 4
for count, (x, topk_weights, topk_ids) in batches.items():
    total = torch.zeros(count, HIDDEN, device=DEVICE)
    for rank in range(RANKS):
        part, expert_map = weights.slice_ep(rank, RANKS)
        total += moe.fused_moe(x, part, topk_weights, topk_ids, expert_map=expert_map).float()
    error = (total - results[count].float()).norm() / results[count].float().norm()
    print(f"{count:>3} tokens on {RANKS} ranks of {part.E} experts: {error:.1e} from one rank")
    assert error < 5e-4
