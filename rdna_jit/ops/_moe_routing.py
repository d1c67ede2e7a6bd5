"""Kernels of MoE routing and their template values: pure functions of sizes and alignments."""

from __future__ import annotations

from rdna_jit.ops._declared import FLAG, sizes
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Value

MOST_EXPERTS_ALIGN = 2048
MOST_EXPERTS, MOST_CHOICES, MOST_GROUPS = 1024, 32, 32  # of the router
MOST_SLOTS = 1 << 26
_COUNTERS = 32768  # bytes of LDS for the counters of all waves
_WAVES = (1, 2, 4, 8, 16, 32)
_INT_OUT = "i32*"


ALIGN = KernelSpec(
    name="moe_align",
    file="moe_align.hip",
    entry="moe_align",
    parameters=(
        Parameter("topk_ids", "const Id*", align=4),
        Parameter("expert_map", "const i32*", align=4),
        *(
            Parameter(name, _INT_OUT, "out", align=4)
            for name in ("sorted", "block_experts", "num_rows", "inverse", "active", "num_active")
        ),
        *sizes("num_slots", "rows", "blocks"),
    ),
    template={
        "NUM_EXPERTS": range(1, MOST_EXPERTS_ALIGN + 1),
        "BLOCK_SIZE": range(1, 1 << 16),
        "TOP_K": range(1, 1 << 24),
        "ID_STRIDE": range(1 << 24),
        "ID_TYPE": ("int", "long long"),
        "HAS_MAP": FLAG,
        "DROP_INVALID": FLAG,
        "HAS_INVERSE": FLAG,
        "WAVES": _WAVES,
    },
    block=lambda values: int(values["WAVES"]) * 32,
)
ROUTER = KernelSpec(
    name="moe_topk_router",
    file="moe_topk_router.hip",
    entry="moe_topk_router",
    parameters=(
        Parameter("logits", "const Logit*", align=2),
        Parameter("bias", "const float*", align=4),
        Parameter("weights", "float*", "out", align=4),
        Parameter("ids", _INT_OUT, "out", align=4),
        *sizes("num_tokens", "logits_stride"),
        *sizes("scale", ctype="float"),
    ),
    template={
        "EXPERTS": range(1, MOST_EXPERTS + 1),
        "TOP_K": range(1, MOST_CHOICES + 1),
        "GROUPS": range(1, MOST_GROUPS + 1),
        "TOP_GROUPS": range(1, MOST_GROUPS + 1),
        "LOGIT_TYPE": ("float", "_Float16"),
        "SIGMOID": FLAG,
        "HAS_BIAS": FLAG,
        "RENORMALIZE": FLAG,
        "ALIGN": (2, 4, 8, 16),
        "WAVES": (1, 4),
    },
    block=lambda values: int(values["WAVES"]) * 32,
)


def align_capacity(slots: int, block_size: int, num_experts: int, padded: bool) -> tuple[int, int]:
    """Rows and blocks that any routing of so many slots fits."""
    rows = slots + num_experts * (block_size - 1)
    if padded:
        rows = -(-rows // block_size) * block_size
    if slots < num_experts:
        rows = min(slots * block_size, rows)
    return rows, -(-rows // block_size)


def align_waves(slots: int, num_experts: int) -> int:
    """As many waves as have 4 slots per lane, at least 4, whose counters fit LDS."""
    fit = max(1, _COUNTERS // (4 * num_experts))
    wanted = max(4, -(-slots // 128))
    return max(waves for waves in _WAVES if waves == 1 or (waves <= fit and waves < 2 * wanted))


def router_own(experts: int, groups: int) -> int:
    """Experts of a lane: lanes are shared out evenly over the groups, in powers of two."""
    lanes = 1 << (32 // groups).bit_length() - 1
    return -(-(experts // groups) // lanes)


def router_align(own: int, size: int, address: int) -> int:
    """Alignment of a lane's logits of `size` bytes; `address` ORs the rows' addresses."""
    spots = own * size | address | 16
    return spots & -spots


def router_waves(tokens: int) -> int:
    """Tokens per workgroup: few tokens spread over the compute units."""
    return 1 if tokens <= 512 else 4


Values = dict[str, Value]
