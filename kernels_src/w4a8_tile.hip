// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};            // output columns
constexpr int K = ${K};            // reduction length
constexpr int GROUP = ${GROUP};    // codes along K that share a scale and a zero
constexpr int WAVES = ${WAVES};    // waves per workgroup; 8 rows of x each
constexpr int STEP = ${STEP};      // of K, per turn of the LDS buffers
constexpr int SLICE = ${SLICE};    // steps of K per workgroup, whole groups
constexpr bool HAS_ZEROS = ${HAS_ZEROS};  // packed int32 [K/G, N/8]; else all 8
constexpr int ZERO_OFFSET = ${ZERO_OFFSET};  // added to packed zeros
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr int CODE_STRIDE = ${CODE_STRIDE};  // bytes from row to row of the codes of x
constexpr unsigned long long W_STRIDE = ${W_STRIDE};  // row strides, in elements
constexpr unsigned long long Z_STRIDE = ${Z_STRIDE};
constexpr unsigned long long S_STRIDE = ${S_STRIDE};
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};

// y[m, n] = fp16(sum_g x_scale[m, g] * scale[g, n] * sum_{k in g} x[m, k] * (q[k, n] - z[g, n])
//                + bias[n])
//
// for many rows of int8 activations: q int4 in words [K/8, N], exact integers inside a group, fp32
// across groups. The codes of x stand in the byte order of the split words (quantize_int8.hip).
//
// common/int8_tile.hip has the tile. A thread fetches the words of one column, 16 of K per LDS
// store of 16 bytes; two masks and a shift unpack a word. Where the grid splits K, a workgroup leaves
// fp32 sums of its slice, which split_combine adds in order.
//
// Limits: vector issue (0.29 vector instructions per multiply-add at G = 128).
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/int8_tile.hip"

constexpr int GROUPS = K / GROUP;
constexpr int STEPS = ceil_div(K, STEP);
constexpr bool SPLIT = SLICE < STEPS;  // K over the grid
// A group that is all of K ends with the last step; x is zero there.
using Tile = Int8Tile<WAVES, STEP, GROUPS == 1 ? STEPS * STEP : GROUP>;
static_assert(K % GROUP == 0 && K % 8 == 0, "groups and words tile K");
static_assert(GROUPS == 1 || K % STEP == 0, "steps tile the groups");
static_assert(SLICE % Tile::GROUP_STEPS == 0, "slices are whole groups");
static_assert(CODE_STRIDE % 16 == 0 && CODE_STRIDE >= STEPS * STEP, "x is padded to whole steps");
static_assert(WAVES >= 4, "a thread per column");

// Fetches words [K/8, N] and codes [M, K].
struct Loader {
  static constexpr int ITEMS = Tile::COLS * Tile::CHUNKS / Tile::THREADS;  // LDS stores of weights
  static constexpr int APART = Tile::CHUNKS / ITEMS;  // threads of a column
  static constexpr int X_WORDS = STEP / 16;           // per thread: a quarter of a row

  GlobalBytes qweight, zeros, scales, codes, x_scale, x_sum;
  u32 column, half;              // in the tile; which chunks of the column
  u32 word, zero, shift, scale;  // offsets of the column in memory, in bytes
  u32 code, row_group;           // offsets of the thread's rows of codes and of scales

  u32 words[ITEMS][2], x[X_WORDS];
  u32 column_zero;
  f16 column_scale;
  float row_scale;
  i32 row_sum;

  MEMBER Loader(const u8* codes_, const float* x_scale_, const i32* x_sum_, const u32* qweight_,
                const u32* zeros_, const f16* scales_, u32 rows) {
    const u32 m_first = block_x() * Tile::ROWS, thread = thread_x();
    const u32 n_first = block_y() * Tile::COLS;
    rows -= m_first;  // from the tile's first on
    column = thread % Tile::COLS;
    half = uniform(thread / Tile::COLS);
    // Past the last row or column the last one is read again; the results are not stored.
    const u32 n = N % Tile::COLS == 0 || n_first + column < N ? column : N - 1 - n_first;
    word = n * 4;
    zero = (n >> 3) * 4;
    shift = (n & 7) * 4;
    scale = n * 2;
    const u32 x_row = thread / 4 < rows ? thread / 4 : rows - 1;
    code = x_row * CODE_STRIDE + thread % 4 * (X_WORDS * 4);
    const u32 p_row = thread % Tile::ROWS < rows ? thread % Tile::ROWS : rows - 1;
    row_group = p_row * (GROUPS * 4);
    qweight = launder_base(global_bytes(qweight_) + n_first * 4);
    zeros = launder_base(global_bytes(zeros_) + n_first / 2);
    scales = launder_base(global_bytes(scales_) + n_first * 2);
    codes = launder_base(global_bytes(codes_) + (u64)m_first * CODE_STRIDE);
    x_scale = launder_base(global_bytes(x_scale_) + (u64)m_first * (GROUPS * 4));
    x_sum = launder_base(global_bytes(x_sum_) + (u64)m_first * (GROUPS * 4));
  }

