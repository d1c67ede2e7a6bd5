"""Global, scalar, LDS and private memory: every width, layout and mask, and exact bounds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from rdna_jit import config, emulator
from rdna_jit.emulator import jit
from rdna_jit.errors import MemoryFault, UnsupportedInstruction
from tests.emulator import harness

TIERS = ("quick", "optimised")
VECTORS = {1: "u32", 2: "uint2_", 3: "uint3_", 4: "uint4_"}
TYPES = """
typedef u32 uint2_ __attribute__((ext_vector_type(2)));
typedef u32 uint3_ __attribute__((ext_vector_type(3)));
typedef u32 uint4_ __attribute__((ext_vector_type(4)));
"""


def copy_kernel(width: int, index: str) -> str:
    """out[i] = in[index], `width` dwords each, packed."""
    moves = "\n".join(f"  out[{width} * i + {k}] = v[{k}];" for k in range(width))
    loads = ", ".join(f"in[{width} * j + {k}]" for k in range(width))
    return f"""KERNEL(64) k(const u32* __restrict in, u32* __restrict out, int n) {{
  int i = group_x() * 64 + lane_x(); int j = {index};
  if (i < n) {{ u32 v[] = {{ {loads} }};
{moves} }} }}"""


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("index", "order"),
    [("i", lambda i, n: i), ("n - 1 - i", lambda i, n: n - 1 - i), ("i & ~3", lambda i, n: i & ~3)],
    ids=["consecutive", "reversed", "shared"],
)
def test_copies(tier: str, width: int, index: str, order) -> None:
    n = 150  # a full block, a full wave, and a partial one
    data = np.arange(n * width, dtype=np.uint32) * 2654435761
    out = np.zeros_like(data)
    with emulator.modes(tier=tier):
        harness.run(copy_kernel(width, index), data, out, n, grid=3, block=64)
    rows = order(np.arange(n), n)
    assert (out.reshape(n, width) == data.reshape(n, width)[rows]).all()


@pytest.mark.parametrize("element", ["i1", "u1", "i2", "u2"])
def test_small_elements(element: str) -> None:
    c = {"i1": "signed char", "u1": "unsigned char", "i2": "short", "u2": "unsigned short"}[element]
    source = f"""KERNEL(32) k(const {c}* in, int* out, {c}* back, int stride) {{
      int i = lane_x(); int v = in[i * stride]; out[i] = v; back[i * stride] = v + 1; }}"""
    for stride in (1, 3):
        data = np.random.default_rng(stride).integers(0, 256, 32 * 3 * 2, dtype=np.uint8)
        data = data.view(element)[: 32 * stride].copy()
        out, back = np.zeros(32, np.int32), np.zeros_like(data)
        harness.run(source, data, out, back, stride)
        assert (out == data[::stride]).all()
        assert (back[::stride] == (data[::stride].astype(np.int64) + 1).astype(element)).all()


SCALAR = """
typedef u32 s16 __attribute__((ext_vector_type(16)));
KERNEL(32) k(const u32 __attribute__((address_space(4)))* in, u32* out) {
  const s16 __attribute__((address_space(4)))* v = (decltype(v))(in + 16 * group_x());
  s16 x = *v; u32 sum = 0;
  for (int n = 0; n < 16; n++) sum = sum * 3 + x[n];
  out[group_x() * 32 + lane_x()] = sum; }"""


def test_scalar_loads() -> None:
    data = np.arange(64, dtype=np.uint32) ** 2
    out = np.zeros(128, np.uint32)
    harness.run(SCALAR, data, out, grid=4)
    want = [0] * 4
    for g in range(4):
        for x in data[16 * g : 16 * g + 16]:
            want[g] = (want[g] * 3 + int(x)) & 0xFFFFFFFF
    assert (out.reshape(4, 32) == np.array(want, np.uint32)[:, None]).all()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("over", [0, 1, 5])
def test_tail_overrun_is_caught_exactly(tier: str, over: int) -> None:
    source = "KERNEL(64) k(const u32* in, u32* out, int n) { int i = lane_x(); out[i] = in[i]; }"
    storage = np.zeros(4096, np.uint32)
    data, out = storage[1000 : 1064 - over], np.zeros(64, np.uint32)
    with emulator.modes(tier=tier):
        if over == 0:
            harness.run(source, data, out, 64, block=64)
            return
        with pytest.raises(MemoryFault) as caught:
            harness.run(source, data, out, 64, block=64)
    fault = caught.value
    assert (fault.access, fault.space, fault.nbytes) == ("load", "global", 4)
    assert fault.address == data.ctypes.data + data.nbytes
    assert (fault.buffer, fault.buffer_nbytes, fault.kernel) == ("in", data.nbytes, "k")
    assert (fault.wave, fault.lane) == (1, 32 - over)
    assert "global_load_dword" in fault.instruction


def test_fault_names_the_source_line() -> None:
    source = "KERNEL(32) k(u32* out) {\n  out[lane_x()] = 1;\n  out[lane_x() + 99] = 2;\n}"
    out = np.zeros(32, np.uint32)
    with pytest.raises(MemoryFault, match="past the end of out") as caught:
        harness.run(source, out, options=("-gline-tables-only",))
    assert caught.value.source_line == "kernel.hip:3"


def test_null_pointer_and_wild_pointers() -> None:
    source = "KERNEL(32) k(u32* p, u64 add) { ((u32*)((u64)p + add))[lane_x()] = 1; }"
    data = np.zeros(32, np.uint32)
    with pytest.raises(MemoryFault, match="null pointer"):
        harness.run(source, data, -data.ctypes.data)
    with pytest.raises(MemoryFault, match="bytes before the start"):
        harness.run(source, data, -256)
    with pytest.raises(MemoryFault):
        harness.run(source, data, 0xFFFF_FFFF_FFFF_FF00 - data.ctypes.data)


def test_scalar_overrun() -> None:
    with pytest.raises(MemoryFault) as caught:
        harness.run(SCALAR, np.zeros(63, np.uint32), np.zeros(128, np.uint32), grid=4)
    assert caught.value.space == "scalar" and caught.value.workgroup == (3, 0, 0)
    assert caught.value.lane is None


def test_registered_memory_is_reachable_while_registered() -> None:
    source = "KERNEL(32) k(u64 p) { ((u32*)p)[lane_x()] = lane_x(); }"
    data = np.zeros(32, np.uint32)
    with emulator.register(data.ctypes.data, data.nbytes, "mine"):
        harness.run(source, data.ctypes.data)
    assert (data == np.arange(32)).all()
    with pytest.raises(MemoryFault):
        harness.run(source, data.ctypes.data)


LDS = """
KERNEL(128) k(const u32* in, u32* out, int width, int shift) {
  __shared__ u32 s[512]; extern __shared__ u32 more[];
  u32 t = lane_x();
  for (int n = 0; n < 4; n++) s[t * 4 + n] = in[t * 4 + n];
  barrier();
  for (int n = 0; n < 4; n++) out[t * 4 + n] = s[((t + shift) % 128) * 4 + n];
}"""


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("shift", [0, 1, 77])
def test_lds_exchange_between_waves(tier: str, shift: int) -> None:
    data = np.random.default_rng(0).integers(0, 1 << 32, 512, dtype=np.uint32)
    out = np.zeros_like(data)
    with emulator.modes(tier=tier):
        harness.run(LDS, data, out, 4, shift, block=128)
    assert (out.reshape(128, 4) == np.roll(data.reshape(128, 4), -shift, axis=0)).all()


def test_small_lds_elements() -> None:
    source = """KERNEL(64) k(const unsigned char* in, short* out) {
      __shared__ unsigned char b[64]; __shared__ short h[64];
      int t = lane_x(); b[t] = in[t]; barrier();
      h[63 - t] = (short)(b[(t * 7) & 63]) - 300; barrier(); out[t] = h[t]; }"""
    data = np.random.default_rng(1).integers(0, 256, 64, dtype=np.uint8)
    out = np.zeros(64, np.int16)
    harness.run(source, data, out, block=64)
    want = data[(np.arange(64) * 7) & 63].astype(np.int16) - 300
    assert (out == want[::-1]).all()


def test_lds_bounds_are_static_plus_dynamic() -> None:
    source = """KERNEL(32) k(u32* out, int at) { extern __shared__ u32 s[];
      s[lane_x() + at] = lane_x(); barrier(); out[lane_x()] = s[lane_x() + at]; }"""
    out = np.zeros(32, np.uint32)
    harness.run(source, out, 0, dynamic_lds=128)
    assert (out == np.arange(32)).all()
    with pytest.raises(MemoryFault) as caught:
        harness.run(source, out, 1, dynamic_lds=128)
    assert caught.value.space == "lds" and caught.value.lane == 31
    assert "byte 128 of the workgroup's LDS (128 bytes)" in str(caught.value)


FLAT_SCRATCH = ("-Xclang", "-target-feature", "-Xclang", "+enable-flat-scratch")


@pytest.mark.parametrize(
    ("prefix", "options"), [("buffer_", ()), ("scratch_", FLAT_SCRATCH)], ids=["buffer", "flat"]
)
def test_private_arrays_live_in_scratch(prefix: str, options: tuple[str, ...]) -> None:
    source = """KERNEL(64) k(const int* in, int* out) {
      int a[40]; int t = lane_x();
      for (int n = 0; n < 40; n++) a[n] = in[n] * (t + 1);
      int s = 0; for (int n = 0; n < 9; n++) { int j = in[40 + (n + t) % 20]; s = s * 5 + a[j]; a[j] = s; }
      out[t] = s; }"""  # noqa: E501
    rng = np.random.default_rng(2)
    data = np.concatenate([rng.integers(-99, 99, 40), rng.integers(0, 40, 20)]).astype(np.int32)
    out = np.zeros(64, np.int32)
    assert any(m.startswith(prefix) for m in harness.mnemonics(source, options=options))
    harness.run(source, data, out, block=64, options=options)
    for t in range(64):
        a = [int(x) * (t + 1) for x in data[:40]]
        s = 0
        for n in range(9):
            j = int(data[40 + (n + t) % 20])
            s = s * 5 + a[j]
            a[j] = s
        assert out[t] == np.array(s).astype(np.int32)


def test_generic_pointers_reach_lds_and_global_memory() -> None:
    source = """KERNEL(32) k(u32* in, u32* out, int odd) {
      __shared__ u32 s[32]; u32 t = lane_x(); s[t] = t * 3; barrier();
      u32* p = (t & 1) == odd ? &s[31 - t] : &in[t];
      out[t] = *p; *p = t; barrier(); in[t] += s[t]; }"""
    data, out = np.arange(100, 132, dtype=np.uint32), np.zeros(32, np.uint32)
    assert any(m.startswith("flat_") for m in harness.mnemonics(source))
    harness.run(source, data, out, 1)
    t = np.arange(32)
    assert (out == np.where(t & 1, 3 * (31 - t), 100 + t)).all()
    memory = np.where(t & 1, 100 + t, t)
    lds = np.where((31 - t) & 1, 31 - t, 3 * t)
    assert (data == memory + lds).all()


ATOMIC = """KERNEL(64) k(u32* p, u32* old, const u32* in) {
  u32 i = group_x() * 64 + lane_x();
  old[i] = __hip_atomic_fetch_add(&p[i % 3], in[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_max(&p[3], in[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_min((int*)&p[4], (int)in[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_xor((u64*)&p[6], (u64)in[i] << 7, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  if (lane_x() == 5) __hip_atomic_exchange(&p[8], i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}"""


def test_global_atomics() -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 1 << 32, 256, dtype=np.uint32)
    p, old = np.zeros(10, np.uint32), np.zeros(256, np.uint32)
    harness.run(ATOMIC, p, old, data, grid=4, block=64)
    sums = [data[k::3].sum(dtype=np.uint32) for k in range(3)]
    assert list(p[:3]) == sums
    assert p[3] == data.max() and p[4].astype(np.int32) == min(0, data.view(np.int32).min())
    assert p[6:8].view(np.uint64)[0] == np.bitwise_xor.reduce(data.astype(np.uint64) << 7)
    assert p[8] in (5, 69, 133, 197)
    # in each chain, sorting by the returned value gives back the running sums
    for k in range(3):
        running = set(np.cumsum(data[k::3][_chain(data[k::3], old[k::3])], dtype=np.uint32))
        assert set(old[k::3]) - {0} <= running


def _chain(data: np.ndarray, old: np.ndarray) -> list[int]:
    """The order in which the adds happened, from the values that they returned."""
    at, order = {int(o): n for n, o in enumerate(old)}, []
    value = 0
    while value in at and len(order) < len(old):
        order.append(at[value])
        value = (value + int(data[at[value]])) & 0xFFFFFFFF
    assert sorted(order) == list(range(len(old)))
    return order


def test_lds_atomics_and_compare_swap_loops() -> None:
    source = """KERNEL(128) k(const float* in, u32* bins, float* sum) {
      __shared__ u32 h[8]; u32 t = lane_x(); if (t < 8) h[t] = 0; barrier();
      atomicAdd(&h[t & 7], t); barrier(); if (t < 8) bins[t] = h[t];
      atomicAdd(sum, in[t]); }"""
    data = np.random.default_rng(4).integers(-8, 8, 128).astype(np.float32)
    bins, total = np.zeros(8, np.uint32), np.zeros(1, np.float32)
    harness.run(source, data, bins, total, block=128)
    t = np.arange(128)
    assert list(bins) == [t[t & 7 == k].sum() for k in range(8)]
    assert total[0] == data.sum(), "small integers add exactly in any order"


@pytest.mark.parametrize("index", ["i", "n - 1 - i", "i & ~3"])
def test_accesses_inline_in_the_code(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CPUs with mask registers run, on any CPU."""
    monkeypatch.setattr(jit, "has_avx512", lambda: True)
    n = 150
    rows = eval(index, {"i": np.arange(n), "n": n})
    with config.scope(cache=False), emulator.modes(tier="optimised"):
        for width in (1, 4) if index == "i" else (2, 3):
            p = emulator.Program(harness.compiled(copy_kernel(width, index)), "k")
            data = np.arange(n * width, dtype=np.uint32) * 2654435761
            out = np.zeros_like(data)
            kernarg, buffers = harness.pack(p, (data, out, n))
            p.launch((3, 1, 1), (64, 1, 1), kernarg, buffers)
            assert (out.reshape(n, width) == data.reshape(n, width)[rows]).all()
            with pytest.raises(MemoryFault):
                p.launch((3, 1, 1), (64, 1, 1), kernarg, [buffers[0]])
        p = emulator.Program(harness.compiled(LDS), "k")
        data = np.random.default_rng(0).integers(0, 1 << 32, 512, dtype=np.uint32)
        out = np.zeros_like(data)
        kernarg, buffers = harness.pack(p, (data, out, 4, 5))
        p.launch((1, 1, 1), (128, 1, 1), kernarg, buffers)
        assert (out.reshape(128, 4) == np.roll(data.reshape(128, 4), -5, axis=0)).all()


def test_buffers_of_the_users_own_are_refused() -> None:
    source = """typedef u32 V __attribute__((ext_vector_type(4)));
KERNEL(32) k(u32* out) { V d = {(u32)(u64)out, (u32)((u64)out >> 32), 128, 0x31004000}; u32 x = 7;
  asm volatile("buffer_store_dword %0, off, %1, 0" : : "v"(x), "s"(d) : "memory"); }"""
    with pytest.raises(UnsupportedInstruction, match="private memory") as caught:
        harness.run(source, np.zeros(32, np.uint32))
    assert caught.value.mnemonic == "buffer_store_dword"


def test_nothing_behind_the_loaded_object_is_reachable() -> None:
    """The object is placed on a page boundary inside its memory; its buffer must not stick out."""
    programs = [emulator.Program(harness.compiled(copy_kernel(1, "i")), "k") for _ in range(16)]
    for p in programs:
        first = ctypes.addressof(p._memory)
        assert first <= p.image.address
        assert p.image.address + p.image.nbytes <= first + len(p._memory)
