"""warm: compile ahead, without a GPU, in parallel over the cores."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from typing import Any

from cache_tools import jobs as planning
from cache_tools import model_calls, where
from cache_tools.jobs import Job
from cache_tools.output import Progress, print_json
from rdna_jit import arch as archs
from rdna_jit import models, toolchain
from rdna_jit.cache import KernelCache, Key, Store, configured
from rdna_jit.cache.format import BadEntry
from rdna_jit.cache.store import KERNELS
from rdna_jit.config import config
from rdna_jit.errors import ContractError, RdnaJitError

Result = dict[str, Any]
_ROWS = models.DECODE_ROWS + models.PREFILL_ROWS


def configure_warm(parser: argparse.ArgumentParser) -> None:
    where.add_dir(parser)
    parser.add_argument(
        "--recorded",
        metavar="FILE",
        action="append",
        default=[],
        help="what RDNA_JIT_RECORD=FILE wrote during a run",
    )
    parser.add_argument(
        "--calls",
        metavar="FILE",
        action="append",
        default=[],
        help="op calls, one a line: linear.w4a16_gemv(f16[1,4096], i32[512,4096], ...)",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help=f"all ops at a model's shapes: {', '.join(models.MODELS)}",
    )
    parser.add_argument(
        "--split", metavar="NAME", help="with --model: only this split over ranks, EP4 or TP2"
    )
    parser.add_argument(
        "--rows",
        type=_numbers,
        default=_ROWS,
        metavar="M,M,...",
        help=f"with --model: tokens per call (default: {','.join(map(str, _ROWS))})",
    )
    parser.add_argument(
        "--arch",
        action="append",
        default=[],
        help="compile for this architecture; may be repeated (default: the recorded one, gfx1030)",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be compiled")


def run_warm(arguments: argparse.Namespace) -> int:
    chosen = _chosen(arguments)
    if not chosen:
        raise ContractError("nothing to compile: give --recorded FILE, --calls FILE or --model")
    start = time.perf_counter()
    store = where.own_store(arguments, create=True)
    layers = where.layers(arguments)
    missing, results = _look_up(chosen, KernelCache(store, layers))
    if not arguments.dry_run:
        count = arguments.jobs or len(os.sched_getaffinity(0))
        progress = Progress(len(missing), quiet=arguments.json)
        for result in _compile_all(missing, store.root, max(1, min(count, len(missing)))):
            results.append(result)
            progress.step(f"{result['kernel']} {result['arch']}")
        progress.end()
    else:
        results += [{**_name(job), "state": "missing"} for job in missing]
    return _report(arguments, results, time.perf_counter() - start, store.root)


def _chosen(arguments: argparse.Namespace) -> list[Job]:
    for name in arguments.arch:
        archs.get(name)
    chosen: list[Job] = []
    for path in arguments.recorded:
        chosen += planning.from_recorded(_lines(path), path, arguments.arch)
    for path in arguments.calls:
        chosen += planning.from_calls(_lines(path), path, arguments.arch)
    for name in arguments.model:
        calls = model_calls.calls(models.get(name), arguments.split, arguments.rows)
        chosen += planning.from_calls(calls, f"model {name}", arguments.arch)
    return list(dict.fromkeys(chosen))


def _numbers(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() and int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers such as 1,2,4")
    return tuple(map(int, numbers))


def _lines(path: str) -> list[str]:
    if path == "-":
        return sys.stdin.readlines()
    with open(path, encoding="utf-8") as file:
        try:
            return file.readlines()
        except UnicodeDecodeError as error:
            raise ContractError(f"{path} is no text file: {error}") from None


def _look_up(chosen: list[Job], kernels: KernelCache) -> tuple[list[Job], list[Result]]:
    """The jobs that no layer holds, and results for those that one does."""
    missing, results = [], []
    for job in chosen:
        key = _key(job)
        if kernels.get(key) is None:
            missing.append(job)
        else:
            results.append({**_name(job), "state": "present", "key": key.digest})
    return missing, results


def _compile_all(missing: list[Job], root: str, processes: int) -> Iterator[Result]:
    """Results as they come. Processes and not threads: the compiler holds one lock for the whole
    of a process, and a source that crashes it takes its process along."""
    died: list[Job] = []
    with _pool(processes, root) as pool:
        futures = {pool.submit(_compile, job): job for job in missing}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenExecutor:
                died.append(futures[future])
    for job in died:
        # One death breaks a whole pool: each job of it gets a process of its own.
        with _pool(1, root) as pool:
            try:
                yield pool.submit(_compile, job).result()
            except BrokenExecutor:
                yield {**_name(job), "state": "failed", "error": "the compiler's process died"}


def _pool(processes: int, root: str) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, _start_worker, (root,))


_worker_cache: KernelCache | None = None


def _start_worker(root: str) -> None:
    global _worker_cache
    key = configured.signing_key()
    _worker_cache = KernelCache(Store(root, signing_key=key, max_bytes=config.cache_max_bytes))


def _compile(job: Job) -> Result:
    from rdna_jit import compiler

    assert _worker_cache is not None
    key = _key(job)
    result: Result = {**_name(job), "key": key.digest}

    def build() -> compiler.CompileResult:
        return compiler.compile_source(
            job.source, arch=job.arch, options=job.options, kernel=job.kernel
        )

    try:
        with config.scope(no_compile=False):
            entry = _worker_cache.get_or_compile(key, build, job.metadata)
    except RdnaJitError as error:
        return {**result, "state": "failed", "error": str(error)}
    store = _worker_cache.store
    if entry.origin == "compiled" and store is not None:
        try:
            store.check(KERNELS, key.digest)
        except (OSError, BadEntry):
            return {**result, "state": "failed", "error": f"{store.root} could not be written"}
    state = "compiled" if entry.origin == "compiled" else "present"
    return {**result, "state": state, "seconds": entry.metadata.get("seconds", 0.0)}


def _key(job: Job) -> Key:
    return Key.make(job.source, job.options, job.arch, toolchain.identity())


def _name(job: Job) -> Result:
    return {"kernel": job.kernel, "values": job.metadata["values"], "arch": job.arch}


def _report(arguments: argparse.Namespace, results: list[Result], seconds: float, root: str) -> int:
    states = [result["state"] for result in results]
    counts = {
        s: states.count(s) for s in ("compiled", "present", "missing", "failed") if s in states
    }
    if arguments.json:
        print_json({"root": root, "seconds": seconds, "counts": counts, "kernels": results})
        return 1 if "failed" in counts else 0
    for result in results:
        if result["state"] in ("failed", "missing"):
            values = ",".join(f"{k}={v}" for k, v in result["values"].items())
            print(f"{result['state']}: {result['kernel']}[{values}] {result['arch']}")
            if "error" in result:
                print(result["error"])
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    print(f"{len(results)} kernels: {summary}; {seconds:.1f} s, {root}")
    return 1 if "failed" in counts else 0
