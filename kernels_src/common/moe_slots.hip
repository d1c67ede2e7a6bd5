// Which expert serves a slot. A slot is one (token, choice) pair, numbered token * TOP_K + choice.
//
// topk_ids hold the router's global ids. A slot is dead when its id is negative or not below
// num_ids, or when the expert map sends it to no expert of this rank. Nothing is read for an id
// outside the map.
#include "common/memory.hip"
#include "common/wave.hip"

// Element of a [tokens, TOP_K] tensor whose rows are STRIDE apart.
template <int TOP_K, int STRIDE>
DEVICE u32 strided(u32 slot) {
  return STRIDE == TOP_K ? slot : slot / TOP_K * STRIDE + slot % TOP_K;
}

template <class Id_, int TOP_K_, int STRIDE_, bool HAS_MAP_>
struct Router {
  using Id = Id_;
  static constexpr int TOP_K = TOP_K_, STRIDE = STRIDE_;  // STRIDE: elements from token to token
  static constexpr bool HAS_MAP = HAS_MAP_;
  const Id* ids;
  const i32* expert_map;  // null: ids are local already
  u32 num_ids;            // entries of the map, or experts of this rank without a map
  u32 num_experts;        // experts of this rank

  MEMBER u32 offset(u32 slot) const {
    return strided<TOP_K, STRIDE>(slot) * (u32)sizeof(Id);
  }
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
  return lanes_equal((u32)value, (u32)other) & lanes_equal((u32)(value >> 32), (u32)(other >> 32));
}
DEVICE u32 lanes_differ(u32 value, u32 other) {
  return (u32)__builtin_amdgcn_uicmp(value, other, COMPARE_DIFFERENT);
}

// Scalar instructions only: a workgroup of a dead slot must not cost a vector instruction.
template <class Router>
DEVICE u32 expert_of_slot(const Router& router, u32 slot) {
  constexpr int WORDS = sizeof(typename Router::Id) / 4;
  u32 id[WORDS];
  load_scalar<WORDS>((u64)router.ids + router.offset(slot), id);
  if (id[0] >= router.num_ids) return DEAD;
  if (WORDS == 2 && id[WORDS - 1] != 0) return DEAD;
  if constexpr (!Router::HAS_MAP) return id[0];
  u32 expert[1];
  load_scalar<1>((u64)router.expert_map + id[0] * 4ull, expert);
  return expert[0] < router.num_experts ? expert[0] : DEAD;
}

// The same, each lane its own slot.
template <class Router>
DEVICE u32 expert_of_lane(const Router& router, u32 slot, u32 num_slots) {
  using Id = typename Router::Id;
  if (slot >= num_slots) return DEAD;
  const Id raw = *(const GLOBAL Id*)(global_bytes(router.ids) + router.offset(slot));
  if ((u64)raw >= router.num_ids) return DEAD;
  u32 expert = (u32)raw;
  if constexpr (Router::HAS_MAP) {
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
// Each wave fills and reads a list of its own, so no barrier of the workgroup is needed. An entry
// packs expert, how many slots of that expert are left (up to MOST_LEFT), token and slot;
// READ_AHEAD entries of slot 0 close the list. All of it is scalar arithmetic without conditions:
// the compilers keep conditional values in vector registers.
template <int TOKENS, int TOP_K, int READ_AHEAD>
struct SlotList {
  static constexpr int SLOTS = TOKENS * TOP_K;
  static constexpr int WORDS = ceil_div(SLOTS, 32);  // one bit per slot, 32 slots to a word
  static constexpr int TOKEN_BIT = 9, LEFT_BIT = 13, EXPERT_BIT = 16, MOST_LEFT = 7;
  static_assert(SLOTS <= 512 && TOKENS <= 16, "slot and token fit their bits");
  u32 entries[SLOTS + READ_AHEAD];

  // Appends the slots first + i of the bits i in set; left counts down the expert's slots.
  MEMBER void append(u32& length, u32& left, u32 set, u32 first, u32 expert) {
    constexpr u32 RECIPROCAL = 65536 / TOP_K + 1;  // exact below 512 slots
    for (; set != 0; set &= set - 1) {
      const u32 slot = first + __builtin_ctz(set);
      const u32 capped = left < MOST_LEFT ? left : MOST_LEFT;
      entries[length++] = expert << EXPERT_BIT | capped << LEFT_BIT |
                          slot * RECIPROCAL >> 16 << TOKEN_BIT | slot;
      --left;
    }
  }

  MEMBER void close(u32 length) {
    if (lane_id() < READ_AHEAD) entries[length + lane_id()] = 0;
    wave_barrier();
  }
};

// Up to COUNT neighbouring entries of one expert, in scalar registers. Slots from count on are
// valid slots of somebody else.
template <int COUNT>
struct SlotBatch {
  u32 expert, slot[COUNT], token[COUNT];
  i32 count;

  MEMBER explicit SlotBatch(u32 only) : expert(0), slot{only}, token{0}, count(1) {}

  template <class List>
  MEMBER SlotBatch(const List& list, u32 begin) {
    static_assert(COUNT <= List::MOST_LEFT, "the count fits its bits");
    u32 entry[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; ++q) entry[q] = uniform(list.entries[begin + q]);
    const i32 left = entry[0] >> List::LEFT_BIT & 7;
    expert = entry[0] >> List::EXPERT_BIT;
    count = left < COUNT ? left : COUNT;
#pragma unroll
    for (int q = 0; q < COUNT; ++q) {
      slot[q] = entry[q] & 511;
      token[q] = entry[q] >> List::TOKEN_BIT & 15;
    }
  }
};
