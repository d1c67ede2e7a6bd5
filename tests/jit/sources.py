"""Small HIP sources and the objects compiled from them, shared by the tests of this folder."""

from __future__ import annotations

from functools import cache

from rdna_jit.compiler import compile_source

AXPY = """#line 1 "kernels_src/axpy.hip"
__device__ float scaled(float x, float a) {
  return a * x + 1.0f;
}
extern "C" __global__ void __launch_bounds__(256)
axpy(float* out, const float* x, int n, float a) {
  __shared__ float tile[256];
  const int lane = __builtin_amdgcn_workitem_id_x();
  const int i = __builtin_amdgcn_workgroup_id_x() * 256 + lane;
  tile[lane] = x[i];
  __builtin_amdgcn_s_barrier();
  if (i < n)
    out[i] = scaled(tile[255 - lane], a);
}
"""

TWO_KERNELS = """#line 1 "kernels_src/pair.hip"
__device__ float table[3] = {1.0f, 2.0f, 3.0f};
__device__ float* pointer = table + 1;
extern "C" __global__ void __launch_bounds__(64) first(float* out) { *out = *pointer; }
extern "C" __global__ void __launch_bounds__(64)
second(double* out, short a, char b, long long c, double d) { *out = a + b + c + d; }
"""

# Indexing by a run-time value keeps the array in scratch memory.
SCRATCH = """
extern "C" __global__ void __launch_bounds__(32) scratch(int* out, const int* index) {
  int values[32];
  for (int i = 0; i < 32; ++i) values[index[i] & 31] = i;
  for (int i = 0; i < 32; ++i) out[i] = values[i];
}
"""


@cache
def compiled(source: str, arch: str = "gfx1030", options: tuple[str, ...] = ()) -> bytes:
    """Code object of a source, compiled once per test run."""
    return compile_source(source, arch=arch, options=options).code_object
