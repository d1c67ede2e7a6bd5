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
from rdna_jit.ops._dense_tile import COLUMNS, PLAIN, tile_cost

_log = logging.getLogger("rdna_jit")

LEAST_ROWS: Final = 64  # fewer rows are never worth dequantising a weight
MEASURED_ROWS: Final = (64, 256, 1024, 4096)
_MOST_BYTES: Final = 256 << 20  # of x or of the result while measuring
_SAMPLES: Final = 7
_WARM_SECONDS: Final = 0.6  # a cold card is 5 to 10 times slower

# The estimate is for a V620, the card whose BLAS has published figures.
# rocBLAS fp16, 4096x2560 at 2048 rows, before the card throttles: owners' 2.05 ms.
BLAS_TFLOPS: Final = 21.0
# Untuned rocBLAS pads rows to a tile of this many (owners); columns are taken to be padded alike.
BLAS_TILE: Final = 64
# Bytes per weight beside the scales.
PACKED_BYTES: Final = {"int4": 0.5, "awq": 0.5, "mxfp4": 0.5, "f16": 2.0}


@dataclass(frozen=True)
class Crossover:
    """More than `rows` rows go to torch.matmul, None: never. `source`: set, measured, modelled.

    `times_us` has (rows, our kernel, torch.matmul) of what was measured.
    """

    rows: int | None
    source: str
    times_us: tuple[tuple[int, float, float], ...] = ()

    def __str__(self) -> str:
        where = "never" if self.rows is None else f"above {self.rows} rows"
        return f"{where} ({self.source})"


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
    clock = _clock()
    start = time.perf_counter()
    while time.perf_counter() - start < _WARM_SECONDS:
        blas(MEASURED_ROWS[0])
        clock.synchronize()

    def median(call: Callable[[int], Any], rows: int) -> float:
        call(rows)  # compiles
        return statistics.median(clock.time_us(lambda: call(rows)) for _ in range(_SAMPLES))

    times = tuple((rows, median(ours, rows), median(blas, rows)) for rows in measured_rows(form))
    found = Crossover(_last_win(times), "measured", times)
    with _lock:
        _measured[form, index] = found
        version += 1
    _log.info(
        "QuantizedLinear (%s) N=%d K=%d: torch.matmul %s, found in %.1f s",
        form, form.N, form.K, found, time.perf_counter() - start,
    )  # fmt: skip
    return found


def measured_rows(form: Form) -> tuple[int, ...]:
    """The numbers of rows to measure a layer at: those whose tensors are not huge."""
    most = _MOST_BYTES // (2 * max(form.N, form.K))
    return tuple(rows for rows in MEASURED_ROWS if rows <= most) or MEASURED_ROWS[:1]


def _clock() -> Any:
    from rdna_jit import runtime

    return runtime.current().torch  # type: ignore[attr-defined]


def _last_win(times: tuple[tuple[int, float, float], ...]) -> int | None:
    """The rows of the last win of ours; None when that is the last that was measured."""
    wins = [rows for rows, ours, blas in times if ours <= blas]
    if not wins:
        return LEAST_ROWS
    return None if wins[-1] == times[-1][0] else wins[-1]


def modelled(form: Form) -> int | None:
    """The estimate for a V620: our tile by its instructions, rocBLAS by its published rate.

    A matmul on a quantised weight reads it, writes it as fp16 and reads that again, in one more
    launch.
    """
    return _last_win(tuple((rows, *modelled_us(form, rows)) for rows in MEASURED_ROWS))


def modelled_us(form: Form, rows: int) -> tuple[float, float]:
    """Microseconds of our tile and of dequantising and torch.matmul, by the estimate."""
    from rdna_jit.emulator.cards import card
    from rdna_jit.emulator.model import ISSUE_DOT2, LAUNCH_US

    v620 = card("V620")
    weights, columns = form.N * form.K, -(-form.N // COLUMNS) * COLUMNS
    packed = PACKED_BYTES.get(form.format, 1.0) * weights
    decode = PLAIN if form.format == "f16" else 2.0
    per_weight = tile_cost(rows, form.K, form.group_size or form.K, decode)
    instructions = per_weight * columns * form.K / 32
    issue = instructions / (v620.simds * v620.clock_ghz * 1e3 * ISSUE_DOT2)
    ours = max(issue, packed / v620.read_gbs / 1e3)
    moved, launches = 2 * weights / v620.read_gbs, 0
    if form.format != "f16":
        moved += 2 * weights / v620.write_gbs + packed / v620.read_gbs
        launches = 1
    tiles = -(-rows // BLAS_TILE) * -(-form.N // BLAS_TILE)
    work = 2e-6 * tiles * BLAS_TILE**2 * form.K / BLAS_TFLOPS
    return ours, work + moved / 1e3 + launches * LAUNCH_US


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
