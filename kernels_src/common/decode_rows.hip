// Rows of x in the decode kernels for int4 weights, whose waves split K and own the same columns:
// which rows a workgroup has, and how the waves' sums become rows of the result.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"

// The rows of a workgroup: TILE slots in two halves, the second ending at the last row. With fewer
// than TILE rows the halves overlap, so no slot needs a guard of its own; a row is stored once.
template <u32 TILE>
struct RowTile {
  static constexpr u32 HALF = ceil_div(TILE, 2);
  u32 first;   // row of slot 0
  u32 second;  // row of slot HALF, relative to first
  u32 stored;  // rows below this one (relative) belong to the workgroup before

  // Of the workgroup, where x has `rows` rows.
  DEVICE RowTile of(u32 rows) {
    const u32 begin = block_y() * TILE;
    if constexpr (TILE == 1) return {begin, 0, 0};
    const u32 first = begin + TILE <= rows || begin == 0 ? begin : rows - TILE;
    return {first, rows < TILE ? rows - HALF : TILE - HALF, begin - first};
  }

  MEMBER u32 row(u32 slot) const { return slot < HALF ? slot : second + slot - HALF; }

  // Of a slot's fp16 row, from the addresses of slots 0 and HALF.
  template <u64 STRIDE>
  DEVICE u64 address(u64 of_first, u64 of_half, u32 slot) {
    return slot < HALF ? of_first + slot * (STRIDE * 2) : of_half + (slot - HALF) * (STRIDE * 2);
  }
};

// sums += scale * chain, each column with its own scale.
template <int TILE, int COLS>
DEVICE void add_scaled(const f16 (&scales)[COLS], const float (&chain)[TILE][COLS],
                       float (&sums)[TILE][COLS]) {
#pragma unroll
  for (int m = 0; m < TILE; ++m) {
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      sums[m][c] = __builtin_fmaf((float)scales[c], chain[m][c], sums[m][c]);
    }
  }
}

// Each wave adds the sums of all waves, in wave order, for its share of the rows, and stores COLS
// columns per lane from column `n` on. A wave's sums are [slot][32 * COLS], SLAB floats apart.
// STRIDE, ALIGN: of the rows of `out`, in elements and bytes; `out` begins at slot 0.
template <int WAVES, int COLS, int SLAB, u64 STRIDE, int ALIGN, bool HAS_BIAS, u32 TILE>
DEVICE void store_rows(const float* sums, const f16* bias, f16* out, const RowTile<TILE>& rows,
                       u32 wave, u32 n) {
  u32 lane_bytes = n * 2;
  launder_lane(lane_bytes);
#pragma unroll
  for (u32 i = 0; i < ceil_div(TILE, WAVES); ++i) {
    const u32 slot = wave + i * WAVES;
    if (TILE % WAVES != 0 && slot >= TILE) break;
    const u32 row = rows.row(slot);
    if (row < rows.stored || (slot >= rows.HALF && row < rows.HALF)) continue;  // by another slot
    float y[COLS] = {};
    const float* from = sums + slot * (32 * COLS) + lane_id() * COLS;
#pragma unroll
    for (int w = 0; w < WAVES; ++w) {
      const Vec<float, COLS> part = *(const Vec<float, COLS>*)(from + w * SLAB);
#pragma unroll
      for (int c = 0; c < COLS; ++c) y[c] = w == 0 ? part[c] : y[c] + part[c];
    }
    f16 rounded[COLS];
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      if constexpr (HAS_BIAS) {
        y[c] += (float)*(const GLOBAL f16*)(global_bytes(bias) + lane_bytes + c * 2);
      }
      rounded[c] = (f16)y[c];
    }
    GLOBAL char* to = (GLOBAL char*)(u64)out + row * (STRIDE * 2);
    store<f16, COLS, ALIGN>(to, lane_bytes, rounded);
  }
}
