// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};            // output columns
constexpr int K = ${K};            // reduction length
constexpr int GROUP = ${GROUP};    // codes along K that share a scale and a zero
constexpr int M_TILE = ${M_TILE};  // rows of x per workgroup
constexpr int COLS = ${COLS};      // columns per lane, 2 or 4; 8 / COLS lanes share a word
constexpr int WAVES = ${WAVES};    // waves per workgroup; they split K
constexpr int UNIT = ${UNIT};      // of K, that a wave takes at a time: groups or part of one
constexpr int BLOCK = ${BLOCK};    // octets of K whose words are loaded together
constexpr bool X_SCALAR = ${X_SCALAR};  // rows of x are 4-byte aligned: scalar loads
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};
constexpr unsigned long long Z_STRIDE = ${Z_STRIDE};
constexpr unsigned long long S_STRIDE = ${S_STRIDE};
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};
constexpr int OUT_ALIGN = ${OUT_ALIGN};  // what rows of out start on a multiple of, bytes

// y[m, n] = fp16(sum_g scale[g, n] * sum_{k in g} x[m, k] * (q[k, n] - z[g, n]) + bias[n])
//
// for few rows of x and int4 words in AWQ's order: [K, N/8], eight columns of one k to a word, the
// slots 0..7 hold columns 0 2 4 6 1 3 5 7. Zeros are [K/G, N/8] in the same order. q - z is exact,
// sums are fp32, scales are applied in fp32.
//
// A byte of a word is two columns of one k. One byte permute puts the bytes of rows k and k + 1 into
// the two halves of a register; masks then cut neighbours along K, as in common/int4.hip, at 5
// instructions per 4 weights. A lane owns COLS / 2 bytes of its word, so a wave has 32 * COLS columns
// and x is the same for all its lanes: scalar loads feed the dots. Fewer columns per lane make more
// workgroups, and more loads per weight. The waves of a workgroup take the units of K in turn, leave
// their sums in LDS, and the workgroup adds them in wave order: no atomics, the same bits every time.
//
// Limits: memory for M_TILE 1..4 (1.8 to 3.3 vector instructions per weight), vector issue above.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/dot.hip"
#include "common/int4.hip"
#include "common/decode_rows.hip"

constexpr int TILE_N = 32 * COLS;
constexpr int BYTES = COLS / 2;    // of a word that a lane owns
constexpr int SHARE = 8 / COLS;    // lanes that share a word
constexpr int UNITS = K / UNIT;
constexpr int UNIT_GROUPS = UNIT > GROUP ? UNIT / GROUP : 1;
constexpr int RUN = UNIT / UNIT_GROUPS;  // of K under one scale
constexpr int RUN_OCTETS = ceil_div(RUN, 8);  // the last may be short
constexpr int OCTETS = UNIT_GROUPS * RUN_OCTETS;
constexpr int X_ROWS = M_TILE < 4 ? M_TILE : 4;  // rows of x in scalar registers at a time, twice
constexpr int FENCE_EVERY = M_TILE >= 4 ? 1 : 4;  // octets whose loads of x may be moved together
constexpr bool NEAR = W_STRIDE < 1 << 26;  // 32 bits reach the rows of an octet
static_assert(N % 8 == 0 && K % UNIT == 0 && UNIT % 2 == 0, "whole words, whole units, pairs");
static_assert(UNIT % GROUP == 0 || GROUP % UNIT == 0, "a unit is groups or part of one");
static_assert(COLS == 2 || COLS == 4, "lanes own whole bytes of half a word");
static_assert(WAVES <= UNITS && WAVES <= 32, "every wave has a unit");
static_assert(WAVES * M_TILE * TILE_N * 4 <= 65536, "the sums fit in LDS");

// Rows of K in octet i of a unit, and where it begins.
constexpr int octet_rows(int i) {
  return i % RUN_OCTETS == RUN_OCTETS - 1 && RUN % 8 != 0 ? RUN % 8 : 8;
}
constexpr int octet_begin(int i) { return i / RUN_OCTETS * RUN + i % RUN_OCTETS * 8; }
constexpr int APART = 2;  // from a lane's column to its next: those between are other lanes'

using Rows = RowTile<M_TILE>;

struct Lane {
  u32 word[NEAR ? 8 : 1];  // byte offsets of its word in the rows of an octet
  u32 zero, scale;         // of its word of zeros and its first column's scale
  u32 select[BYTES];       // permutes that pair its bytes of two rows
  u32 shift;               // of its first slot in a word
};

struct Unit {
  u32 words[OCTETS][8];
  u32 zeros[UNIT_GROUPS];
  f16 scales[UNIT_GROUPS][COLS];
};

DEVICE void load_octet(Unit& u, GlobalBytes& words, Lane& lane, int i) {
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    if (r >= octet_rows(i)) continue;  // not the loop's end, which would hinder unrolling
    u32& offset = lane.word[NEAR ? r : 0];
    launder_lane(offset);
    const GlobalBytes row = NEAR ? words : launder_base(words + r * (W_STRIDE * 4));
    u.words[i][r] = *(const GLOBAL u32*)(row + offset);
  }
  words = launder_base(words + octet_rows(i) * (W_STRIDE * 4));
}

