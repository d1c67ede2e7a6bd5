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

// A set of slots, one bit each, in scalar registers.
template <int SLOTS>
struct SlotSet {
  static constexpr int WORDS = ceil_div(SLOTS, 32);
  u32 words[WORDS];

  DEVICE bool empty() const {
    u32 any = 0;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) any |= words[i];
    return any == 0;
  }

  // Removes the lowest slot and returns it; 0 if there is none.
  DEVICE u32 take() {
    u32 slot = 0;
    bool found = false;
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      if (!found && words[i] != 0) {
        slot = i * 32 + __builtin_ctz(words[i]);
        words[i] &= words[i] - 1;
        found = true;
      }
    return slot;
  }

  // Removes the members of other.
  DEVICE void remove(const SlotSet& other) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] &= ~other.words[i];
  }
};

// Takes up to COUNT slots; returns how many there were. Slots beyond repeat slot 0.
template <int COUNT, int SLOTS>
DEVICE int take_slots(SlotSet<SLOTS>& set, u32 (&slots)[COUNT]) {
  int count = 0;
#pragma unroll
  for (int q = 0; q < COUNT; ++q) {
    count += set.empty() ? 0 : 1;
    slots[q] = set.take();
  }
  return count;
}
