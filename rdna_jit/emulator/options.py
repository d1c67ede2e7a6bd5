"""The rules that only hardware can settle."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Options(NamedTuple):
    """One choice for each doubtful rule.

    dot2            how v_dot2_f32_f16 adds: "chain" (accumulator + low product, then + high, each
                    rounded), "exact" (one rounding), "gfx11" (terms aligned and cut, as measured
                    on that generation)
    dot2_flush      subnormal accumulators and results of dot2 become zero
    transcendental  "exact" (to nearest), or the errors that a promise of 1 ulp allows: "+1ulp"
                    (rounded up), "-1ulp" (down), "hash" (either, by operand)
    """

    dot2: Literal["chain", "exact", "gfx11"] = "chain"
    dot2_flush: bool = False
    transcendental: Literal["exact", "+1ulp", "-1ulp", "hash"] = "exact"
