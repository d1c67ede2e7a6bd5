// LDS reads with a stride: WAYS lanes of each wave read different words of one bank.
constexpr int WAYS = ${WAYS};

#include "common/wave.hip"

KERNEL __launch_bounds__(256) void lds(u32* out, int steps) {
  __shared__ u32 words[4096];
  for (u32 i = thread_x(); i < 4096; i += 256) words[i] = i;
  block_barrier();
  u32 at = lane_id() * WAYS, sum = 0;
  for (int s = 0; s < steps; ++s) {
    asm volatile("" : "+v"(at));
#pragma unroll
    for (int i = 0; i < 8; ++i) sum ^= words[at + 301 * i];  // too far apart for ds_read2
  }
  out[block_x() * 256 + thread_x()] = sum;
}
