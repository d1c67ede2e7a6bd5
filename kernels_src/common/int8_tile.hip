// A tile of int8 activations times unsigned 4-bit weights, as bytes in LDS.
//
//   sums[m][n] = sum over groups g of  scale_x[m,g] * scale_w[n,g] * (sum a * q - zero[n,g] * sum a)
//
// The bracket is an integer: dot4 accumulates from -zero * (sum a), so q stays 0..15 and a weight
// that equals its zero gives exactly 0. Between groups sums are fp32.
//
// A workgroup of WAVES waves computes 8 * WAVES rows by 128 columns; wave w owns rows 8w..8w+7, a
// lane 4 columns that are 32 apart. K goes in steps through two buffers in LDS: while one is
// multiplied, the loader fetches the next step into registers, then stashes it in the other; one
// barrier per step. Per 16 of K a lane reads 4 x 16 bytes of weights and 8 bytes of x for 128 dots:
// the lanes of half a wave hold all of the wave's x, and a dot takes its operand from the lane that
// has it (DPP row_share). What is in a buffer:
//
//   w [column][chunk], x [row][chunk]: STEP bytes along K, 16 to a chunk, one chunk of padding (an
//       odd number of chunks per row leaves no bank conflict). The order of the bytes inside K is
//       free as long as it is the same in both: see int8_split and quantize_int8.hip's ORDER.
//   scales, zeros and sums of the step's group
//
// A loader is any class with
//   void fetch(u32 step)                      issues the global loads of a step
//   void stash(Int8Buffer<Tile>& buffer)      writes what has arrived
// Every thread of the workgroup calls both. It decides where rows and columns come from (rows
// gathered through a list, weights of an expert); those past the end repeat a legal one.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/dot4.hip"
#include "common/memory.hip"

template <int WAVES_, int STEP_, int GROUP_>
struct Int8Tile {
  static constexpr int WAVES = WAVES_, THREADS = 32 * WAVES;
  static constexpr int ROWS = 8 * WAVES, COLS = 128;
  static constexpr int STEP = STEP_, GROUP = GROUP_;  // of K
  static constexpr int GROUP_STEPS = GROUP / STEP;
  static constexpr int CHUNKS = STEP / 16, PITCH = CHUNKS + 1;  // of a row of LDS
  static_assert(STEP == 32 || STEP == 64, "an odd pitch and few registers");
  static_assert(GROUP % STEP == 0, "a step has one group");
  static_assert(GROUP <= 65536, "a group's sum has 24 bits");
};

template <class Tile>
struct Int8Buffer {
  u32x4 w[Tile::COLS * Tile::PITCH];
  u32x4 x[Tile::ROWS * Tile::PITCH];
  float w_scale[Tile::COLS], x_scale[Tile::ROWS];
  i32 minus_zero[Tile::COLS], x_sum[Tile::ROWS];
};

constexpr int LANE_ROWS = 8, LANE_COLS = 4;

// Eight codes of a word as bytes: slots 0, 2, 4, 6 and slots 1, 3, 5, 7.
DEVICE void int8_split(u32 word, u32& even, u32& odd) {
  even = word & 0x0F0F0F0Fu;
  odd = word >> 4 & 0x0F0F0F0Fu;
}

// sum of the bytes of a times those of b, plus c, with the a of lane LANE of this half of the wave.
// The compilers do not fold the move between lanes into the dot.
template <int LANE>
DEVICE i32 dot4_from(u32 a, u32 b, i32 c) {
#ifdef __NVPTX__
  constexpr int ROW_SHARE = 0x150;
  return dot4((u32)__builtin_amdgcn_mov_dpp((i32)a, ROW_SHARE + LANE, 15, 15, true), b, c);
#else
  asm("v_dot4c_i32_i8_dpp %0, %1, %2 row_share:%3 row_mask:0xf bank_mask:0xf"
      : "+v"(c)
      : "v"(a), "v"(b), "n"(LANE));
  return c;
#endif
}

// 24-bit factors: a full-rate multiply.
DEVICE i32 multiply_24(i32 a, i32 b) { return (a << 8 >> 8) * (b << 8 >> 8); }

template <class Tile>
struct Int8Accumulators {
  i32 dot[LANE_ROWS][LANE_COLS];
  float sum[LANE_ROWS][LANE_COLS];

