// MoE for many tokens with int8 activations, first product: gate and up of sorted slots,
// activation, product, rounding to int8.
//
//   a[slot, n] = f(W1[e, n] . x[token]) * (W1[e, I + n] . x[token])
//   act[slot, n] = code of a, with a scale and a sum for each ACT_GROUP channels
//
// w1      [E, 2 I, H] int4, k along the row, low nibble = even k; gate rows first
// scales  fp16 [E, 2 I, H / GROUP_SIZE]; zeros bytes [E, I, H / G], low nibble = even row, or none: 8
// codes, x_scale, x_sum   of x: int8 [tokens, H], fp32 and i32 [tokens, H / G] (quantize_int8.hip,
//                         ORDER 2)
// act_codes, act_scale, act_sum   likewise [slots, I], [slots, I / ACT_GROUP]; not written for dead
//                                 slots
// sorted, block_experts, num_rows   of moe_align.hip, in blocks of ROWS
//
// Grid (blocks of 64 channels, blocks of slots). A wave holds 64 channels of 8 slots, so that the
// largest of a group is found within it.

// ---- specialisation ----
#include "common/gated.hip"
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_SIZE = ${GROUP_SIZE};  // weights of a row under one scale, and values of x
constexpr int ACT_GROUP = ${ACT_GROUP};
constexpr bool HAS_ZEROS = ${HAS_ZEROS};
constexpr int ROWS = ${ROWS};              // slots of a block
constexpr int STEP = ${STEP};              // of K, per turn of the LDS buffers
constexpr Activation ACTIVATION = Activation::${ACTIVATION};
constexpr bool CLAMPED = ${CLAMPED};
constexpr bool WEIGHT_ON_INPUT = ${WEIGHT_ON_INPUT};
using RouterWeight = ${WEIGHT_TYPE};
constexpr int WEIGHT_STRIDE = ${WEIGHT_STRIDE};  // elements from token to token
// ---- end of specialisation ----

#include "common/int8_rows.hip"
#include "common/moe_slots.hip"
#include "common/scan.hip"
#include "common/slot_block.hip"

using Tile = Int8Tile<ROWS / WAVE_ROWS, STEP, GROUP_SIZE>;
constexpr u32 CHANNELS = Tile::COLS / 2;
constexpr int ACT_GROUPS = INTERMEDIATE / ACT_GROUP;
static_assert(ACT_GROUP == 32 || ACT_GROUP == 64, "a wave holds whole groups");
static_assert(INTERMEDIATE % ACT_GROUP == 0, "groups tile the channels");

// The code of a value: adding 1.5 * 2^23 rounds half to even.
DEVICE float code_of(float value, float inverse) {
  constexpr float ROUND = 12582912.0f;
  float scaled = value * inverse;
  asm("" : "+v"(scaled));  // no fused multiply-add: the product rounds on its own
  return scaled + ROUND - ROUND;
}

// Codes of COUNT channels of each lane, 32 apart, that form a group of the slot.
template <int COUNT>
DEVICE void store_group(const float* values, GLOBAL char* codes, u32 lane, float* scale, i32* sum) {
  u32 largest = 0;
#pragma unroll
  for (int n = 0; n < COUNT; ++n) {
    const u32 magnitude = bits<u32>(values[n]) & 0x7FFFFFFFu;
    largest = magnitude > largest ? magnitude : largest;
  }
  largest = max_of_wave(largest);
  const bool finite = largest < 0x7F800000u;
  const float absmax = bits<float>(largest);
  const float inverse = largest == 0 || !finite ? 0.0f : 127.0f / absmax;
  float total = 0.0f;
#pragma unroll
  for (int n = 0; n < COUNT; ++n) {
    const float code = code_of(finite ? values[n] : 0.0f, inverse);
    total += code;
    *(GLOBAL u8*)(codes + (lane + n * 32)) = (u8)(i32)code;
  }
  total = sum_lanes<32>(total);
  if (lane_id() == 0) {
    *(GLOBAL float*)(u64)scale = finite ? absmax * (1.0f / 127.0f) : __builtin_nanf("");
    *(GLOBAL i32*)(u64)sum = (i32)total;
  }
}

KERNEL __launch_bounds__(Tile::THREADS) void moe_w4a8_gate_up(
    const u8* __restrict codes, const float* __restrict x_scale, const i32* __restrict x_sum,
    const void* __restrict w1, const void* __restrict scales, const u8* __restrict zeros,
    const i32* __restrict sorted, const i32* __restrict block_experts,
    const i32* __restrict num_rows, const RouterWeight* __restrict topk_weights,
    u8* __restrict act_codes, float* __restrict act_scale, i32* __restrict act_sum, int num_slots,
    int num_experts, float limit, float alpha) {
  __shared__ Int8Buffer<Tile> buffers[2];
  const SlotBlock<ROWS> block(sorted, block_experts, num_rows, block_y(), num_slots, num_experts);
  if (block.live == 0) return;
  const u32 first = block_x() * CHANNELS, column = thread_x() % Tile::COLS;
  u32 channel = first + column % CHANNELS;
  if (INTERMEDIATE % CHANNELS != 0 && channel >= INTERMEDIATE) channel = INTERMEDIATE - 1;
  Int8Rows<Tile, HIDDEN, GROUP_SIZE, HAS_ZEROS> loader(
      {w1, scales, zeros}, block.expert * (2ull * INTERMEDIATE),
      channel + column / CHANNELS * INTERMEDIATE, codes, x_scale, x_sum,
      block.slot_of_row(thread_x() / 4) / TOP_K, block.slot_of_row(thread_x() % ROWS) / TOP_K);
  Int8Accumulators<Tile> tile;
  int8_tile(tile, buffers, loader, 0, HIDDEN / STEP, block.band() * WAVE_ROWS >= block.live,
            block.band());

  u32 slots[WAVE_ROWS];
  block.slots_of_wave(slots);
#pragma unroll
  for (int m = 0; m < WAVE_ROWS; ++m) {
    if (slots[m] >= block.num_slots) return;
    float values[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float gate = tile.sum[m][n], up = tile.sum[m][n + 2];
      if constexpr (WEIGHT_ON_INPUT) {
        const float weight = (float)topk_weights[strided<TOP_K, WEIGHT_STRIDE>(slots[m])];
        gate *= weight;
        up *= weight;
      }
      values[n] = gated<ACTIVATION, CLAMPED>(gate, up, limit, alpha);
    }
    // Channel c of an octet at byte c / 2, odd ones 4 further.
    u32 lane = (lane_id() & ~7u) | (lane_id() & 1) << 2 | (lane_id() & 6) >> 1;
    GLOBAL char* to = (GLOBAL char*)(u64)act_codes + (slots[m] * (u64)INTERMEDIATE + first);
    const u64 group = slots[m] * (u64)ACT_GROUPS + first / ACT_GROUP;
    if constexpr (ACT_GROUP == 64) {
      store_group<2>(values, to, lane, act_scale + group, act_sum + group);
    } else {
      store_group<1>(values, to, lane, act_scale + group, act_sum + group);
      if (INTERMEDIATE % CHANNELS == 0 || first + 32 < INTERMEDIATE)
        store_group<1>(values + 1, to + 32, lane, act_scale + group + 1, act_sum + group + 1);
    }
  }
}
