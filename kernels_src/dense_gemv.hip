// Specialisation block: every value that the text below depends on.
constexpr int N = ${N};                    // rows of w, columns of the result
constexpr int K = ${K};                    // reduction length
constexpr bool INT8 = ${INT8};             // w is int8; else fp16
constexpr int M_TILE = ${M_TILE};          // rows of x per workgroup
constexpr int M_TILES = ${M_TILES};        // workgroups that share rows of w
constexpr int LANES = ${LANES};            // lanes that share a row of w
constexpr int ROWS_PER_LANE = ${ROWS_PER_LANE};  // rows of w per lane
constexpr int UNIT = ${UNIT};              // neighbouring weights per lane and load
constexpr int UNROLL = ${UNROLL};          // loads per row that a wave issues before it computes
constexpr int WAVES = ${WAVES};            // waves per workgroup; they split K
constexpr int SCALE_BYTES = ${SCALE_BYTES};  // of a scale per row of w: 0 (none), 2 or 4
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row strides, in elements
constexpr unsigned long long W_STRIDE = ${W_STRIDE};
constexpr unsigned long long OUT_STRIDE = ${OUT_STRIDE};
constexpr int X_ALIGN = ${X_ALIGN};        // what rows of the tensor start on a multiple of, bytes
constexpr int W_ALIGN = ${W_ALIGN};

// y[m, n] = fp16(scale[n] * sum_k x[m, k] * w[n, k] + bias[n])
//
// for few rows of x: w row-major [N, K], fp16 or int8, sums in fp32, the scale applied once in fp32.
//
// LANES lanes walk one row of w side by side, so a wave works on 32 / LANES rows at a time, and each
// lane on ROWS_PER_LANE of those; what a lane loads of x serves all its rows. 8 lanes x 16 bytes are
// a cache line. A wave issues the weight loads of a step (UNROLL per row), then multiplies; the waves
// of a workgroup take the steps of K in turn. At the end lanes add up by DPP, waves through LDS in
// wave order: no atomics, the same bits every time, and the same bits for every M.
//
// Limits: memory, up to M_TILE 8 (0.5 vector instructions per fp16 weight and row of x; int8 1.25
// per weight on top).
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/dot.hip"
#include "common/int8.hip"

constexpr int WEIGHT_BYTES = INT8 ? 1 : 2;
constexpr int PARTS = UNIT / 8;  // one 16-byte load of x each
constexpr int WORDS = UNIT * WEIGHT_BYTES / 4;
constexpr int X_ROWS = M_TILE < 2 ? 1 : 2;  // rows of x in registers at a time, twice
constexpr int X_TURNS = M_TILE / X_ROWS;
constexpr int SIDE = 32 / LANES;  // rows of w side by side in a wave
constexpr int ROWS = ROWS_PER_LANE * SIDE;
constexpr int CHUNK = LANES * UNIT;
constexpr int STEP_K = UNROLL * CHUNK;
constexpr int STEPS = K / STEP_K;
constexpr int REST_K = K - STEPS * STEP_K;  // in chunks, the last of which may be partial
static_assert(UNIT == 8 || (UNIT == 16 && INT8), "a load is at most 16 bytes");
static_assert(K % UNIT == 0, "lanes own whole units");
static_assert(WAVES == 1 || WAVES <= STEPS, "every wave has a step");
static_assert(N >= ROWS || ROWS_PER_LANE == 1, "short matrices have one row per lane");
static_assert(W_STRIDE < 1ull << 28 || SIDE == 1, "a lane's offset has 32 bits");
static_assert(WAVES * M_TILE * ROWS * 4 <= 65536, "the sums fit in LDS");

struct Operands {
  GlobalBytes w[ROWS_PER_LANE];
  GlobalBytes x[M_TILE];
  u32 w_lane, x_lane;  // byte offsets of the lane
};

