// Dot products of int4 rows, codes in natural order along K, with vectors of fp16 activations.
//
// A chunk is 32 neighbouring codes of a row: one 16-byte load, one scale. LANES lanes share a row
// and take its chunks in turn, so a load of the wave covers SIDE = 32 / LANES neighbouring rows;
// each lane keeps ROWS such rows, whose chunks all meet the same activations. A chunk's dot is
// fp32; its scale is applied once, in fp32, by a mixed-precision FMA.
//
// Activations are needed in pair order, (0,4)(1,5)(2,6)(3,7) within each octet of k: that is how
// masks cut a word of natural codes. PAIR_ORDER says that memory holds them so; otherwise each
// chunk pays 16 byte permutes, shared by the ROWS rows.
#include "common/dot.hip"
#include "common/int4.hip"
#include "common/memory.hip"
#include "common/wave.hip"

template <int K_, int GROUP_, int LANES_, int ROWS_, int BLOCK_, bool HAS_ZEROS_, bool PAIR_ORDER_>
struct RowTile {
  static constexpr int K = K_, GROUP = GROUP_, LANES = LANES_, ROWS = ROWS_;
  static constexpr int BLOCK = BLOCK_;  // rounds whose loads are all issued before the first use
  static constexpr bool HAS_ZEROS = HAS_ZEROS_, PAIR_ORDER = PAIR_ORDER_;
  static constexpr int SIDE = 32 / LANES;
  static constexpr int CHUNKS = K / 32;
  static constexpr int ROUNDS = ceil_div(CHUNKS, LANES);
  static constexpr bool RAGGED = CHUNKS % LANES != 0;  // some lanes sit out the last round
  static constexpr int ROW_BYTES = K / 2;
  static constexpr int GROUPS = K / GROUP;
  static constexpr int SPAN = LANES * 32;  // codes of a row per round

  static_assert(K % 32 == 0 && GROUP % 32 == 0 && K % GROUP == 0, "a chunk lies in one group");
  static_assert(ROUNDS % BLOCK == 0, "blocks tile the rounds");
};

// One matrix: codes [rows, K / 2] bytes, fp16 scales [rows, K / GROUP], zeros [rows / 2, K / GROUP]
// bytes, low nibble = even row.
struct Int4Matrix {
  const u8* codes;
  const f16* scales;
  const u8* zeros;
};

// Where a wave's rows start (wave-uniform).
template <class Tile>
struct RowBases {
  GlobalBytes codes[Tile::ROWS];
  GlobalBytes scales[Tile::ROWS];
  GlobalBytes zeros[Tile::ROWS];
  u32 zero_shift[Tile::ROWS];  // of this lane's row in its byte of zeros

  // The lane's row r is row first + its side; first is even where SIDE is.
  MEMBER void set(int r, const Int4Matrix& matrix, u32 first) {
    codes[r] = launder_base(global_bytes(matrix.codes) + first * (u64)Tile::ROW_BYTES);
    scales[r] = launder_base(global_bytes(matrix.scales) + first * (u64)(Tile::GROUPS * 2));
    if constexpr (Tile::HAS_ZEROS)
      zeros[r] = launder_base(global_bytes(matrix.zeros) + first / 2 * (u64)Tile::GROUPS);
    const u32 row = Tile::SIDE == 1 ? first : lane_id() / Tile::LANES;
    zero_shift[r] = (row & 1) * 4;
  }

  // NOTE: the compilers otherwise add each load's constant to its base ahead of the loop over
  // tokens, and spill scalar registers.
  MEMBER void keep_in_loop() {
#pragma unroll
    for (int r = 0; r < Tile::ROWS; ++r) {
      asm volatile("" : "+s"(codes[r]), "+s"(scales[r]));
      if constexpr (Tile::HAS_ZEROS) asm volatile("" : "+s"(zeros[r]));
    }
  }
};

// What one lane has to add to a row's base, in bytes.
template <class Tile>
struct LaneOffsets {
  u32 chunk;  // position in the row's team of lanes
  u32 codes, scales, zeros, x;

