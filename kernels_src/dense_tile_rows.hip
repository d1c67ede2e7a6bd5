// Specialisation block: every value that the text below depends on.
#include "common/row_format.hip"
constexpr int N = ${N};                    // rows of w, columns of the result
constexpr int K = ${K};                    // reduction length
constexpr Format FORMAT = Format::${FORMAT};      // of w: f16, i8, e4m3, e5m2 or mxfp4
constexpr Format X_FORMAT = Format::${X_FORMAT};  // of x: f16, e4m3 or e5m2
constexpr bool NAN_CODES = ${NAN_CODES};   // NaN codes of e4m3 weights stay NaN; those of x do always
constexpr int ROWS = ${ROWS};              // rows of x per workgroup
constexpr bool SPLIT = ${SPLIT};           // the grid splits K: `out` takes partial sums
constexpr int GROUP = ${GROUP};            // weights along K that share a scale; 0: all of them
constexpr int SCALE_BYTES = ${SCALE_BYTES};      // of a scale of w: 0 (none), 1 (e8m0), 2 or 4
constexpr int SCALE_ROWS = ${SCALE_ROWS};        // rows of w that share a scale
constexpr bool SCALE_GROUPS = ${SCALE_GROUPS};   // w has a scale per group; else per row
constexpr bool X_SCALES = ${X_SCALES};           // x has scales, fp32
constexpr bool X_SCALE_GROUPS = ${X_SCALE_GROUPS};  // per row and group; else per row
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};  // of mxfp4 in bytes
constexpr unsigned long long SCALE_STRIDE = ${SCALE_STRIDE};
constexpr unsigned long long X_SCALE_STRIDE = ${X_SCALE_STRIDE};  // 0: one scale for all rows
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};  // of fp16 rows, or of partial sums
constexpr int X_ALIGN = ${X_ALIGN};        // what rows of the tensor start on a multiple of, bytes
constexpr int W_ALIGN = ${W_ALIGN};
constexpr int OUT_ALIGN = ${OUT_ALIGN};

// y[m, n] = fp16(sum over groups g of  x_scale[m, g] * scale[n / SCALE_ROWS, g]
//                * (sum over k in g of  x[m, k] * w[n, k])  + bias[n])
//
// for many rows of x: w row-major [N, K], on the tile engine (common/tile.hip). Where the grid splits
// K, workgroups take `slice` steps of 32 each, `out` is fp32 [splits, M, N rounded up to 4], and
// split_combine.hip adds it up.
#include "common/tile.hip"
#include "common/tile_x.hip"
#include "common/tile_rows.hip"
#include "common/tile_store.hip"

constexpr u32 STEPS = ceil_div(K, TILE_K);

// The matrix as common/tile_rows.hip takes it.
struct Form {
  static constexpr Format FORMAT = ::FORMAT;
  static constexpr int K = ::K, EXPERT_ROWS = N;
  static constexpr int GROUP = SCALE_GROUPS ? ::GROUP : K, GROUPS = ceil_div(K, GROUP);
  static constexpr int SCALE_ROWS = ::SCALE_ROWS, SCALE_BYTES = ::SCALE_BYTES;
  static constexpr int UNIT_BITS = FORMAT == Format::mxfp4 ? 8 : format_bits(FORMAT);
  static constexpr u32 ROW_BYTES = W_STRIDE * UNIT_BITS / 8;
  static constexpr u32 SCALE_LINE = SCALE_STRIDE * SCALE_BYTES;
  static constexpr bool NAN_CODES = ::NAN_CODES, HAS_ZEROS = false;
};
using Weights = TileWeightRows<ROWS, Form, TileColumns<N>, W_ALIGN>;
constexpr u32 X_GROUP = X_SCALE_GROUPS ? GROUP : 0;
static_assert(!SCALE_GROUPS || GROUP % TILE_K == 0, "a step has one group");

KERNEL __launch_bounds__(ROWS * 4) void dense_tile_rows(
    const void* __restrict x, const void* __restrict w, const void* __restrict scale,
    const float* __restrict x_scale, const f16* __restrict bias, void* __restrict out, i32 m,
    i32 slice) {
  __shared__ TileImage<ROWS> image;
  __shared__ TileScaleTable table;
  const u32 first_row = block_x() * ROWS, first_column = block_y() * TILE_COLUMNS;
  const u32 rows = m - first_row;
  const u32 thread_row = thread_x() / 4 < rows ? thread_x() / 4 : rows - 1;
  x = (const char*)x + first_row * (X_STRIDE * format_bits(X_FORMAT) / 8);
  Weights weights({w, scale, nullptr}, 0, TileColumns<N>{first_column}, table);
  const u32 step = SPLIT ? block_z() * slice : 0;
  const u32 end = SPLIT && step + slice < STEPS ? step + slice : STEPS;
  TileSums sums;
  if constexpr (X_FORMAT == Format::f16) {
    TileRows<K, X_STRIDE, X_ALIGN> part((const f16*)x, thread_row);
    tile_multiply(image, weights, part, rows, step, end, sums);
  } else {
    TileRowsFp8<X_FORMAT, K, X_STRIDE, X_ALIGN, X_SCALES, X_GROUP, X_SCALE_STRIDE> part(
        x, thread_row, x_scale + first_row * X_SCALE_STRIDE, rows);
    tile_multiply(image, weights, part, rows, step, end, sums);
  }
  const u32 column = first_column + lane_id() * LANE_COLUMNS;
  tile_store<ROWS, SPLIT, N, OUT_STRIDE, OUT_ALIGN, HAS_BIAS>(sums, bias, out, m, column);
}
