// Products of signed bytes, summed in 32-bit integers.
#include "common/types.hip"

// gfx1010 and gfx1013 have no dot instructions; they multiply byte by byte.
#if defined(__gfx1010__) || defined(__gfx1013__) || !__has_builtin(__builtin_amdgcn_sdot4)
#define HAS_DOT4 0
#else
#define HAS_DOT4 1
#endif

// sum of a's bytes times b's, plus c.
DEVICE i32 dot4(u32 a, u32 b, i32 c) {
#if HAS_DOT4
  return __builtin_amdgcn_sdot4((i32)a, (i32)b, c, false);
#else
#pragma unroll
  for (int shift = 0; shift < 32; shift += 8) {
    c += (i32)(signed char)(a >> shift) * (i32)(signed char)(b >> shift);
  }
  return c;
#endif
}
