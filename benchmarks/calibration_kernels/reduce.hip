// Sums over the 32 lanes of one wave, one after the other: by lane moves, or through LDS.
constexpr bool THROUGH_LDS = ${THROUGH_LDS};

#include "common/wave.hip"

KERNEL __launch_bounds__(32) void reduce(float* out, int steps) {
  __shared__ float slots[32];
  float sum = (float)lane_id();
  for (int s = 0; s < steps; ++s) {
    if constexpr (THROUGH_LDS) {
#pragma unroll
      for (int other = 1; other < 32; other *= 2) {
        slots[lane_id()] = sum;
        wave_barrier();
        sum += slots[lane_id() ^ other];
        wave_barrier();
      }
    } else {
      sum = sum_lanes<32>(sum);
    }
    sum *= 0.03125f;
  }
  out[lane_id()] = sum;
}
