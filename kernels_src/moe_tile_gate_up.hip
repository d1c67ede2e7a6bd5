// MoE for many tokens, first product: gate and up of sorted slots, activation, product.
//
//   act[slot, n] = fp16( f(W1[e, n] . x[slot / TOP_K]) * (W1[e, I + n] . x[slot / TOP_K]) )
//
// w1      [E, 2 I, H] weights of FORMAT, k along the row; gate rows first
// scales  [E, ceil(2 I / SCALE_ROWS), ceil(H / GROUP)], fp16, fp32 or e8m0 by SCALE_BYTES
// zeros   of int4: bytes [E, I, H / G], low nibble = even row (z = 8 without)
// x       fp16 [tokens, H]; act fp16 [slots, I], rows of dead slots are not written
// sorted, block_experts, num_rows   of moe_align.hip, in blocks of ROWS
//
// Grid (blocks of 64 channels, blocks of slots): a workgroup multiplies its slots with the gate and
// up rows of 64 channels on the tile engine, so that gate and up meet in a lane. Workgroups past
// the last block leave after two scalar loads, waves whose rows are padding multiply nothing.
// WEIGHT_ON_INPUT: a slot's router weight multiplies gate and up.

// ---- specialisation ----
#include "common/gated.hip"
#include "common/rows.hip"
constexpr Format FORMAT = Format::${FORMAT};
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_SIZE = ${GROUP_SIZE};    // weights of a row under one scale
constexpr int SCALE_ROWS = ${SCALE_ROWS};    // rows under one scale
constexpr int SCALE_BYTES = ${SCALE_BYTES};  // 0: none, 1: e8m0, 2: fp16, 4: fp32
constexpr bool HAS_ZEROS = ${HAS_ZEROS};
constexpr int ROWS = ${ROWS};                // slots of a block
constexpr Activation ACTIVATION = Activation::${ACTIVATION};
constexpr bool CLAMPED = ${CLAMPED};
constexpr bool WEIGHT_ON_INPUT = ${WEIGHT_ON_INPUT};
using RouterWeight = ${WEIGHT_TYPE};
constexpr int WEIGHT_STRIDE = ${WEIGHT_STRIDE};  // elements from token to token
constexpr int X_STRIDE = ${X_STRIDE};
constexpr int X_ALIGN = ${X_ALIGN};  // of rows, in bytes
constexpr int W_ALIGN = ${W_ALIGN};
// ---- end of specialisation ----

#include "common/moe_slots.hip"
#include "common/slot_block.hip"
#include "common/tile_rows.hip"
#include "common/tile_x.hip"

constexpr u32 CHANNELS = TILE_COLUMNS / 2;
using Form = RowFormat<FORMAT, HIDDEN, 2 * INTERMEDIATE, GROUP_SIZE, SCALE_ROWS, SCALE_BYTES,
                       HAS_ZEROS>;
using Columns = TileChannels<INTERMEDIATE>;
using Weights = TileWeightRows<ROWS, Form, Columns, W_ALIGN>;
static_assert(INTERMEDIATE % 8 == 0, "channels are stored in pairs");

KERNEL __launch_bounds__(ROWS * 4) void moe_tile_gate_up(
    const f16* __restrict x, const void* __restrict w1, const void* __restrict scales,
    const u8* __restrict zeros, const i32* __restrict sorted, const i32* __restrict block_experts,
    const i32* __restrict num_rows, const RouterWeight* __restrict topk_weights,
    f16* __restrict act, int num_slots, int num_experts, float limit, float alpha) {
  __shared__ TileImage<ROWS> image;
  __shared__ TileScaleTable table;
  const SlotBlock<ROWS> block(sorted, block_experts, num_rows, block_y(), num_slots, num_experts);
  if (block.live == 0) return;
  const u32 first = block_x() * CHANNELS;
  Weights weights({w1, scales, zeros}, block.expert, Columns{first}, table);
  TileRows<HIDDEN, X_STRIDE, X_ALIGN> rows(x, block.slot_of_row(thread_x() / 4) / TOP_K);
  TileSums sums;
  constexpr u32 STEPS = ceil_div(HIDDEN, TILE_K);
  u32 end = STEPS;
  launder_scalar(end);
  tile_multiply(image, weights, rows, block.live, 0, end, sums, block.band());

  u32 slots[LANE_ROWS];
  block.slots_of_wave(slots);
  const u32 channel = first + lane_id() * 2;
  if (INTERMEDIATE % CHANNELS != 0 && channel >= INTERMEDIATE) return;
#pragma unroll
  for (int m = 0; m < LANE_ROWS; ++m) {
    if (slots[m] >= block.num_slots) return;
    f16 pair[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float gate = sums[m][n], up = sums[m][n + 2];
      if constexpr (WEIGHT_ON_INPUT) {
        const float weight = (float)topk_weights[strided<TOP_K, WEIGHT_STRIDE>(slots[m])];
        gate *= weight;
        up *= weight;
      }
      pair[n] = (f16)gated<ACTIVATION, CLAMPED>(gate, up, limit, alpha);
    }
    GLOBAL char* to = (GLOBAL char*)(u64)act + slots[m] * (INTERMEDIATE * 2ull);
    launder_scalar(to);
    u32 lane = channel * 2;
    launder_lane(lane);
    store<f16, 2>(to, lane, pair);
  }
}
