// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};                    // output columns
constexpr int K = ${K};                    // reduction length
constexpr int GROUP = ${GROUP};            // codes along K that share a scale and a zero
constexpr int M_TILE = ${M_TILE};          // rows of x per workgroup
constexpr int COLS = ${COLS};              // neighbouring columns per lane
constexpr int WAVES = ${WAVES};            // waves per workgroup; they split K
constexpr int STEP_ROWS = ${STEP_ROWS};    // word rows (8 of K) that a wave loads before it computes
constexpr bool SHUFFLED = ${SHUFFLED};     // order of the codes in a word: see common/int4.hip
constexpr int ZEROS = ${ZEROS};            // 0: all 8; 1: packed int32 [K/G, N/8]; 2: bytes [K/G, N]
constexpr int ZERO_OFFSET = ${ZERO_OFFSET};  // added to packed zeros
constexpr bool X_SCALAR = ${X_SCALAR};     // x through scalar loads; else staged in LDS
constexpr bool HAS_PERM = ${HAS_PERM};     // row k of the weights belongs to x[:, perm[k]]
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};
constexpr unsigned long long Z_STRIDE = ${Z_STRIDE};
constexpr unsigned long long S_STRIDE = ${S_STRIDE};
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};
constexpr int X_ALIGN = ${X_ALIGN};        // what rows of the tensor start on a multiple of, bytes
constexpr int Z_ALIGN = ${Z_ALIGN};
constexpr int S_ALIGN = ${S_ALIGN};
constexpr int OUT_ALIGN = ${OUT_ALIGN};

// y[m, n] = fp16(sum_g scale[g, n] * sum_{k in g} x[m, perm[k]] * (q[k, n] - z[g, n]) + bias[n])
//
// for few rows of x: q int4 in words [K/8, N], sums in fp32, q - z exact, scales applied in fp32.
//
// A lane owns COLS columns, a wave 32 * COLS; the WAVES waves of a workgroup own the same columns
// and take the steps of K in turn. A wave issues all loads of a step (STEP_ROWS weight words per
// column, zeros, scales), then walks the words: 9 instructions decode 8 codes, 4 dots per row of x
// use them. x is the same for all lanes: it comes from scalar loads, the next word's load ahead of
// this word's dots, and is the scalar operand of the dot. Rows that are misaligned or permuted are
// staged in LDS by each wave for its own step. Each wave leaves its sums in LDS and the workgroup
// adds them in wave order: no atomics, the same bits every time.
//
// Limits: memory for M_TILE 1..4 (1.7 to 3.2 vector instructions per weight), vector issue above.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/dot.hip"
#include "common/int4.hip"
#include "common/decode_rows.hip"

constexpr int TILE_N = 32 * COLS;
constexpr int STEP_K = 8 * STEP_ROWS;
constexpr int STEPS = K / STEP_K;
constexpr int GROUP_ROWS = GROUP < STEP_K ? GROUP / 8 : STEP_ROWS;  // word rows under one scale
constexpr int STEP_GROUPS = STEP_ROWS / GROUP_ROWS;
constexpr int X_ROWS = M_TILE < 4 ? M_TILE : 4;  // rows of x in scalar registers at a time, twice
constexpr int FENCE_EVERY = M_TILE >= 4 ? 1 : 4;  // word rows whose loads of x may be moved together
static_assert(K % STEP_K == 0 && K % GROUP == 0, "steps and groups tile K");
static_assert(GROUP % STEP_K == 0 || STEP_K % GROUP == 0, "a step is groups or part of one");
static_assert(WAVES <= STEPS && WAVES <= 32, "every wave has a step");
static_assert(X_SCALAR || X_STRIDE < 1 << 26, "staging reaches every row of the tile in 32 bits");
static_assert(N % COLS == 0 && (ZEROS != 1 || N % 8 == 0), "lanes own whole columns");

// One slab of LDS per wave: its staged x during the steps, then its sums.
constexpr int STAGE_WORDS = X_SCALAR ? 0 : STEP_ROWS * M_TILE * 4;
constexpr int SUM_WORDS = M_TILE * TILE_N;
constexpr int SLAB_WORDS = STAGE_WORDS > SUM_WORDS ? STAGE_WORDS : SUM_WORDS;
static_assert(WAVES * SLAB_WORDS * 4 <= 65536, "the slabs fit in LDS");

using Rows = RowTile<M_TILE>;

struct Lane {  // byte offsets of the lane's first column
  u32 word, zero, scale;
  u32 shift;  // of its zero in the packed word
};

constexpr int ZERO_WORDS = ZEROS == 2 ? COLS : 1;
struct Step {
  u32 words[STEP_ROWS][COLS];
  u32 zeros[STEP_GROUPS][ZERO_WORDS];  // as stored
  f16 scales[STEP_GROUPS][COLS];
};

