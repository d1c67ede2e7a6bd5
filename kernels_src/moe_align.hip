// Slots of a router sorted by expert, each expert's run padded to whole blocks. One workgroup.
//
//   sorted     i32 [rows]: slots, ascending by expert and within an expert; num_slots where padded
//   block_experts  i32 [blocks]: expert of each block, -1 past the last one
//   num_rows   i32 [1]: padded slots
//   inverse    i32 [num_slots]: row of each slot in sorted, -1 for a dropped one
//   active     i32 [blocks]: the blocks that have an expert, ascending, then -1; num_active i32 [1]
//
// A wave owns a contiguous range of slots. It counts them per expert in counters of its own (LDS
// integer adds: the order of the lanes does not matter), the counts become starting points over
// (expert, wave), and the wave walks its range again: a slot's place is its wave's starting point
// plus the number of lower lanes that carry the same expert, found by one ballot per bit. So the
// order is that of the slots whatever the waves' timing, and every element is written once.
//
// Limit on RDNA2: latency (two reads of the ids, four barriers). BATCH: loads in flight per lane.

// ---- specialisation ----
constexpr int NUM_EXPERTS = ${NUM_EXPERTS};
constexpr int BLOCK_SIZE = ${BLOCK_SIZE};
constexpr int TOP_K = ${TOP_K};          // 1 when tokens follow each other
constexpr int ID_STRIDE = ${ID_STRIDE};  // elements from token to token
using Id = ${ID_TYPE};
constexpr bool HAS_MAP = ${HAS_MAP};
constexpr bool DROP_INVALID = ${DROP_INVALID};  // slots of experts that are not on this rank
constexpr bool HAS_INVERSE = ${HAS_INVERSE};
constexpr int WAVES = ${WAVES};
// ---- end of specialisation ----

#include "common/moe_slots.hip"
#include "common/scan.hip"

constexpr int BATCH = 4;
constexpr u32 THREADS = WAVES * 32;
constexpr int EXPERT_BITS = NUM_EXPERTS == 1 ? 0 : 32 - __builtin_clz(NUM_EXPERTS - 1);
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;

struct Table {
  u32 counts[WAVES][NUM_EXPERTS];  // then the slots of an expert in earlier waves
  u32 totals[NUM_EXPERTS];
  u32 first_block[NUM_EXPERTS], first_active[NUM_EXPERTS];
  u32 blocks, active;
};
static_assert(sizeof(Table) <= 65536, "the counters fit LDS");

// Expert of an id on this rank, or DEAD.
DEVICE u32 local_expert(const i32* expert_map, u32 id) {
  if constexpr (!HAS_MAP) return id;
  const u32 expert = *(const GLOBAL u32*)(global_bytes(expert_map) + id * 4);
  return expert < NUM_EXPERTS ? expert : DEAD;
}

// The expert that each of BATCH slots, 32 apart, is sorted under. No branches: loads overlap.
DEVICE void load_experts(u32 (&experts)[BATCH], const Slots& router, u32 slot, u32 end) {
  Id raw[BATCH];
#pragma unroll
  for (int q = 0; q < BATCH; ++q) {
    const u32 mine = slot + q * 32, last = end - 1;
    raw[q] = *(const GLOBAL Id*)(global_bytes(router.ids) + router.offset(mine < last ? mine : last));
  }
#pragma unroll
  for (int q = 0; q < BATCH; ++q) {
    const bool known = slot + q * 32 < end && (u64)raw[q] < (u64)NUM_EXPERTS;
    const u32 id = known ? (u32)raw[q] : 0;
    const u32 expert = DROP_INVALID ? local_expert(router.expert_map, id) : id;
    experts[q] = known ? expert : DEAD;
  }
}

// Lanes whose expert is this lane's.
DEVICE u32 lanes_sharing(u32 expert) {
  u32 same = lanes_differ(expert, DEAD);
#pragma unroll
  for (int bit = 0; bit < EXPERT_BITS; ++bit) {
    const u32 set = expert >> bit & 1;
    same &= ~(lanes_differ(set, 0) ^ -set);
  }
  return same;
}

// First row of each block range and first entry of the active list per expert; one wave.
DEVICE void scan_experts(Table& table, const i32* expert_map) {
  u32 blocks = 0, active = 0;
  for (u32 first = 0; first < NUM_EXPERTS; first += 32) {
    const u32 expert = first + lane_id();
    const u32 known = expert < NUM_EXPERTS ? expert : 0;
    const u32 total = expert < NUM_EXPERTS ? table.totals[known] : 0;
    const u32 mine = (total + BLOCK_SIZE - 1) / BLOCK_SIZE;
    const u32 upto = sum_lower_lanes(mine);
    if (expert < NUM_EXPERTS) table.first_block[expert] = blocks + upto - mine;
    blocks += __builtin_amdgcn_readlane(upto, 31);
    if constexpr (HAS_INVERSE) {
      const bool dead = HAS_MAP && !DROP_INVALID && local_expert(expert_map, known) == DEAD;
      const u32 kept = dead ? 0 : mine;
      const u32 kept_upto = sum_lower_lanes(kept);
      if (expert < NUM_EXPERTS) table.first_active[expert] = active + kept_upto - kept;
      active += __builtin_amdgcn_readlane(kept_upto, 31);
    }
  }
  table.blocks = blocks;
  table.active = active;
}

