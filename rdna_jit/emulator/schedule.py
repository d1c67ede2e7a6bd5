"""How a launch is spread over tiers of translation and over host threads.

A kernel starts in the quick tier, unless the cache already has the optimised one. Once the time
that it has spent, or is about to spend, exceeds what the optimised translation costs, that is made
and takes over at the next workgroup. Results and counters do not depend on any of this.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from rdna_jit.emulator.checks import Modes
from rdna_jit.emulator.executable import Executable
from rdna_jit.emulator.jit import Tier, has_avx512
from rdna_jit.emulator.workers import Launch, Worker

# Seconds of the optimised translation per instruction, and the share of run time that it saves,
# with and without AVX-512. Without it the hot loop of benchmarks/emulator.py runs at the same rate
# in both tiers, loops of plain arithmetic three times as fast.
_OPTIMISE_SECONDS = {True: 1.2e-3, False: 1.2e-3}
_OPTIMISE_GAIN = {True: 0.6, False: 0.1}
# A launch is timed on its first workgroups for so long before it is spread.
_PROBE_SECONDS = 0.002
_SPREAD_SECONDS = 0.001
# Threads take pieces of about this long, so that they end together and Ctrl-C is heard.
_PIECE_SECONDS = 0.05


class Schedule:
    """The policy for one kernel variant; remembers the time spent in the quick tier."""

    def __init__(
        self,
        cached: Callable[[Tier], Executable | None],
        make: Callable[[Tier], Executable],
    ) -> None:
        self._cached = cached
        self._make = make
        self._quick_seconds = 0.0
        self._executable: Executable | None = None

    def run(self, launch: Launch, modes: Modes) -> list[int]:
        """Run the whole grid; returns the counts. A fault stays in the launch."""
        total = launch.geometry.workgroups
        executable = self._first(modes)
        worker = launch.worker(executable)
        done, seconds = self._probe(worker, total)
        launch.seconds = seconds
        if done < total and not launch.fault:
            rest = seconds * (total - done) / done
            threads = self._threads(launch, modes, executable)
            faster = self._second(executable, modes, rest / threads)
            if faster is not executable:
                executable, worker = faster, launch.worker(faster)
            workers = [worker]
            if rest > _SPREAD_SECONDS:
                extra = min(threads, total - done) - 1
                workers += [launch.worker(executable) for _ in range(extra)]
            piece = max(1, int(done * _PIECE_SECONDS / seconds))
            piece = min(piece, max(1, (total - done) // (4 * len(workers))))
            began = time.perf_counter()
            _spread(workers, done, total, piece)
            launch.seconds += time.perf_counter() - began
        if executable.tier == "quick":
            self._quick_seconds += launch.seconds
        return launch.counts()

    def _first(self, modes: Modes) -> Executable:
        if modes.tier is not None:
            if self._executable is None or self._executable.tier != modes.tier:
                self._executable = self._cached(modes.tier) or self._make(modes.tier)
        elif self._executable is None:
            self._executable = (
                self._cached("optimised") or self._cached("quick") or self._make("quick")
            )
        elif self._executable.tier == "quick":
            self._executable = self._second(self._executable, modes, 0.0)
        return self._executable

    def _second(self, executable: Executable, modes: Modes, rest: float) -> Executable:
        """The executable to go on with, if `rest` seconds are ahead."""
        if executable.tier == "optimised" or modes.tier is not None:
            return executable
        cost = _OPTIMISE_SECONDS[has_avx512()] * executable.instructions
        if (self._quick_seconds + rest) * _OPTIMISE_GAIN[has_avx512()] < cost:
            return executable
        self._executable = self._cached("optimised") or self._make("optimised")
        return self._executable

    @staticmethod
    def _probe(worker: Worker, total: int) -> tuple[int, float]:
        """Run workgroups for a moment: (how many, seconds)."""
        began = time.perf_counter()
        done, piece, seconds = 0, 1, 0.0
        while done < total and seconds < _PROBE_SECONDS:
            last = min(done + piece, total)
            if not worker.run(done, last):
                break
            done, piece = last, 2 * piece
            seconds = time.perf_counter() - began
        return max(done, 1), max(seconds, 1e-9)

    @staticmethod
    def _threads(launch: Launch, modes: Modes, executable: Executable) -> int:
        # Compare-and-swap loops sum in the order of arrival: one thread keeps the bits the same.
        if launch.shadowed or executable.order_dependent:
            return 1
        return modes.threads or len(os.sched_getaffinity(0))


def _spread(workers: list[Worker], first: int, total: int, piece: int) -> None:
    """Hand out pieces of the grid in order until all are done or one faults."""
    lock = threading.Lock()
    position = first
    failed = False

    def work(worker: Worker) -> None:
        nonlocal position, failed
        while True:
            with lock:
                start, last = position, min(position + piece, total)
                if failed or start >= total:
                    return
                position = last
            if not worker.run(start, last):
                failed = True

    threads = [threading.Thread(target=work, args=(w,), daemon=True) for w in workers[1:]]
    for thread in threads:
        thread.start()
    work(workers[0])
    for thread in threads:
        thread.join()
