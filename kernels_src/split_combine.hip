// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};                    // columns
constexpr int SPLITS = ${SPLITS};          // partial sums per result
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long STRIDE = ${STRIDE};  // row strides, in elements: of the partial sums,
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};  // and of the result
constexpr int OUT_ALIGN = ${OUT_ALIGN};    // what its rows start on a multiple of, bytes

// out[m, n] = fp16(parts[0, m, n] + parts[1, m, n] + ... + bias[n]), added in that order.
//
// parts fp32 [SPLITS, M, STRIDE]. A thread has four columns of one row.
//
// Limits: memory.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"

constexpr u32 QUADS = ceil_div(N, 4);
static_assert(STRIDE % 4 == 0 && STRIDE >= N, "quads are aligned");

KERNEL __launch_bounds__(256) void split_combine(const float* __restrict parts,
                                                 const f16* __restrict bias, f16* __restrict out,
                                                 i32 m) {
  const u32 row = block_x(), quad = block_y() * 256 + thread_x();
  if (quad >= QUADS) return;
  GlobalBytes from = global_bytes(parts) + row * (STRIDE * 4);
  u32 lane = quad * 16;
  launder_lane(lane);
  float part[SPLITS][4];
#pragma unroll
  for (int s = 0; s < SPLITS; ++s) {
    load<float, 4>(from, lane, part[s]);
    from = launder_base(from + (u64)m * (STRIDE * 4));
  }
  f16 rounded[4];
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    float y = part[0][j];
#pragma unroll
    for (int s = 1; s < SPLITS; ++s) y += part[s][j];
    const u32 n = N % 4 == 0 || quad * 4 + j < N ? quad * 4 + j : N - 1;
    if constexpr (HAS_BIAS) y += (float)*(const GLOBAL f16*)(global_bytes(bias) + n * 2);
    rounded[j] = (f16)y;
  }
  GLOBAL char* to = (GLOBAL char*)(u64)out + row * (OUT_STRIDE * 2);
  if constexpr (N % 4 == 0) {
    store<f16, 4, OUT_ALIGN>(to, quad * 8, rounded);
  } else {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      if (quad * 4 + j < N) *(GLOBAL f16*)(to + (quad * 4 + j) * 2) = rounded[j];
    }
  }
}
