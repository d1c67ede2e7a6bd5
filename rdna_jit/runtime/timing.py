"""Time of a kernel on a card, measured so that it means something.

Clocks are warmed for 0.6 s first (a cold card is 5 to 10 times slower). The operands rotate over
copies that together exceed the 128 MB last-level cache, so that memory is really read; operands
below 256 KB would take more than a thousand copies and stay in the cache, as they do in use.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdna_jit.errors import NoDeviceError

if TYPE_CHECKING:
    from rdna_jit.kernel import Kernel
    from rdna_jit.runtime.base import Extent

WARM_SECONDS = 0.6
CACHE_BYTES = 128 << 20
_MOST_COPIES = 1024


@dataclass(frozen=True)
class Timing:
    """Microseconds per launch: every sample, in order, of launches on `copies` sets of operands."""

    samples_us: tuple[float, ...]
    copies: int

    @property
    def median_us(self) -> float:
        """The figure to quote."""
        return statistics.median(self.samples_us)

    @property
    def best_us(self) -> float:
        """The fastest sample."""
        return min(self.samples_us)

    def __str__(self) -> str:
        return (
            f"{self.median_us:.1f} us (best {self.best_us:.1f}, {len(self.samples_us)} samples, "
            f"{self.copies} rotating copies)"
        )


def measure(
    kernel: Kernel,
    grid: Extent,
    block: Extent,
    args: tuple[object, ...],
    dynamic_lds: int,
    samples: int,
) -> Timing:
    """Median-ready samples of one launch; the copies leave the caller's tensors as they are."""
    from rdna_jit import runtime

    target = runtime.current()
    if target.backend != "hip":
        raise NoDeviceError(
            "Kernel.time measures on a GPU and the backend is the emulator; "
            "Kernel.profile estimates the time"
        )
    sets = rotating(args)
    torch_side = target.torch  # type: ignore[attr-defined]
    kernel.warm(target.index_of(args))
    position = 0

    def launch() -> None:
        nonlocal position
        kernel.launch(grid, block, *sets[position % len(sets)], dynamic_lds=dynamic_lds)
        position += 1

    _keep_busy(launch, torch_side.synchronize)
    return Timing(tuple(torch_side.time_us(launch) for _ in range(samples)), len(sets))


def _keep_busy(launch: Callable[[], None], synchronize: Callable[[], None]) -> None:
    end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < end:
        for _ in range(20):
            launch()
        synchronize()


def rotating(args: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Sets of arguments with copied tensors, together above twice the cache's size."""
    tensors: list[Any] = [arg for arg in args if hasattr(arg, "data_ptr")]
    nbytes = sum(t.numel() * t.element_size() for t in tensors) or 1
    copies = min(_MOST_COPIES, max(2, -(-2 * CACHE_BYTES // nbytes)))
    return [
        tuple(_copy(arg) if hasattr(arg, "data_ptr") else arg for arg in args)
        for _ in range(copies)
    ]


def _copy(tensor: Any) -> Any:
    """A copy with the same strides, which the kernel may be specialised for."""
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)
