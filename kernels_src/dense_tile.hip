// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};                    // output columns
constexpr int K = ${K};                    // reduction length
constexpr int GROUP = ${GROUP};            // codes along K that share a scale and a zero
constexpr int ROWS = ${ROWS};              // rows of x per workgroup
constexpr bool SPLIT = ${SPLIT};           // the grid splits K: `out` takes partial sums
constexpr int ORDER = ${ORDER};            // of codes: 0 natural, 1 shuffled (common/int4.hip), 2 AWQ's
constexpr int ZEROS = ${ZEROS};            // 0: all 8; 1: packed int32 [K/G, N/8]; 2: bytes [K/G, N]
constexpr int ZERO_OFFSET = ${ZERO_OFFSET};  // added to packed zeros
constexpr bool HAS_PERM = ${HAS_PERM};     // row k of the weights belongs to x[:, perm[k]]
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};
constexpr unsigned long long Z_STRIDE = ${Z_STRIDE};
constexpr unsigned long long S_STRIDE = ${S_STRIDE};
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};  // of fp16 rows, or of partial sums
constexpr int X_ALIGN = ${X_ALIGN};        // what rows of the tensor start on a multiple of, bytes
constexpr int S_ALIGN = ${S_ALIGN};
constexpr int OUT_ALIGN = ${OUT_ALIGN};

// y[m, n] = fp16(sum_g scale[g, n] * sum_{k in g} x[m, perm[k]] * (q[k, n] - z[g, n]) + bias[n])
//
// for many rows of x: q int4 in words [K/8, N], or as AWQ has them [K, N/8], on the tile engine
// (common/tile.hip). Where the grid splits K, workgroups take `slice` steps of 32 each, `out` is fp32
// [splits, M, N rounded up to 4], and split_combine.hip adds it up.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/tile.hip"
#include "common/tile_x.hip"
#include "common/tile_int4.hip"
#include "common/tile_awq.hip"
#include "common/tile_store.hip"

constexpr u32 STEPS = ceil_div(K, TILE_K);

template <int ORDER>
struct Words {
  using Loader = TileInt4<ROWS, N, K, GROUP, ORDER == 1, ZEROS, ZERO_OFFSET, W_STRIDE, Z_STRIDE,
                          S_STRIDE, S_ALIGN>;
};
template <>
struct Words<2> {
  using Loader = TileAwq<ROWS, N, K, GROUP, ZEROS == 1, W_STRIDE, Z_STRIDE, S_STRIDE, S_ALIGN>;
};
using Weights = Words<ORDER>::Loader;
static_assert(ORDER != 2 || (ZEROS < 2 && ZERO_OFFSET == 0), "AWQ packs its zeros");

template <class X>
DEVICE void run(TileImage<ROWS>& image, Weights& weights, X x, u32 rows, u32 slice,
                TileSums& sums) {
  const u32 step = SPLIT ? block_z() * slice : 0;
  const u32 end = SPLIT && step + slice < STEPS ? step + slice : STEPS;
  tile_multiply(image, weights, x, rows, step, end, sums);
}

KERNEL __launch_bounds__(ROWS * 4) void dense_tile(
    const f16* __restrict x, const u32* __restrict qweight, const void* __restrict zeros,
    const f16* __restrict scales, const i32* __restrict perm, const f16* __restrict bias,
    void* __restrict out, i32 m, i32 slice) {
  __shared__ TileImage<ROWS> image;
  const u32 first_row = block_x() * ROWS, first_column = block_y() * TILE_COLUMNS;
  const u32 rows = m - first_row;
  const u32 thread_row = thread_x() / 4 < rows ? thread_x() / 4 : rows - 1;
  x += first_row * X_STRIDE;
  Weights weights(qweight, zeros, scales, first_column);
  TileSums sums;
  if constexpr (HAS_PERM) {
    run(image, weights, TileRowsOrdered<K, X_STRIDE>(x, thread_row, perm), rows, slice, sums);
  } else {
    run(image, weights, TileRows<K, X_STRIDE, X_ALIGN>(x, thread_row), rows, slice, sums);
  }
  const u32 column = first_column + Weights::column_of_lane();
  tile_store<ROWS, SPLIT, N, OUT_STRIDE, OUT_ALIGN, HAS_BIAS>(sums, bias, out, m, column);
}