DEVICE void load_groups(Unit& u, GlobalBytes zeros, GlobalBytes scales, u32 unit, Lane& lane) {
  launder_lane(lane.zero);
  launder_lane(lane.scale);
  const u64 group = UNIT_GROUPS > 1 ? unit * UNIT_GROUPS : unit / (GROUP / RUN);
  zeros += group * (Z_STRIDE * 4);
  scales += group * (S_STRIDE * 2);
#pragma unroll
  for (int g = 0; g < UNIT_GROUPS; ++g) {
    zeros = launder_base(zeros);
    scales = launder_base(scales);
    u.zeros[g] = *(const GLOBAL u32*)(zeros + lane.zero);
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      u.scales[g][c] = *(const GLOBAL f16*)(scales + lane.scale + c * APART * 2);
    }
    zeros += Z_STRIDE * 4;
    scales += S_STRIDE * 2;
  }
}

// What decodes a lane's column c of a run: the zero in the form that its nibble needs.
DEVICE void decode_zeros(u32 word, u32 shift, u32 (&minus)[COLS]) {
#pragma unroll
  for (int c = 0; c < COLS; ++c) {
    const Int4Zero zero = int4_zero(__builtin_amdgcn_ubfe(word, shift + 4 * c, 4), 0);
    minus[c] = c % 2 == 0 ? zero.low : zero.high;
  }
}

// Rows k and k + 1 as pairs along K, one per column.
DEVICE void decode_pair(u32 row, u32 next, const Lane& lane, const u32 (&minus)[COLS],
                        u32 (&pairs)[COLS]) {
#pragma unroll
  for (int b = 0; b < BYTES; ++b) {
    const u32 both = __builtin_amdgcn_perm(next, row, lane.select[b]);
    pairs[2 * b] = int4_pair(both, 0x000F000Fu, 0x64006400u, minus[2 * b]);
    pairs[2 * b + 1] = int4_pair(both, 0x00F000F0u, 0x54005400u, minus[2 * b + 1]);
  }
}

// Addresses of the rows of x of slots 0 and HALF, at the current unit.
struct XSource {
  u64 first, second;
};

// COUNT pairs of x along K for slots m0 .. m0 + X_ROWS - 1.
struct XRows {
  u32 pairs[X_ROWS][4];
};
template <int COUNT>
DEVICE XRows load_x(XSource& source, int k, int m0) {
  XRows x;
  // One load per octet and row: loads merged over octets would hold more scalar registers.
  launder_scalar(source.first);
  launder_scalar(source.second);
#pragma unroll
  for (int i = 0; i < X_ROWS; ++i) {
    const int m = m0 + i;
    const u64 row = Rows::address<X_STRIDE>(source.first, source.second, m);
    u32 pairs[COUNT];
    if constexpr (X_SCALAR && COUNT == 3) {  // a vector of three is loaded as four
      u32 front[2], back[1];
      load_scalar<2>(row + k * 2, front);
      load_scalar<1>(row + k * 2 + 8, back);
      pairs[0] = front[0], pairs[1] = front[1], pairs[2] = back[0];
    } else if constexpr (X_SCALAR) {
      load_scalar<COUNT>(row + k * 2, pairs);
    } else {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) {
        const u16 even = *(const GLOBAL u16*)(row + (k + 2 * j) * 2);
        pairs[j] = even | (u32)*(const GLOBAL u16*)(row + (k + 2 * j) * 2 + 2) << 16;
      }
    }
#pragma unroll
    for (int j = 0; j < COUNT; ++j) x.pairs[i][j] = pairs[j];
  }
  return x;
}
DEVICE XRows load_x_octet(XSource& source, int i, int m0) {
  const int k = octet_begin(i);
  switch (octet_rows(i)) {
    case 2: return load_x<1>(source, k, m0);
    case 4: return load_x<2>(source, k, m0);
    case 6: return load_x<3>(source, k, m0);
    default: return load_x<4>(source, k, m0);
  }
}

// chain += the products of octet i with X_ROWS rows of x, for every column.
DEVICE void dot_octet(const u32 (&w)[4][COLS], const XRows& x, int i, int m0,
                      float (&chain)[M_TILE][COLS]) {
#pragma unroll
  for (int c = 0; c < COLS; ++c) {
#pragma unroll
    for (int r = 0; r < X_ROWS; ++r) {
      float& sum = chain[m0 + r][c];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j >= octet_rows(i) / 2) continue;
        const u32 a = x.pairs[r][j], b = w[j][c];
        sum = i % RUN_OCTETS == 0 && j == 0 ? dot2_start<X_SCALAR>(a, b) : dot2(a, b, sum);
      }
    }
  }
}

