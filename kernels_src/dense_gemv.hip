// Specialisation block: every value that the text below depends on.
#include "common/row_format.hip"
constexpr int N = ${N};                    // rows of w, columns of the result
constexpr int K = ${K};                    // reduction length
constexpr Format FORMAT = Format::${FORMAT};      // of w: f16, i8, e4m3, e5m2 or mxfp4
constexpr Format X_FORMAT = Format::${X_FORMAT};  // of x: f16, e4m3 or e5m2
constexpr bool NAN_CODES = ${NAN_CODES};   // NaN codes of e4m3 weights stay NaN; those of x do always
constexpr int M_TILE = ${M_TILE};          // rows of x per workgroup
constexpr int M_TILES = ${M_TILES};        // neighbouring workgroups that share rows of w
constexpr int LANES = ${LANES};            // lanes that share a row of w
constexpr int ROWS_PER_LANE = ${ROWS_PER_LANE};  // rows of w per lane
constexpr int UNIT = ${UNIT};              // neighbouring weights per lane and load
constexpr int UNROLL = ${UNROLL};          // loads per row that a wave issues before it computes
constexpr int WAVES = ${WAVES};            // waves per workgroup; they split K
constexpr int GROUP = ${GROUP};            // weights along K that share a scale; 0: all of them
constexpr int SCALE_BYTES = ${SCALE_BYTES};      // of a scale of w: 0 (none), 1 (e8m0), 2 or 4
constexpr int SCALE_ROWS = ${SCALE_ROWS};        // rows of w that share a scale
constexpr bool SCALE_GROUPS = ${SCALE_GROUPS};   // w has a scale per group; else per row
constexpr bool X_SCALES = ${X_SCALES};           // x has scales, fp32
constexpr bool X_SCALE_GROUPS = ${X_SCALE_GROUPS};  // per row and group; else per row
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};  // of mxfp4 in bytes
constexpr unsigned long long SCALE_STRIDE = ${SCALE_STRIDE};
constexpr unsigned long long X_SCALE_STRIDE = ${X_SCALE_STRIDE};  // 0: one scale for all rows
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};
constexpr int X_ALIGN = ${X_ALIGN};        // what rows of the tensor start on a multiple of, bytes
constexpr int W_ALIGN = ${W_ALIGN};

// y[m, n] = fp16(sum over groups g of  x_scale[m, g] * scale[n / SCALE_ROWS, g]
//                * (sum over k in g of  x[m, k] * w[n, k])  + bias[n])
//
// for few rows of x: w row-major [N, K] in any format of FORMAT, sums in fp32. Codes are decoded to
// exact fp16, scales applied in fp32: those of a whole row once, at the end; those of a group once
// per lane and unit, or per step where a group is longer.
//
// LANES lanes walk one row of w side by side, so a wave works on 32 / LANES rows at a time, and each
// lane on ROWS_PER_LANE of those; what a lane loads of x serves all its rows. 8 lanes x 16 bytes are
// a cache line. A wave issues the weight loads of a step (UNROLL per row), then multiplies; the waves
// of a workgroup take the steps of K in turn. At the end lanes add up by DPP, waves through LDS in
// wave order: no atomics, the same bits every time, and the same bits for every M.
//
// Limits: memory, up to M_TILE 8 (0.5 vector instructions per weight and row of x, plus per weight
// int8 1.25, e4m3 2, e5m2 0.5, mxfp4 1.5).
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/words.hip"
#include "common/dot.hip"