DEVICE void load_zeros(GlobalBytes base, u32 offset, u32 (&zeros)[ZERO_WORDS]) {
  if constexpr (ZEROS == 1) {
    load<u32, ZERO_WORDS>(base, offset, zeros);
  } else if constexpr (ZEROS == 2) {
    u8 bytes[COLS];
    load<u8, COLS, Z_ALIGN>(base, offset, bytes);
#pragma unroll
    for (int c = 0; c < COLS; ++c) zeros[c] = bytes[c];
  }
}

DEVICE Int4Zero decode_zero(const u32 (&zeros)[ZERO_WORDS], u32 shift, int c) {
  if constexpr (ZEROS == 1) {
    return int4_zero(__builtin_amdgcn_ubfe(zeros[0], shift + 4 * c, 4), ZERO_OFFSET);
  } else if constexpr (ZEROS == 2) {
    return int4_zero_byte(zeros[c]);
  } else {
    return int4_zero(8, 0);
  }
}

DEVICE void load_step(Step& s, GlobalBytes words, GlobalBytes zeros, GlobalBytes scales, u32 step,
                      Lane& lane) {
  launder_lane(lane.word);
  launder_lane(lane.zero);
  launder_lane(lane.scale);
  // Zeros first: loads return in order, so the first word is decoded when it arrives.
  constexpr u64 Z_BYTES = ZEROS == 1 ? 4 : 1;
  const u64 group = GROUP < STEP_K ? step * STEP_GROUPS : step / (GROUP / STEP_K);
  zeros += group * (Z_STRIDE * Z_BYTES);
  scales += group * (S_STRIDE * 2);
#pragma unroll
  for (int g = 0; g < STEP_GROUPS; ++g) {
    scales = launder_base(scales);
    zeros = launder_base(zeros);
    load<f16, COLS, S_ALIGN>(scales, lane.scale, s.scales[g]);
    load_zeros(zeros, lane.zero, s.zeros[g]);
    scales += S_STRIDE * 2;
    zeros += Z_STRIDE * Z_BYTES;
  }
#pragma unroll
  for (int r = 0; r < STEP_ROWS; ++r) {
    words = launder_base(words);
    load<u32, COLS>(words, lane.word, s.words[r]);
    words += W_STRIDE * 4;
  }
}

// Where x of the current step is: addresses of both halves' first rows, or the slab it is staged in.
struct XSource {
  u64 first, second;
  const u32* staged;
};

// x of word row `r` of the step for slots m0 .. m0 + X_ROWS - 1.
struct XRows {
  u32 pairs[X_ROWS][4];
};
DEVICE XRows load_x(XSource& source, int r, int m0) {
  XRows x;
  // One load per word and row: loads merged over words would hold more scalar registers.
  launder_scalar(source.first);
  launder_scalar(source.second);
#pragma unroll
  for (int i = 0; i < X_ROWS; ++i) {
    const int m = m0 + i;
    if constexpr (X_SCALAR) {
      const u64 row = Rows::address<X_STRIDE>(source.first, source.second, m);
      load_scalar<4>(row + r * 16, x.pairs[i]);
    } else {
      const u32x4 v = *(const u32x4*)(source.staged + (r * M_TILE + m) * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) x.pairs[i][j] = v[j];
    }
  }
  return x;
}

