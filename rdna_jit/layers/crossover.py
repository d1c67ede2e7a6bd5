"""Above how many rows torch.matmul on dequantised weights is faster than our kernels.

A user's own figure (`set_crossover`, or the setting linear_blas_rows) comes first. On a card it is
measured once per kind of layer, at the first call with many rows that is not being captured, and
kept for the process. On the emulator, and under capture, it is the estimate below.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rdna_jit.config import config
from rdna_jit.errors import ContractError
from rdna_jit.layers.form import ALIASES, Form

_log = logging.getLogger("rdna_jit")

LEAST_ROWS: Final = 64  # fewer rows are never worth dequantising a weight
MEASURED_ROWS: Final = (64, 256, 1024, 4096)
_SAMPLES: Final = 7
_WARM_SECONDS: Final = 0.6  # a cold card is 5 to 10 times slower

# The estimate is for a V620, the card whose BLAS has published figures.
# rocBLAS fp16, 4096x2560 at 2048 rows, before the card throttles: owners' 2.05 ms.
BLAS_TFLOPS: Final = 21.0
# Untuned rocBLAS pads rows to a tile of this many (owners).
BLAS_ROW_TILE: Final = 64
# What a dot2 chain issues at most (owners; emulator/model.py has the same figure as a rate).
DOT2_TFLOPS: Final = 38.0
READ_GBS: Final = 506.0
# Dots per vector instruction of our kernels for many rows: half a dot2 per multiply-add is what
# cannot be saved, and this many vector instructions per multiply-add are what is counted.
INSTRUCTIONS_PER_MAC: Final = {"int4": 0.59, "awq": 0.59, "i8": 0.62, "f16": 0.56}
ROW_TILE: Final = 16
# Bytes per weight: read packed, written as fp16, read again by the matmul.
PACKED_BYTES: Final = {"int4": 0.53, "awq": 0.53, "i8": 1.0, "mxfp4": 0.53, "f16": 2.0}


@dataclass(frozen=True)
class Crossover:
    """More than `rows` rows go to torch.matmul, None: never. `source`: set, measured, modelled.

    `times_us` has (rows, our kernel, torch.matmul) of what was measured.
    """

    rows: int | None
    source: str
    times_us: tuple[tuple[int, float, float], ...] = ()

    def __str__(self) -> str:
        return f"never ({self.source})" if self.rows is None else f"{self.rows} ({self.source})"


_NEVER = object()
_set: dict[tuple[str | None, int | None, int | None], int | None] = {}
_measured: dict[tuple[Form, int], Crossover] = {}
_lock = threading.Lock()
version = 0
"""Changes whenever a crossover does, so that choices made before are made again."""


def set_crossover(
    rows: int | None, *, format: str | None = None, N: int | None = None, K: int | None = None
) -> None:
    """Use torch.matmul above `rows` rows (None: never), for all layers or those that match."""
    global version
    if rows is not None and (type(rows) is not int or rows < 0):
        raise ContractError(
            f"set_crossover: rows: expected a number of rows or None, got {rows!r}", name="rows"
        )
    with _lock:
        _set[ALIASES.get(format, format) if format else None, N, K] = rows
        version += 1


def clear_crossovers() -> None:
    """Forget what was set and what was measured."""
    global version
    with _lock:
        _set.clear()
        _measured.clear()
        version += 1


def crossovers() -> dict[str, Crossover]:
    """What was measured in this process, by layer kind and device."""
    return {
        f"{form} N={form.N} K={form.K} on device {index}": found
        for (form, index), found in _measured.items()
    }


def crossover(form: Form, index: int) -> Crossover:
    """What holds for a layer now; measures nothing."""
    rule = _rule(form)
    if rule is not _NEVER:
        return Crossover(rule, "set")  # type: ignore[arg-type]
    setting = config.linear_blas_rows
    if setting != "auto":
        return Crossover(None if setting == "never" else int(setting), "set")
    return _measured.get((form, index)) or Crossover(modelled(form), "modelled")


def to_measure(form: Form, index: int, rows: int) -> bool:
    """Whether a call with this many rows should measure first: on a card, once, uncaptured."""
    from rdna_jit import runtime

    if rows <= LEAST_ROWS or crossover(form, index).source != "modelled":
        return False
    target = runtime.current()
    return target.backend == "hip" and not target.torch.is_capturing()  # type: ignore[attr-defined]


def measure(
    form: Form, index: int, ours: Callable[[int], Any], blas: Callable[[int], Any]
) -> Crossover:
    """Time both ways at a few numbers of rows, and remember where torch.matmul begins to win.

    `ours(rows)` and `blas(rows)` put one call on the current stream. Numbers of rows above the
    last one that ours wins go to torch.matmul; it must win at all larger ones.
    """
    global version
    from rdna_jit import runtime

    clock = runtime.current().torch  # type: ignore[attr-defined]
    start = time.perf_counter()
    while time.perf_counter() - start < _WARM_SECONDS:
        blas(MEASURED_ROWS[0])
        clock.synchronize()

    def median(call: Callable[[int], Any], rows: int) -> float:
        call(rows)  # compiles
        return statistics.median(clock.time_us(lambda: call(rows)) for _ in range(_SAMPLES))

    times = tuple((rows, median(ours, rows), median(blas, rows)) for rows in MEASURED_ROWS)
    found = Crossover(_last_win(times), "measured", times)
    with _lock:
        _measured[form, index] = found
        version += 1
    _log.info(
        "QuantizedLinear %s N=%d K=%d: torch.matmul above %s rows (%.1f s to measure)",
        form, form.N, form.K, found, time.perf_counter() - start,
    )  # fmt: skip
    return found


def _last_win(times: tuple[tuple[int, float, float], ...]) -> int | None:
    """The rows of the last win of ours; None when that is the last that was measured."""
    wins = [rows for rows, ours, blas in times if ours <= blas]
    if not wins:
        return LEAST_ROWS
    return None if wins[-1] == times[-1][0] else wins[-1]


def modelled(form: Form) -> int | None:
    """The estimate for a V620, by issue rate and bytes."""
    macs = form.N * form.K
    packed = PACKED_BYTES.get(form.format, 1.0)
    dequantise = 0.0 if form.format == "f16" else macs * (packed + 2)
    rate = DOT2_TFLOPS * 0.5 / INSTRUCTIONS_PER_MAC.get(form.format, 0.62)
    times = []
    for rows in MEASURED_ROWS:
        ours = 2e-6 * macs * (-(-rows // ROW_TILE) * ROW_TILE) / rate
        padded = -(-rows // BLAS_ROW_TILE) * BLAS_ROW_TILE
        blas = 2e-6 * macs * padded / BLAS_TFLOPS + (dequantise + 2 * macs) / READ_GBS / 1e3
        times.append((rows, max(ours, macs * packed / READ_GBS / 1e3), blas))
    return _last_win(tuple(times))


def _rule(form: Form) -> object:
    for key in (
        (form.format, form.N, form.K),
        (None, form.N, form.K),
        (form.format, None, None),
        (None, None, None),
    ):
        if key in _set:
            return _set[key]
    return _NEVER
