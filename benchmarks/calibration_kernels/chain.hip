// Eight independent chains of one instruction: the shape of the published issue-rate measurements.
// The instruction is inline assembly, so that it is the one meant.
constexpr int FMA = 0, PK_FMA = 1, DOT2 = 2, DOT4 = 3, DOT8 = 4, EXP = 5;
constexpr int INSTRUCTION = ${INSTRUCTION};
constexpr int CHAINS = ${CHAINS};

#include "common/wave.hip"

#define CASE(NAME, TEXT) \
  if constexpr (INSTRUCTION == NAME) asm volatile(TEXT : "+v"(x) : "v"(a), "v"(b))

DEVICE void step(u32& x, u32 a, u32 b) {
  CASE(FMA, "v_fmac_f32_e32 %0, %1, %2");
  CASE(PK_FMA, "v_pk_fma_f16 %0, %1, %2, %0");
  CASE(DOT2, "v_dot2c_f32_f16_e32 %0, %1, %2");
  CASE(DOT4, "v_dot4c_i32_i8_e32 %0, %1, %2");
  CASE(DOT8, "v_dot8_i32_i4 %0, %1, %2, %0");
  CASE(EXP, "v_exp_f32_e32 %0, %0");
}

KERNEL __launch_bounds__(256) void chain(u32* out, int steps, u32 a, u32 b) {
  asm volatile("" : "+v"(a), "+v"(b));
  u32 x[CHAINS];
#pragma unroll
  for (int i = 0; i < CHAINS; ++i) x[i] = thread_x() + i;
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int repeat = 0; repeat < 4; ++repeat) {
#pragma unroll
      for (int i = 0; i < CHAINS; ++i) step(x[i], a, b);
    }
  }
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < CHAINS; ++i) sum ^= x[i];
  out[block_x() * 256 + thread_x()] = sum;
}
