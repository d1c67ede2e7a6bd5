"""How long one wave takes to issue a basic block, if nothing but its own results holds it up.

A wave issues an instruction a clock, in order, and a vector instruction's result can be used some
clocks later. What is ready at the block's start is not looked at, memory and LDS are instant: so
this is a lower bound, which matters where few waves share a SIMD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rdna_jit.emulator.decode import Decoded, Operand

# Clocks from a vector instruction to one that uses its result (AMD's RDNA presentation).
RESULT_CLOCKS: Final = 5

_ACCUMULATES = re.compile(r"v_(pk_)?(fmac|mac|dot\dc)_")
_TWO_RESULTS = re.compile(r"v_(add|sub|subrev)_co_|v_div_scale_|v_mad_[ui]64_")


def block_clocks(code: Sequence[Decoded]) -> int:
    """Clocks from the first instruction of a block to the end of its last one's issue."""
    ready: dict[tuple[str, int], int] = {}
    now = 0
    for i in code:
        results = 2 if _TWO_RESULTS.match(i.mnemonic) else 1
        sources = i.operands if not i.mnemonic.startswith("v_") else i.operands[results:]
        if _ACCUMULATES.match(i.mnemonic):
            sources = i.operands
        start = max([now, *(ready.get(register, 0) for o in sources for register in _registers(o))])
        now = start + 1
        if i.mnemonic.startswith("v_"):
            for o in i.operands[:results]:
                ready.update(dict.fromkeys(_registers(o), start + RESULT_CLOCKS))
    return now


def _registers(o: Operand) -> Iterator[tuple[str, int]]:
    if o.kind in ("v", "s"):
        for n in range(o.index, o.index + o.count):
            yield o.kind, n