// sums += one unit's share. One dot chain per (slot, column) runs through a run.
DEVICE void multiply_unit(GlobalBytes words, GlobalBytes zeros, GlobalBytes scales, u32 unit,
                          Lane& lane, XSource& source, float (&sums)[M_TILE][COLS]) {
  Unit u;
  load_groups(u, zeros, scales, unit, lane);
#pragma unroll
  for (int i = 0; i < (BLOCK < OCTETS ? BLOCK : OCTETS); ++i) load_octet(u, words, lane, i);
  float chain[M_TILE][COLS];
  u32 minus[COLS];
  // NOTE: the fences keep the scalar loads of x in their place, and the words of later blocks behind
  // the dots of earlier ones. Hoisted, they fill the registers.
  schedule_fence();
  XRows next = load_x_octet(source, 0, 0);
#pragma unroll
  for (int i = 0; i < OCTETS; ++i) {
    const int g = i / RUN_OCTETS;
    if (i % BLOCK == 0) {
      schedule_fence();
#pragma unroll
      for (int j = i + BLOCK; j < i + 2 * BLOCK; ++j) {
        if (j < OCTETS) load_octet(u, words, lane, j);
      }
      schedule_fence();
    }
    if (i % RUN_OCTETS == 0) decode_zeros(u.zeros[g], lane.shift, minus);
    u32 w[4][COLS];
#pragma unroll
    for (int m0 = 0; m0 < M_TILE; m0 += X_ROWS) {
      if (i % FENCE_EVERY == 0) schedule_fence();
      const XRows x = next;
      const bool done = m0 + X_ROWS == M_TILE;
      if (!done || i + 1 < OCTETS) {
        next = load_x_octet(source, done ? i + 1 : i, done ? 0 : m0 + X_ROWS);
      }
      if (m0 == 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (j >= octet_rows(i) / 2) continue;
          decode_pair(u.words[i][2 * j], u.words[i][2 * j + 1], lane, minus, w[j]);
        }
      }
      dot_octet(w, x, i, m0, chain);
    }
    if (i % RUN_OCTETS != RUN_OCTETS - 1) continue;
    add_scaled(u.scales[g], chain, sums);
  }
}

KERNEL __launch_bounds__(WAVES * 32) void awq_decode(
    const f16* __restrict x, const u32* __restrict qweight, const u32* __restrict zeros,
    const f16* __restrict scales, const f16* __restrict bias, f16* __restrict out, i32 m) {
  __shared__ u32x4 slabs[WAVES * M_TILE * TILE_N / 4];
  const u32 wave = wave_id();
  const Rows rows = Rows::of(m);
  x += rows.first * X_STRIDE;
  out += rows.first * OUT_STRIDE;

  // Lanes past the last word read it again and store nothing.
  const u32 local = lane_id() / SHARE, first_word = block_x() * (TILE_N / 8);
  const u32 last = N / 8 - 1 - first_word;
  const u32 word = N % TILE_N == 0 || local < last ? local : last;
  const u32 byte = lane_id() % SHARE * BYTES;
  const u32 column = (byte & 1) * 4 + (byte >> 1);  // of its first slot in the word
  Lane lane;
#pragma unroll
  for (u32 r = 0; r < (NEAR ? 8 : 1); ++r) lane.word[r] = r * (u32)(W_STRIDE * 4) + word * 4;
  lane.zero = word * 4;
  lane.scale = (word * 8 + column) * 2;
  lane.shift = byte * 8;
#pragma unroll
  for (u32 b = 0; b < BYTES; ++b) lane.select[b] = 0x0C040C00u + (byte + b) * 0x00010001u;

  float sums[M_TILE][COLS] = {};
  GlobalBytes words =
      launder_base(global_bytes(qweight) + first_word * 4 + wave * (UNIT * W_STRIDE * 4));
  const GlobalBytes zero_base = launder_base(global_bytes(zeros) + first_word * 4);
  const GlobalBytes scale_base = launder_base(global_bytes(scales) + first_word * 16);
  XSource source = {(u64)x + wave * (UNIT * 2), 0};
  u32 unit = wave;
  // NOTE: the count of units is hidden; known, the loop counts as divergent and scalars spill.
#pragma unroll 1
  do {
    source.second = source.first + rows.second * (X_STRIDE * 2);
    multiply_unit(words, zero_base, scale_base, unit, lane, source, sums);
    words = launder_base(words + WAVES * UNIT * W_STRIDE * 4);
    source.first += WAVES * UNIT * 2;
    unit += WAVES;
    launder_scalar(unit);
  } while (WAVES < UNITS && unit < UNITS);

  float* slab = (float*)slabs + wave * (M_TILE * TILE_N) + local * 8 + column;
#pragma unroll
  for (int slot = 0; slot < M_TILE; ++slot) {
#pragma unroll
    for (int c = 0; c < COLS; ++c) slab[slot * TILE_N + c * APART] = sums[slot][c];
  }
  block_barrier();
  const u32 n = block_x() * TILE_N + lane_id() * COLS;
  if (N % TILE_N == 0 || n < N) {
    store_rows<WAVES, COLS, M_TILE * TILE_N, OUT_STRIDE, OUT_ALIGN, HAS_BIAS>(
        (const float*)slabs, bias, out, rows, wave, n);
  }
}