constexpr int BITS = format_bits(FORMAT);
constexpr int PARTS = UNIT / 8;  // one load of eight x each
constexpr int WORDS = UNIT * BITS / 32;
constexpr int X_WORDS = OCTET<X_FORMAT>;
constexpr int X_BYTES = format_bits(X_FORMAT) / 8;
constexpr int X_ROWS = M_TILE < 2 ? 1 : 2;  // rows of x per turn
constexpr int X_TURNS = M_TILE / X_ROWS;
constexpr int X_AHEAD = M_TILE < 8 ? 1 : M_TILE < 16 ? 2 : 4;  // turns that x is loaded ahead of
constexpr int SIDE = 32 / LANES;  // rows of w side by side in a wave
constexpr int ROWS = ROWS_PER_LANE * SIDE;
constexpr int CHUNK = LANES * UNIT;
constexpr int STEP_K = UNROLL * CHUNK;
constexpr int STEPS = K / STEP_K;
constexpr int SPAN = GROUP > 0 ? GROUP : K;
constexpr int REST_K = K - STEPS * STEP_K;  // in chunks, the last of which may be partial
constexpr u64 ROW_BYTES = FORMAT == Format::mxfp4 ? W_STRIDE : W_STRIDE * (BITS / 8);
// One scale for all rows of the workgroup and all lanes: a scalar load.
constexpr bool ONE_SCALE = GROUP > 0 && SCALE_GROUPS && SCALE_BYTES == 4 && GROUP % CHUNK == 0 &&
                           (SCALE_ROWS >= N || (SCALE_ROWS % ROWS == 0 && N % ROWS == 0));
static_assert(UNIT % 8 == 0 && WORDS <= 4, "a load is at most 16 bytes");
static_assert(K % UNIT == 0 && GROUP % UNIT == 0, "lanes own whole units, each in one group");
static_assert(WAVES == 1 || WAVES <= STEPS, "every wave has a step");
static_assert(N >= ROWS || ROWS_PER_LANE == 1, "short matrices have one row per lane");
static_assert(ROW_BYTES < 1ull << 29 || SIDE == 1, "a lane's offset has 32 bits");
static_assert(SCALE_STRIDE < 1ull << 25 && X_SCALE_STRIDE < 1ull << 25, "offsets have 32 bits");
static_assert((GROUP > 0) == (SCALE_GROUPS || X_SCALE_GROUPS), "groups have scales");
static_assert(WAVES * M_TILE * ROWS * 4 <= 65536, "the sums fit in LDS");

struct Operands {
  GlobalBytes w[ROWS_PER_LANE];
  GlobalBytes x[M_TILE];
  u32 w_lane, x_lane;  // byte offsets of the lane
  u32 k;               // where the wave is; only used with groups
  GlobalBytes scale;   // of the workgroup's first row
  u32 scale_lane[ROWS_PER_LANE];
  GlobalBytes x_scale;
  u32 x_scale_row[M_TILE];  // byte offsets
  u32 unit;  // where the lane's unit begins in a chunk
};

// A scale as it is stored, 1 byte (e8m0), fp16 or fp32.
template <int BYTES>
DEVICE float load_scale(GlobalBytes base, u32 offset) {
  if constexpr (BYTES == 1) return e8m0_scale(*(const GLOBAL u8*)(base + offset));
  if constexpr (BYTES == 2) return (float)*(const GLOBAL f16*)(base + offset);
  return *(const GLOBAL float*)(base + offset);
}

// x of eight of K, part `item / X_TURNS` of the lane's units, for X_ROWS rows.
struct XRows {
  u32 words[X_ROWS][X_WORDS];
};
DEVICE XRows load_x(Operands& in, int item) {
  const int part = item / X_TURNS, m0 = item % X_TURNS * X_ROWS;
  const int k = part / PARTS * CHUNK + part % PARTS * 8;
  XRows x;
#pragma unroll
  for (int i = 0; i < X_ROWS; ++i) {
    in.x[m0 + i] = launder_base(in.x[m0 + i]);
    load_words<X_WORDS, X_ALIGN>(in.x[m0 + i] + in.x_lane, k * X_BYTES, x.words[i]);
  }
  return x;
}