// The wave brings x of one step into its slab: [word row][slot][4 pairs].
DEVICE void stage_x(const f16* x, const i32* perm, const Rows& rows, u32 step, u32* staged) {
  constexpr int ITEMS = STEP_ROWS * M_TILE;
  const GlobalBytes base = global_bytes(x);
  wave_barrier();
#pragma unroll
  for (int first = 0; first < ITEMS; first += 32) {
    const u32 item = first + lane_id();
    if (first + 32 > ITEMS && item >= ITEMS) break;
    const u32 slot = item / STEP_ROWS, r = item % STEP_ROWS;
    const u32 row = rows.row(slot) * (u32)X_STRIDE;
    const u32 k = step * STEP_K + r * 8;
    u32 pairs[4];
    if constexpr (HAS_PERM || X_ALIGN < 4) {
      u32 halves[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const u32 from = HAS_PERM ? *(const GLOBAL u32*)(global_bytes(perm) + (k + j) * 4) : k + j;
        halves[j] = *(const GLOBAL u16*)(base + (row + from) * 2);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[j] = halves[2 * j] | (halves[2 * j + 1] << 16);
    } else {
      load<u32, 4, X_ALIGN>(base, (row + k) * 2, pairs);
    }
    if constexpr (!SHUFFLED) pairs_of_natural(pairs);
    *(u32x4*)(staged + (r * M_TILE + slot) * 4) = u32x4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }
  wave_barrier();
}

// chain += the products of one word row with X_ROWS rows of x, for every column.
template <bool START>
DEVICE void dot_rows(const u32 (&w)[COLS][4], const XRows& x, int m0, float (&chain)[M_TILE][COLS]) {
#pragma unroll
  for (int c = 0; c < COLS; ++c) {
#pragma unroll
    for (int i = 0; i < X_ROWS; ++i) {
      const u32(&pairs)[4] = x.pairs[i];
      float& sum = chain[m0 + i][c];
      if constexpr (START) {
        sum = dot2_start<X_SCALAR>(pairs[0], w[c][0]);
      } else {
        sum = dot2(pairs[0], w[c][0], sum);
      }
#pragma unroll
      for (int j = 1; j < 4; ++j) sum = dot2(pairs[j], w[c][j], sum);
    }
  }
}

// sums += the step's share. One dot chain per (slot, column) runs through all words of a group.
DEVICE void multiply(const Step& s, u32 zero_shift, XSource& source, float (&sums)[M_TILE][COLS]) {
  float chain[M_TILE][COLS];
  Int4Zero zeros[COLS];
  // NOTE: the fences keep the scalar loads of x in their place. Hoisted, they meet the row addresses
  // of the weights or each other, and scalar registers spill.
  schedule_fence();
  XRows next = load_x(source, 0, 0);
#pragma unroll
  for (int r = 0; r < STEP_ROWS; ++r) {
    const int g = r / GROUP_ROWS;
    if (r % GROUP_ROWS == 0) {
#pragma unroll
      for (int c = 0; c < COLS; ++c) zeros[c] = decode_zero(s.zeros[g], zero_shift, c);
    }
    u32 w[COLS][4];
#pragma unroll
    for (int m0 = 0; m0 < M_TILE; m0 += X_ROWS) {
      if (r % FENCE_EVERY == 0) schedule_fence();
      XRows x = next;
      if constexpr (X_SCALAR && !SHUFFLED) {
#pragma unroll
        for (int i = 0; i < X_ROWS; ++i) pairs_of_natural(x.pairs[i]);
      }
      const bool row_done = m0 + X_ROWS == M_TILE;
      if (!row_done || r + 1 < STEP_ROWS) {
        next = load_x(source, row_done ? r + 1 : r, row_done ? 0 : m0 + X_ROWS);
      }
      if (m0 == 0) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) int4_decode(s.words[r][c], zeros[c], w[c]);
      }
      if (r % GROUP_ROWS == 0) {
        dot_rows<true>(w, x, m0, chain);
      } else {
        dot_rows<false>(w, x, m0, chain);
      }
    }
    if (r % GROUP_ROWS != GROUP_ROWS - 1) continue;
    add_scaled(s.scales[g], chain, sums);
  }
}

KERNEL __launch_bounds__(WAVES * 32) void w4a16_decode(
    const f16* __restrict x, const u32* __restrict qweight, const void* __restrict zeros,
    const f16* __restrict scales, const i32* __restrict perm, const f16* __restrict bias,
    f16* __restrict out, i32 m) {
  __shared__ u32x4 slabs[WAVES * SLAB_WORDS / 4];
  const u32 wave = wave_id();
  u32* slab = (u32*)slabs + wave * SLAB_WORDS;
  const Rows rows = Rows::of(m);
  x += rows.first * X_STRIDE;
  out += rows.first * OUT_STRIDE;

  // Lanes past the last column read it again and store nothing.
  const u32 column = (block_x() * 32 + lane_id()) * COLS;
  const u32 n = N % TILE_N == 0 || column < N ? column : N - COLS;
  Lane lane = {n * 4, ZEROS == 1 ? (n >> 3) * 4 : n, n * 2, (n & 7u) * 4};

  float sums[M_TILE][COLS] = {};
  GlobalBytes words = global_bytes(qweight) + wave * (STEP_ROWS * W_STRIDE * 4);
  XSource source = {(u64)x + wave * (STEP_K * 2), 0, slab};
  u32 step = wave;
  // NOTE: the count of steps is hidden. Known to be 2, it becomes a flag in a vector register, the
  // loop counts as divergent, and hundreds of scalar registers spill.
#pragma unroll 1
  do {
    Step s;
    load_step(s, words, global_bytes((const char*)zeros), global_bytes(scales), step, lane);
    source.second = source.first + rows.second * (X_STRIDE * 2);
    if constexpr (!X_SCALAR) stage_x(x, perm, rows, step, slab);
    multiply(s, lane.shift, source, sums);
    words = launder_base(words + WAVES * STEP_ROWS * W_STRIDE * 4);
    source.first += WAVES * STEP_K * 2;
    step += WAVES;
    launder_scalar(step);
  } while (WAVES < STEPS && step < STEPS);

  // The sums go where other lanes of the wave have just read x.
  if constexpr (!X_SCALAR) wave_barrier();
#pragma unroll
  for (int slot = 0; slot < M_TILE; ++slot) {
    Vec<float, COLS> row;
#pragma unroll
    for (int c = 0; c < COLS; ++c) row[c] = sums[slot][c];
    *(Vec<float, COLS>*)((float*)slab + slot * TILE_N + lane_id() * COLS) = row;
  }
  block_barrier();
  if (N % TILE_N == 0 || column < N) {
    store_rows<WAVES, COLS, SLAB_WORDS, OUT_STRIDE, OUT_ALIGN, HAS_BIAS>(
        (const float*)slabs, bias, out, rows, wave, n);
  }
}