// COUNT words of which only ALIGN bytes are aligned.
template <int COUNT, int ALIGN>
DEVICE void load_words(GlobalBytes base, u32 offset, u32 (&out)[COUNT]) {
  if constexpr (ALIGN >= 4) {
    load<u32, COUNT, ALIGN>(base, offset, out);
  } else if constexpr (ALIGN == 2) {
    u16 parts[COUNT * 2];
    load<u16, COUNT * 2, 2>(base, offset, parts);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) out[i] = parts[2 * i] | ((u32)parts[2 * i + 1] << 16);
  } else {
    u8 parts[COUNT * 4];
    load<u8, COUNT * 4, 1>(base, offset, parts);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      out[i] = parts[4 * i] | ((u32)parts[4 * i + 1] << 8) | ((u32)parts[4 * i + 2] << 16) |
               ((u32)parts[4 * i + 3] << 24);
    }
  }
}

// Eight weights of a lane's unit as fp16 pairs in order.
DEVICE void decode(const u32 (&words)[WORDS], int part, u32 (&pairs)[4]) {
  if constexpr (INT8) {
    int8_decode(words[2 * part], pairs[0], pairs[1]);
    int8_decode(words[2 * part + 1], pairs[2], pairs[3]);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = words[j];
  }
}

// x of eight of K, part `item / (M_TILE / X_ROWS)` of the lane's units, for X_ROWS rows.
struct XRows {
  u32 pairs[X_ROWS][4];
};
DEVICE XRows load_x(Operands& in, int item) {
  const int part = item / X_TURNS, m0 = item % X_TURNS * X_ROWS;
  const int k = part / PARTS * CHUNK + part % PARTS * 8;
  XRows x;
#pragma unroll
  for (int i = 0; i < X_ROWS; ++i) {
    in.x[m0 + i] = launder_base(in.x[m0 + i]);
    load_words<4, X_ALIGN>(in.x[m0 + i] + in.x_lane, k * 2, x.pairs[i]);
  }
  return x;
}

// sums += CHUNKS chunks of K. Per sum one chain of dots, in order of k. x is loaded one turn ahead.
template <int CHUNKS>
DEVICE void multiply(Operands& in, float (&sums)[ROWS_PER_LANE][M_TILE]) {
  constexpr int ITEMS = CHUNKS * PARTS * X_TURNS;
  launder_lane(in.w_lane);
  launder_lane(in.x_lane);
  u32 words[CHUNKS][ROWS_PER_LANE][WORDS];
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      load_words<WORDS, W_ALIGN>(in.w[r] + in.w_lane, c * CHUNK * WEIGHT_BYTES, words[c][r]);
    }
  }
  XRows next = load_x(in, 0);
  u32 pairs[ROWS_PER_LANE][4];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    // Without fences all loads of x move to the front, and 200 registers hold it.
    if constexpr (M_TILE >= 4) schedule_fence();
    const XRows x = next;
    if (item + 1 < ITEMS) next = load_x(in, item + 1);
    const int part = item / X_TURNS, m0 = item % X_TURNS * X_ROWS;
#pragma unroll
    for (int r = 0; r < ROWS_PER_LANE; ++r) {
      if (m0 == 0) decode(words[part / PARTS][r], part % PARTS, pairs[r]);
#pragma unroll
      for (int i = 0; i < X_ROWS; ++i) {
        float& sum = sums[r][m0 + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) sum = dot2(x.pairs[i][j], pairs[r][j], sum);
      }
    }
  }
}

// The chunks behind the last whole step, which the waves take in turn. Of a partial one, lanes past
// the end of K stand aside.
DEVICE void multiply_rest(const Operands& start, u32 wave, u32 lane,
                          float (&sums)[ROWS_PER_LANE][M_TILE]) {
  constexpr int BEGIN = STEPS * STEP_K, WHOLE = REST_K / CHUNK;
  Operands in = start;
  u32 chunk = wave;
  in.w_lane += (BEGIN + chunk * CHUNK) * WEIGHT_BYTES;
  in.x_lane += (BEGIN + chunk * CHUNK) * 2;
#pragma unroll 1
  for (; WHOLE > 0 && chunk < WHOLE; chunk += WAVES) {
    multiply<1>(in, sums);
    in.w_lane += WAVES * CHUNK * WEIGHT_BYTES;
    in.x_lane += WAVES * CHUNK * 2;
    launder_scalar(chunk);
  }
  if constexpr (REST_K % CHUNK > 0) {
    if (chunk == WHOLE && lane * UNIT < REST_K % CHUNK) multiply<1>(in, sums);
  }
}

