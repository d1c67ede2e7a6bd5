// Loads of the int8 tile (common/int8_tile.hip) for int4 weights in rows along K, natural order, and
// gathered rows of int8 codes whose bytes stand in the order 0 2 4 6 1 3 5 7 of each octet.
//
// A thread has one weight row and a quarter of a row of codes; it fetches 16 of K per LDS store.
#include "common/int8_tile.hip"
#include "common/rows.hip"

// K: the reduction length; W_GROUP: weights under one scale, a multiple of the tile's group, which
// is that of the codes.
template <class Tile, int K, int W_GROUP, bool HAS_ZEROS>
struct Int8Rows {
  static constexpr int ITEMS = Tile::COLS * Tile::CHUNKS / Tile::THREADS;
  static constexpr int X_WORDS = Tile::STEP / 16;
  static constexpr int W_GROUPS = K / W_GROUP, X_GROUPS = K / Tile::GROUP;
  static_assert(K % W_GROUP == 0 && W_GROUP % Tile::GROUP == 0, "groups tile K");
  static_assert(Tile::THREADS >= Tile::COLS, "a thread per column");

  GlobalBytes words, scales, zeros, codes, x_scale, x_sum;
  u32 column, part;  // in the tile; which chunks of the column
  u32 word_lane, scale_lane, zero_lane, shift, code_lane, group_lane;
  u32 fetched[ITEMS * 2], x[X_WORDS];
  u32 column_zero;
  f16 column_scale;
  float row_scale;
  i32 row_sum;

  // matrix: of the expert. `row`: of the thread's column. x_row, group_row: rows of the codes that
  // the thread fetches codes of, and scales.
  MEMBER Int8Rows(const WeightMatrix& matrix, u64 first_row, u32 row, const u8* codes_,
                  const float* x_scale_, const i32* x_sum_, u32 x_row, u32 group_row)
      : words(global_bytes(matrix.weights) + first_row * (K / 2)),
        scales(global_bytes(matrix.scales) + first_row * (W_GROUPS * 2)),
        zeros(global_bytes(matrix.zeros) + first_row / 2 * W_GROUPS),
        codes(global_bytes(codes_)),
        x_scale(global_bytes(x_scale_)),
        x_sum(global_bytes(x_sum_)),
        column(thread_x() % Tile::COLS),
        part(uniform(thread_x() / Tile::COLS)),
        word_lane(row * (K / 2)),
        scale_lane(row * (W_GROUPS * 2)),
        zero_lane(row / 2 * W_GROUPS),
        shift(row % 2 * 4),
        code_lane(x_row * K + thread_x() % 4 * (X_WORDS * 4)),
        group_lane(group_row * (X_GROUPS * 4)) {}

  MEMBER void fetch(u32 step) {
    launder_lane(word_lane);
    launder_lane(scale_lane);
    launder_lane(code_lane);
    launder_lane(group_lane);
    load<u32, X_WORDS>(launder_base(codes + step * Tile::STEP), code_lane, x);
    const u32 begin = step * (Tile::STEP / 2) + part * (ITEMS * 8);
    load<u32, ITEMS * 2>(launder_base(words + begin), word_lane, fetched);
    const u32 group = step / (W_GROUP / Tile::STEP);
    column_scale = *(const GLOBAL f16*)(launder_base(scales + group * 2) + scale_lane);
    if constexpr (HAS_ZEROS) {
      launder_lane(zero_lane);
      column_zero = *(const GLOBAL u8*)(launder_base(zeros + group) + zero_lane);
    }
    const u32 x_group = step / Tile::GROUP_STEPS * 4;
    row_scale = *(const GLOBAL float*)(launder_base(x_scale + x_group) + group_lane);
    row_sum = *(const GLOBAL i32*)(launder_base(x_sum + x_group) + group_lane);
    schedule_fence();
  }

  MEMBER void stash(Int8Buffer<Tile>& to) {
    const u32 thread = thread_x();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      u32 b[4];
      int8_split(fetched[2 * i], b[0], b[1]);
      int8_split(fetched[2 * i + 1], b[2], b[3]);
      to.w[column * Tile::PITCH + part * ITEMS + i] = u32x4{b[0], b[1], b[2], b[3]};
    }
    u32* x_to = (u32*)(to.x + thread / 4 * Tile::PITCH) + thread % 4 * X_WORDS;
    Vec<u32, X_WORDS> row;
#pragma unroll
    for (int i = 0; i < X_WORDS; ++i) row[i] = x[i];
    *(Vec<u32, X_WORDS>*)x_to = row;
    if (part == 0) {
      to.w_scale[column] = (float)column_scale;
      to.minus_zero[column] = HAS_ZEROS ? -(i32)__builtin_amdgcn_ubfe(column_zero, shift, 4) : -8;
    }
    if (wave_id() < Tile::ROWS / 32) {
      to.x_scale[thread] = row_scale;
      to.x_sum[thread] = row_sum;
    }
  }
};
