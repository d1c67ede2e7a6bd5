// Results of the tile engine (common/tile.hip), where a lane's slots are four neighbouring columns.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/tile.hip"

// Sums to fp32 rows of STRIDE elements, a multiple of 4 that is at least N: a column past N is
// stored as well where its quad begins before. `rows`: how many of the tile's rows exist.
template <u32 N, u64 STRIDE>
DEVICE void tile_store_sums(const TileSums& sums, float* out, u32 rows, u32 column) {
  static_assert(STRIDE % 4 == 0 && STRIDE >= N, "quads of columns are aligned");
  GLOBAL char* to = (GLOBAL char*)(u64)out + wave_id() * (LANE_ROWS * STRIDE * 4);
  u32 lane = column * 4;
  if (N % TILE_COLUMNS != 0 && column >= N) return;
  launder_lane(lane);
#pragma unroll
  for (u32 m = 0; m < LANE_ROWS; ++m) {
    if (wave_id() * LANE_ROWS + m < rows) store<float, 4>(to, lane, sums[m]);
    to += STRIDE * 4;
    launder_scalar(to);
  }
}

// Sums to fp16 rows, a bias added where there is one. ALIGN: of the rows, in bytes.
template <u32 N, u64 STRIDE, int ALIGN, bool HAS_BIAS>
DEVICE void tile_store_half(const TileSums& sums, const f16* bias, f16* out, u32 rows, u32 column) {
  GLOBAL char* to = (GLOBAL char*)(u64)out + wave_id() * (LANE_ROWS * STRIDE * 2);
  if (N % TILE_COLUMNS != 0 && column >= N) return;
  float add[LANE_COLUMNS];
#pragma unroll
  for (u32 n = 0; n < LANE_COLUMNS; ++n) {
    add[n] = 0;
    const u32 from = N % 4 == 0 || column + n < N ? column + n : N - 1;
    if constexpr (HAS_BIAS) add[n] = (float)*(const GLOBAL f16*)(global_bytes(bias) + from * 2);
  }
  u32 lane = column * 2;
  launder_lane(lane);
#pragma unroll
  for (u32 m = 0; m < LANE_ROWS; ++m) {
    if (wave_id() * LANE_ROWS + m < rows) {
      f16 rounded[LANE_COLUMNS];
#pragma unroll
      for (u32 n = 0; n < LANE_COLUMNS; ++n) {
        rounded[n] = (f16)(HAS_BIAS ? sums[m][n] + add[n] : sums[m][n]);
      }
      if constexpr (N % 4 == 0) {
        store<f16, 4, ALIGN>(to, lane, rounded);
      } else {
#pragma unroll
        for (u32 n = 0; n < LANE_COLUMNS; ++n) {
          if (column + n < N) *(GLOBAL f16*)(to + lane + n * 2) = rounded[n];
        }
      }
    }
    to += STRIDE * 2;
    launder_scalar(to);
  }
}

// Either of them for tile block_x(): SPLIT for partial sums [splits, m, STRIDE], slice block_z().
template <int ROWS, bool SPLIT, u32 N, u64 STRIDE, int ALIGN, bool HAS_BIAS>
DEVICE void tile_store(const TileSums& sums, const f16* bias, void* out, u32 m, u32 column) {
  const u32 row = block_x() * ROWS;
  if constexpr (SPLIT) {
    float* to = (float*)out + ((u64)block_z() * m + row) * STRIDE;
    tile_store_sums<N, STRIDE>(sums, to, m - row, column);
  } else {
    f16* to = (f16*)out + row * STRIDE;
    tile_store_half<N, STRIDE, ALIGN, HAS_BIAS>(sums, bias, to, m - row, column);
  }
}
