// MoE decode, stage 1: gate and up projections of every live slot, activation, product.
//
//   act[slot, n] = fp16( f(W1[e, n] . x[token]) * (W1[e, I + n] . x[token]) )
//
// w1      [E, 2 I, H] weights of FORMAT, k along the row (nibbles: low = even k); gate rows first
// scales  [E, ceil(2 I / SCALE_ROWS), ceil(H / GROUP_SIZE)], fp16, fp32 or e8m0 by SCALE_BYTES
// zeros   of int4: bytes [E, I, H / G], low nibble = even row (z = 8 without)
// x       fp16 [tokens, H]; act fp16 [tokens, TOP_K, I], in the format's pair order
//         (common/rows.hip), so that stage 2 needs no permutes; rows of dead slots are not written
//
// Grid (blocks of channels, slots). The workgroups of a slot serve every slot of the same expert:
// the first such slot leads, the others leave, dead ones after two scalar loads. A wave owns
// CHANNELS = PAIRS * 32 / LANES channels, gate and up; groups of up to BATCH tokens share a load
// and a decoding of the weights.
//
// SHARED > 0: one more slice of the grid serves the shared expert, int8 rows w [2 SHARED, H] with a
// scale each, for all TOKENS tokens: act [tokens, SHARED + 8], whose last 16 bytes begin with the fp32
// factor sigmoid(shared_gate . x), or 1, of the token.
//
// Limit on RDNA2: DRAM up to M = 16. LANES: the most lanes per row that leave none idle; PAIRS:
// rows that share a load of x; WAVES: waves per workgroup.

// ---- specialisation ----
#include "common/gated.hip"
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
using Id = ${ID_TYPE};
constexpr int ID_STRIDE = ${ID_STRIDE};  // elements from token to token
constexpr Activation ACTIVATION = Activation::${ACTIVATION};
constexpr bool CLAMPED = ${CLAMPED};
constexpr int LANES = ${LANES};
constexpr int PAIRS = ${PAIRS};
constexpr int BLOCK = ${BLOCK};
constexpr int WAVES = ${WAVES};
constexpr int SHARED = ${SHARED};  // intermediate size of the shared expert; 0: there is none
constexpr int SHARED_SCALE_BYTES = ${SHARED_SCALE_BYTES};
constexpr bool SHARED_GATED = ${SHARED_GATED};
constexpr int SHARED_LANES = ${SHARED_LANES};
constexpr int SHARED_PAIRS = ${SHARED_PAIRS};
constexpr int SHARED_BLOCK = ${SHARED_BLOCK};
// ---- end of specialisation ----

#include "common/moe_slots.hip"

constexpr int BATCH = TOKENS < 4 ? TOKENS : 4;
using Form = RowFormat<FORMAT, HIDDEN, 2 * INTERMEDIATE, GROUP_SIZE, SCALE_ROWS, SCALE_BYTES,
                       HAS_ZEROS>;
using Tile = RowTile<Form, LANES, 2, PAIRS, BLOCK, false>;
using SharedForm = RowFormat<Format::i8, HIDDEN, 2 * SHARED, HIDDEN, 1, SHARED_SCALE_BYTES, false>;
using SharedTile = RowTile<SharedForm, SHARED_LANES, 2, SHARED_PAIRS, SHARED_BLOCK, false>;
using GateForm = RowFormat<Format::f16, HIDDEN, 1, HIDDEN, 1, 0, false>;
using GateTile = RowTile<GateForm, 32, 1, 1, 1, false>;
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;
using List = SlotList<TOKENS, TOP_K, BATCH>;
constexpr int CHANNELS = PAIRS * Tile::SIDE;
constexpr int SHARED_CHANNELS = SHARED_PAIRS * SharedTile::SIDE;

static_assert(INTERMEDIATE % CHANNELS == 0, "waves tile the channels");
static_assert(CHANNELS % 2 == 0 || !HAS_ZEROS, "a wave starts at a whole byte of zeros");
static_assert(LANES >= PAIRS && SHARED_LANES >= SHARED_PAIRS, "one lane stores each pair");
static_assert(SHARED % SHARED_CHANNELS == 0, "waves tile the shared channels");
static_assert(SHARED == 0 || TOKENS <= 2, "one batch, of exactly TOKENS tokens");

struct Epilogue {
  float limit, alpha;
};

// Lists the slots that go to this slot's expert; returns their number, or 0 when an earlier slot
// leads them. Equal ids are compared: they are live because this one is.
DEVICE u32 list_sharing_slots(List& list, const Slots& router, u32 slot, u32 num_slots,
                              u32 expert) {
  const Id mine = *(const CONSTANT Id*)((u64)router.ids + router.offset(slot));
  u32 sets[List::WORDS], earlier = 0;
#pragma unroll
  for (int i = 0; i < List::WORDS; ++i) {
    const u32 other = i * 32 + lane_id(), last = num_slots - 1;
    const Id id = *(const GLOBAL Id*)(global_bytes(router.ids) +
                                      router.offset(other < last ? other : last));
    sets[i] = lanes_equal(id, mine) & bits_below(num_slots, i);
    earlier |= sets[i] & bits_below(slot, i);
  }
  if (earlier != 0) return 0;
  u32 length = 0, left = 0;
#pragma unroll
  for (int i = 0; i < List::WORDS; ++i) left += __builtin_popcount(sets[i]);
#pragma unroll
  for (int i = 0; i < List::WORDS; ++i) list.append(length, left, sets[i], i * 32, expert);
  list.close(length);
  return length;
}