  MEMBER explicit LaneOffsets(u32 lane) {
    const u32 side = lane / Tile::LANES;
    chunk = lane % Tile::LANES;
    codes = side * Tile::ROW_BYTES + chunk * 16;
    scales = side * (Tile::GROUPS * 2);
    zeros = side / 2 * Tile::GROUPS;
    x = chunk * 64;
    if constexpr (Tile::SPAN % Tile::GROUP == 0) {
      scales += chunk * 32 / Tile::GROUP * 2;
      zeros += chunk * 32 / Tile::GROUP;
    }
  }

  // The group of this lane's chunk in a round, without the part that is in scales and zeros.
  MEMBER u32 group(u32 round) const {
    if constexpr (Tile::SPAN % Tile::GROUP == 0) return round * (Tile::SPAN / Tile::GROUP);
    if constexpr (Tile::GROUP % Tile::SPAN == 0) return round * Tile::SPAN / Tile::GROUP;
    return (round * Tile::SPAN + chunk * 32) / Tile::GROUP;
  }

  MEMBER bool has_chunk(u32 round) const {
    return !Tile::RAGGED || round * Tile::LANES + chunk < Tile::CHUNKS;
  }
};

template <class Tile>
struct RowBlock {
  u32x4 codes[Tile::BLOCK][Tile::ROWS];
  u16 scale[Tile::BLOCK][Tile::ROWS];
  u8 zeros[Tile::BLOCK][Tile::ROWS];
};

// A base further on than the load's 11-bit immediate reaches is advanced in scalar registers.
DEVICE GlobalBytes far_base(GlobalBytes base, u32 bytes) {
  return bytes > 2047 ? launder_base(base + bytes / 2048 * 2048) : base;
}

// Issues the loads of rounds first .. first + BLOCK - 1 of every row.
template <class Tile>
DEVICE void load_rows(RowBlock<Tile>& block, const RowBases<Tile>& bases,
                      const LaneOffsets<Tile>& lane, u32 first) {
  u32 lane_codes = lane.codes, lane_scales = lane.scales, lane_zeros = lane.zeros;
#pragma unroll
  for (int i = 0; i < Tile::BLOCK; ++i) {
    if (!lane.has_chunk(first + i)) continue;
    launder_lane(lane_codes);
    launder_lane(lane_scales);
    if constexpr (Tile::HAS_ZEROS) launder_lane(lane_zeros);
    const u32 step = i * Tile::LANES * 16, group = lane.group(first + i);
#pragma unroll
    for (int r = 0; r < Tile::ROWS; ++r) {
      const GlobalBytes codes = bases.codes[r] + first * (Tile::LANES * 16);
      block.codes[i][r] = *(const GLOBAL u32x4*)(far_base(codes, step) + lane_codes + step % 2048);
      block.scale[i][r] = *(const GLOBAL u16*)(bases.scales[r] + lane_scales + group * 2);
      if constexpr (Tile::HAS_ZEROS)
        block.zeros[i][r] = *(const GLOBAL u8*)(bases.zeros[r] + lane_zeros + group);
    }
  }
}

// Four words of x, 8 halves in order of k, brought into pair order: one byte permute each.
DEVICE void to_pair_order(u32 (&x)[4]) {
  constexpr u32 LOW_HALVES = 0x05040100, HIGH_HALVES = 0x07060302;
  const u32 x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  x[0] = __builtin_amdgcn_perm(x2, x0, LOW_HALVES);
  x[1] = __builtin_amdgcn_perm(x2, x0, HIGH_HALVES);
  x[2] = __builtin_amdgcn_perm(x3, x1, LOW_HALVES);
  x[3] = __builtin_amdgcn_perm(x3, x1, HIGH_HALVES);
}

