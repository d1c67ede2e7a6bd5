// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};                    // output columns
constexpr int K = ${K};                    // reduction length
constexpr int GROUP = ${GROUP};            // codes along K that share a scale and a zero
constexpr int M_TILE = ${M_TILE};          // rows of x per workgroup
constexpr int COLS = ${COLS};              // neighbouring columns per lane
constexpr int WAVES = ${WAVES};            // waves per workgroup; they split K
constexpr int STEP_ROWS = ${STEP_ROWS};    // word rows (8 of K) that a wave loads before it computes
constexpr int GUARD_FROM = ${GUARD_FROM};  // rows of the tile below this always exist
constexpr bool SHUFFLED = ${SHUFFLED};     // order of the codes in a word: see common/int4.hip
constexpr int ZEROS = ${ZEROS};            // 0: all 8; 1: packed int32 [K/G, N/8]; 2: bytes [K/G, N]
constexpr int ZERO_OFFSET = ${ZERO_OFFSET};  // added to packed zeros
constexpr bool X_SCALAR = ${X_SCALAR};     // x through scalar loads; else staged in LDS
constexpr bool HAS_PERM = ${HAS_PERM};     // row k of the weights belongs to x[:, perm[k]]
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr int X_STRIDE = ${X_STRIDE};      // row strides, in elements of the tensor
constexpr int W_STRIDE = ${W_STRIDE};
constexpr int Z_STRIDE = ${Z_STRIDE};
constexpr int S_STRIDE = ${S_STRIDE};
constexpr int OUT_STRIDE = ${OUT_STRIDE};
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
// use them. x is the same for all lanes: it comes from scalar loads, eight rows at a time, the next
// word's load ahead of this word's dots, and is the scalar operand of the dot. Rows that are
// misaligned or permuted are staged in LDS by each wave for its own step. Each wave leaves its sums
// in LDS and the workgroup adds them in wave order: no atomics, the same bits every time.
//
// Limits: memory for M_TILE 1..4 (1.7 to 3.2 vector instructions per weight), vector issue above.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/dot.hip"
#include "common/int4.hip"

constexpr int TILE_N = 32 * COLS;
constexpr int STEP_K = 8 * STEP_ROWS;
constexpr int STEPS = K / STEP_K;
constexpr int GROUP_ROWS = GROUP < STEP_K ? GROUP / 8 : STEP_ROWS;  // word rows under one scale
constexpr int STEP_GROUPS = STEP_ROWS / GROUP_ROWS;
constexpr int X_ROWS = M_TILE < 8 ? M_TILE : 8;  // rows of x held in registers at a time
static_assert(K % STEP_K == 0 && K % GROUP == 0, "steps and groups tile K");
static_assert(GROUP % STEP_K == 0 || STEP_K % GROUP == 0, "a step is groups or part of one");
static_assert(WAVES <= STEPS && WAVES <= 32, "every wave has a step");
static_assert(M_TILE % X_ROWS == 0 && TILE_N % 2 == 0, "rows come in blocks, outputs in pairs");
static_assert(N % COLS == 0 && (ZEROS != 1 || N % 8 == 0), "lanes own whole columns");

// One slab of LDS per wave: its staged x during the steps, then its sums.
constexpr int STAGE_WORDS = X_SCALAR ? 0 : STEP_ROWS * M_TILE * 4;
constexpr int SUM_WORDS = M_TILE * TILE_N;
constexpr int SLAB_WORDS = STAGE_WORDS > SUM_WORDS ? STAGE_WORDS : SUM_WORDS;
static_assert(WAVES * SLAB_WORDS * 4 <= 65536, "the slabs fit in LDS");

struct Step {
  u32 words[STEP_ROWS][COLS];
  Int4Zero zeros[STEP_GROUPS][COLS];
  f16 scales[STEP_GROUPS][COLS];
};