// Scales of one chunk.
struct Scales {
  float w[ROWS_PER_LANE];
  float x[M_TILE];
};
DEVICE Scales load_scales(Operands& in, u32 k) {
  // Wave-uniform where a group holds whole chunks; else lanes have groups of their own.
  constexpr bool EVEN = SPAN % CHUNK == 0, NESTED = CHUNK % SPAN == 0;
  u32 group = k / SPAN, lane_group = 0;
  if constexpr (!EVEN && NESTED) lane_group = in.unit / SPAN;
  if constexpr (!EVEN && !NESTED) {
    lane_group = (k + in.unit) / SPAN;
    group = 0;
  }
  Scales scales;
  if constexpr (ONE_SCALE) {
    u32 word[1];
    load_scalar<1>((u64)in.scale + group * 4, word);
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) scales.w[r] = bits<float>(word[0]);
  } else if constexpr (SCALE_GROUPS) {
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      constexpr bool OWN = SCALE_ROWS == 1;  // rows of the lane are a constant apart
      GlobalBytes base = in.scale + group * SCALE_BYTES;
      if constexpr (OWN) base += r * SIDE * SCALE_STRIDE * SCALE_BYTES;
      u32 lane = in.scale_lane[OWN ? 0 : r] + lane_group * SCALE_BYTES;
      launder_lane(lane);
      scales.w[r] = load_scale<SCALE_BYTES>(launder_base(base), lane);
    }
  }
  if constexpr (X_SCALE_GROUPS) {
    u32 lane = lane_group * 4;
    launder_lane(lane);
#pragma unroll
    for (int m = 0; m < M_TILE; ++m) {
      // NOTE: hiprtc 5.2.3 dies of a 32-bit sum of both offsets.
      const GlobalBytes base = in.x_scale + in.x_scale_row[m] + group * 4;
      scales.x[m] = load_scale<4>(launder_base(base), lane);
    }
  }
  return scales;
}

DEVICE float scaled(const Scales& scales, int r, int m, float dot, float sum) {
  if constexpr (SCALE_GROUPS && X_SCALE_GROUPS) dot *= scales.x[m];
  return __builtin_fmaf(SCALE_GROUPS ? scales.w[r] : scales.x[m], dot, sum);
}

// What a lane holds of CHUNKS chunks of K.
template <int CHUNKS>
struct Step {
  // Octets per chain of dots: those of a unit, or all of them where they are in one group.
  static constexpr int OCTETS = CHUNKS * PARTS;
  static constexpr int CHAIN = SPAN % (CHUNKS * CHUNK) == 0 ? OCTETS : PARTS;
  u32 words[CHUNKS][ROWS_PER_LANE][WORDS];
  Scales scales[OCTETS / CHAIN];
  XRows x[X_AHEAD];  // of the coming turns
  float dots[ROWS_PER_LANE][M_TILE];
};

// sums += octets of a step from I on. NOTE: one function per octet, since hiprtc 5.2.3 does not
// unroll a loop over all of them when they are many, and keeps the arrays in memory.
template <int CHUNKS, int I>
DEVICE void multiply_octets(Operands& in, Step<CHUNKS>& step,
                            float (&sums)[ROWS_PER_LANE][M_TILE]) {
  constexpr int CHAIN = Step<CHUNKS>::CHAIN, OCTETS = Step<CHUNKS>::OCTETS;
  constexpr bool BEGINS = I % CHAIN == 0, ENDS = I % CHAIN == CHAIN - 1;
  u32 pairs[ROWS_PER_LANE][4];
#pragma unroll
  for (int turn = 0; turn < X_TURNS; ++turn) {
    // Without fences all loads of x move to the front, and 200 registers hold it.
    if constexpr (M_TILE >= 4) schedule_fence();
    const int item = I * X_TURNS + turn, m0 = turn * X_ROWS;
    const XRows x = step.x[item % X_AHEAD];
    if (item + X_AHEAD < OCTETS * X_TURNS)
      step.x[item % X_AHEAD] = load_x(in, item + X_AHEAD);
    u32 x_pairs[X_ROWS][4];
#pragma unroll
    for (int i = 0; i < X_ROWS; ++i) decode_octet<X_FORMAT, true>(x.words[i], x_pairs[i]);
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      const u32* words = step.words[I / PARTS][r] + I % PARTS * OCTET<FORMAT>;
      if (turn == 0) decode_octet<FORMAT, NAN_CODES>(words, pairs[r]);
#pragma unroll
      for (int i = 0; i < X_ROWS; ++i) {
        float& sum = sums[r][m0 + i];
        float& dot = GROUP > 0 ? step.dots[r][m0 + i] : sum;
        dot = GROUP > 0 && BEGINS ? dot2_start<false>(x_pairs[i][0], pairs[r][0])
                                  : dot2(x_pairs[i][0], pairs[r][0], dot);
#pragma unroll
        for (int j = 1; j < 4; ++j) dot = dot2(x_pairs[i][j], pairs[r][j], dot);
        if constexpr (GROUP > 0 && ENDS) sum = scaled(step.scales[I / CHAIN], r, m0 + i, dot, sum);
      }
    }
  }
  if constexpr (I + 1 < OCTETS) multiply_octets<CHUNKS, I + 1>(in, step, sums);
}