// sums[q][r] += row r . x[q] over the block's rounds, for COUNT vectors x[q] (wave-uniform bases).
template <class Tile, int COUNT, int MOST>
DEVICE void multiply_rows(float (&sums)[MOST][Tile::ROWS], const RowBlock<Tile>& block,
                          const RowBases<Tile>& bases, const LaneOffsets<Tile>& lane,
                          const GlobalBytes (&x)[MOST], u32 first) {
  GlobalBytes x_block[COUNT];
#pragma unroll
  for (int q = 0; q < COUNT; ++q) x_block[q] = x[q] + first * (Tile::LANES * 64);
  u32 lane_x = lane.x, far_before = 0;
#pragma unroll
  for (int i = 0; i < Tile::BLOCK; ++i) {
    if (!lane.has_chunk(first + i)) continue;
    Int4Zero zero[Tile::ROWS];
#pragma unroll
    for (int r = 0; r < Tile::ROWS; ++r)
      zero[r] = int4_zero(Tile::HAS_ZEROS ? block.zeros[i][r] >> bases.zero_shift[r] & 15u : 8u, 0);
    // Beyond the reach of the immediate, one token moves its base on; several move the lane's
    // offset instead (one vector add), since their bases would not fit the scalar registers.
    const u32 step = i * Tile::LANES * 64, far = step / 2048 * 2048;
    GlobalBytes x_round[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; ++q)
      x_round[q] = MOST == 1 ? far_base(x_block[q], step) : x_block[q];
    if (MOST > 1) lane_x += far - far_before;
    far_before = far;
    float dots[COUNT][Tile::ROWS];
    launder_lane(lane_x);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      // NOTE: with several tokens the scheduler would otherwise gather every load of x first.
      if constexpr (MOST > 1) schedule_fence();
      u32 pairs_x[COUNT][4];
#pragma unroll
      for (int q = 0; q < COUNT; ++q) {
        load<u32, 4>(x_round[q] + lane_x, step - far + word * 16, pairs_x[q]);
        if constexpr (!Tile::PAIR_ORDER) to_pair_order(pairs_x[q]);
      }
#pragma unroll
      for (int r = 0; r < Tile::ROWS; ++r) {
        u32 pairs[4];
        int4_decode(block.codes[i][r][word], zero[r], pairs);
#pragma unroll
        for (int q = 0; q < COUNT; ++q) {
          float sum = word == 0 ? dot2_start<false>(pairs_x[q][0], pairs[0])
                                : dot2(pairs_x[q][0], pairs[0], dots[q][r]);
          sum = dot2(pairs_x[q][1], pairs[1], sum);
          sum = dot2(pairs_x[q][2], pairs[2], sum);
          dots[q][r] = dot2(pairs_x[q][3], pairs[3], sum);
        }
      }
    }
#pragma unroll
    for (int q = 0; q < COUNT; ++q)
#pragma unroll
      for (int r = 0; r < Tile::ROWS; ++r)
        sums[q][r] =
            __builtin_fmaf((float)bits<f16>(block.scale[i][r]), dots[q][r], sums[q][r]);
  }
}

template <class Tile, int COUNT, int MOST>
DEVICE void dot_rows_of(float (&sums)[MOST][Tile::ROWS], RowBases<Tile> bases,
                        const LaneOffsets<Tile>& lane, const GlobalBytes (&x)[MOST]) {
#pragma unroll
  for (int q = 0; q < COUNT; ++q)
#pragma unroll
    for (int r = 0; r < Tile::ROWS; ++r) sums[q][r] = 0.0f;
  if constexpr (MOST > 1) bases.keep_in_loop();
#pragma unroll 1
  for (u32 first = 0; first < Tile::ROUNDS; first += Tile::BLOCK) {
    RowBlock<Tile> block;
    load_rows<Tile>(block, bases, lane, first);
    multiply_rows<Tile, COUNT>(sums, block, bases, lane, x, first);
  }
}

// sums[q][r] = row r . x[q] over this lane's share of K, for the first count (1..MOST) vectors.
// The body is specialised on the number of vectors, behind one uniform branch; the rows' loads
// are inside, since codes kept in registers across the branch cost copies and spills.
template <class Tile, int MOST>
DEVICE void dot_rows(float (&sums)[MOST][Tile::ROWS], const RowBases<Tile>& bases,
                     const LaneOffsets<Tile>& lane, const GlobalBytes (&x)[MOST], i32 count) {
  if (count == 1)
    dot_rows_of<Tile, 1>(sums, bases, lane, x);
  else if (MOST > 2 && count == 2)
    dot_rows_of<Tile, (MOST < 2 ? MOST : 2)>(sums, bases, lane, x);
  else if (MOST > 3 && count == 3)
    dot_rows_of<Tile, (MOST < 3 ? MOST : 3)>(sums, bases, lane, x);
  else
    dot_rows_of<Tile, MOST>(sums, bases, lane, x);
}
