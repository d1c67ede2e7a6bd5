// fp16 pair products with fp32 accumulation.
#include "common/types.hip"

// gfx1010 and gfx1013 have no dot instructions; they take two mixed-precision FMAs instead.
#if defined(__gfx1010__) || defined(__gfx1013__) || !__has_builtin(__builtin_amdgcn_fdot2)
#define HAS_DOT2 0
#else
#define HAS_DOT2 1
#endif

// a.x*b.x + a.y*b.y + c. NOTE: v_dot2 may flush subnormals and rounds as it likes; feed it weights
// that are normal or zero, and never compare its bits.
DEVICE float dot2(u32 a, u32 b, float c) {
  const f16x2 x = bits<f16x2>(a), y = bits<f16x2>(b);
#if HAS_DOT2
  return __builtin_amdgcn_fdot2(x, y, c, false);
#else
  return __builtin_fmaf((float)x.y, (float)y.y, __builtin_fmaf((float)x.x, (float)y.x, c));
#endif
}

// dot2 with c = 0, which starts a chain. The compilers write a move of 0 and the accumulating
// form; the three-operand form has the constant inline and saves the move. A is uniform (scalar
// register) when SCALAR_A.
template <bool SCALAR_A>
DEVICE float dot2_start(u32 a, u32 b) {
#if HAS_DOT2
  float r;
  if constexpr (SCALAR_A) {
    asm("v_dot2_f32_f16 %0, %1, %2, 0" : "=v"(r) : "s"(a), "v"(b));
  } else {
    asm("v_dot2_f32_f16 %0, %1, %2, 0" : "=v"(r) : "v"(a), "v"(b));
  }
  return r;
#else
  return dot2(a, b, 0.0f);
#endif
}