  MEMBER void fetch(u32 step) {
    launder_lane(word);
    launder_lane(zero);
    launder_lane(scale);
    launder_lane(code);
    launder_lane(row_group);
    load<u32, X_WORDS>(launder_base(codes + (u64)step * STEP), code, x);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        u32 k = step * (STEP / 8) + (half + i * APART) * 2 + j;
        if constexpr (STEPS * STEP != K) k = k < K / 8 ? k : K / 8 - 1;  // meets zeros of x
        const GlobalBytes row = launder_base(qweight + k * (W_STRIDE * 4));
        words[i][j] = *(const GLOBAL u32*)(row + word);
      }
    }
    const u32 group = step / Tile::GROUP_STEPS;
    column_scale = *(const GLOBAL f16*)(launder_base(scales + group * (S_STRIDE * 2)) + scale);
    if constexpr (HAS_ZEROS) {
      column_zero = *(const GLOBAL u32*)(launder_base(zeros + group * (Z_STRIDE * 4)) + zero);
    }
    row_scale = *(const GLOBAL float*)(x_scale + group * 4 + row_group);
    row_sum = *(const GLOBAL i32*)(x_sum + group * 4 + row_group);
    schedule_fence();
  }

  MEMBER void stash(Int8Buffer<Tile>& to) {
    const u32 thread = thread_x();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      u32 b[4];
      int8_split(words[i][0], b[0], b[1]);
      int8_split(words[i][1], b[2], b[3]);
      to.w[column * Tile::PITCH + half + i * APART] = u32x4{b[0], b[1], b[2], b[3]};
    }
    u32* x_to = (u32*)(to.x + thread / 4 * Tile::PITCH) + thread % 4 * X_WORDS;
    Vec<u32, X_WORDS> row;
#pragma unroll
    for (int i = 0; i < X_WORDS; ++i) row[i] = x[i];
    *(Vec<u32, X_WORDS>*)x_to = row;
    if (half == 0) {
      to.w_scale[column] = (float)column_scale;
      to.minus_zero[column] =
          HAS_ZEROS ? -(i32)(__builtin_amdgcn_ubfe(column_zero, shift, 4) + ZERO_OFFSET) : -8;
    }
    if (wave_id() < Tile::ROWS / 32) {
      to.x_scale[thread] = row_scale;
      to.x_sum[thread] = row_sum;
    }
  }
};

template <class T, u64 STRIDE>
DEVICE void store_tile(const Int8Accumulators<Tile>& tile, GLOBAL T* to, const f16* bias, u32 m,
                       u32 n, u32 rows) {
#pragma unroll
  for (u32 i = 0; i < LANE_ROWS; ++i) {
    if (m + i >= rows) break;
#pragma unroll
    for (int c = 0; c < LANE_COLS; ++c) {
      if (N % Tile::COLS != 0 && n + c * 32 >= N) continue;
      float y = tile.sum[i][c];
      if constexpr (HAS_BIAS) {
        y += (float)*(const GLOBAL f16*)(global_bytes(bias) + (n + c * 32) * 2);
      }
      (to + (m + i) * STRIDE)[n + c * 32] = (T)y;
    }
  }
}

// out: fp16 [M, N], or with SPLIT fp32 sums [slices, M, OUT_STRIDE] of each slice.
KERNEL __launch_bounds__(Tile::THREADS) void w4a8_tile(
    const u8* __restrict codes, const float* __restrict x_scale, const i32* __restrict x_sum,
    const u32* __restrict qweight, const u32* __restrict zeros, const f16* __restrict scales,
    const f16* __restrict bias, void* __restrict out, i32 m) {
  __shared__ Int8Buffer<Tile> buffers[2];
  Loader loader(codes, x_scale, x_sum, qweight, zeros, scales, m);
  Int8Accumulators<Tile> tile;
  const u32 first = SPLIT ? block_z() * SLICE : 0;
  const u32 end = SPLIT && first + SLICE < STEPS ? first + SLICE : STEPS;
  const u32 row = block_x() * Tile::ROWS + wave_id() * LANE_ROWS;
  int8_tile(tile, buffers, loader, first, end, row >= (u32)m);

  const u32 column = block_y() * Tile::COLS + lane_id();
  if constexpr (SPLIT) {
    GLOBAL float* to = (GLOBAL float*)(u64)out + block_z() * (u64)(u32)m * OUT_STRIDE;
    store_tile<float, OUT_STRIDE>(tile, to, bias, row, column, m);
  } else {
    store_tile<f16, OUT_STRIDE>(tile, (GLOBAL f16*)(u64)out, bias, row, column, m);
  }
}
