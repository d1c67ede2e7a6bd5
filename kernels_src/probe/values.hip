// One instruction on n triples of 32-bit words: what `python -m rdna_jit probe` asks a card.
//
//   out[i] = INSTRUCTION(a[i], b[i], c[i])          bit patterns in, bit patterns out
//
// The instruction is inline assembly, so that no compiler replaces, folds or reorders it. Its
// destination holds c before: an accumulator for dot2c, the untouched half for 16-bit results.
// MODE is as compilers set it: round to nearest even, denormals kept, IEEE and DX10_CLAMP on.

constexpr int DOT2 = 0, DOT2C = 1;
constexpr int CLAMP_MUL_F32 = 10, CLAMP_MAX_F32 = 11, CLAMP_MAX_F16 = 12, CLAMP_PK_MAX_F16 = 13;
constexpr int OMOD_MUL_F32 = 20;
constexpr int MIN_F32 = 30, MAX_F32 = 31, MED3_F32 = 32, MED3_F16 = 33;
constexpr int CVT_PK_U8_F32 = 40, CVT_PKNORM_I16_F32 = 41, CVT_PKNORM_U16_F32 = 42;
constexpr int CVT_PKNORM_I16_F16 = 43, CVT_PKNORM_U16_F16 = 44;
constexpr int RCP_F32 = 50, RSQ_F32 = 51, SQRT_F32 = 52, EXP_F32 = 53, LOG_F32 = 54;
constexpr int SIN_F32 = 55, COS_F32 = 56;
constexpr int RCP_F16 = 60, RSQ_F16 = 61, SQRT_F16 = 62, EXP_F16 = 63, LOG_F16 = 64;
constexpr int INSTRUCTION = ${INSTRUCTION};

#include "common/wave.hip"

#define CASE(NAME, TEXT) \
  if constexpr (INSTRUCTION == NAME) asm volatile(TEXT : "+v"(r) : "v"(a), "v"(b), "v"(c))

DEVICE u32 apply(u32 a, u32 b, u32 c) {
  u32 r = c;
  CASE(DOT2, "v_dot2_f32_f16 %0, %1, %2, %3");
  CASE(DOT2C, "v_dot2c_f32_f16_e32 %0, %1, %2");
  CASE(CLAMP_MUL_F32, "v_mul_f32_e64 %0, 1.0, %1 clamp");
  CASE(CLAMP_MAX_F32, "v_max_f32_e64 %0, %1, %1 clamp");
  CASE(CLAMP_MAX_F16, "v_max_f16_e64 %0, %1, %1 clamp");
  CASE(CLAMP_PK_MAX_F16, "v_pk_max_f16 %0, %1, %1 clamp");
  CASE(OMOD_MUL_F32, "v_mul_f32_e64 %0, 1.0, %1 mul:2");
  CASE(MIN_F32, "v_min_f32_e32 %0, %1, %2");
  CASE(MAX_F32, "v_max_f32_e32 %0, %1, %2");
  CASE(MED3_F32, "v_med3_f32 %0, %1, %2, %3");
  CASE(MED3_F16, "v_med3_f16 %0, %1, %2, %3");
  CASE(CVT_PK_U8_F32, "v_cvt_pk_u8_f32 %0, %1, %2, %3");
  CASE(CVT_PKNORM_I16_F32, "v_cvt_pknorm_i16_f32 %0, %1, %2");
  CASE(CVT_PKNORM_U16_F32, "v_cvt_pknorm_u16_f32 %0, %1, %2");
  CASE(CVT_PKNORM_I16_F16, "v_cvt_pknorm_i16_f16 %0, %1, %2");
  CASE(CVT_PKNORM_U16_F16, "v_cvt_pknorm_u16_f16 %0, %1, %2");
  CASE(RCP_F32, "v_rcp_f32_e32 %0, %1");
  CASE(RSQ_F32, "v_rsq_f32_e32 %0, %1");
  CASE(SQRT_F32, "v_sqrt_f32_e32 %0, %1");
  CASE(EXP_F32, "v_exp_f32_e32 %0, %1");
  CASE(LOG_F32, "v_log_f32_e32 %0, %1");
  CASE(SIN_F32, "v_sin_f32_e32 %0, %1");
  CASE(COS_F32, "v_cos_f32_e32 %0, %1");
  CASE(RCP_F16, "v_rcp_f16_e32 %0, %1");
  CASE(RSQ_F16, "v_rsq_f16_e32 %0, %1");
  CASE(SQRT_F16, "v_sqrt_f16_e32 %0, %1");
  CASE(EXP_F16, "v_exp_f16_e32 %0, %1");
  CASE(LOG_F16, "v_log_f16_e32 %0, %1");
  return r;
}

KERNEL __launch_bounds__(256) void probe_values(const u32* a, const u32* b, const u32* c, u32* out,
                                                int n) {
  const int i = (int)(block_x() * 256 + thread_x());
  if (i < n) out[i] = apply(a[i], b[i], c[i]);
}
