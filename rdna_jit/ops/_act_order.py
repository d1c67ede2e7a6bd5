"""Act-order int4 weights: what a `g_idx` argument means, and the kernel for checkpoint order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from rdna_jit.dispatch import Candidate
from rdna_jit.errors import ContractError
from rdna_jit.formats import act_order
from rdna_jit.ops._declared import FLAG, RESULT, SCALES, WORDS, X, strides
from rdna_jit.ops._dense_int4 import Choice, Int4Call
from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.template import Value

_TILES = (1, 2, 4, 8)

ACT_ORDER = KernelSpec(
    name="w4a16_act_order",
    file="w4a16_act_order.hip",
    entry="w4a16_act_order",
    parameters=(
        X,
        WORDS,
        Parameter("zeros", "const void*", align=4),
        SCALES,
        Parameter("g_idx", "const i32*", align=4),
        *RESULT,
    ),
    template={
        "N": range(1, 1 << 30),
        "K": range(8, 1 << 30, 8),
        "M_TILE": _TILES,
        "WAVES": range(1, 33),
        "HAS_ZEROS": FLAG,
        "ZERO_OFFSET": (0, 1),
        "HAS_BIAS": FLAG,
        "X_SCALAR": FLAG,
        **strides("X", "W", "Z", "S", "OUT"),
    },
    block=lambda values: int(values["WAVES"]) * 32,
)


def choose(call: Int4Call) -> Choice:
    """The kernel for natural-order words whose rows belong to any group."""
    tile = next((t for t in _TILES if t >= call.M), _TILES[-1])
    values: dict[str, Value] = {
        "N": call.N,
        "K": call.K,
        "M_TILE": tile,
        "WAVES": min(16, call.K // 8),
        "HAS_ZEROS": call.zeros == "packed",
        "ZERO_OFFSET": call.zero_offset if call.zeros == "packed" else 0,
        "HAS_BIAS": call.has_bias,
        "X_SCALAR": call.x_align >= 4,
        "X_STRIDE": call.x_stride if call.M > 1 else call.K,
        "W_STRIDE": call.w_stride,
        "Z_STRIDE": call.z_stride if call.zeros == "packed" else 0,
        "S_STRIDE": call.s_stride,
        "OUT_STRIDE": call.out_stride if call.M > 1 else call.N,
    }
    grid = (-(-call.N // 32), -(-call.M // tile))
    decode = Candidate(
        "w4a16_decode", False, "g_idx mixes groups; formats.pack_gptq sorts the rows once"
    )
    taken = Candidate("w4a16_act_order", True, "looks up scale and zero for every weight")
    return Choice(values, grid, (decode, taken))


@dataclass(frozen=True)
class _Known:
    """What was found out about one state of a tensor's content, beside so many groups."""

    version: int
    groups: int
    kind: str  # "sorted", "order" or "groups"
    order: torch.Tensor | None  # of rows, sorted by group; None: groups of several sizes


def resolve(g_idx: torch.Tensor, K: int, groups: int, shuffled: bool) -> torch.Tensor | None:
    """The `g_idx` to go on with: None where rows are sorted by group already.

    Natural order takes the group of each row, shuffled order the order of rows or, understood as
    well, the group of each. The content is read once per tensor and remembered on it; a graph
    capture must come after a first call. ContractError for other content.
    """
    if g_idx.dim() != 1 or g_idx.numel() != K or g_idx.dtype != torch.int32:
        return g_idx  # the plan says what is wrong
    if not groups or K % groups:
        return g_idx
    known = _known(g_idx, groups)
    if known.kind == "sorted":
        return None
    if shuffled and known.order is None:
        _refuse("groups of equal size", "groups that gptq_shuffle cannot sort", "shuffled=False")
    if not shuffled and known.kind == "order":
        _refuse(f"groups 0..{groups - 1}", "an order of rows", "shuffled=True for such weights")
    return known.order if shuffled else g_idx


def row_order(g_idx: torch.Tensor, groups: int) -> torch.Tensor:
    """The order of rows, int32 `[K]`, that `g_idx` of shuffled words stands for."""
    order = _known(g_idx, groups).order
    if order is None:
        _refuse("groups of equal size", "groups that gptq_shuffle cannot sort", "shuffled=False")
    return order


def _known(g_idx: torch.Tensor, groups: int) -> _Known:
    version = -1 if g_idx.is_inference() else g_idx._version
    known: _Known | None = getattr(g_idx, "_rdna_jit_order", None)
    if known is None or (known.version, known.groups) != (version, groups):
        known = _classify(g_idx, groups, version)
        g_idx._rdna_jit_order = known  # type: ignore[attr-defined]
    return known


def _refuse(expected: str, got: str, hint: str) -> NoReturn:
    raise ContractError(
        f"gptq_gemm: g_idx: expected {expected}, got {got}; pass {hint}",
        name="g_idx",
        expected=expected,
        got=got,
    )


def _classify(g_idx: torch.Tensor, groups: int, version: int) -> _Known:
    K = g_idx.numel()
    values = g_idx.long()
    rows = torch.arange(K, device=g_idx.device)
    if torch.equal(values, rows // (K // groups)) or torch.equal(values, rows):
        return _Known(version, groups, "sorted", rows.to(torch.int32))
    if torch.equal(values.sort().values, rows):
        return _Known(version, groups, "order", g_idx.clone())
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= groups:
        _refuse(f"groups 0..{groups - 1}", f"values {low}..{high}", "the checkpoint's g_idx")
    try:
        order = act_order(g_idx, groups)
    except ContractError:
        order = None
    return _Known(version, groups, "groups", order)