// Zeros of group row `base`, columns n .. n + COLS - 1.
DEVICE void load_zeros(GlobalBytes base, u32 n, Int4Zero (&zeros)[COLS]) {
  if constexpr (ZEROS == 1) {
    u32 word[1];
    load<u32, 1>(base, launder_lane((n >> 3) * 4), word);
    word[0] >>= (n & 7u) * 4;
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      zeros[c] = int4_zero((word[0] >> (4 * c)) & 15u, ZERO_OFFSET);
    }
  } else if constexpr (ZEROS == 2) {
    u8 bytes[COLS];
    load<u8, COLS, Z_ALIGN>(base, launder_lane(n), bytes);
#pragma unroll
    for (int c = 0; c < COLS; ++c) zeros[c] = int4_zero_byte(bytes[c]);
  } else {
#pragma unroll
    for (int c = 0; c < COLS; ++c) zeros[c] = int4_zero(8, 0);
  }
}

DEVICE void load_step(Step& s, const u32* qweight, const void* zeros, const f16* scales, u32 step,
                      u32 n) {
  GlobalBytes w = global_bytes(qweight) + (u64)(step * STEP_ROWS) * (W_STRIDE * 4ull);
  const u32 w_lane = launder_lane(n * 4);
#pragma unroll
  for (int r = 0; r < STEP_ROWS; ++r) {
    w = launder_base(w);
    load<u32, COLS>(w, w_lane, s.words[r]);
    w += W_STRIDE * 4ull;
  }
  const u64 group = (u64)(step * STEP_K) / GROUP;
  constexpr u64 Z_BYTES = ZEROS == 1 ? 4 : 1;
  GlobalBytes z = global_bytes((const char*)zeros) + group * (Z_STRIDE * Z_BYTES);
  GlobalBytes sc = global_bytes(scales) + group * (S_STRIDE * 2ull);
  const u32 s_lane = launder_lane(n * 2);
#pragma unroll
  for (int g = 0; g < STEP_GROUPS; ++g) {
    load<f16, COLS, S_ALIGN>(launder_base(sc), s_lane, s.scales[g]);
    load_zeros(launder_base(z), n, s.zeros[g]);
    sc += S_STRIDE * 2ull;
    z += Z_STRIDE * Z_BYTES;
  }
}

// x of word row `r` of the step, rows m0 .. m0 + X_ROWS - 1, in the pair order of the words.
struct XRows {
  u32 pairs[X_ROWS][4];
};
DEVICE XRows load_x(u64 address, const u32* staged, i32 rows, int r, int m0) {
  XRows x;
#pragma unroll
  for (int i = 0; i < X_ROWS; ++i) {
    const int m = m0 + i;
    if constexpr (X_SCALAR) {  // a row that does not exist repeats the last one and is not stored
      const u32 row = m < GUARD_FROM ? m : (m < rows ? m : rows - 1);
      load_scalar<4>(address + row * (X_STRIDE * 2u) + r * 16, x.pairs[i]);
      if constexpr (!SHUFFLED) pairs_of_natural(x.pairs[i]);
    } else {
      const u32x4 v = *(const u32x4*)(staged + (r * M_TILE + m) * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) x.pairs[i][j] = v[j];
    }
  }
  return x;
}

// The wave brings x of one step into its slab: [word row][m][4 pairs].
DEVICE void stage_x(const f16* x, const i32* perm, i32 rows, u32 step, u32* staged) {
  constexpr int ITEMS = STEP_ROWS * M_TILE;
  const GlobalBytes base = global_bytes(x);
  wave_barrier();
#pragma unroll
  for (int first = 0; first < ITEMS; first += 32) {
    const u32 item = first + lane_id();
    if (ITEMS % 32 != 0 && first + 32 > ITEMS && item >= ITEMS) break;
    const u32 m = item / STEP_ROWS, r = item % STEP_ROWS;
    const u32 row = (m < (u32)rows ? m : rows - 1) * X_STRIDE;
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
    *(u32x4*)(staged + (r * M_TILE + m) * 4) = u32x4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }
  wave_barrier();
}

