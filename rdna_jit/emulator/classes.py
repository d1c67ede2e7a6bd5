"""What an instruction counts as, by mnemonic."""

from __future__ import annotations

import re

COUNTERS = (
    "valu", "dot", "packed", "transcendental", "quarter_rate", "salu", "smem", "vmem_load",
    "vmem_store", "atomic", "lds", "branch", "barrier", "wait", "scratch",
)  # fmt: skip
# Finer subsets that the model prices apart: integer dots (part of dot), those of nibbles among
# them, and double precision.
FINE_COUNTERS = ("dot_integer", "dot_nibble", "fp64")

_TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)_f(16|32|64)$")
_QUARTER_RATE = re.compile(
    r"v_(mul_lo_u32|mul_hi_[ui]32|mad_u64_u32|mad_i64_i32|mul_lo_i32)$"
)  # fmt: skip
_WAITS = re.compile(
    r"(s_(waitcnt|nop|sleep|clause|inst_prefetch|icache_inv|dcache_inv|gl1_inv|dcache_wb|setprio"
    r"|ttracedata|incperflevel|decperflevel|wakeup|code_end|version)|buffer_gl[01]_inv)"
)
_BRANCHES = re.compile(r"s_(branch|cbranch_\w+|setpc_b64|swappc_b64|call_b64|endpgm\w*)$")


def classify(mnemonic: str) -> tuple[str, ...]:
    """The counters that one execution adds 1 to. Every instruction has one main class, which comes
    first; the others are subsets of `valu`."""
    if mnemonic.startswith("v_"):
        return ("valu", *_vector_subsets(mnemonic))
    if mnemonic.startswith("ds_"):
        return ("lds",)
    if _WAITS.match(mnemonic):
        return ("wait",)
    if mnemonic.startswith("s_"):
        return (_scalar_class(mnemonic),)
    if "atomic" in mnemonic:
        return ("atomic",)
    if mnemonic.startswith(("buffer_", "scratch_")):
        # NOTE: raw buffers are only used for private memory by the compilers we serve.
        return ("scratch",)
    return ("vmem_store",) if "_store_" in mnemonic else ("vmem_load",)


def _vector_subsets(mnemonic: str) -> tuple[str, ...]:
    if mnemonic.startswith("v_dot8"):
        return ("dot", "dot_integer", "dot_nibble")
    if mnemonic.startswith("v_dot4"):
        return ("dot", "dot_integer")
    if mnemonic.startswith("v_dot"):
        return ("dot",)
    if mnemonic.startswith("v_pk_"):
        return ("packed",)
    if _TRANSCENDENTAL.match(mnemonic):
        return ("transcendental",)
    if _QUARTER_RATE.match(mnemonic):
        return ("quarter_rate",)
    return ("fp64",) if mnemonic.endswith("_f64") else ()


def _scalar_class(mnemonic: str) -> str:
    if mnemonic == "s_barrier":
        return "barrier"
    if mnemonic.startswith(("s_load", "s_buffer_load", "s_memtime", "s_memrealtime")):
        return "smem"
    return "branch" if _BRANCHES.match(mnemonic) else "salu"
