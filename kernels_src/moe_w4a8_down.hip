// MoE for many tokens with int8 activations, second product: the down projection of sorted slots.
//
//   partial[slot, h] = W2[e, h] . act[slot]
//
// w2      [E, H, I] int4, k along the row, low nibble = even k
// scales  fp16 [E, H, I / GROUP_SIZE]; zeros bytes [E, H / 2, I / G], low nibble = even row, or none: 8
// codes, x_scale, x_sum   of act, as moe_w4a8_gate_up.hip leaves them
// partial fp32 [slots, H], rows of dead slots are not written
// sorted, block_experts, num_rows   of moe_align.hip, in blocks of ROWS

// ---- specialisation ----
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_SIZE = ${GROUP_SIZE};  // weights of a row under one scale
constexpr int ACT_GROUP = ${ACT_GROUP};    // values of act under one scale
constexpr bool HAS_ZEROS = ${HAS_ZEROS};
constexpr int ROWS = ${ROWS};              // slots of a block
// ---- end of specialisation ----

#include "common/int8_rows.hip"
#include "common/slot_block.hip"

using Tile = Int8Tile<ROWS / WAVE_ROWS, ACT_GROUP, ACT_GROUP>;

KERNEL __launch_bounds__(Tile::THREADS) void moe_w4a8_down(
    const u8* __restrict codes, const float* __restrict x_scale, const i32* __restrict x_sum,
    const void* __restrict w2, const void* __restrict scales, const u8* __restrict zeros,
    const i32* __restrict sorted, const i32* __restrict block_experts,
    const i32* __restrict num_rows, float* __restrict partial, int num_slots, int num_experts) {
  __shared__ Int8Buffer<Tile> buffers[2];
  const SlotBlock<ROWS> block(sorted, block_experts, num_rows, block_y(), num_slots, num_experts);
  if (block.live == 0) return;
  const u32 first = block_x() * Tile::COLS;
  u32 row = first + thread_x() % Tile::COLS;
  if (HIDDEN % Tile::COLS != 0 && row >= HIDDEN) row = HIDDEN - 1;
  Int8Rows<Tile, INTERMEDIATE, GROUP_SIZE, HAS_ZEROS> loader(
      {w2, scales, zeros}, block.expert * (u64)HIDDEN, row, codes, x_scale, x_sum,
      block.slot_of_row(thread_x() / 4), block.slot_of_row(thread_x() % ROWS));
  Int8Accumulators<Tile> tile;
  int8_tile(tile, buffers, loader, 0, INTERMEDIATE / Tile::STEP,
            block.band() * WAVE_ROWS >= block.live,
            block.band());

  u32 slots[WAVE_ROWS];
  block.slots_of_wave(slots);
#pragma unroll
  for (int m = 0; m < WAVE_ROWS; ++m) {
    if (slots[m] >= block.num_slots) return;
    GLOBAL char* to = (GLOBAL char*)(u64)partial + (slots[m] * (u64)HIDDEN + first) * 4;
    launder_scalar(to);
    u32 lane = lane_id() * 4;
    launder_lane(lane);
#pragma unroll
    for (int c = 0; c < LANE_COLS; ++c) {
      if (HIDDEN % Tile::COLS != 0 && first + c * 32 + lane_id() >= HIDDEN) continue;
      *(GLOBAL float*)(to + (lane + c * 128)) = tile.sum[m][c];
    }
  }
}
