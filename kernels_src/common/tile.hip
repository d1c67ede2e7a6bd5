// The tile engine: many rows of x times 128 columns of quantised weights, in one workgroup.
//
// sums[m][n] = sum over groups g of  scale[g, n] * sum over k in g of  x[m, k] * w[k, n]
//
// A workgroup of ROWS / 8 waves makes ROWS x 128 sums, 32 of K per step. Its threads fetch the next
// step's x and weights into registers, all waves multiply what LDS holds of this step, then each
// thread decodes what it has fetched, once for all rows, into the other half of LDS. LDS holds fp16
// pairs: for each row of x and each column 32 of K in a line of 20 words, so that neighbouring lines
// start 20 banks apart and 16-byte accesses by 8 lanes meet no bank twice. Wave i owns rows 8i..8i+7
// and a lane four columns, which makes 8 x 4 sums. One chain of dots per sum runs through a group;
// the group's scales are applied in fp32 at its end. The inner loop is loads of LDS and dots.
//
// Columns live in slots: plane n of 0..3, lane of 0..31; sums[m][n] of a lane is its slot of plane
// n. Only the weights and the store know which column of the matrix a slot is. Four neighbours per
// lane make wide stores (common/tile_store.hip); two gates and their two ups make an activation.
//
// Weights: a class with the format and the addresses of one workgroup (common/tile_int4.hip,
// common/tile_rows.hip).
//   static constexpr GROUP_STEPS                  steps per group; 0: scales at the end, if at all
//   struct Piece;                                 what a thread holds of a step, as fetched
//   void fetch(u32 step, bool fresh, Piece&)      issue the loads of a step; fresh: a group begins
//   void put(const Piece&, bool fresh, u32x4* w)  decode into w: tile_line(plane, lane) + i takes
//                                                 K 8i..8i+7 of the step, in order, or in that of
//   static void arrange(u32 (&pairs)[4])          which brings x of 8 of K in order into the same
//   static constexpr bool SCALED                  whether there are scales:
//   struct Scales;                                of a lane's columns
//   void fetch_scales(u32 group, Scales&)         when the group begins, after its first put()
//   static float scale(const Scales&, int n)
// X: a class for the rows of x (common/tile_x.hip: fp16 or fp8 rows, any list of rows, columns in
// another order).
//   struct Piece; void fetch(u32 step, Piece&);   8 of K: row thread / 4 of the tile,
//   void put(const Piece&, u32 (&pairs)[4])       K 8i..8i+7 of the step with i = thread % 4
//   GROUP_STEPS, SCALED, Scales, fetch_scales, scale(const Scales&, int m)    as for the weights
// Both give zeros past the end of K. Rows and columns past theirs repeat others, and are not stored.
//
// A slice of K is any run of steps, so a grid may split K: sums of slices add up.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/dot.hip"

constexpr u32 TILE_COLUMNS = 128;
constexpr u32 TILE_K = 32;
constexpr int LANE_ROWS = 8;
constexpr int LANE_COLUMNS = 4;
constexpr u32 TILE_LINE = 5;     // 16-byte units of LDS from one row or column to the next
constexpr u32 TILE_PLANE = 162;  // from one plane to the next: 8 banks further than 32 lines

// Threads that multiply ROWS rows.
constexpr u32 tile_threads(int rows) { return rows / LANE_ROWS * 32; }

template <int ROWS>
struct TileImage {
  u32x4 w[2][LANE_COLUMNS * TILE_PLANE];
  u32x4 x[2][ROWS * TILE_LINE];
};

// Where the line of a column slot begins.
DEVICE u32 tile_line(u32 plane, u32 lane) { return plane * TILE_PLANE + lane * TILE_LINE; }

using TileSums = float[LANE_ROWS][LANE_COLUMNS];

template <bool START>
DEVICE void tile_dots(const u32x4* w, const u32x4* x, TileSums& chain) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    schedule_fence();  // else the loads of all four octets of K are hoisted
    u32x4 octet[LANE_COLUMNS];
#pragma unroll
    for (int n = 0; n < LANE_COLUMNS; ++n) octet[n] = w[n * TILE_PLANE + r];
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m) {
      const u32x4 row = x[m * TILE_LINE + r];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int n = 0; n < LANE_COLUMNS; ++n) {
          const u32 a = row[j], b = octet[n][j];
          chain[m][n] = START && r == 0 && j == 0 ? dot2_start<false>(a, b) : dot2(a, b, chain[m][n]);
        }
      }
    }
  }
}

// The walk of one workgroup over a slice of K.
template <int ROWS, class Weights, class X>
struct TileWalk {
  static constexpr u32 GROUP_STEPS = Weights::GROUP_STEPS ? Weights::GROUP_STEPS : X::GROUP_STEPS;
  static_assert(X::GROUP_STEPS == 0 || X::GROUP_STEPS == GROUP_STEPS, "x and w have the same groups");
  TileImage<ROWS>& image;
  Weights& weights;
  X& x;
  u32 end;         // the step behind the slice
  u32 band;        // the wave's rows are 8 band..8 band + 7
  bool idle;       // they are all past the end: the wave only fetches and decodes
  u32 buffer = 0;  // the half of the image that is multiplied

