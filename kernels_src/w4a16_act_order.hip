// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};            // output columns
constexpr int K = ${K};            // reduction length
constexpr int M_TILE = ${M_TILE};  // rows of x per workgroup
constexpr int WAVES = ${WAVES};    // waves per workgroup; they split K
constexpr bool HAS_ZEROS = ${HAS_ZEROS};       // packed int32 [groups, N/8]; else all 8
constexpr int ZERO_OFFSET = ${ZERO_OFFSET};    // added to packed zeros
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr bool X_SCALAR = ${X_SCALAR};         // rows of x start on multiples of 4 bytes
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};
constexpr unsigned long long Z_STRIDE = ${Z_STRIDE};
constexpr unsigned long long S_STRIDE = ${S_STRIDE};
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};

// y[m, n] = fp16(sum_k x[m, k] * ((q[k, n] - z[g_idx[k], n]) * scale[g_idx[k], n]) + bias[n])
//
// for int4 codes in the order of an act-order checkpoint, where neighbouring rows belong to
// different groups: every weight looks up its own scale and zero. Correct for any g_idx, without
// repacking; several times slower than w4a16_decode on rows sorted by group.
//
// A lane owns one column, a wave 32; the waves take the word rows in turn. The group of a row is
// the same in all lanes, so its scale and zero are loads of 32 neighbouring columns. (q - z) *
// scale is exact in fp32. The waves' sums are added in wave order.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"

constexpr int ROWS = K / 8;
static_assert(K % 8 == 0 && (!HAS_ZEROS || N % 8 == 0), "whole words");
static_assert(WAVES <= ROWS && WAVES <= 32, "every wave has a word row");

// x[row, 8 r .. 8 r + 7], uniform.
DEVICE void load_octet(u64 row, u32 r, f16 (&x)[8]) {
  if constexpr (X_SCALAR) {
    u32 words[4];
    load_scalar<4>(row + r * 16, words);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = bits<f16>((u16)(words[j / 2] >> (16 * (j % 2))));
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = *(const GLOBAL f16*)(row + r * 16 + j * 2);
  }
}

DEVICE void multiply_word(u32 word, u32 r, const i32* g_idx, const void* zeros, const f16* scales,
                          const u64 (&x_rows)[M_TILE], u32 n, float (&sums)[M_TILE]) {
  u32 groups[8];
  load_scalar<8>((u64)g_idx + r * 32, groups);
  float w[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const GlobalBytes scale_row = global_bytes(scales) + groups[j] * (S_STRIDE * 2);
    const float scale = (float)*(const GLOBAL f16*)(scale_row + n * 2);
    i32 zero = 8;
    if constexpr (HAS_ZEROS) {
      const GlobalBytes zero_row = global_bytes((const char*)zeros) + groups[j] * (Z_STRIDE * 4);
      const u32 packed = *(const GLOBAL u32*)(zero_row + (n >> 3) * 4);
      zero = (i32)__builtin_amdgcn_ubfe(packed, (n & 7) * 4, 4) + ZERO_OFFSET;
    }
    w[j] = (float)((i32)((word >> (4 * j)) & 15u) - zero) * scale;
  }
#pragma unroll
  for (int m = 0; m < M_TILE; ++m) {
    f16 x[8];
    load_octet(x_rows[m], r, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[m] = __builtin_fmaf((float)x[j], w[j], sums[m]);
  }
}

KERNEL __launch_bounds__(WAVES * 32) void w4a16_act_order(
    const f16* __restrict x, const u32* __restrict qweight, const void* __restrict zeros,
    const f16* __restrict scales, const i32* __restrict g_idx, const f16* __restrict bias,
    f16* __restrict out, i32 m) {
  __shared__ float parts[WAVES][M_TILE][32];
  const u32 wave = wave_id();
  const u32 first_row = block_y() * M_TILE;
  const u32 rows = m - first_row;
  const u32 column = block_x() * 32 + lane_id();
  const u32 n = N % 32 == 0 || column < N ? column : N - 1;  // reads the last again, stores nothing

  u64 x_rows[M_TILE];
#pragma unroll
  for (u32 i = 0; i < M_TILE; ++i) {
    x_rows[i] = (u64)x + (first_row + (i < rows ? i : rows - 1)) * (X_STRIDE * 2);
  }
  float sums[M_TILE] = {};
#pragma unroll 1
  for (u32 r = wave; r < ROWS; r += WAVES) {
    const u32 word = *(const GLOBAL u32*)(global_bytes(qweight) + r * (W_STRIDE * 4) + n * 4);
    multiply_word(word, r, g_idx, zeros, scales, x_rows, n, sums);
  }
#pragma unroll
  for (int i = 0; i < M_TILE; ++i) parts[wave][i][lane_id()] = sums[i];
  block_barrier();

  for (u32 i = wave; i < M_TILE && i < rows; i += WAVES) {
    float y = parts[0][i][lane_id()];
#pragma unroll
    for (int w = 1; w < WAVES; ++w) y += parts[w][i][lane_id()];
    if constexpr (HAS_BIAS) y += (float)*(const GLOBAL f16*)(global_bytes(bias) + n * 2);
    GLOBAL char* to = (GLOBAL char*)(u64)out + (first_row + i) * (OUT_STRIDE * 2);
    if (N % 32 == 0 || column < N) *(GLOBAL f16*)(to + n * 2) = (f16)y;
  }
}
