// MoE decode, stage 2: down projection, router weights and the sum over a token's slots.
//
//   out[m, h] = fp16( sum over live slots of weight * (W2[e, h] . act[slot]) + residual[m, h] )
//
// w2      [E, H, I] weights of FORMAT, k along the row (nibbles: low = even k)
// scales  [E, ceil(H / SCALE_ROWS), ceil(I / GROUP_SIZE)], fp16, fp32 or e8m0 by SCALE_BYTES
// zeros   of int4: bytes [E, H / 2, I / G], low nibble = even row (z = 8 without)
// act     fp16 [tokens, TOP_K, I] as stage 1 stores it
// out     fp16 [tokens, H], every element written; residual may be out itself
//
// A workgroup owns TILE = ROWS * 32 / LANES output columns of all tokens. Its waves take the
// experts with live slots in turn, each expert once for up to BATCH tokens at a time; they add into
// rows of LDS of their own, which are summed in wave order after the one barrier. No atomics,
// nothing zeroed beforehand, no combine launch.
//
// SHARED > 0: the wave whose turn comes after the last expert adds the shared expert, int8 rows w
// [H, SHARED] with a scale each, act as stage 1 stores it, times the token's factor there: into out
// before the one rounding, or, SHARED_APART, as fp16 into shared_out.

// ---- specialisation ----
#include "common/rows.hip"
constexpr Format FORMAT = Format::${FORMAT};
constexpr int TOKENS = ${TOKENS};
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_SIZE = ${GROUP_SIZE};    // weights of a row under one scale
constexpr int SCALE_ROWS = ${SCALE_ROWS};    // rows under one scale
constexpr int SCALE_BYTES = ${SCALE_BYTES};  // 0: none, 1: e8m0, 2: fp16, 4: fp32
constexpr bool HAS_ZEROS = ${HAS_ZEROS};
constexpr bool HAS_MAP = ${HAS_MAP};
constexpr bool HAS_RESIDUAL = ${HAS_RESIDUAL};
using Id = ${ID_TYPE};
constexpr int ID_STRIDE = ${ID_STRIDE};  // elements from token to token
using RouterWeight = ${WEIGHT_TYPE};
constexpr int WEIGHT_STRIDE = ${WEIGHT_STRIDE};
constexpr int LANES = ${LANES};
constexpr int ROWS = ${ROWS};
constexpr int BLOCK = ${BLOCK};
constexpr int WAVES = ${WAVES};
constexpr int SHARED = ${SHARED};  // intermediate size of the shared expert; 0: there is none
constexpr int SHARED_SCALE_BYTES = ${SHARED_SCALE_BYTES};
constexpr int SHARED_LANES = ${SHARED_LANES};
constexpr int SHARED_BLOCK = ${SHARED_BLOCK};
constexpr bool SHARED_APART = ${SHARED_APART};
// ---- end of specialisation ----

#include "common/moe_slots.hip"

constexpr int BATCH = TOKENS < 4 ? TOKENS : 4;
using Form = RowFormat<FORMAT, INTERMEDIATE, HIDDEN, GROUP_SIZE, SCALE_ROWS, SCALE_BYTES, HAS_ZEROS>;
using Tile = RowTile<Form, LANES, 1, ROWS, BLOCK, true>;
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;
using List = SlotList<TOKENS, TOP_K, BATCH>;
constexpr int TILE = ROWS * Tile::SIDE;
constexpr int SHARED_K = SHARED > 0 ? SHARED : 16;
using SharedForm =
    RowFormat<Format::i8, SHARED_K, HIDDEN, SHARED_K, 1, SHARED_SCALE_BYTES, false>;
using SharedTile =
    RowTile<SharedForm, SHARED_LANES, 1, TILE * SHARED_LANES / 32, SHARED_BLOCK, false>;

static_assert(HIDDEN % TILE == 0, "workgroups tile the columns");
static_assert(SHARED == 0 || (TILE * SHARED_LANES % 32 == 0 && TOKENS <= 2), "whole shared rows");
static_assert(TILE % 2 == 0 || !HAS_ZEROS, "a tile starts at a whole byte of zeros");

