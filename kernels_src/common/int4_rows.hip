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

template <int K_, int GROUP_, int LANES_, int PARTS_, int ROWS_, int BLOCK_, bool HAS_ZEROS_,
          bool PAIR_ORDER_>
struct RowTile {
  static constexpr int K = K_, GROUP = GROUP_, LANES = LANES_;
  static constexpr int PARTS = PARTS_, ROWS = ROWS_;  // a lane's rows: ROWS in each of PARTS places
  static constexpr int ALL_ROWS = PARTS * ROWS;
  static constexpr int BLOCK = BLOCK_;  // rounds whose loads are all issued before the first use
  static constexpr bool HAS_ZEROS = HAS_ZEROS_, PAIR_ORDER = PAIR_ORDER_;
  static constexpr int SIDE = 32 / LANES;
  static constexpr int CHUNKS = K / 32;
  static constexpr int ROUNDS = ceil_div(CHUNKS, LANES * BLOCK) * BLOCK;
  static constexpr bool RAGGED = CHUNKS != LANES * ROUNDS;  // some lanes sit out the last rounds
  static constexpr int ROW_BYTES = K / 2;
  static constexpr int GROUPS = K / GROUP;
  static constexpr int SPAN = LANES * 32;  // codes of a row per round

  static_assert(K % 32 == 0 && GROUP % 32 == 0 && K % GROUP == 0, "a chunk lies in one group");
};

// One matrix: codes [rows, K / 2] bytes, fp16 scales [rows, K / GROUP], zeros [rows / 2, K / GROUP]
// bytes, low nibble = even row.
struct Int4Matrix {
  const u8* codes;
  const f16* scales;
  const u8* zeros;
};

// Where each part of a wave's rows starts (wave-uniform). Row r of a part is SIDE * r further on.
template <class Tile>
struct RowBases {
  GlobalBytes codes[Tile::PARTS];
  GlobalBytes scales[Tile::PARTS];
  GlobalBytes zeros[Tile::PARTS];

  // Part starts at row first, an even number where there are zeros.
  MEMBER void set(int part, const Int4Matrix& matrix, u32 first) {
    codes[part] = launder_base(global_bytes(matrix.codes) + first * (u64)Tile::ROW_BYTES);
    scales[part] = launder_base(global_bytes(matrix.scales) + first * (u64)(Tile::GROUPS * 2));
    if constexpr (Tile::HAS_ZEROS)
      zeros[part] = launder_base(global_bytes(matrix.zeros) + first / 2 * (u64)Tile::GROUPS);
  }

  // On to the rounds from first on.
  MEMBER RowBases at(u32 first) const {
    RowBases moved = *this;
    if constexpr (Tile::ROUNDS > Tile::BLOCK)
#pragma unroll
      for (int p = 0; p < Tile::PARTS; ++p)
        moved.codes[p] = launder_base(codes[p] + first * (Tile::LANES * 16));
    return moved;
  }

  // NOTE: the compilers otherwise add each load's constant to its base ahead of the loop over
  // tokens, and spill scalar registers.
  MEMBER void keep_in_loop() {
#pragma unroll
    for (int p = 0; p < Tile::PARTS; ++p) {
      asm volatile("" : "+s"(codes[p]), "+s"(scales[p]));
      if constexpr (Tile::HAS_ZEROS) asm volatile("" : "+s"(zeros[p]));
    }
  }
};

// What one lane has to add to a row's base, in bytes.
template <class Tile>
struct LaneOffsets {
  u32 chunk;  // position in the row's team of lanes
  u32 codes, scales, zeros, x;
  u32 zero_shift;  // of this lane's first row in its byte of zeros

  MEMBER explicit LaneOffsets(u32 lane) {
    const u32 side = lane / Tile::LANES;
    chunk = lane % Tile::LANES;
    codes = side * Tile::ROW_BYTES + chunk * 16;
    scales = side * (Tile::GROUPS * 2);
    zeros = side / 2 * Tile::GROUPS;
    x = chunk * 64;
    zero_shift = side % 2 * 4;
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
  u32x4 codes[Tile::BLOCK][Tile::ALL_ROWS];
  u16 scale[Tile::BLOCK][Tile::ALL_ROWS];
  u8 zeros[Tile::BLOCK][Tile::ALL_ROWS];
};

// A base further on than the load's 11-bit immediate reaches is advanced in scalar registers.
DEVICE GlobalBytes far_base(GlobalBytes base, u32 bytes) {
  return bytes > 2047 ? launder_base(base + bytes / 2048 * 2048) : base;
}

// Issues the loads of rounds first .. first + BLOCK - 1 of every row.
template <class Tile>
DEVICE void load_rows(RowBlock<Tile>& block, const RowBases<Tile>& start,
                      LaneOffsets<Tile>& lane, u32 first) {
  const RowBases<Tile> bases = start.at(first);
#pragma unroll
  for (int i = 0; i < Tile::BLOCK; ++i) {
    if (!lane.has_chunk(first + i)) continue;
    launder_lane(lane.codes);
    launder_lane(lane.scales);
    if constexpr (Tile::HAS_ZEROS) launder_lane(lane.zeros);
    const u32 group = lane.group(first + i);
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r) {
      const u32 part = r / Tile::ROWS, row = r % Tile::ROWS * Tile::SIDE;
      const u32 step = row * Tile::ROW_BYTES + i * Tile::LANES * 16;
      block.codes[i][r] = *(const GLOBAL u32x4*)(far_base(bases.codes[part], step) + lane.codes +
                                                 step % 2048);
      const u32 scale = (row * Tile::GROUPS + group) * 2;
      block.scale[i][r] = *(const GLOBAL u16*)(bases.scales[part] + lane.scales + scale);
      if constexpr (Tile::HAS_ZEROS) {
        const u32 zero = row / 2 * Tile::GROUPS + group;
        block.zeros[i][r] = *(const GLOBAL u8*)(bases.zeros[part] + lane.zeros + zero);
      }
    }
  }
}