// The workgroup adds the sums of its waves in wave order and stores what is its own: columns from
// `own` on and rows below `rows`.
DEVICE void store_sums(const float* sums, const void* scale, const f16* bias, GLOBAL char* out,
                       u32 first, u32 own, u32 rows) {
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
    const GlobalBytes scales = global_bytes((const char*)scale);
    if constexpr (SCALE_BYTES == 2) y *= (float)*(const GLOBAL f16*)(scales + n * 2);
    if constexpr (SCALE_BYTES == 4) y *= *(const GLOBAL float*)(scales + n * 4);
    if constexpr (HAS_BIAS) y += (float)*(const GLOBAL f16*)(global_bytes(bias) + n * 2);
    const u64 element = OUT_STRIDE < 1 << 26 ? m * (u32)OUT_STRIDE + n : m * OUT_STRIDE + n;
    *(GLOBAL f16*)(out + element * 2) = (f16)y;
  }
}

KERNEL __launch_bounds__(WAVES * 32) void dense_gemv(
    const f16* __restrict x, const void* __restrict w, const void* __restrict scale,
    const f16* __restrict bias, f16* __restrict out, i32 m) {
  __shared__ float slabs[WAVES * M_TILE * ROWS];
  const u32 wave = wave_id(), lane = lane_id() % LANES;
  const u32 side = lane_id() / LANES;
  const u32 m_first = block_x() % M_TILES * M_TILE, own = block_x() / M_TILES * ROWS;
  const u32 rows = m - m_first;  // of x, from the first on
  // A last workgroup with too few rows of w begins earlier, and stores its own.
  const u32 first = N < ROWS ? 0 : N % ROWS == 0 || own + ROWS <= N ? own : N - ROWS;

  Operands in;
#pragma unroll
  for (int r = 0; r < ROWS_PER_LANE; ++r) {
    in.w[r] = launder_base(global_bytes((const char*)w) +
                           (u64)(first + r * SIDE) * (W_STRIDE * WEIGHT_BYTES));
  }
#pragma unroll
  for (u32 i = 0; i < M_TILE; ++i) {
    // Slots past the last row of x repeat it. NOTE: hiprtc 5.2.3 dies of a comparison for slot 0.
    const u32 row = m_first + (i == 0 || i < rows ? i : rows - 1);
    in.x[i] = launder_base(global_bytes(x) + row * (X_STRIDE * 2));
  }
  const u32 w_row = N < ROWS && side >= N ? N - 1 : side;
  in.w_lane = w_row * (u32)(W_STRIDE * WEIGHT_BYTES) + lane * (UNIT * WEIGHT_BYTES);
  if constexpr (SIDE == 1) in.w_lane = lane * (UNIT * WEIGHT_BYTES);
  in.x_lane = lane * (UNIT * 2);

  float sums[ROWS_PER_LANE][M_TILE] = {};
  if constexpr (REST_K > 0) multiply_rest(in, wave, lane, sums);
  if constexpr (STEPS > 0) {
    in.w_lane += wave * (STEP_K * WEIGHT_BYTES);
    in.x_lane += wave * (STEP_K * 2);
    u32 step = wave;
#pragma unroll 1
    do {
      multiply<UNROLL>(in, sums);
      in.w_lane += WAVES * STEP_K * WEIGHT_BYTES;
      in.x_lane += WAVES * STEP_K * 2;
      step += WAVES;
      // NOTE: the count of steps is hidden, also that of one. Known, it makes the loop divergent,
      // and without a loop all loads of x move to the front of it and spill.
      launder_scalar(step);
    } while (step < STEPS);
  }

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
  store_sums(slabs, scale, bias, to, first, own, rows);
}
