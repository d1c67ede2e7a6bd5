// Fixed-width and vector types, function attributes and address spaces that every kernel uses.
// Nothing is included: hiprtc and clang need only the AMDGCN builtins.

#ifndef __launch_bounds__
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif
#ifndef __global__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define KERNEL extern "C" __global__
#define DEVICE static __device__ __attribute__((always_inline, unused)) inline
#define MEMBER __device__ __attribute__((always_inline, unused)) inline

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f16 = _Float16;

template <class T, int COUNT>
using Vec = T __attribute__((ext_vector_type(COUNT)));
using u32x4 = Vec<u32, 4>;
using f16x2 = Vec<f16, 2>;
using f32x2 = Vec<float, 2>;

// Global memory is address space 1: loads through it are global_*, never flat_*, also after an
// address has passed through an assembly statement. Address space 4 is constant memory: a load
// through it at a wave-uniform address is a scalar load. PTX, a second opinion on the numerics, has
// other memory under that number.
#define GLOBAL __attribute__((address_space(1)))
#ifdef __NVPTX__
#define CONSTANT GLOBAL
#else
#define CONSTANT __attribute__((address_space(4)))
#endif
using GlobalBytes = const GLOBAL char*;

template <class T>
DEVICE GlobalBytes global_bytes(const T* pointer) {
  return (GlobalBytes)(u64)pointer;
}

template <class To, class From>
DEVICE To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "bits() keeps the size");
  return __builtin_bit_cast(To, value);
}

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