  MEMBER void clear() {
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m)
#pragma unroll
      for (int c = 0; c < LANE_COLS; ++c) sum[m][c] = 0.0f;
  }

  MEMBER void start(const Int8Buffer<Tile>& from, u32 wave, u32 lane) {
    i32 x[LANE_ROWS], w[LANE_COLS];
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m) x[m] = from.x_sum[wave * LANE_ROWS + m];
#pragma unroll
    for (int c = 0; c < LANE_COLS; ++c) w[c] = from.minus_zero[c * 32 + lane];
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m)
#pragma unroll
      for (int c = 0; c < LANE_COLS; ++c) dot[m][c] = multiply_24(x[m], w[c]);
  }

  MEMBER void multiply(const Int8Buffer<Tile>& from, u32 wave, u32 lane) {
    const u32x4* w_lane = from.w + lane * Tile::PITCH;
    // Lanes 2m and 2m + 1 of each half of the wave hold the two halves of row m.
    const u32x4* x_row = from.x + (wave * LANE_ROWS + lane % 16 / 2) * Tile::PITCH;
    const Vec<u32, 2>* x_lane = (const Vec<u32, 2>*)x_row + lane % 2;
#pragma unroll
    for (int chunk = 0; chunk < Tile::CHUNKS; ++chunk) {
      // NOTE: without fences the scheduler gathers the LDS reads of all chunks first, and spills.
      schedule_fence();
      const Vec<u32, 2> x = x_lane[chunk * 2];
      u32x4 w[LANE_COLS];
#pragma unroll
      for (int c = 0; c < LANE_COLS; ++c) w[c] = w_lane[c * 32 * Tile::PITCH + chunk];
      multiply_rows<0>(x, w);
    }
    pin(dot);
  }

  // Rows M and up.
  template <int M>
  MEMBER void multiply_rows(Vec<u32, 2> x, const u32x4 (&w)[LANE_COLS]) {
#pragma unroll
    for (int c = 0; c < LANE_COLS; ++c) {
      i32 sum = dot[M][c];
      sum = dot4_from<2 * M>(x.x, w[c].x, sum);
      sum = dot4_from<2 * M>(x.y, w[c].y, sum);
      sum = dot4_from<2 * M + 1>(x.x, w[c].z, sum);
      dot[M][c] = dot4_from<2 * M + 1>(x.y, w[c].w, sum);
    }
    if constexpr (M + 1 < LANE_ROWS) multiply_rows<M + 1>(x, w);
  }

  MEMBER void finish(const Int8Buffer<Tile>& from, u32 wave, u32 lane) {
    schedule_fence();
    float x[LANE_ROWS], w[LANE_COLS];
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m) x[m] = from.x_scale[wave * LANE_ROWS + m];
#pragma unroll
    for (int c = 0; c < LANE_COLS; ++c) w[c] = from.w_scale[c * 32 + lane];
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m)
#pragma unroll
      for (int c = 0; c < LANE_COLS; ++c)
        sum[m][c] = __builtin_fmaf(x[m] * w[c], (float)dot[m][c], sum[m][c]);
    pin(sum);
  }

  // NOTE: the loader's stash branches. The compilers would move dots past a branch that does not
  // use them, with all their operands in registers.
  template <class T>
  MEMBER static void pin(T (&values)[LANE_ROWS][LANE_COLS]) {
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m)
#pragma unroll
      for (int c = 0; c < LANE_COLS; ++c) asm volatile("" : "+v"(values[m][c]));
  }
};

// All steps from first to end (whole groups). Leaves the lane's sums in `result.sum`. An idle wave,
// none of whose rows exist, only loads. `wave`: whose rows it owns, where that is not its number.
template <class Tile, class Loader>
DEVICE void int8_tile(Int8Accumulators<Tile>& result, Int8Buffer<Tile> (&buffers)[2],
                      Loader& loader, u32 first, u32 end, bool idle = false,
                      u32 wave = wave_id()) {
  const u32 lane = lane_id();
  u32 step = first, now = 0;
  // NOTE: hiprtc 5.2.3 dies of the comparisons with a constant end.
  launder_scalar(end);
  loader.fetch(step);
  loader.stash(buffers[0]);
  block_barrier();
  result.clear();

  // The last step fetches itself again: no branch, which the compilers would sink dots past.
  auto fetch_next = [&] {
    ++step;
    loader.fetch(step < end ? step : end - 1);
  };
  auto turn = [&] {
    loader.stash(buffers[now ^ 1]);
    block_barrier();
    now ^= 1;
  };
#pragma unroll 1
  do {
    if (!idle) result.start(buffers[now], wave, lane);
#pragma unroll 1
    for (u32 left = Tile::GROUP_STEPS; left > 1; --left) {
      fetch_next();
      if (!idle) result.multiply(buffers[now], wave, lane);
      turn();
      launder_scalar(left);
    }
    fetch_next();
    if (!idle) {
      result.multiply(buffers[now], wave, lane);
      result.finish(buffers[now], wave, lane);
    }
    turn();
    launder_scalar(step);
  } while (step < end);
}
