"""How long a dense layer takes in the decode kernels, in clocks of a V620: with the tile's estimate
(_dense_tile.split_of) what the ops choose by. docs/linear.md has the formulas.

Counts of instructions are those of the emulator. Other cards of the family have nearly the same
ratio of vector units to memory, and that decides.
"""

from __future__ import annotations

# Rows of x above which the tile is always taken: its workgroups are full and read weights once.
MOST_DECODED = 48
CLOCKS_PER_US = 2400
PROCESSORS = 36  # pairs of compute units
_VECTOR_RATE = 4 * 0.8  # wave instructions per clock of a processor: four units, 0.8 issued
_READ_BYTES = 211  # of memory per clock, 506 GB/s
_STREAM_SHARE = 0.965  # of the bandwidth that one workgroup per processor reaches
_CACHED_BYTES = 96 << 20  # of weights that the last-level cache still has for the next pass


def memory_clocks(nbytes: float, workgroups: int) -> float:
    """To read `nbytes`; fewer workgroups than processors do not reach the bandwidth."""
    return nbytes / _READ_BYTES / min(1.0, _STREAM_SHARE * workgroups / PROCESSORS)


def decode_clocks(
    weights: int, nbytes: float, instructions: float, workgroups: int, passes: int, wait: float = 0
) -> float:
    """`instructions` per weight, of all `passes` over the weights' `nbytes`; `wait`: clocks that a
    workgroup's waves wait for operands."""
    balance = -(-workgroups // PROCESSORS) * PROCESSORS / workgroups
    vector = weights / 32 * instructions / (PROCESSORS * _VECTOR_RATE) * balance
    reads = passes if nbytes > _CACHED_BYTES else 1
    return max(vector, memory_clocks(reads * nbytes, workgroups), wait)


def tile_ends_first(rows: int, tile: float, decode: float) -> bool:
    """By the clocks of both."""
    return rows > MOST_DECODED or tile < decode


def per_call(clocks: float, rows: int) -> str:
    """An estimate for candidates of `explain`."""
    return f"{clocks / CLOCKS_PER_US:.3g} us for {rows} rows by the estimate"


def decode_limit(rows: int) -> str:
    """Why a decode kernel with the shorter estimate is not taken, to follow that estimate."""
    return f"; above {MOST_DECODED} rows the tile is taken" if rows > MOST_DECODED else ""