struct Operands {
  const f16* act;
  WeightMatrix w2;
  const RouterWeight* topk_weights;
};
struct SharedOperands {
  const f16* act;
  WeightMatrix w2;
};

DEVICE RowBases<Tile> rows_of(const Operands& in, u32 expert, u32 column) {
  RowBases<Tile> bases;
  bases.set(0, in.w2, expert, column);
  return bases;
}

DEVICE float router_weight(const Operands& in, u32 slot) {
  return (float)*(const GLOBAL RouterWeight*)(global_bytes(in.topk_weights) +
                                              strided<TOP_K, WEIGHT_STRIDE>(slot) *
                                                  (u32)sizeof(RouterWeight));
}

// One token: a wave's slots add up in registers, one reduction at the end. Returns the turns taken.
DEVICE u32 one_token(float* partial, const Operands& in, const Slots& router, u32 column) {
  LaneOffsets<Tile> lane(lane_id());
  const u32 experts = expert_of_lane(router, lane_id(), TOP_K);
  u32 live = lanes_differ(experts, DEAD);
  float total[ROWS] = {};
  u32 turn = 0;
  for (; live != 0; ++turn) {
    const u32 slot = __builtin_ctz(live);
    live &= live - 1;
    if (turn % WAVES != wave_id()) continue;
    const float weight = router_weight(in, slot);
    const u32 expert = __builtin_amdgcn_readlane(experts, slot);
    const GlobalBytes x[1] = {global_bytes(in.act) + slot * (INTERMEDIATE * 2)};
    float sums[1][ROWS];
    dot_rows<Tile>(sums, rows_of(in, expert, column), lane, x, 1);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) total[r] = __builtin_fmaf(weight, sums[0][r], total[r]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float sum = sum_lanes<LANES>(total[r]);
    if (lane.chunk == 0) partial[r * Tile::SIDE + lane_id() / LANES] = sum;
  }
  return turn;
}

// Lists the live slots whose experts fall to this wave, expert by expert; returns their number.
// turn: experts of all waves.
DEVICE u32 list_live_slots(List& list, const Slots& router, u32 num_slots, u32& turn) {
  u32 experts[List::WORDS], live[List::WORDS];
#pragma unroll
  for (int i = 0; i < List::WORDS; ++i) {
    experts[i] = expert_of_lane(router, i * 32 + lane_id(), num_slots);
    live[i] = lanes_differ(experts[i], DEAD);
  }
  u32 length = 0;
#pragma unroll
  for (int i = 0; i < List::WORDS; ++i) {
    for (; live[i] != 0; ++turn) {
      const u32 expert = __builtin_amdgcn_readlane(experts[i], __builtin_ctz(live[i]));
      u32 sharing[List::WORDS], left = 0;
#pragma unroll
      for (int j = i; j < List::WORDS; ++j) {
        sharing[j] = lanes_equal(experts[j], expert);
        live[j] &= ~sharing[j];
        left += __builtin_popcount(sharing[j]);
      }
      if (turn % WAVES != wave_id()) continue;
#pragma unroll
      for (int j = i; j < List::WORDS; ++j)
        list.append(length, left, sharing[j], j * 32, expert);
    }
  }
  list.close(length);
  return length;
}

// Several tokens: slots of one expert share its weights; partial is [TOKENS][TILE].
DEVICE u32 many_tokens(float* partial, List& list, const Operands& in,
                        const Slots& router, u32 column, u32 num_slots) {
  LaneOffsets<Tile> lane(lane_id());
  for (u32 i = lane_id(); i < TOKENS * TILE; i += 32) partial[i] = 0.0f;
  u32 turn = 0;
  const u32 length = list_live_slots(list, router, num_slots, turn);
  for (u32 begin = 0; begin < length;) {
    const SlotBatch<BATCH> batch(list, begin);
    GlobalBytes x[BATCH];
    float router_weights[BATCH];
#pragma unroll
    for (int q = 0; q < BATCH; ++q) {
      x[q] = global_bytes(in.act) + batch.slot[q] * (INTERMEDIATE * 2);
      router_weights[q] = router_weight(in, batch.slot[q]);
    }
    float sums[BATCH][ROWS];
    dot_rows<Tile>(sums, rows_of(in, batch.expert, column), lane, x, batch.count);
#pragma unroll
    for (int q = 0; q < BATCH; ++q) {
      if (q >= batch.count) continue;
      float* row = partial + batch.token[q] * TILE + lane_id() / LANES;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const float sum = sum_lanes<LANES>(sums[q][r]);
        if (lane.chunk == 0)
          row[r * Tile::SIDE] = __builtin_fmaf(router_weights[q], sum, row[r * Tile::SIDE]);
      }
    }
    begin += batch.count;
  }
  return turn;
}

