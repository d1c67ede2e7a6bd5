// MoE for many tokens, second product: the down projection of sorted slots.
//
//   partial[slot, h] = W2[e, h] . act[slot]
//
// w2      [E, H, I] weights of FORMAT, k along the row
// scales  [E, ceil(H / SCALE_ROWS), ceil(I / GROUP)], fp16, fp32 or e8m0 by SCALE_BYTES
// zeros   of int4: bytes [E, H / 2, I / G], low nibble = even row (z = 8 without)
// act     fp16 [slots, I]; partial fp32 [slots, H], rows of dead slots are not written
// sorted, block_experts, num_rows   of moe_align.hip, in blocks of ROWS
//
// Grid (blocks of 128 columns, blocks of slots), as in moe_tile_gate_up.hip. Sums stay fp32: the
// result has one rounding, in moe_combine.hip.

// ---- specialisation ----
#include "common/rows.hip"
constexpr Format FORMAT = Format::${FORMAT};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_SIZE = ${GROUP_SIZE};    // weights of a row under one scale
constexpr int SCALE_ROWS = ${SCALE_ROWS};    // rows under one scale
constexpr int SCALE_BYTES = ${SCALE_BYTES};  // 0: none, 1: e8m0, 2: fp16, 4: fp32
constexpr bool HAS_ZEROS = ${HAS_ZEROS};
constexpr int ROWS = ${ROWS};                // slots of a block
constexpr int W_ALIGN = ${W_ALIGN};          // of rows, in bytes
// ---- end of specialisation ----

#include "common/slot_block.hip"
#include "common/tile_rows.hip"
#include "common/tile_x.hip"

using Form = RowFormat<FORMAT, INTERMEDIATE, HIDDEN, GROUP_SIZE, SCALE_ROWS, SCALE_BYTES, HAS_ZEROS>;
using Columns = TileColumns<HIDDEN>;
using Weights = TileWeightRows<ROWS, Form, Columns, W_ALIGN>;
static_assert(HIDDEN % 8 == 0, "columns are stored in quads");

KERNEL __launch_bounds__(ROWS * 4) void moe_tile_down(
    const f16* __restrict act, const void* __restrict w2, const void* __restrict scales,
    const u8* __restrict zeros, const i32* __restrict sorted, const i32* __restrict block_experts,
    const i32* __restrict num_rows, float* __restrict partial, int num_slots, int num_experts) {
  __shared__ TileImage<ROWS> image;
  __shared__ TileScaleTable table;
  const SlotBlock<ROWS> block(sorted, block_experts, num_rows, block_y(), num_slots, num_experts);
  if (block.live == 0) return;
  const u32 first = block_x() * TILE_COLUMNS;
  Weights weights({w2, scales, zeros}, block.expert, Columns{first}, table);
  TileRows<INTERMEDIATE, INTERMEDIATE, 16> rows(act, block.slot_of_row(thread_x() / 4));
  TileSums sums;
  constexpr u32 STEPS = ceil_div(INTERMEDIATE, TILE_K);
  u32 end = STEPS;
  launder_scalar(end);
  tile_multiply(image, weights, rows, block.live, 0, end, sums, block.band());

  u32 slots[LANE_ROWS];
  block.slots_of_wave(slots);
  const u32 column = first + lane_id() * LANE_COLUMNS;
  if (HIDDEN % TILE_COLUMNS != 0 && column >= HIDDEN) return;
#pragma unroll
  for (int m = 0; m < LANE_ROWS; ++m) {
    if (slots[m] >= block.num_slots) return;
    GLOBAL char* to = (GLOBAL char*)(u64)partial + slots[m] * (HIDDEN * 4ull);
    launder_scalar(to);
    u32 lane = column * 4;
    launder_lane(lane);
    store<float, 4>(to, lane, sums[m]);
  }
}
