// A plain fp16 GEMV, M = 1: one wave per output, 16-byte loads, dot2, a sum over the lanes.
constexpr int K = ${K};
constexpr int IN_FLIGHT = ${IN_FLIGHT};

#include "common/dot.hip"
#include "common/wave.hip"

constexpr int STEP = 32 * 8;  // weights that one load of the wave brings
static_assert(K % (STEP * IN_FLIGHT) == 0, "whole steps");

KERNEL __launch_bounds__(256) void gemv(const u32x4* weights, const u32x4* x, float* out, int n) {
  const u32 row = block_x() * 8 + wave_id();
  if (row >= (u32)n) return;
  const u32x4* line = weights + (u64)row * (K / 8);
  float sum = 0;
  for (int k = 0; k < K / STEP; k += IN_FLIGHT) {
    u32x4 w[IN_FLIGHT], v[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) w[i] = line[(k + i) * 32 + lane_id()];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) v[i] = x[(k + i) * 32 + lane_id()];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = dot2(w[i][j], v[i][j], sum);
    }
  }
  sum = sum_lanes<32>(sum);
  if (lane_id() == 0) out[row] = sum;
}
