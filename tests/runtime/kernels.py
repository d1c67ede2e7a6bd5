"""Kernels that the runtime's tests launch."""

from __future__ import annotations

from rdna_jit import Kernel, Template

# Every argument type, in an order that leaves gaps.
TYPES = Template(
    """
using f16 = _Float16;
typedef unsigned char byte;
#define WORD unsigned
extern "C" __global__ __launch_bounds__(256) void types(
    signed char a, double b, byte c, short d, const float* __restrict__ p, bool e, f16 f,
    long long g, unsigned short h, WORD i, float j, unsigned long k, void* q) {
  if (q) *(double*)q = a + b + c + d + *p + e + f + g + h + i + j + k;
}
""",
    name="types",
)

ADD = Template(
    """
constexpr int STEP = ${STEP};
extern "C" __global__ __launch_bounds__(128) void add(
    const float* x, const float* bias, float* y, float a, int n) {
  volatile __shared__ float tile[1024];
  int i = __builtin_amdgcn_workgroup_id_x() * 128 + __builtin_amdgcn_workitem_id_x();
  tile[i & 1023] = a;
  if (i < n) y[i] = x[i] * tile[i & 1023] + STEP + (bias ? bias[i] : 0.0f);
}
""",
    name="add",
)


def add(step: int = 1) -> Kernel:
    """A kernel object of its own, loaded nowhere yet."""
    return ADD.specialise(STEP=step)
