// Streams memory with a fixed number of loads in flight per lane: the shape of the published
// bandwidth and waves-times-loads measurements. Thread t of the grid touches the vectors
// t * STRIDE, (t + threads) * STRIDE, ...; after `cycle` steps it starts again (a cached set), and
// `threads` below the grid's lets several workgroups share what they read.
constexpr int BYTES = ${BYTES};          // of one access: 4, 8 or 16
constexpr int IN_FLIGHT = ${IN_FLIGHT};  // loads issued before the first is used
constexpr int STRIDE = ${STRIDE};        // between neighbouring threads, in vectors
constexpr int BLOCK = ${BLOCK};
constexpr bool READ = ${READ};
constexpr bool WRITE = ${WRITE};

#include "common/wave.hip"

using Vector = Vec<u32, BYTES / 4>;

KERNEL __launch_bounds__(BLOCK) void stream(const Vector* in, Vector* out, int steps, int cycle,
                                            int threads) {
  const u32 thread = (block_x() * BLOCK + thread_x()) % (u32)threads;
  Vector sum = (Vector)(thread);
  for (int step = 0, at = 0; step < steps; ++step, at = at + 1 == cycle ? 0 : at + 1) {
    const u32 first = thread + at * IN_FLIGHT * threads;
    Vector loaded[IN_FLIGHT];
    if constexpr (READ) {
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i) loaded[i] = in[(first + i * threads) * STRIDE];
      schedule_fence();
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i) sum ^= loaded[i];
    }
    if constexpr (WRITE) {
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i)
        out[(first + i * threads) * STRIDE] = READ ? loaded[i] : sum;
    }
  }
  // never true for the zeros that the benchmark feeds; keeps the loads
  if (READ && !WRITE && sum[0] == 0xFFFFFFFFu) out[thread] = sum;
}
