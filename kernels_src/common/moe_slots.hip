// Which expert serves a slot. A slot is one (token, choice) pair, numbered token * TOP_K + choice.
//
// topk_ids hold the router's global ids. A slot is dead when its id is negative or not below
// num_ids, or when the expert map sends it to no expert of this rank. Nothing is read for an id
// outside the map.
#include "common/memory.hip"
#include "common/wave.hip"

template <class Id>
struct Router {
  const Id* ids;
  const i32* expert_map;  // null: ids are local already
  u32 num_ids;            // entries of the map, or experts of this rank without a map
  u32 num_experts;        // experts of this rank
};

constexpr u32 DEAD = ~0u;

// One bit per lane, in a scalar register: whether the lane's value equals (differs from) a uniform
// one. One compare instruction.
constexpr int COMPARE_EQUAL = 32, COMPARE_DIFFERENT = 33;
DEVICE u32 lanes_equal(u32 value, u32 other) {
  return (u32)__builtin_amdgcn_uicmp(value, other, COMPARE_EQUAL);
}
DEVICE u32 lanes_equal(i32 value, i32 other) { return lanes_equal((u32)value, (u32)other); }
DEVICE u32 lanes_equal(i64 value, i64 other) {
  return (u32)__builtin_amdgcn_uicmpl((u64)value, (u64)other, COMPARE_EQUAL);
}
DEVICE u32 lanes_differ(u32 value, u32 other) {
  return (u32)__builtin_amdgcn_uicmp(value, other, COMPARE_DIFFERENT);
}

// Scalar instructions only: a workgroup of a dead slot must not cost a vector instruction.
template <bool HAS_MAP, class Id>
DEVICE u32 expert_of_slot(const Router<Id>& router, u32 slot) {
  constexpr int WORDS = sizeof(Id) / 4;
  u32 id[WORDS];
  load_scalar<WORDS>((u64)router.ids + slot * (u64)sizeof(Id), id);
  if (id[0] >= router.num_ids) return DEAD;
  if (WORDS == 2 && id[WORDS - 1] != 0) return DEAD;
  if constexpr (!HAS_MAP) return id[0];
  u32 expert[1];
  load_scalar<1>((u64)router.expert_map + id[0] * 4ull, expert);
  return expert[0] < router.num_experts ? expert[0] : DEAD;
}

// The same, each lane its own slot.
template <bool HAS_MAP, class Id>
DEVICE u32 expert_of_lane(const Router<Id>& router, u32 slot, u32 num_slots) {
  if (slot >= num_slots) return DEAD;
  const Id raw = *(const GLOBAL Id*)(global_bytes(router.ids) + slot * (u32)sizeof(Id));
  if ((u64)raw >= router.num_ids) return DEAD;
  u32 expert = (u32)raw;
  if constexpr (HAS_MAP) {
    expert = *(const GLOBAL u32*)(global_bytes(router.expert_map) + expert * 4);
    if (expert >= router.num_experts) return DEAD;
  }
  return expert;
}

// Bits of word i of a set that holds the slots below end.
DEVICE u32 bits_below(u32 end, u32 i) {
  return end <= i * 32 ? 0 : end - i * 32 >= 32 ? ~0u : (1u << (end - i * 32)) - 1;
}

// Live slots of one wave in LDS, slots of one expert next to each other and in ascending order.
// Each wave fills and reads a list of its own, so no barrier of the workgroup is needed. Entries
// pack expert, token and slot; READ_AHEAD sentinels close the list.
template <int TOKENS, int TOP_K, int READ_AHEAD>
struct SlotList {
  static constexpr int SLOTS = TOKENS * TOP_K;
  static constexpr int WORDS = ceil_div(SLOTS, 32);  // one bit per slot, 32 slots to a word
  static_assert(SLOTS <= 512 && TOKENS <= 16, "slot and token fit their bits");
  static constexpr int TOKEN_BIT = 9, EXPERT_BIT = 13;
  u32 entries[SLOTS + READ_AHEAD];

  // Appends the slots first + lane of the lanes in set; returns the new length.
  MEMBER u32 append(u32 length, u32 set, u32 first, u32 expert) {
    const u32 slot = first + lane_id();
    const u32 place = length + __builtin_amdgcn_mbcnt_lo(set, 0);
    if (set >> lane_id() & 1)
      entries[place] = expert << EXPERT_BIT | slot / TOP_K << TOKEN_BIT | slot;
    return length + __builtin_popcount(set);
  }

  MEMBER void close(u32 length) {
    if (lane_id() < READ_AHEAD) entries[length + lane_id()] = DEAD;
    wave_barrier();
  }
};

// Up to COUNT neighbouring entries of one expert, in scalar registers.
template <int COUNT>
struct SlotBatch {
  u32 expert, slot[COUNT], token[COUNT];
  i32 count;

  MEMBER explicit SlotBatch(u32 only) : expert(0), slot{only}, token{0}, count(1) {}

  template <class List>
  MEMBER SlotBatch(const List& list, u32 begin) {
    u32 entry[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; ++q) entry[q] = uniform(list.entries[begin + q]);
    expert = entry[0] >> List::EXPERT_BIT;
    count = 0;
#pragma unroll
    for (int q = 0; q < COUNT; ++q) {
      const bool same = entry[q] >> List::EXPERT_BIT == expert;
      count += same ? 1 : 0;
      const u32 valid = same ? entry[q] : entry[0];
      slot[q] = valid & ((1u << List::TOKEN_BIT) - 1);
      token[q] = valid >> List::TOKEN_BIT & ((1u << (List::EXPERT_BIT - List::TOKEN_BIT)) - 1);
    }
  }
};