// sums += CHUNKS chunks of K. Per sum one chain of dots per group, in order of k.
template <int CHUNKS>
DEVICE void multiply(Operands& in, float (&sums)[ROWS_PER_LANE][M_TILE]) {
  Step<CHUNKS> step;
  launder_lane(in.w_lane);
  launder_lane(in.x_lane);
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      load_words<WORDS, W_ALIGN>(in.w[r] + in.w_lane, c * CHUNK * BITS / 8, step.words[c][r]);
    }
  }
  if constexpr (GROUP > 0) {
#pragma unroll
    for (int c = 0; c < Step<CHUNKS>::OCTETS / Step<CHUNKS>::CHAIN; ++c)
      step.scales[c] = load_scales(in, in.k + c * CHUNK);
  }
#pragma unroll
  for (int item = 0; item < X_AHEAD; ++item) step.x[item] = load_x(in, item);
  multiply_octets<CHUNKS, 0>(in, step, sums);
}

// `chunks` chunks further along K.
DEVICE void advance(Operands& in, u32 chunks) {
  in.w_lane += chunks * (CHUNK * BITS / 8);
  in.x_lane += chunks * (CHUNK * X_BYTES);
  if constexpr (GROUP > 0) in.k += chunks * CHUNK;
}

// The chunks behind the last whole step, which the waves take in turn; the wave is at chunk `at`. Of
// a partial one, lanes past the end of K stand aside.
DEVICE void multiply_rest(Operands& in, u32 wave, u32 lane, u32 at,
                          float (&sums)[ROWS_PER_LANE][M_TILE]) {
  constexpr int WHOLE = REST_K / CHUNK;
  u32 chunk = wave;
  advance(in, STEPS * UNROLL + chunk - at);
#pragma unroll 1
  for (; WHOLE > 0 && chunk < WHOLE; chunk += WAVES) {
    multiply<1>(in, sums);
    advance(in, WAVES);
    launder_scalar(chunk);
  }
  if constexpr (REST_K % CHUNK > 0) {
    if (chunk == WHOLE && lane * UNIT < REST_K % CHUNK) multiply<1>(in, sums);
  }
}

// The workgroup adds the sums of its waves in wave order and stores what is its own: columns from
// `own` on and rows below `rows`.
DEVICE void store_sums(const float* sums, const void* scale, const float* x_scale, const f16* bias,
                       GLOBAL char* out, u32 first, u32 own, u32 m_first, u32 rows) {
  constexpr u32 COUNT = ROWS * M_TILE;
#pragma unroll
  for (u32 begin = 0; begin < COUNT; begin += WAVES * 32) {
    const u32 i = begin + thread_x();
    const u32 m = i / ROWS, row = i % ROWS, n = first + row;
    if ((COUNT % (WAVES * 32) != 0 && i >= COUNT) || (M_TILE > 1 && m >= rows)) continue;
    if (N < ROWS ? n >= N : N % ROWS != 0 && n < own) continue;
    const float* from = sums + m * ROWS + row % SIDE * ROWS_PER_LANE + row / SIDE;
    float y = from[0];
#pragma unroll
    for (int w = 1; w < WAVES; ++w) y += from[w * COUNT];
    if constexpr (SCALE_BYTES > 1 && !SCALE_GROUPS) {
      const u32 at = SCALE_ROWS >= N ? 0 : n / SCALE_ROWS * (u32)SCALE_STRIDE;
      y *= load_scale<SCALE_BYTES>(global_bytes((const char*)scale), at * SCALE_BYTES);
    }
    if constexpr (X_SCALES && !X_SCALE_GROUPS)
      y *= load_scale<4>(global_bytes(x_scale) + (m_first + m) * (X_SCALE_STRIDE * 4), 0);
    if constexpr (HAS_BIAS) y += (float)*(const GLOBAL f16*)(global_bytes(bias) + n * 2);
    const u64 element = OUT_STRIDE < 1 << 26 ? m * (u32)OUT_STRIDE + n : m * OUT_STRIDE + n;
    *(GLOBAL f16*)(out + element * 2) = (f16)y;
  }
}

