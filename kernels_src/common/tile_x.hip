// Rows of x for the tile engine (common/tile.hip). A thread fetches 8 of K of one row per step.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/row_format.hip"
#include "common/tile.hip"
#include "common/words.hip"

// Rows of fp16. K: the reduction length; STRIDE: elements from row to row; ALIGN: what rows start
// on a multiple of, in bytes. The base and a row are at most 4 GB apart.
template <u32 K, u64 STRIDE, int ALIGN>
struct TileRows {
  static constexpr bool SCALED = false;
  static constexpr u32 GROUP_STEPS = 0;
  struct Scales {};
  struct Piece {
    u32 pairs[4];
  };
  GlobalBytes base;
  u32 lane;  // byte offset of the thread's row and octet

  // `row`: of this thread, relative to x. Any will do, so a list of rows gathers.
  MEMBER TileRows(const f16* x, u32 row)
      : base(global_bytes(x)), lane(row * (u32)(STRIDE * 2) + thread_x() % 4 * 16) {}

  MEMBER void fetch(u32 step, Piece& piece) {
    launder_lane(lane);
    if constexpr (K % TILE_K != 0) {
      if (step * TILE_K + thread_x() % 4 * 8 >= K) {
#pragma unroll
        for (int j = 0; j < 4; ++j) piece.pairs[j] = 0;
        return;
      }
    }
    load_words<4, ALIGN>(launder_base(base + step * (TILE_K * 2)), lane, piece.pairs);
  }

  MEMBER static void put(const Piece& piece, u32 (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = piece.pairs[j];
  }
};

// The same with the columns in another order: K of the weights' row k is x[:, order[k]]. The order of
// a step is fetched during the one before, so that nothing waits for two loads in turn.
template <u32 K, u64 STRIDE>
struct TileRowsOrdered {
  static constexpr bool SCALED = false;
  static constexpr u32 GROUP_STEPS = 0;
  struct Scales {};
  struct Piece {
    u16 halves[8];
  };
  GlobalBytes base, order;
  u32 lane;     // byte offset of the thread's row
  u32 known;    // the step whose order is here
  u32 from[8];  // that order

  MEMBER TileRowsOrdered(const f16* x, u32 row, const i32* order)
      : base(global_bytes(x)),
        order(global_bytes(order)),
        lane(row * (u32)(STRIDE * 2)),
        known(~0u) {}

  // Past the end the last eight.
  MEMBER void fetch_order(u32 step) {
    u32 k = step * TILE_K + thread_x() % 4 * 8;
    if (k > K - 8) k = K - 8;
    k *= 4;
    launder_lane(k);
    load<u32, 8, 4>(order, k, from);
    known = step;
  }

  MEMBER void fetch(u32 step, Piece& piece) {
    if (step != known) fetch_order(step);
    const bool past = K % TILE_K != 0 && step * TILE_K + thread_x() % 4 * 8 >= K;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const u16 half = *(const GLOBAL u16*)(base + (lane + from[j] * 2));
      piece.halves[j] = past ? 0 : half;
    }
    fetch_order(step + 1);
  }

  MEMBER static void put(const Piece& piece, u32 (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = piece.halves[2 * j] | ((u32)piece.halves[2 * j + 1] << 16);
  }
};

// Rows of fp8 codes, decoded exactly (NaN codes give NaN), with fp32 scales where SCALES: one per
// row of x, SCALE_STRIDE elements apart (0: one for all rows), or with GROUP > 0 one per group of K.
template <Format FORMAT, u32 K, u64 STRIDE, int ALIGN, bool SCALES, u32 GROUP, u64 SCALE_STRIDE>
struct TileRowsFp8 {
  static constexpr bool SCALED = SCALES;
  static constexpr u32 GROUP_STEPS = GROUP / TILE_K;
  static_assert(GROUP % TILE_K == 0, "a step has one group");
  struct Scales {
    u32 of[LANE_ROWS];
  };
  struct Piece {
    u32 words[2];
  };
  GlobalBytes base;
  u64 scales;  // address of the first of the wave's rows
  u32 lane;    // byte offset of the thread's row and octet
  u32 last;    // the wave's last row that exists; of a wave without rows its first

  // `scale`: of the tile's first row; `rows`: how many of the tile's rows exist.
  MEMBER TileRowsFp8(const void* x, u32 row, const float* scale, u32 rows)
      : base(global_bytes((const char*)x)), lane(row * (u32)STRIDE + thread_x() % 4 * 8) {
    u32 first = wave_id() * LANE_ROWS;
    if (first >= rows) first = rows - 1;
    scales = (u64)scale + first * (SCALE_STRIDE * 4);
    last = rows - 1 - first;
  }

  MEMBER void fetch(u32 step, Piece& piece) {
    launder_lane(lane);
    if constexpr (K % TILE_K != 0) {
      if (step * TILE_K + thread_x() % 4 * 8 >= K) {
        piece.words[0] = piece.words[1] = 0;
        return;
      }
    }
    load_words<2, ALIGN>(launder_base(base + step * TILE_K), lane, piece.words);
  }

  MEMBER static void put(const Piece& piece, u32 (&pairs)[4]) {
    decode_octet<FORMAT, true>(piece.words, pairs);
  }

  MEMBER void fetch_scales(u32 group, Scales& s) {
#pragma unroll
    for (u32 m = 0; m < LANE_ROWS; ++m) {
      u32 word[1];
      load_scalar<1>(scales + (m < last ? m : last) * (SCALE_STRIDE * 4) + group * 4, word);
      s.of[m] = word[0];
    }
  }
  MEMBER static float scale(const Scales& s, int m) { return bits<float>(s.of[m]); }
};
