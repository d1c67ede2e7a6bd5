// Dot products of rows of weights, in any format, with vectors of fp16 activations.
//
// A chunk is 16 bytes of a row, one load: 32 weights of 4 bits, 16 of 8, or 8 of 16, under one
// scale. LANES lanes share a row and take its chunks in turn, so a load of the wave covers SIDE =
// 32 / LANES neighbouring rows; each lane keeps ROWS such rows, whose chunks all meet the same
// activations. A chunk's dot is fp32; its scale is applied once, in fp32. Where a row has one
// scale, its dot runs through all chunks and is scaled at the end.
//
// Activations are needed in the pair order of the format, which decodes fastest: for int4
// (0,4)(1,5)(2,6)(3,7) within each octet of k, as masks cut a word of natural codes, for e4m3
// (0,2)(1,3) within each quad, for others in order. PAIR_ORDER says that memory holds them so;
// otherwise each 32 of k pay 16 byte permutes, shared by the ROWS rows.
#include "common/dot.hip"
#include "common/int4.hip"
#include "common/memory.hip"
#include "common/row_format.hip"
#include "common/wave.hip"

// A scale as it is stored: BYTES is 1 for e8m0, 2 for fp16, 4 for fp32, 0 where there is none.
template <int BYTES>
struct StoredScale {
  using Type = u8;
};
template <>
struct StoredScale<2> {
  using Type = u16;
};
template <>
struct StoredScale<4> {
  using Type = u32;
};

template <int BYTES>
DEVICE float scale_value(typename StoredScale<BYTES>::Type stored) {
  if constexpr (BYTES == 1) return e8m0_scale(stored);
  if constexpr (BYTES == 2) return (float)bits<f16>(stored);
  if constexpr (BYTES == 4) return bits<float>(stored);
  return 1.0f;
}

// How a matrix lies in memory: for each expert EXPERT_ROWS rows of K weights; a scale for GROUP
// neighbouring weights of SCALE_ROWS neighbouring rows, [ceil(rows / SCALE_ROWS), ceil(K / GROUP)].
template <Format FORMAT_, int K_, int EXPERT_ROWS_, int GROUP_, int SCALE_ROWS_, int SCALE_BYTES_,
          bool HAS_ZEROS_>
struct RowFormat {
  static constexpr Format FORMAT = FORMAT_;
  static constexpr int K = K_, EXPERT_ROWS = EXPERT_ROWS_, GROUP = GROUP_;
  static constexpr int SCALE_ROWS = SCALE_ROWS_, SCALE_BYTES = SCALE_BYTES_;
  static constexpr bool HAS_ZEROS = HAS_ZEROS_;
  static constexpr int GROUPS = ceil_div(K, GROUP);
  static constexpr int CHUNK = 128 / format_bits(FORMAT);  // weights of one load
  static constexpr u32 ROW_BYTES = (u32)K * format_bits(FORMAT) / 8;
  static constexpr u32 SCALE_LINE = GROUPS * SCALE_BYTES;  // bytes from a line of scales to the next
  static constexpr bool NAN_CODES = false;                 // e4m3's NaN comes out as +-480
  static_assert(!HAS_ZEROS || (FORMAT == Format::int4 && SCALE_ROWS == 1), "int4 has zeros");
};

template <class Form, int LANES_, int PARTS_, int ROWS_, int BLOCK_, bool PAIR_ORDER_>
struct RowTile : Form {
  static constexpr int LANES = LANES_;
  static constexpr int PARTS = PARTS_, ROWS = ROWS_;  // a lane's rows: ROWS in each of PARTS places
  static constexpr int ALL_ROWS = PARTS * ROWS;
  static constexpr int BLOCK = BLOCK_;  // rounds whose loads are all issued before the first use
  static constexpr bool PAIR_ORDER = PAIR_ORDER_;
  static constexpr int SIDE = 32 / LANES;
  static constexpr int CHUNKS = Form::K / Form::CHUNK;
  static constexpr int ROUNDS = ceil_div(CHUNKS, LANES * BLOCK) * BLOCK;
  static constexpr bool RAGGED = CHUNKS != LANES * ROUNDS;  // some lanes sit out the last rounds
  static constexpr int SPAN = LANES * Form::CHUNK;          // weights of a row per round
  static constexpr bool SCALE_AT_END = Form::SCALE_BYTES == 0 || Form::GROUPS == 1;
  static constexpr bool SCALE_IN_CHUNK = !SCALE_AT_END;
  static constexpr bool SHARED_SCALE = Form::SCALE_ROWS > 1;  // by all rows of a part