KERNEL __launch_bounds__(WAVES * 32) void dense_gemv(
    const void* __restrict x, const void* __restrict w, const void* __restrict scale,
    const float* __restrict x_scale, const f16* __restrict bias, f16* __restrict out, i32 m) {
  __shared__ float slabs[WAVES * M_TILE * ROWS];
  const u32 wave = wave_id(), lane = lane_id() % LANES;
  const u32 side = lane_id() / LANES;
  const u32 m_first = (block_y() * M_TILES + block_x() % M_TILES) * M_TILE;
  const u32 own = block_x() / M_TILES * ROWS;
  const u32 rows = m - m_first;  // of x, from the first on
  // A last workgroup with too few rows of w begins earlier, and stores its own.
  const u32 first = N < ROWS ? 0 : N % ROWS == 0 || own + ROWS <= N ? own : N - ROWS;

  Operands in;
#pragma unroll
  for (int r = 0; r < ROWS_PER_LANE; ++r) {
    in.w[r] = launder_base(global_bytes((const char*)w) + (u64)(first + r * SIDE) * ROW_BYTES);
  }
#pragma unroll
  for (u32 i = 0; i < M_TILE; ++i) {
    // Slots past the last row of x repeat it. NOTE: hiprtc 5.2.3 dies of a comparison for slot 0.
    const u32 slot = i == 0 || i < rows ? i : rows - 1;
    in.x[i] = launder_base(global_bytes((const char*)x) + (m_first + slot) * (X_STRIDE * X_BYTES));
    in.x_scale_row[i] = slot * (u32)(X_SCALE_STRIDE * 4);
  }
  in.x_scale = launder_base(global_bytes(x_scale) + m_first * (X_SCALE_STRIDE * 4));
  const u32 w_row = N < ROWS && side >= N ? N - 1 : side;
  in.w_lane = w_row * (u32)ROW_BYTES + lane * (UNIT * BITS / 8);
  if constexpr (SIDE == 1) in.w_lane = lane * (UNIT * BITS / 8);
  in.x_lane = lane * (UNIT * X_BYTES);
  in.k = 0;
  in.unit = lane * UNIT;
  if constexpr (SCALE_GROUPS) {
    const u32 base = SCALE_ROWS >= N ? 0 : first / SCALE_ROWS;
    in.scale = launder_base(global_bytes((const char*)scale) +
                            base * (u64)(SCALE_STRIDE * SCALE_BYTES));
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      const u32 row = SCALE_ROWS >= N ? 0 : (first + r * SIDE + w_row) / SCALE_ROWS - base;
      in.scale_lane[r] = row * (u32)(SCALE_STRIDE * SCALE_BYTES);
    }
  }

  float sums[ROWS_PER_LANE][M_TILE] = {};
  u32 step = 0;
  if constexpr (STEPS > 0) {
    advance(in, wave * UNROLL);
    step = wave;
#pragma unroll 1
    do {
      multiply<UNROLL>(in, sums);
      advance(in, WAVES * UNROLL);
      step += WAVES;
      // NOTE: the count of steps is hidden, also that of one. Known, it makes the loop divergent,
      // and without a loop all loads of x move to the front of it and spill.
      launder_scalar(step);
    } while (step < STEPS);
  }
  if constexpr (REST_K > 0) multiply_rest(in, wave, lane, step * UNROLL, sums);

#pragma unroll
  for (int i = 0; i < M_TILE; ++i) {
    Vec<float, ROWS_PER_LANE> column;
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      float sum = sum_lanes<LANES>(sums[r][i]);
      asm volatile("" : "+v"(sum));  // else the last addition moves under the branch, off its DPP
      column[r] = sum;
    }
    float* to = slabs + (wave * M_TILE + i) * ROWS + side * ROWS_PER_LANE;
    if (lane == 0) *(Vec<float, ROWS_PER_LANE>*)to = column;
  }
  block_barrier();
  GLOBAL char* to = (GLOBAL char*)(u64)(out + m_first * OUT_STRIDE);
  store_sums(slabs, scale, x_scale, bias, to, first, own, m_first, rows);
}
