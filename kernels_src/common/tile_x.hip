// Rows of x for the tile engine (common/tile.hip). A thread fetches 8 of K of one row per step.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
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

// The same with the columns in another order: K of the weights' row k is x[:, order[k]].
template <u32 K, u64 STRIDE>
struct TileRowsOrdered {
  static constexpr bool SCALED = false;
  static constexpr u32 GROUP_STEPS = 0;
  struct Scales {};
  struct Piece {
    u16 halves[8];
  };
  GlobalBytes base, order;
  u32 lane;  // byte offset of the thread's row

  MEMBER TileRowsOrdered(const f16* x, u32 row, const i32* order)
      : base(global_bytes(x)), order(global_bytes(order)), lane(row * (u32)(STRIDE * 2)) {}

  MEMBER void fetch(u32 step, Piece& piece) {
    u32 k = step * TILE_K + thread_x() % 4 * 8;
    if constexpr (K % TILE_K != 0) {
      if (k >= K) {
#pragma unroll
        for (int j = 0; j < 8; ++j) piece.halves[j] = 0;
        return;
      }
    }
    u32 from[8];
    launder_lane(k);
    load<u32, 8, 4>(order, k * 4, from);
#pragma unroll
    for (int j = 0; j < 8; ++j) piece.halves[j] = *(const GLOBAL u16*)(base + (lane + from[j] * 2));
  }

  MEMBER static void put(const Piece& piece, u32 (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = piece.halves[2 * j] | ((u32)piece.halves[2 * j + 1] << 16);
  }
};