  static_assert(Form::K % Form::CHUNK == 0, "chunks tile a row");
  static_assert(SCALE_AT_END || Form::GROUP % Form::CHUNK == 0, "a chunk lies in one group");
  static_assert(Form::SCALE_ROWS == 1 || Form::SCALE_ROWS % (ROWS * SIDE) == 0,
                "the rows of a part have one scale");
};

// Weights, scales in the form's type, and for int4 zeros [rows / 2, GROUPS], low nibble = even row.
struct WeightMatrix {
  const void* weights;
  const void* scales;
  const u8* zeros;
};

// Where each part of a wave's rows starts (wave-uniform). Row r of a part is SIDE * r further on.
template <class Tile>
struct RowBases {
  GlobalBytes weights[Tile::PARTS];
  GlobalBytes scales[Tile::PARTS];
  GlobalBytes zeros[Tile::PARTS];

  // Part starts at a row of an expert: a multiple of SIDE * ROWS, and even where there are zeros.
  MEMBER void set(int part, const WeightMatrix& matrix, u32 expert, u32 row) {
    constexpr u32 SCALES = ceil_div(Tile::EXPERT_ROWS, Tile::SCALE_ROWS);  // rows of them
    const u32 first = expert * Tile::EXPERT_ROWS + row;
    weights[part] = launder_base(global_bytes(matrix.weights) + first * (u64)Tile::ROW_BYTES);
    if constexpr (Tile::SCALE_BYTES > 0) {
      const u32 scale = Tile::SHARED_SCALE ? expert * SCALES + row / Tile::SCALE_ROWS : first;
      scales[part] = launder_base(global_bytes(matrix.scales) +
                                  scale * (u64)(Tile::GROUPS * Tile::SCALE_BYTES));
    }
    if constexpr (Tile::HAS_ZEROS)
      zeros[part] = launder_base(global_bytes(matrix.zeros) + first / 2 * (u64)Tile::GROUPS);
  }

  // On to the rounds from first on.
  MEMBER RowBases at(u32 first) const {
    RowBases moved = *this;
    if constexpr (Tile::ROUNDS > Tile::BLOCK)
#pragma unroll
      for (int p = 0; p < Tile::PARTS; ++p)
        moved.weights[p] = launder_base(weights[p] + first * (Tile::LANES * 16));
    return moved;
  }

  // NOTE: the compilers otherwise add each load's constant to its base ahead of the loop over
  // tokens, and spill scalar registers.
  MEMBER void keep_in_loop() {
#pragma unroll
    for (int p = 0; p < Tile::PARTS; ++p) {
      asm volatile("" : "+s"(weights[p]));
      if constexpr (Tile::SCALE_IN_CHUNK) asm volatile("" : "+s"(scales[p]));
      if constexpr (Tile::HAS_ZEROS) asm volatile("" : "+s"(zeros[p]));
    }
  }
};

// What one lane has to add to a row's base, in bytes.
template <class Tile>
struct LaneOffsets {
  u32 chunk;  // position in the row's team of lanes
  u32 weights, scales, zeros, x;
  u32 zero_shift;  // of this lane's first row in its byte of zeros

  MEMBER explicit LaneOffsets(u32 lane) {
    const u32 side = lane / Tile::LANES;
    chunk = lane % Tile::LANES;
    weights = side * Tile::ROW_BYTES + chunk * 16;
    scales = Tile::SHARED_SCALE ? 0 : side * (Tile::GROUPS * Tile::SCALE_BYTES);
    zeros = side / 2 * Tile::GROUPS;
    x = chunk * (Tile::CHUNK * 2);
    zero_shift = side % 2 * 4;
    if constexpr (Tile::SCALE_IN_CHUNK && Tile::SPAN % Tile::GROUP == 0) {
      scales += chunk * Tile::CHUNK / Tile::GROUP * Tile::SCALE_BYTES;
      zeros += chunk * Tile::CHUNK / Tile::GROUP;
    }
  }

  // The group of this lane's chunk in a round, without the part that is in scales and zeros.
  MEMBER u32 group(u32 round) const {
    if constexpr (Tile::SPAN % Tile::GROUP == 0) return round * (Tile::SPAN / Tile::GROUP);
    if constexpr (Tile::GROUP % Tile::SPAN == 0) return round * Tile::SPAN / Tile::GROUP;
    return (round * Tile::SPAN + chunk * Tile::CHUNK) / Tile::GROUP;
  }

  MEMBER bool has_chunk(u32 round) const {
    return !Tile::RAGGED || round * Tile::LANES + chunk < Tile::CHUNKS;
  }
};

template <class Tile>
struct RowBlock {
  u32x4 weights[Tile::BLOCK][Tile::ALL_ROWS];
  typename StoredScale<Tile::SCALE_BYTES>::Type scale[Tile::BLOCK][Tile::ALL_ROWS];
  u8 zeros[Tile::BLOCK][Tile::ALL_ROWS];
};

