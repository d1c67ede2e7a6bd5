// Int4 words of eight columns of one K, [K, N/8] as AWQ stores them, for the tile engine
// (common/tile.hip). Slots 0..7 of a word hold columns 0 2 4 6 1 3 5 7 of its eight.
//
// A thread fetches one word of 2 PAIRS neighbouring rows. Of two rows a byte permute pairs up the low
// halves, another the high ones; cut by the masks of common/int4.hip these give a pair of K per
// column: 20 instructions for 16 weights, once for all rows of the tile. Lane l of the sums has the
// columns 8 (l % 16) + 4 (l / 16) and the three behind: of neighbouring words, and of LDS lines that
// the fetching lanes write without meeting a bank more than twice.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/int4.hip"
#include "common/tile.hip"

// GROUP: K under one scale, a multiple of 32, or K. Strides in elements.
template <int ROWS, u32 N, u32 K, u32 GROUP, bool HAS_ZEROS, u64 W_STRIDE, u64 Z_STRIDE, u64 S_STRIDE,
          int S_ALIGN>
struct TileAwq {
  static constexpr bool SCALED = true;
  static constexpr u32 GROUP_STEPS = GROUP == K ? 0 : GROUP / TILE_K;
  static constexpr u32 WORDS = TILE_COLUMNS / 8;
  static constexpr u32 PAIRS = WORDS * TILE_K / 2 / tile_threads(ROWS);
  static_assert(GROUP == K || GROUP % TILE_K == 0, "a step has one group");
  static_assert(N % 8 == 0 && W_STRIDE < 1u << 25, "a step's rows are less than 4 GB apart");
  struct Piece {
    u32 words[2 * PAIRS], zeros;
  };
  struct Scales {
    f16 of[LANE_COLUMNS];
  };

  GlobalBytes words, zeros, scales;
  u32 pair;          // the thread's first pair of rows in the step
  u32 word_lane, zero_lane;  // byte offsets of its word
  u32 scale_column;  // the lane's first
  u32 zero[8];       // what slot s of a word subtracts, both halves: see int4_zero

  MEMBER static u32 column_of_lane() { return lane_id() % 16 * 8 + lane_id() / 16 * 4; }

  MEMBER TileAwq(const u32* qweight, const void* z, const f16* s, u32 tile_column)
      : words(global_bytes(qweight)),
        zeros(global_bytes((const char*)z)),
        scales(global_bytes(s)),
        pair(thread_x() / WORDS * PAIRS) {
    u32 word = tile_column / 8 + thread_x() % WORDS;
    if (N % TILE_COLUMNS != 0 && word >= N / 8) word = N / 8 - 1;
    zero_lane = word * 4;
    word_lane = word * 4 + (K % TILE_K == 0 ? pair * (u32)(2 * W_STRIDE * 4) : 0);
    scale_column = tile_column + column_of_lane();
    if (N % TILE_COLUMNS != 0 && scale_column >= N) scale_column = N - 4;
  }

  MEMBER void fetch(u32 step, bool fresh, Piece& piece) {
    GlobalBytes from = words + step * (TILE_K * W_STRIDE * 4);
    launder_lane(word_lane);
#pragma unroll
    for (u32 i = 0; i < 2 * PAIRS; ++i) {
      from = launder_base(from);
      if constexpr (K % TILE_K == 0) {
        piece.words[i] = *(const GLOBAL u32*)(from + word_lane);
        from += W_STRIDE * 4;
      } else {  // x is 0 past the end
        const u32 row = pair * 2 + i, rest = K - 1 - step * TILE_K;
        const u32 line = (row < rest ? row : rest) * (u32)(W_STRIDE * 4);
        piece.words[i] = *(const GLOBAL u32*)(from + (word_lane + line));
      }
    }
    if (!HAS_ZEROS || !fresh) return;
    const u32 group = GROUP_STEPS == 0 ? 0 : step / (GROUP_STEPS == 0 ? 1 : GROUP_STEPS);
    const GlobalBytes at = launder_base(zeros + group * (Z_STRIDE * 4));
    launder_lane(zero_lane);
    piece.zeros = *(const GLOBAL u32*)(at + zero_lane);
  }

  MEMBER void put(const Piece& piece, bool fresh, u32x4* image) {
    if (HAS_ZEROS && fresh) {
#pragma unroll
      for (u32 s = 0; s < 8; ++s) {
        const Int4Zero z = int4_zero(__builtin_amdgcn_ubfe(piece.zeros, 4 * s, 4), 0);
        zero[s] = s % 2 == 0 ? z.low : z.high;
      }
    }
    u32 pairs[8][PAIRS];  // [column of the word]
#pragma unroll
    for (u32 p = 0; p < PAIRS; ++p) {
      const u32 first = piece.words[2 * p], second = piece.words[2 * p + 1];
#pragma unroll
      for (u32 s = 0; s < 8; ++s) {
        u32 cut = __builtin_amdgcn_perm(second, first, s < 4 ? 0x05040100u : 0x07060302u);
        if (s % 4 >= 2) cut >>= 8;
        const bool low = s % 2 == 0;
        const Int4Zero eight = int4_zero(8, 0);
        const u32 minus = HAS_ZEROS ? zero[s] : low ? eight.low : eight.high;
        pairs[s % 4 * 2 + s / 4][p] = int4_pair(cut, low ? 0x000F000Fu : 0x00F000F0u,
                                                low ? 0x64006400u : 0x54005400u, minus);
      }
    }
#pragma unroll
    for (u32 c = 0; c < 8; ++c) {
      u32* line = (u32*)(image + tile_line(c % 4, thread_x() % WORDS + c / 4 * 16));
      Vec<u32, PAIRS> all;
#pragma unroll
      for (u32 p = 0; p < PAIRS; ++p) all[p] = pairs[c][p];
      *(Vec<u32, PAIRS>*)(line + pair) = all;
    }
  }

  MEMBER static void arrange(u32 (&)[4]) {}

  MEMBER void fetch_scales(u32 group, Scales& s) {
    u32 lane = scale_column * 2;
    launder_lane(lane);
    load<f16, 4, S_ALIGN>(launder_base(scales + group * (S_STRIDE * 2)), lane, s.of);
  }
  MEMBER static float scale(const Scales& s, int n) { return (float)s.of[n]; }
};
