// Int4 words of eight K of one column, [K/8, N], for the tile engine (common/tile.hip).
//
// A thread fetches 4-byte words, neighbouring lanes neighbouring columns, and decodes each into one
// 16-byte line part: 9 instructions for 8 weights, once for all rows of the tile.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/int4.hip"
#include "common/tile.hip"

// GROUP: K under one scale, a multiple of 32, or K. ZEROS: 0 all 8, 1 packed [K/G, N/8] plus
// ZERO_OFFSET, 2 bytes [K/G, N]. Strides in elements.
template <int ROWS, u32 N, u32 K, u32 GROUP, bool SHUFFLED, int ZEROS, u32 ZERO_OFFSET, u64 W_STRIDE,
          u64 Z_STRIDE, u64 S_STRIDE, int S_ALIGN>
struct TileInt4 {
  static constexpr bool SCALED = true;
  static constexpr u32 GROUP_STEPS = GROUP == K ? 0 : GROUP / TILE_K;
  static_assert(GROUP == K || GROUP % TILE_K == 0, "a step has one group");
  static_assert(W_STRIDE < 1u << 28, "a step's rows are less than 4 GB apart");
  static constexpr u32 COLUMNS = ROWS;  // of a word row that the threads fetch at once
  static constexpr u32 ITEMS = TILE_COLUMNS / COLUMNS;  // words per thread
  static_assert(tile_threads(ROWS) == 4 * COLUMNS, "four word rows per step");
  static constexpr bool EVEN = N % TILE_COLUMNS == 0;
  static constexpr u32 LANES = EVEN ? 1 : ITEMS;  // of even tiles words are constants apart
  struct Piece {
    u32 words[ITEMS], zeros[ITEMS];
  };
  struct Scales {
    f16 of[LANE_COLUMNS];
  };

  GlobalBytes words, zeros, scales;
  u32 row, first;    // the thread's word row of the step and column of the tile
  u32 word_lane[LANES], zero_lane[LANES], zero_shift[LANES];  // byte offsets, bits
  u32 scale_column;  // the lane's first
  Int4Zero zero[ITEMS];

  MEMBER static u32 column_of_lane() { return lane_id() * LANE_COLUMNS; }

  MEMBER TileInt4(const u32* qweight, const void* z, const f16* s, u32 tile_column)
      : words(global_bytes(qweight)),
        zeros(global_bytes((const char*)z)),
        scales(global_bytes(s)),
        row(thread_x() / COLUMNS),
        first(thread_x() % COLUMNS) {
#pragma unroll
    for (u32 i = 0; i < LANES; ++i) {
      const u32 n = tile_column + first + i * COLUMNS;
      const u32 column = EVEN || n < N ? n : N % 8 == 0 ? N - 8 + n % 8 : N - 1;
      word_lane[i] = column * 4 + (K % TILE_K == 0 ? row * (u32)(W_STRIDE * 4) : 0);
      zero_lane[i] = ZEROS == 1 ? (column >> 3) * 4 : column;
      zero_shift[i] = column % 8 * 4;
    }
    scale_column = tile_column + column_of_lane();
    if (!EVEN && scale_column >= N) scale_column = N - 1;
    if constexpr (!EVEN && N % 4 == 0) scale_column &= ~3u;
  }

  MEMBER void fetch(u32 step, bool fresh, Piece& piece) {
    const GlobalBytes from = launder_base(words + step * (4 * W_STRIDE * 4));
    u32 line = 0;
    if constexpr (K % TILE_K != 0) {  // x is 0 past the end
      const u32 rest = K / 8 - 1 - step * 4;
      line = (row < rest ? row : rest) * (u32)(W_STRIDE * 4);
    }
#pragma unroll
    for (u32 i = 0; i < LANES; ++i) launder_lane(word_lane[i]);
#pragma unroll
    for (u32 i = 0; i < ITEMS; ++i) {
      u32 lane = word_lane[EVEN ? 0 : i];
      if constexpr (K % TILE_K != 0) lane += line;
      piece.words[i] = *(const GLOBAL u32*)(from + lane + (EVEN ? i * COLUMNS * 4 : 0));
    }
    if (ZEROS > 0 && fresh) fetch_zeros(step, piece);
  }

  MEMBER void fetch_zeros(u32 step, Piece& piece) {
    const u32 group = GROUP_STEPS == 0 ? 0 : step / (GROUP_STEPS == 0 ? 1 : GROUP_STEPS);
    const GlobalBytes from = launder_base(zeros + group * (Z_STRIDE * (ZEROS == 1 ? 4 : 1)));
#pragma unroll
    for (u32 i = 0; i < LANES; ++i) launder_lane(zero_lane[i]);
#pragma unroll
    for (u32 i = 0; i < ITEMS; ++i) {
      const u32 lane = zero_lane[EVEN ? 0 : i], apart = EVEN ? i * COLUMNS : 0;
      if constexpr (ZEROS == 1) piece.zeros[i] = *(const GLOBAL u32*)(from + lane + apart / 2);
      if constexpr (ZEROS == 2) piece.zeros[i] = *(const GLOBAL u8*)(from + lane + apart);
    }
  }

  MEMBER void put(const Piece& piece, bool fresh, u32x4* image) {
    if (ZEROS > 0 && fresh) {
#pragma unroll
      for (u32 i = 0; i < ITEMS; ++i) {
        if constexpr (ZEROS == 1) {
          const u32 shift = zero_shift[EVEN ? 0 : i];
          zero[i] = int4_zero(__builtin_amdgcn_ubfe(piece.zeros[i], shift, 4), ZERO_OFFSET);
        } else {
          zero[i] = int4_zero_byte(piece.zeros[i]);
        }
      }
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS; ++i) {
      const u32 n = first + i * COLUMNS;
      u32 pairs[4];
      int4_decode(piece.words[i], ZEROS == 0 ? int4_zero(8, 0) : zero[i], pairs);
      image[tile_line(n % 4, n / 4) + row] = u32x4{pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }

  MEMBER static void arrange(u32 (&pairs)[4]) {
    if constexpr (!SHUFFLED) pairs_of_natural(pairs);
  }

  MEMBER void fetch_scales(u32 group, Scales& s) {
    const GlobalBytes from = launder_base(scales + group * (S_STRIDE * 2));
    u32 lane = scale_column * 2;
    launder_lane(lane);
    if constexpr (N % 4 == 0) {
      load<f16, 4, S_ALIGN>(from, lane, s.of);
    } else {
#pragma unroll
      for (u32 n = 0; n < LANE_COLUMNS; ++n) {
        const u32 at = scale_column + n < N ? n : N - 1 - scale_column;
        s.of[n] = *(const GLOBAL f16*)(from + (lane + at * 2));
      }
    }
  }
  MEMBER static float scale(const Scales& s, int n) { return (float)s.of[n]; }
};
