// MoE int4 decode, stage 1: gate and up projections of every live slot, SiLU, product.
//
//   act[slot, n] = fp16( silu(W1[e, n] . x[token]) * (W1[e, I + n] . x[token]) ),  W1 = (q - z) s
//
// w1      [E, 2 I, H / 2] bytes, code k of a row in byte k / 2, low nibble = even k; gate rows first
// scales  fp16 [E, 2 I, H / G]; zeros bytes [E, I, H / G], low nibble = even row (z = 8 without)
// x       fp16 [tokens, H]; act fp16 [tokens, TOP_K, I], each octet of n in pair order (int4_rows),
//         so that stage 2 needs no permutes; rows of dead slots are not written
//
// Grid (blocks of channels, slots). The workgroups of a slot serve every slot of the same expert:
// the first such slot leads, the others leave, dead ones after two scalar loads. A wave owns
// CHANNELS = PAIRS * 32 / LANES channels, gate and up, and keeps their codes in registers, so
// weights are read once whatever the number of tokens; groups of up to BATCH tokens share a
// dequantisation. When the codes of a row do not fit (BLOCK below ROUNDS), groups beyond the first
// read them again.
//
// Limit on RDNA2: DRAM up to M = 16. LANES: the most lanes per row that leave none idle; PAIRS:
// rows that share a load of x; WAVES: waves per workgroup.

// ---- specialisation ----
constexpr int TOKENS = ${TOKENS};
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_SIZE = ${GROUP_SIZE};
constexpr bool HAS_ZEROS = ${HAS_ZEROS};
constexpr bool HAS_MAP = ${HAS_MAP};
using Id = ${ID_TYPE};
constexpr int ID_STRIDE = ${ID_STRIDE};  // elements from token to token
constexpr int LANES = ${LANES};
constexpr int PAIRS = ${PAIRS};
constexpr int BLOCK = ${BLOCK};
constexpr int WAVES = ${WAVES};
// ---- end of specialisation ----

#include "common/int4_rows.hip"
#include "common/moe_slots.hip"
#include "common/silu.hip"

constexpr int BATCH = TOKENS < 4 ? TOKENS : 4;
using Tile = RowTile<HIDDEN, GROUP_SIZE, LANES, 2, PAIRS, BLOCK, HAS_ZEROS, false>;
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;
using List = SlotList<TOKENS, TOP_K, BATCH>;
constexpr int CHANNELS = PAIRS * Tile::SIDE;

static_assert(INTERMEDIATE % CHANNELS == 0, "waves tile the channels");
static_assert(CHANNELS % 2 == 0 || !HAS_ZEROS, "a wave starts at a whole byte of zeros");
static_assert(LANES >= PAIRS, "one lane stores each pair");

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

DEVICE u32 in_pair_order(u32 n) { return (n & ~7u) + (n & 3u) * 2 + (n >> 2 & 1u); }

// Reduces one token's sums over the lanes of a row and stores its CHANNELS activations.
DEVICE void store_activation(GLOBAL char* act, const float (&sums)[Tile::ALL_ROWS],
                             const LaneOffsets<Tile>& lane, u32 channel) {
  float gate = sum_lanes<LANES>(sums[0]), up = sum_lanes<LANES>(sums[PAIRS]);
#pragma unroll
  for (int p = 1; p < PAIRS; ++p) {
    const float gate_p = sum_lanes<LANES>(sums[p]), up_p = sum_lanes<LANES>(sums[PAIRS + p]);
    gate = lane.chunk == p ? gate_p : gate;
    up = lane.chunk == p ? up_p : up;
  }
  const u32 n = channel + lane.chunk * Tile::SIDE + lane_id() / LANES;
  if (lane.chunk < PAIRS)
    *(GLOBAL f16*)(act + in_pair_order(n) * 2) = (f16)(silu(gate) * up);
}

KERNEL __launch_bounds__(WAVES * 32) void moe_int4_gate_up(
    const f16* __restrict x, const u8* __restrict w1, const f16* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    f16* __restrict act, int num_tokens, int num_experts, int num_ids, int x_stride) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const u32 slot = block_y();
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
  const u32 gate = expert * (2 * INTERMEDIATE) + channel;
  RowBases<Tile> bases;
  bases.set(0, {w1, scales, zeros}, gate);
  bases.set(1, {w1, scales, zeros}, gate + INTERMEDIATE);
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
      if (q < batch.count) store_activation((GLOBAL char*)(u64)act + batch.slot[q] * (INTERMEDIATE * 2), sums[q],
                                            lane, channel);
  }
}