// sums += the step's share. One dot chain per (row, column) runs through all words of a group.
DEVICE void multiply(const Step& s, u64 x_address, const u32* staged, i32 rows,
                     float (&sums)[M_TILE][COLS]) {
  float chain[M_TILE][COLS];
  XRows next = load_x(x_address, staged, rows, 0, 0);
#pragma unroll
  for (int r = 0; r < STEP_ROWS; ++r) {
    u32 w[COLS][4];
#pragma unroll
    for (int m0 = 0; m0 < M_TILE; m0 += X_ROWS) {
      // NOTE: without the fence scalar loads of later words are hoisted and scalar registers spill.
      if constexpr (M_TILE >= 4) schedule_fence();
      const XRows x = next;
      const bool last = m0 + X_ROWS == M_TILE;
      if (!last || r + 1 < STEP_ROWS) {
        next = load_x(x_address, staged, rows, last ? r + 1 : r, last ? 0 : m0 + X_ROWS);
      }
#pragma unroll
      for (int c = 0; c < COLS; ++c) {
        if (m0 == 0) int4_decode(s.words[r][c], s.zeros[r / GROUP_ROWS][c], w[c]);
#pragma unroll
        for (int i = 0; i < X_ROWS; ++i) {
          float& sum = chain[m0 + i][c];
          const u32(&pairs)[4] = x.pairs[i];
          sum = r % GROUP_ROWS == 0 ? dot2_start<X_SCALAR>(pairs[0], w[c][0])
                                    : dot2(pairs[0], w[c][0], sum);
#pragma unroll
          for (int j = 1; j < 4; ++j) sum = dot2(pairs[j], w[c][j], sum);
        }
      }
    }
    if (r % GROUP_ROWS == GROUP_ROWS - 1) {
#pragma unroll
      for (int m = 0; m < M_TILE; ++m) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
          const float scale = (float)s.scales[r / GROUP_ROWS][c];
          sums[m][c] = __builtin_fmaf(scale, chain[m][c], sums[m][c]);
        }
      }
    }
  }
}

// Adds the waves' sums in wave order and stores two neighbouring columns per thread.
DEVICE void store_tile(const float* slabs, const f16* bias, f16* out, i32 rows) {
  const u32 first_n = block_x() * TILE_N;
#pragma unroll
  for (u32 o = thread_x() * 2; o < SUM_WORDS; o += WAVES * 64) {
    const u32 m = o / TILE_N, n = first_n + o % TILE_N;
    if (m >= (u32)rows || (N % TILE_N != 0 && n >= N)) continue;
    f32x2 y = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < WAVES; ++w) y += *(const f32x2*)(slabs + w * SLAB_WORDS + o);
    const bool both = N % 2 == 0 || n + 1 < N;
    if constexpr (HAS_BIAS) {
      y.x += (float)bias[n];
      if (both) y.y += (float)bias[n + 1];
    }
    GLOBAL f16* to = (GLOBAL f16*)(u64)out + m * OUT_STRIDE + n;
    if constexpr (OUT_ALIGN % 4 == 0 && N % 2 == 0) {
      *(GLOBAL f16x2*)to = f16x2{(f16)y.x, (f16)y.y};
    } else {
      to[0] = (f16)y.x;
      if (both) to[1] = (f16)y.y;
    }
  }
}

KERNEL __launch_bounds__(WAVES * 32) void w4a16_decode(
    const f16* __restrict x, const u32* __restrict qweight, const void* __restrict zeros,
    const f16* __restrict scales, const i32* __restrict perm, const f16* __restrict bias,
    f16* __restrict out, i32 rows) {
  __shared__ u32x4 slabs[WAVES * SLAB_WORDS / 4];
  const u32 wave = wave_id();
  const u64 first_row = block_y() * (u64)M_TILE;
  x += first_row * X_STRIDE;
  out += first_row * OUT_STRIDE;
  rows -= (i32)first_row;
  u32 n = (block_x() * 32 + lane_id()) * COLS;
  if (N % TILE_N != 0 && n > N - COLS) n = N - COLS;  // reads the last columns again, stores nothing

  u32* slab = (u32*)slabs + wave * SLAB_WORDS;
  float sums[M_TILE][COLS] = {};
#pragma unroll 1
  for (u32 step = wave; step < STEPS; step += WAVES) {
    Step s;
    load_step(s, qweight, zeros, scales, step, n);
    if constexpr (!X_SCALAR) stage_x(x, perm, rows, step, slab);
    multiply(s, (u64)x + step * (STEP_K * 2), slab, rows, sums);
  }

#pragma unroll
  for (int m = 0; m < M_TILE; ++m) {
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      ((float*)slab)[m * TILE_N + lane_id() * COLS + c] = sums[m][c];
    }
  }
  block_barrier();
  store_tile((const float*)slabs, bias, out, rows);
}