  MEMBER void put(const typename Weights::Piece& w, const typename X::Piece& part, bool fresh,
                  u32 half) {
    weights.put(w, fresh, image.w[half]);
    u32 pairs[4];
    x.put(part, pairs);
    Weights::arrange(pairs);
    image.x[half][thread_x() / 4 * TILE_LINE + thread_x() % 4] =
        u32x4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }

  MEMBER void begin(u32 step) {
    typename Weights::Piece w;
    typename X::Piece part;
    weights.fetch(step, true, w);
    x.fetch(step, part);
    put(w, part, true, 0);
    lds_barrier();
  }

  // Multiplies a step while the next is on its way. The last step fetches itself again, which costs
  // less than a branch.
  template <bool START>
  MEMBER void multiply(u32 step, TileSums& chain) {
    const u32 next = step + 1 < end ? step + 1 : step;
    bool fresh = false;
    if constexpr (Weights::GROUP_STEPS > 0) fresh = next % Weights::GROUP_STEPS == 0;
    typename Weights::Piece w;
    typename X::Piece part;
    weights.fetch(next, fresh, w);
    x.fetch(next, part);
    // NOTE: the branch also keeps the dots ahead of those of put(). Moved behind, they hold 256
    // registers and spill.
    if (!idle) {
      tile_dots<START>(image.w[buffer] + tile_line(0, lane_id()),
                       image.x[buffer] + band * (LANE_ROWS * TILE_LINE), chain);
    }
    put(w, part, fresh, buffer ^ 1);
    lds_barrier();
    buffer ^= 1;
  }
};

// What a group's sums are multiplied with.
template <class Weights, class X>
struct TileScales {
  typename Weights::Scales w;
  typename X::Scales x;

  // Those that hold for one group (ALL false), or for all of K.
  template <bool ALL>
  MEMBER void fetch(Weights& weights, X& rows, u32 group) {
    if constexpr (Weights::SCALED && (Weights::GROUP_STEPS == 0) == ALL) {
      weights.fetch_scales(group, w);
    }
    if constexpr (X::SCALED && (X::GROUP_STEPS == 0) == ALL) rows.fetch_scales(group, x);
  }

  // sums += scaled chain (ALL false), or sums = scaled chain.
  template <bool ALL>
  MEMBER void apply(const TileSums& chain, TileSums& sums) const {
    constexpr bool BY_W = Weights::SCALED && (Weights::GROUP_STEPS == 0) == ALL;
    constexpr bool BY_X = X::SCALED && (X::GROUP_STEPS == 0) == ALL;
#pragma unroll
    for (int m = 0; m < LANE_ROWS; ++m) {
#pragma unroll
      for (int n = 0; n < LANE_COLUMNS; ++n) {
        float factor = 1;
        if constexpr (BY_W) factor = Weights::scale(w, n);
        if constexpr (BY_X) factor = BY_W ? factor * X::scale(x, m) : X::scale(x, m);
        sums[m][n] = ALL ? factor * chain[m][n] : __builtin_fmaf(factor, chain[m][n], sums[m][n]);
      }
    }
  }
};

// sums of the steps from `step` up to `end`, at least one; the sums need no initial value. `rows`:
// how many of the tile's rows exist. `band`: which eight of them the wave owns, where that is not its
// number.
template <int ROWS, class Weights, class X>
DEVICE void tile_multiply(TileImage<ROWS>& image, Weights& weights, X& x, u32 rows, u32 step,
                          u32 end, TileSums& sums, u32 band = wave_id()) {
  using Walk = TileWalk<ROWS, Weights, X>;
  Walk walk = {image, weights, x, end, band, band * LANE_ROWS >= rows};
  TileScales<Weights, X> scales;
  // NOTE: the counts of steps are hidden. Known, they make the loop divergent, and hiprtc 5.2.3 dies
  // of bases in vector registers.
  launder_scalar(step);
  launder_scalar(walk.end);
  walk.begin(step);
#pragma unroll
  for (int m = 0; m < LANE_ROWS; ++m) {
#pragma unroll
    for (int n = 0; n < LANE_COLUMNS; ++n) sums[m][n] = 0;
  }
#pragma unroll 1
  do {
    if constexpr (Walk::GROUP_STEPS == 0) {
      walk.template multiply<false>(step++, sums);
    } else {
      const u32 group = step / Walk::GROUP_STEPS;
      u32 group_end = (group + 1) * Walk::GROUP_STEPS;
      if (group_end > end) group_end = end;
      scales.template fetch<false>(weights, x, group);
      TileSums chain;
      walk.template multiply<true>(step++, chain);
      if constexpr (Walk::GROUP_STEPS > 1) {
#pragma unroll 1
        for (; step < group_end; ++step) walk.template multiply<false>(step, chain);
      }
      scales.template apply<false>(chain, sums);
    }
    launder_scalar(step);
  } while (step < end);
  if constexpr ((Weights::SCALED && Weights::GROUP_STEPS == 0) ||
                (X::SCALED && X::GROUP_STEPS == 0)) {
    scales.template fetch<true>(weights, x, 0);
    scales.template apply<true>(sums, sums);
  }
}