DEVICE void put(i32* to, u32 index, u32 value) {
  *(GLOBAL u32*)((GLOBAL char*)(u64)to + index * 4) = value;
}

KERNEL __launch_bounds__(THREADS) void moe_align(
    const Id* __restrict topk_ids, const i32* __restrict expert_map, i32* __restrict sorted,
    i32* __restrict block_experts, i32* __restrict num_rows, i32* __restrict inverse,
    i32* __restrict active, i32* __restrict num_active, int num_slots, int rows, int blocks) {
  __shared__ Table table;
  const Slots router{topk_ids, expert_map, NUM_EXPERTS, NUM_EXPERTS};
  const u32 lane = lane_id(), wave = wave_id(), thread = thread_x();
  u32(&counts)[NUM_EXPERTS] = table.counts[wave];
  const u32 share = ((u32)num_slots + THREADS - 1) / THREADS * 32;
  const u32 begin = wave * share < (u32)num_slots ? wave * share : (u32)num_slots;
  const u32 end = begin + share < (u32)num_slots ? begin + share : (u32)num_slots;

  for (u32 e = lane; e < NUM_EXPERTS; e += 32) counts[e] = 0;
  wave_barrier();
  for (u32 first = begin; first < end; first += BATCH * 32) {
    u32 experts[BATCH];
    load_experts(experts, router, first + lane, end);
#pragma unroll
    for (int q = 0; q < BATCH; ++q)
      if (experts[q] != DEAD)
        __hip_atomic_fetch_add(&counts[experts[q]], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  }
  block_barrier();
  for (u32 e = thread; e < NUM_EXPERTS; e += THREADS) {
    u32 total = 0;
#pragma unroll 8
    for (int w = 0; w < WAVES; ++w) {
      const u32 count = table.counts[w][e];
      table.counts[w][e] = total;
      total += count;
    }
    table.totals[e] = total;
  }
  block_barrier();
  if (wave == 0) scan_experts(table, expert_map);
  block_barrier();

  for (u32 first = begin; first < end; first += BATCH * 32) {
    u32 experts[BATCH];
    load_experts(experts, router, first + lane, end);
#pragma unroll
    for (int q = 0; q < BATCH; ++q) {
      const u32 slot = first + q * 32 + lane, expert = experts[q];
      const u32 same = lanes_sharing(expert);
      const u32 rank = __builtin_amdgcn_mbcnt_lo(same, 0);
      const u32 before = counts[expert != DEAD ? expert : 0];
      wave_barrier();
      if (expert != DEAD && rank == 0) counts[expert] = before + __builtin_popcount(same);
      wave_barrier();
      u32 row = DEAD;
      if (expert != DEAD) {
        row = table.first_block[expert] * BLOCK_SIZE + before + rank;
        put(sorted, row, slot);
      }
      if (HAS_INVERSE && slot < end) put(inverse, slot, row);
    }
  }
  // What is left: padding, the blocks' experts, the tails.
  for (u32 e = wave; e < NUM_EXPERTS; e += WAVES) {
    const u32 total = uniform(table.totals[e]);
    if (total == 0) continue;
    const u32 first = uniform(table.first_block[e]), many = (total + BLOCK_SIZE - 1) / BLOCK_SIZE;
    const u32 expert = DROP_INVALID ? e : local_expert(expert_map, e);  // DEAD is -1
    for (u32 i = total + lane; i < many * BLOCK_SIZE; i += 32)
      put(sorted, first * BLOCK_SIZE + i, num_slots);
    for (u32 i = lane; i < many; i += 32) {
      put(block_experts, first + i, expert);
      if (HAS_INVERSE && expert != DEAD) put(active, table.first_active[e] + i, first + i);
    }
  }
  const u32 used = table.blocks;
  for (u32 i = used * BLOCK_SIZE + thread; i < (u32)rows; i += THREADS) put(sorted, i, num_slots);
  for (u32 i = used + thread; i < (u32)blocks; i += THREADS) put(block_experts, i, DEAD);
  if (thread == 0) put(num_rows, 0, used * BLOCK_SIZE);
  if constexpr (HAS_INVERSE) {
    for (u32 i = table.active + thread; i < (u32)blocks; i += THREADS) put(active, i, DEAD);
    if (thread == 0) put(num_active, 0, table.active);
  }
}
