"""The MoE part of the demo: one layer of a served model, as one rank of four sees it."""

from __future__ import annotations

from dataclasses import dataclass

from rdna_jit import emulator, models, synthetic
from rdna_jit.check import errors
from rdna_jit.config import config
from rdna_jit.device import device
from rdna_jit.dispatch import plan_of
from rdna_jit.emulator.profile import Profile
from rdna_jit.kernel import Kernel
from rdna_jit.ops import moe

MODEL = "flash-next"
SPLIT = "EP4"
LIVE_EXPERTS = 16  # experts with weights: the others of the rank are not drawn
TOKENS, RANKS = 1, 4
REL_L2, MAX_NORM = 5e-4, 2e-3


@dataclass(frozen=True)
class Report:
    """Errors against the oracle, what the two launches did, and the modelled time."""

    rel_l2: float
    max_norm: float
    valu_per_weight: float
    vgprs: int
    spills: int
    profiles: tuple[Profile, ...]

    @property
    def ok(self) -> bool:
        return self.rel_l2 <= REL_L2 and self.max_norm <= MAX_NORM and self.spills == 0

    def to_dict(self) -> dict[str, float | int]:
        return {
            "rel_l2": self.rel_l2,
            "max_norm": self.max_norm,
            "valu_per_weight": round(self.valu_per_weight, 4),
            "vgprs": self.vgprs,
            "spills": self.spills,
        }

    def table(self) -> str:
        """Errors, instructions per weight and the model's times."""
        lines = [
            f"{MODEL} MoE layer, {SPLIT}, {TOKENS} token: int4 gate+up and down",
            f"  error against float64   rel L2 {self.rel_l2:.1e}, max {self.max_norm:.1e}",
            f"  vector instructions     {self.valu_per_weight:.3f} per weight "
            f"({32 * self.valu_per_weight:.1f} per 32)",
            f"  registers               {self.vgprs} VGPRs at most, {self.spills} spills",
        ]
        for p in self.profiles:
            lines.append(
                f"  {p.kernel:<24}{p.time_us:.1f} us modelled on a {p.card.name} "
                f"(floor {p.floor_us:.1f}, bound by {p.bound_by})"
            )
        return "\n".join(lines)


def _layer(on: str = "cpu") -> synthetic.MoeLayer:
    shape = models.get(MODEL).experts
    assert shape is not None
    intermediate = shape.splits[SPLIT][1]
    return synthetic.moe_layer(shape, intermediate, TOKENS, local=LIVE_EXPERTS, ranks=RANKS, on=on)


def run() -> Report:
    """Runs the layer, on a card too; counters come from the emulator."""
    layer = _layer()
    got = _layer("cuda").run() if device().backend == "hip" else layer.run()
    rel_l2, max_norm = errors(got, layer.truth())
    with config.scope(backend="emulator"), emulator.profiling() as profiles:
        layer.run()
    plan = plan_of(moe.moe_int4_decode, *layer.operands(), **layer.options())
    kernels: list[Kernel] = [launch.kernel for launch in plan.launches]
    per_expert = 2 * (layer.w1[0].numel() + layer.w2[0].numel())
    weights = per_expert * sum(e >= 0 for row in layer.slot_experts() for e in row)
    used = [kernel.resources for kernel in kernels]
    return Report(
        rel_l2=rel_l2,
        max_norm=max_norm,
        valu_per_weight=32 * sum(p.valu for p in profiles) / weights,
        vgprs=max(r.vgprs for r in used),
        spills=sum(r.vgpr_spills + r.sgpr_spills for r in used),
        profiles=tuple(profiles),
    )
