"""Small HIP sources and the objects compiled from them, shared by the tests of this folder."""

from __future__ import annotations

from functools import cache

from rdna_jit.compiler import CompileResult, compile_source

# With these a source needs none of HIP's own declarations, which makes its compile fast.
ATTRIBUTES = """
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __global__ __attribute__((global))
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
"""

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
SCRATCH = """#line 1 "kernels_src/scratch.hip"
extern "C" __global__ void __launch_bounds__(32) scratch(int* out, const int* index) {
  int values[32];
  for (int i = 0; i < 32; ++i) values[index[i] & 31] = i;
  for (int i = 0; i < 32; ++i) out[i] = values[i];
}
"""


def build(
    source: str, arch: str = "gfx1030", options: tuple[str, ...] = (), **names: str
) -> CompileResult:
    """Compile without HIP's own declarations."""
    return compile_source(ATTRIBUTES + source, arch=arch, options=("-nogpuinc", *options), **names)


@cache
def compiled(source: str, options: tuple[str, ...] = ()) -> bytes:
    """Code object of a source, compiled once per test run."""
    return build(source, options=options).code_object
