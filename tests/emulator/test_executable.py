"""Translations in the cache, tiers, and what happens when llvmlite or the cache is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rdna_jit import config, emulator
from rdna_jit.emulator import executable, jit, schedule
from rdna_jit.emulator.executable import Variant
from rdna_jit.emulator.library import library
from rdna_jit.emulator.options import Options
from rdna_jit.errors import ToolchainError
from tests.emulator import harness

SOURCE = """KERNEL(64) k(const float* in, float* out, int n) { int t = group_x() * 64 + lane_x();
  float x = in[t]; for (int j = 0; j < n; j++) x = x * 0.5f + 3.0f; out[t] = x; }"""

# A process of its own, with the code object and the cache of this one.
RUN = """
import ctypes, struct, sys
from rdna_jit import emulator
from rdna_jit.code_object import CodeObject
program = emulator.Program(CodeObject(open(sys.argv[1], "rb").read()), "k")
x, out = (ctypes.c_float * 64)(*range(64)), (ctypes.c_float * 64)()
buffers = [emulator.Buffer(ctypes.addressof(a), 256) for a in (x, out)]
kernarg = struct.pack("<QQi", buffers[0].address, buffers[1].address, 3)
program.launch((1, 1, 1), (64, 1, 1), kernarg, buffers)
print(out[9], "llvmlite" in sys.modules, "numpy" in sys.modules)
"""


def fresh() -> emulator.Program:
    """A program that has translated nothing yet."""
    return emulator.Program(harness.compiled(SOURCE), "k")


def launch(
    p: emulator.Program, groups: int = 1, n: int = 3
) -> tuple[np.ndarray, emulator.LaunchStats]:
    data, out = np.arange(64 * groups, dtype=np.float32), np.zeros(64 * groups, np.float32)
    kernarg, buffers = harness.pack(p, (data, out, n))
    stats = p.launch((groups, 1, 1), (64, 1, 1), kernarg, buffers)
    return out, stats


def test_a_second_process_needs_no_translator(tmp_path: Path) -> None:
    p = fresh()
    out, _ = launch(p)
    path = tmp_path / "k.co"
    path.write_bytes(p.code_object.data)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(float(out[9])), "False", "False"]


def test_damaged_entries_are_made_again(tmp_path: Path) -> None:
    variant = Variant(Options(), False)
    with config.scope(cache_dir=tmp_path):
        p = fresh()
        made = executable.build(p, variant, "quick")
        assert executable.cached(p, variant, "quick").sites == made.sites
        assert executable.cached(p, variant, "optimised") is None
        key = executable._key(p, variant, "quick")
        good = jit.fetch(key)
        assert good is not None
        for bad in (b"", b"\0" * 7, b"\xff" * 64, good[:-2000], good[:40]):
            jit.publish(key, bad)
            assert executable.cached(p, variant, "quick") is None
        out, _ = launch(p)
        assert out[9] == (((9 * 0.5 + 3) * 0.5) + 3) * 0.5 + 3


@pytest.mark.parametrize("broken", ["off", "file"])
def test_without_a_usable_cache_everything_works(broken: str, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    scope = {"cache": False} if broken == "off" else {"cache_dir": place}
    with config.scope(**scope):  # type: ignore[arg-type]
        out, _ = launch(fresh())
    assert out[0] == 5.25


def test_missing_llvmlite_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    jit._llvm.cache_clear()
    try:
        with pytest.raises(ToolchainError, match=r"rdna_jit\[emulator\]"):
            jit.compile_ir("define void @f() { ret void }", "quick")
    finally:
        jit._llvm.cache_clear()


def test_operations_are_shared_between_kernels() -> None:
    def entries(source: str) -> set[str]:
        p = harness.program(source)
        executable.build(p, Variant(Options(), False), "quick")
        return set(library()._origins)

    body = "u32 t = lane_x(); o[t + {at}] = (t ^ 5) * t + (t >> 3);"
    first = entries("KERNEL(32) k(u32* o) { " + body.format(at=1) + " }")
    second = entries("KERNEL(32) k(u32* o) { " + body.format(at=2) + " }")
    assert second == first, "only an offset differs, so nothing new was compiled"


def test_long_work_moves_to_the_optimised_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.scope(cache=False):
        p = fresh()
        _, stats = launch(p)
        assert stats.executable.tier == "quick"
        monkeypatch.setattr(schedule, "_OPTIMISE_SECONDS", {True: 1e-9, False: 1e-9})
        monkeypatch.setattr(schedule, "_PROBE_SECONDS", 0.0)
        # changes over after the first workgroup
        out, stats = launch(p, groups=50, n=40)
        assert stats.executable.tier == "optimised"
    with emulator.modes(tier="quick", threads=1):
        want, plain = launch(fresh(), groups=50, n=40)
    assert (out == want).all() and stats.counts == plain.counts


def test_quick_tier_and_inline_memory_agree_on_every_cpu() -> None:
    """The code for CPUs with AVX-512 runs on others too: same bits, same counts."""
    from rdna_jit.emulator.translate import translate

    p = fresh()
    ir = translate(p.code, p.info.entry, inline_memory=True, vector_exec=False)
    data = jit.compile_ir(ir.ir, "optimised")
    made = executable.Executable("optimised", data, executable._tables(ir))
    want, plain = launch(p, groups=3, n=17)
    p._schedules.clear()
    p._schedule(Variant(Options(), False))._executable = made
    with emulator.modes(tier="optimised"):
        out, stats = launch(p, groups=3, n=17)
    assert stats.executable is made
    assert (out == want).all() and stats.counts == plain.counts


MIXED = """KERNEL(64) k(const u32* in, u32* out, int n) {
  __shared__ u32 s[64]; u32 t = lane_x(), x = in[t]; u64 wide = x;
  for (int i = 0; i < n; i++) {
    s[t] = x; barrier(); x += s[(t * 7 + i) & 63]; barrier();
    #pragma unroll 1
    for (int j = 0; j < (int)(x & 7) + n; j++) {
      if ((x ^ j) & 1) x = x * 3 + t; else x = (x >> 1) ^ (u32)wide;
      wide += (u64)x * in[(x + j) & 63];
    }
  }
  out[t] = x + (u32)(wide >> 32); }"""


@pytest.mark.parametrize("profile", [False, True])
def test_loops_in_place_and_calls_around_them_agree_with_calls_only(profile: bool) -> None:
    from rdna_jit.emulator import operations
    from rdna_jit.emulator.translate import translate

    p = emulator.Program(harness.compiled(MIXED), "k")
    variant = Variant(Options(), profile)
    data, out = np.arange(64, dtype=np.uint32) * 2654435761, np.zeros(64, np.uint32)
    kernarg, buffers = harness.pack(p, (data, out, 5))

    def run() -> tuple[np.ndarray, emulator.LaunchStats]:
        stats = p.launch((2, 1, 1), (64, 1, 1), kernarg, buffers, profile=profile)
        return out.copy(), stats

    with emulator.modes(tier="quick"):
        want, plain = run()
    calls = {}
    for loops in (0, 400):
        t = translate(
            p.code, p.info.entry, profile=profile, vector_exec=True, inline_memory=False,
            out_of_line=True, inline_loops=loops,
        )  # fmt: skip
        calls[loops] = t.ir.count("@op.")
    assert 10 < calls[400] < calls[0]
    named = {o.name: o for o in t.operations}
    tables = executable._tables(t)
    tables["operations"] = library().provide(
        named, lambda missing: operations.module([named[name] for name in missing])
    )
    made = executable.Executable("optimised", jit.compile_ir(t.ir, "optimised"), tables)
    p._schedule(variant)._executable = made
    with emulator.modes(tier="optimised"):
        got, stats = run()
    assert stats.executable is made
    assert (got == want).all() and (stats.counts, stats.lanes) == (plain.counts, plain.lanes)
    assert stats.traffic == plain.traffic