// A base further on than the load's 11-bit immediate reaches is advanced in scalar registers.
DEVICE GlobalBytes far_base(GlobalBytes base, u32 bytes) {
  return bytes > 2047 ? launder_base(base + bytes / 2048 * 2048) : base;
}

// The scale of a lane's row r in a group.
template <class Tile>
DEVICE auto load_scale(const RowBases<Tile>& bases, const LaneOffsets<Tile>& lane, int r,
                       u32 group) {
  using Stored = typename StoredScale<Tile::SCALE_BYTES>::Type;
  const u32 row = Tile::SHARED_SCALE ? 0 : r % Tile::ROWS * Tile::SIDE;
  const u32 offset = (row * Tile::GROUPS + group) * Tile::SCALE_BYTES;
  return *(const GLOBAL Stored*)(bases.scales[r / Tile::ROWS] + lane.scales + offset);
}

// Issues the loads of rounds first .. first + BLOCK - 1 of every row.
template <class Tile>
DEVICE void load_rows(RowBlock<Tile>& block, const RowBases<Tile>& start,
                      LaneOffsets<Tile>& lane, u32 first) {
  const RowBases<Tile> bases = start.at(first);
#pragma unroll
  for (int i = 0; i < Tile::BLOCK; ++i) {
    if (!lane.has_chunk(first + i)) continue;
    launder_lane(lane.weights);
    if constexpr (Tile::SCALE_IN_CHUNK) launder_lane(lane.scales);
    if constexpr (Tile::HAS_ZEROS) launder_lane(lane.zeros);
    const u32 group = lane.group(first + i);
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r) {
      const u32 part = r / Tile::ROWS, row = r % Tile::ROWS * Tile::SIDE;
      const u32 step = row * Tile::ROW_BYTES + i * Tile::LANES * 16;
      block.weights[i][r] = *(const GLOBAL u32x4*)(far_base(bases.weights[part], step) +
                                                   lane.weights + step % 2048);
      if constexpr (Tile::SCALE_IN_CHUNK)
        block.scale[i][r] = Tile::SHARED_SCALE && row > 0 ? block.scale[i][r - 1]
                                                          : load_scale<Tile>(bases, lane, r, group);
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
template <Format FORMAT>
DEVICE void to_pair_order(u32 (&x)[4]) {
  constexpr u32 LOW_HALVES = 0x05040100, HIGH_HALVES = 0x07060302;
  constexpr int APART = FORMAT == Format::int4 ? 2 : 1;  // words between the two of a pair
  if constexpr (FORMAT != Format::int4 && FORMAT != Format::e4m3) return;
  const u32 x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  const u32 first = APART == 2 ? x2 : x1, second = APART == 2 ? x1 : x2;
  x[0] = __builtin_amdgcn_perm(first, x0, LOW_HALVES);
  x[1] = __builtin_amdgcn_perm(first, x0, HIGH_HALVES);
  x[2] = __builtin_amdgcn_perm(x3, second, LOW_HALVES);
  x[3] = __builtin_amdgcn_perm(x3, second, HIGH_HALVES);
}

// Where memory in pair order has element n.
template <Format FORMAT>
DEVICE u32 in_pair_order(u32 n) {
  if constexpr (FORMAT == Format::int4) return (n & ~7u) + (n & 3u) * 2 + (n >> 2 & 1u);
  if constexpr (FORMAT == Format::e4m3) return (n & ~3u) + (n & 1u) * 2 + (n >> 1 & 1u);
  return n;
}

// Eight weights as fp16 pairs in pair order. Only int4 has a zero.
template <Format FORMAT>
DEVICE void decode_weights(const u32* words, const Int4Zero& zero, u32 (&pairs)[4]) {
  if constexpr (FORMAT == Format::int4) {
    int4_decode(words[0], zero, pairs);
  } else if constexpr (FORMAT == Format::e4m3) {
    e4m3_decode_alternating(words[0], pairs[0], pairs[1]);
    e4m3_decode_alternating(words[1], pairs[2], pairs[3]);
  } else {
    decode_octet<FORMAT>(words, pairs);
  }
}

// sums[q][r] += row r . x[q] over the block's rounds, for COUNT vectors x[q] (wave-uniform bases).
template <class Tile, int COUNT, int MOST>
DEVICE void multiply_rows(float (&sums)[MOST][Tile::ALL_ROWS], const RowBlock<Tile>& block,
                          LaneOffsets<Tile>& lane,
                          const GlobalBytes (&x)[MOST], u32 first) {
  constexpr int WORDS = OCTET<Tile::FORMAT>;
  constexpr u32 X_ROUND = Tile::SPAN * 2;  // bytes
  GlobalBytes x_block[COUNT];
#pragma unroll
  for (int q = 0; q < COUNT; ++q)
    x_block[q] = Tile::ROUNDS > Tile::BLOCK ? launder_base(x[q] + first * X_ROUND) : x[q];
  u32 far_before = 0;
#pragma unroll
  for (int i = 0; i < Tile::BLOCK; ++i) {
    if (!lane.has_chunk(first + i)) continue;
    Int4Zero zero[Tile::ALL_ROWS];
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r) zero[r] = zero_of<Tile>(block, lane, i, r);
    // Beyond the reach of the immediate, one token moves its base on; several move the lane's
    // offset instead (one vector add), since their bases would not fit the scalar registers.
    const u32 step = i * X_ROUND, far = step / 2048 * 2048;
    GlobalBytes x_round[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; ++q)
      x_round[q] = MOST == 1 ? far_base(x_block[q], step) : x_block[q];
    if (MOST > 1) lane.x += far - far_before;
    far_before = far;
    float dots[COUNT][Tile::ALL_ROWS];
    launder_lane(lane.x);
#pragma unroll
    for (int octet = 0; octet < Tile::CHUNK / 8; ++octet) {
      // NOTE: with several tokens the scheduler would otherwise gather every load of x first.
      if constexpr (MOST > 1) schedule_fence();
      u32 pairs_x[COUNT][4];
#pragma unroll
      for (int q = 0; q < COUNT; ++q) {
        load<u32, 4>(x_round[q] + lane.x, step - far + octet * 16, pairs_x[q]);
        if constexpr (!Tile::PAIR_ORDER) to_pair_order<Tile::FORMAT>(pairs_x[q]);
      }
#pragma unroll
      for (int r = 0; r < Tile::ALL_ROWS; ++r) {
        u32 pairs[4];
        u32 words[WORDS];
#pragma unroll
        for (int j = 0; j < WORDS; ++j) words[j] = block.weights[i][r][octet * WORDS + j];
        decode_weights<Tile::FORMAT>(words, zero[r], pairs);
#pragma unroll
        for (int q = 0; q < COUNT; ++q) {
          float& sum = Tile::SCALE_AT_END ? sums[q][r] : dots[q][r];
          sum = !Tile::SCALE_AT_END && octet == 0 ? dot2_start<false>(pairs_x[q][0], pairs[0])
                                                  : dot2(pairs_x[q][0], pairs[0], sum);
          sum = dot2(pairs_x[q][1], pairs[1], sum);
          sum = dot2(pairs_x[q][2], pairs[2], sum);
          sum = dot2(pairs_x[q][3], pairs[3], sum);
        }
      }
    }
    if constexpr (Tile::SCALE_AT_END) continue;
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r) {
      const float scale = scale_value<Tile::SCALE_BYTES>(block.scale[i][r]);
#pragma unroll
      for (int q = 0; q < COUNT; ++q) sums[q][r] = __builtin_fmaf(scale, dots[q][r], sums[q][r]);
    }
  }
  if (MOST > 1) lane.x -= far_before;
}