// Reduces one token's sums over the lanes of a row and stores its ROWS * SIDE activations.
template <class Tile>
DEVICE void store_activation(GLOBAL char* act, const float (&sums)[Tile::ALL_ROWS],
                             const LaneOffsets<Tile>& lane, u32 channel, Epilogue epilogue) {
  constexpr int PAIRS = Tile::ROWS, LANES = Tile::LANES;
  float gate = sum_lanes<LANES>(sums[0]), up = sum_lanes<LANES>(sums[PAIRS]);
#pragma unroll
  for (int p = 1; p < PAIRS; ++p) {
    const float gate_p = sum_lanes<LANES>(sums[p]), up_p = sum_lanes<LANES>(sums[PAIRS + p]);
    gate = lane.chunk == p ? gate_p : gate;
    up = lane.chunk == p ? up_p : up;
  }
  const u32 n = channel + lane.chunk * Tile::SIDE + lane_id() / LANES;
  if (lane.chunk < PAIRS)
    *(GLOBAL f16*)(act + in_pair_order<Tile::FORMAT>(n) * 2) =
        (f16)gated<ACTIVATION, CLAMPED>(gate, up, epilogue.limit, epilogue.alpha);
}

// This wave's channels of the shared expert, or its factors.
DEVICE void shared_slice(const f16* x, u32 x_stride, const void* w, const void* scales,
                         const f16* gate, f16* act, Epilogue epilogue) {
  const u32 channel = (block_x() * WAVES + wave_id()) * SHARED_CHANNELS;
  if (channel > SHARED) return;
  GlobalBytes x_rows[TOKENS];
#pragma unroll
  for (int q = 0; q < TOKENS; ++q)
    x_rows[q] = global_bytes(x) + q * (u64)(x_stride * 2);
  GLOBAL char* const rows = (GLOBAL char*)(u64)act;
  constexpr u32 ACT_BYTES = (SHARED + 8) * 2;
  if (channel == SHARED) {
    float factors[TOKENS][1];
    if constexpr (SHARED_GATED) {
      LaneOffsets<GateTile> lane(lane_id());
      RowBases<GateTile> bases;
      bases.set(0, {gate, nullptr, nullptr}, 0, 0);
      dot_rows<GateTile>(factors, bases, lane, x_rows, TOKENS);
    }
#pragma unroll
    for (int q = 0; q < TOKENS; ++q) {
      const float factor = SHARED_GATED ? sigmoid(sum_lanes<32>(factors[q][0])) : 1.0f;
      if (lane_id() == 0) *(GLOBAL float*)(rows + q * ACT_BYTES + SHARED * 2) = factor;
    }
    return;
  }
  LaneOffsets<SharedTile> lane(lane_id());
  RowBases<SharedTile> bases;
  bases.set(0, {w, scales, nullptr}, 0, channel);
  bases.set(1, {w, scales, nullptr}, 0, SHARED + channel);
  float sums[TOKENS][SharedTile::ALL_ROWS];
  dot_rows<SharedTile>(sums, bases, lane, x_rows, TOKENS);
#pragma unroll
  for (int q = 0; q < TOKENS; ++q)
    store_activation<SharedTile>(rows + q * ACT_BYTES, sums[q], lane, channel, epilogue);
}

KERNEL __launch_bounds__(WAVES * 32) void moe_gate_up(
    const f16* __restrict x, const void* __restrict w1, const void* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    f16* __restrict act, const void* __restrict shared_w1, const void* __restrict shared_scales,
    const f16* __restrict shared_gate, f16* __restrict shared_act, int num_tokens, int num_experts,
    int num_ids, int x_stride, float limit, float alpha) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const Epilogue epilogue{limit, alpha};
  const u32 slot = block_y();
  if constexpr (SHARED > 0) {
    if (slot == num_tokens * TOP_K) {
      shared_slice(x, x_stride, shared_w1, shared_scales, shared_gate, shared_act, epilogue);
      return;
    }
  }
  const u32 expert = expert_of_slot(router, slot);
  if (expert == DEAD) return;
  const u32 channel = (block_x() * WAVES + wave_id()) * CHANNELS;
  if (channel >= INTERMEDIATE) return;
  __shared__ List lists[WAVES];
  List& list = lists[wave_id()];
  u32 length = 1;
  if constexpr (TOKENS > 1) {
    length = list_sharing_slots(list, router, slot, num_tokens * TOP_K, expert);
    if (length == 0) return;
  }

  LaneOffsets<Tile> lane(lane_id());
  RowBases<Tile> bases;
  bases.set(0, {w1, scales, zeros}, expert, channel);
  bases.set(1, {w1, scales, zeros}, expert, INTERMEDIATE + channel);
  for (u32 begin = 0; begin < length; begin += BATCH) {
    const SlotBatch<BATCH> batch = TOKENS == 1 ? SlotBatch<BATCH>(slot) : SlotBatch<BATCH>(list, begin);
    GlobalBytes x_rows[BATCH];
#pragma unroll
    for (int q = 0; q < BATCH; ++q)
      x_rows[q] = global_bytes(x) + (u64)batch.token[q] * (u32)(x_stride * 2);
    float sums[BATCH][Tile::ALL_ROWS];
    dot_rows<Tile>(sums, bases, lane, x_rows, batch.count);
#pragma unroll
    for (int q = 0; q < BATCH; ++q)
      if (q < batch.count)
        store_activation<Tile>((GLOBAL char*)(u64)act + batch.slot[q] * (INTERMEDIATE * 2),
                               sums[q], lane, channel, epilogue);
  }
}