// The shared expert's columns of all tokens, times their factors.
DEVICE void shared_expert(float* sum, const SharedOperands& in, u32 column) {
  constexpr u32 ACT_BYTES = (SHARED + 8) * 2;
  LaneOffsets<SharedTile> lane(lane_id());
  RowBases<SharedTile> bases;
  bases.set(0, in.w2, 0, column);
  GlobalBytes act[TOKENS];
#pragma unroll
  for (int q = 0; q < TOKENS; ++q) act[q] = global_bytes(in.act) + q * ACT_BYTES;
  float sums[TOKENS][SharedTile::ALL_ROWS];
  dot_rows<SharedTile>(sums, bases, lane, act, TOKENS);
#pragma unroll
  for (int q = 0; q < TOKENS; ++q) {
    const float factor = *(const GLOBAL float*)(act[q] + SHARED * 2);
#pragma unroll
    for (int r = 0; r < SharedTile::ROWS; ++r) {
      const float total = sum_lanes<SHARED_LANES>(sums[q][r]);
      if (lane.chunk == 0)
        sum[q * TILE + r * SharedTile::SIDE + lane_id() / SHARED_LANES] = factor * total;
    }
  }
}

KERNEL __launch_bounds__(WAVES * 32) void moe_down(
    const f16* __restrict act, const void* __restrict w2, const void* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    const RouterWeight* __restrict topk_weights, const f16* residual, f16* out,
    const f16* __restrict shared_act, const void* __restrict shared_w2,
    const void* __restrict shared_scales, f16* __restrict shared_out, int num_tokens,
    int num_experts, int num_ids, int residual_stride, int out_stride) {
  __shared__ float partial[WAVES][TOKENS * TILE];
  __shared__ float shared[SHARED > 0 ? TOKENS * TILE : 1];
  __shared__ List lists[TOKENS > 1 ? WAVES : 1];
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const Operands in{act, {w2, scales, zeros}, topk_weights};
  const u32 column = block_x() * TILE;
  u32 turns;
  if constexpr (TOKENS == 1)
    turns = one_token(partial[wave_id()], in, router, column);
  else
    turns = many_tokens(partial[wave_id()], lists[wave_id()], in, router, column,
                        num_tokens * TOP_K);
  if constexpr (SHARED > 0) {
    if (turns % WAVES == wave_id())
      shared_expert(shared, {shared_act, {shared_w2, shared_scales, nullptr}}, column);
  }

  // The residual is on its way while the waves meet.
  constexpr int STEPS = ceil_div(TOKENS * TILE, WAVES * 32);
  float sum[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const u32 index = thread_x() + i * (WAVES * 32), m = index / TILE;
    sum[i] = 0.0f;
    if (HAS_RESIDUAL && m < num_tokens)
      sum[i] = (float)residual[m * (u32)residual_stride + column + index % TILE];
  }
  block_barrier();
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const u32 index = thread_x() + i * (WAVES * 32), m = index / TILE;
    if (m >= num_tokens) continue;
    float slots = 0.0f;
#pragma unroll
    for (int wave = 0; wave < WAVES; ++wave) slots += partial[wave][index];
    if constexpr (SHARED > 0 && !SHARED_APART) slots += shared[index];
    out[m * (u32)out_stride + column + index % TILE] = (f16)(slots + sum[i]);
    if constexpr (SHARED > 0 && SHARED_APART)
      shared_out[m * HIDDEN + column + index % TILE] = (f16)shared[index];
  }
}