template <class Tile, int COUNT, int MOST>
DEVICE void dot_rows_of(float (&sums)[MOST][Tile::ALL_ROWS], RowBases<Tile> bases,
                        LaneOffsets<Tile>& lane, const GlobalBytes (&x)[MOST]) {
  constexpr bool ROW_SCALES = Tile::SCALE_AT_END && Tile::SCALE_BYTES > 0;
  typename StoredScale<Tile::SCALE_BYTES>::Type scale[Tile::ALL_ROWS];
#pragma unroll
  for (int r = 0; r < Tile::ALL_ROWS; ++r) {
    if constexpr (ROW_SCALES) scale[r] = load_scale<Tile>(bases, lane, r, 0);
#pragma unroll
    for (int q = 0; q < COUNT; ++q) sums[q][r] = 0.0f;
  }
  if constexpr (MOST > 1) bases.keep_in_loop();
#pragma unroll 1
  for (u32 first = 0; first < Tile::ROUNDS; first += Tile::BLOCK) {
    // A round on its own is skipped whole; the checks inside then fold away.
    if (Tile::BLOCK == 1 && !lane.has_chunk(first)) continue;
    RowBlock<Tile> block;
    load_rows<Tile>(block, bases, lane, first);
    multiply_rows<Tile, COUNT>(sums, block, lane, x, first);
  }
  if constexpr (ROW_SCALES) {
#pragma unroll
    for (int r = 0; r < Tile::ALL_ROWS; ++r)
#pragma unroll
      for (int q = 0; q < COUNT; ++q) sums[q][r] *= scale_value<Tile::SCALE_BYTES>(scale[r]);
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
