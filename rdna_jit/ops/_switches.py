"""The settings that choose among the kernels of one op: RDNA_JIT_FORCE_KERNEL and the disabled."""

from __future__ import annotations

from collections.abc import Sequence

from rdna_jit.config import config
from rdna_jit.dispatch import Candidate


def prefer(op: str, chosen: str, able: Sequence[str]) -> tuple[str, tuple[Candidate, ...]]:
    """The kernel to take instead of `chosen`, of those that are `able`, and why, if it is another.

    A kernel that RDNA_JIT_FORCE_KERNEL names for this op comes first, one that is disabled last.
    With every able kernel disabled the choice stays: an op has to serve its call.
    """
    for pair in config.force_kernel:
        named, _, wanted = pair.partition(":")
        if named == op and wanted in able:
            return _taken(wanted, chosen, "RDNA_JIT_FORCE_KERNEL asks for it")
    for setting, names in _disabled():
        if chosen in names:
            other = next((kernel for kernel in able if kernel not in names), chosen)
            return _taken(other, chosen, f"{setting} names {chosen}")
    return chosen, ()


def disabling(kernel: str) -> str:
    """The setting that rules the kernel out, or ""."""
    return next((setting for setting, names in _disabled() if kernel in names), "")


def _disabled() -> tuple[tuple[str, Sequence[str]], ...]:
    return (
        ("RDNA_JIT_DISABLED_KERNELS", config.own_disabled_kernels),
        ("VLLM_DISABLED_KERNELS", config.disabled_kernels),
    )


def _taken(kernel: str, chosen: str, reason: str) -> tuple[str, tuple[Candidate, ...]]:
    if kernel == chosen:
        return chosen, ()
    return kernel, (Candidate(kernel, True, reason), Candidate(chosen, False, reason))