// Row r's zero: its byte holds two rows.
template <class Tile>
DEVICE Int4Zero zero_of(const RowBlock<Tile>& block, const LaneOffsets<Tile>& lane, int i, int r) {
  if constexpr (!Tile::HAS_ZEROS) return int4_zero(8, 0);
  const u32 odd = r % Tile::ROWS % 2 * 4;
  return int4_zero(block.zeros[i][r] >> (Tile::SIDE == 1 ? odd : lane.zero_shift) & 15u, 0);
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
DEVICE void multiply_rows(float (&sums)[MOST][Tile::ALL_ROWS], const RowBlock<Tile>& block,
                          LaneOffsets<Tile>& lane,
                          const GlobalBytes (&x)[MOST], u32 first) {
  GlobalBytes x_block[COUNT];
#pragma unroll
  for (int q = 0; q < COUNT; ++q) 
    x_block[q] = Tile::ROUNDS > Tile::BLOCK ? launder_base(x[q] + first * (Tile::LANES * 64))
                                            : x[q];
  u32 far_before = 0;
#pragma unroll
  for (int i = 0; i < Tile::BLOCK; ++i) {
    if (!lane.has_chunk(first + i)) continue;
    Int4Zero zero[Tile::ALL_ROWS];
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r) zero[r] = zero_of<Tile>(block, lane, i, r);
    // Beyond the reach of the immediate, one token moves its base on; several move the lane's
    // offset instead (one vector add), since their bases would not fit the scalar registers.
    const u32 step = i * Tile::LANES * 64, far = step / 2048 * 2048;
    GlobalBytes x_round[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; ++q)
      x_round[q] = MOST == 1 ? far_base(x_block[q], step) : x_block[q];
    if (MOST > 1) lane.x += far - far_before;
    far_before = far;
    float dots[COUNT][Tile::ALL_ROWS];
    launder_lane(lane.x);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      // NOTE: with several tokens the scheduler would otherwise gather every load of x first.
      if constexpr (MOST > 1) schedule_fence();
      u32 pairs_x[COUNT][4];
#pragma unroll
      for (int q = 0; q < COUNT; ++q) {
        load<u32, 4>(x_round[q] + lane.x, step - far + word * 16, pairs_x[q]);
        if constexpr (!Tile::PAIR_ORDER) to_pair_order(pairs_x[q]);
      }
#pragma unroll
      for (int r = 0; r < Tile::ALL_ROWS; ++r) {
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
      for (int r = 0; r < Tile::ALL_ROWS; ++r)
        sums[q][r] =
            __builtin_fmaf((float)bits<f16>(block.scale[i][r]), dots[q][r], sums[q][r]);
  }
  if (MOST > 1) lane.x -= far_before;
}

template <class Tile, int COUNT, int MOST>
DEVICE void dot_rows_of(float (&sums)[MOST][Tile::ALL_ROWS], RowBases<Tile> bases,
                        LaneOffsets<Tile>& lane, const GlobalBytes (&x)[MOST]) {
#pragma unroll
  for (int q = 0; q < COUNT; ++q)
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r) sums[q][r] = 0.0f;
  if constexpr (MOST > 1) bases.keep_in_loop();
#pragma unroll 1
  for (u32 first = 0; first < Tile::ROUNDS; first += Tile::BLOCK) {
    // A round on its own is skipped whole; the checks inside then fold away.
    if (Tile::BLOCK == 1 && !lane.has_chunk(first)) continue;
    RowBlock<Tile> block;
    load_rows<Tile>(block, bases, lane, first);
    multiply_rows<Tile, COUNT>(sums, block, lane, x, first);
  }
}

// sums[q][r] = row r . x[q] over this lane's share of K, for the first count (1..MOST) vectors.
// The body is specialised on the number of vectors, behind one uniform branch; the rows' loads
// are inside, since codes kept in registers across the branch cost copies and spills.
template <class Tile, int MOST>
DEVICE void dot_rows(float (&sums)[MOST][Tile::ALL_ROWS], const RowBases<Tile>& bases,
                     LaneOffsets<Tile>& lane, const GlobalBytes (&x)[MOST], i32 count) {
  if (count == 1)
    dot_rows_of<Tile, 1>(sums, bases, lane, x);
  else if (MOST > 2 && count == 2)
    dot_rows_of<Tile, (MOST < 2 ? MOST : 2)>(sums, bases, lane, x);
  else if (MOST > 3 && count == 3)
    dot_rows_of<Tile, (MOST < 3 ? MOST : 3)>(sums, bases, lane, x);
  else
    dot_rows_of<Tile, MOST>(sums, bases, lane, x);
}
