// The int4 chain in registers: eight nibbles of a word, each minus the zero and into an FMA with the
// group's scale. Words come from nowhere, so that memory plays no part.
constexpr int GROUP = ${GROUP};  // weights per scale

#include "common/wave.hip"

KERNEL __launch_bounds__(256) void dequant(float* out, int groups, int zero, float scale) {
  u32 word = thread_x() * 0x9E3779B1u + 1;
  float sum = 0;
  for (int group = 0; group < groups; ++group) {
    const float group_scale = scale * (float)(group + 1);
#pragma unroll
    for (int w = 0; w < GROUP / 8; ++w) {
      asm volatile("" : "+v"(word));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int weight = (int)((word >> (4 * i)) & 15u) - zero;
        sum = __builtin_fmaf((float)weight, group_scale, sum);
      }
    }
  }
  out[block_x() * 256 + thread_x()] = sum;
}
