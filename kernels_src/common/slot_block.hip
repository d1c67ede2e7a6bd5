// What the two grouped products of a MoE layer share: a workgroup's block of slots, which are sorted
// by expert (moe_align.hip), all of one expert, padded at the end.
#include "common/memory.hip"
#include "common/wave.hip"

constexpr u32 COMPARE_BELOW = 36;  // unsigned
constexpr int WAVE_ROWS = 8;       // of a block, for each wave of the workgroup

// Block i of ROWS slots. `live`: how many of them are slots; 0 past the last block and for experts
// of other ranks.
template <int ROWS>
struct SlotBlock {
  u64 first;  // address of its slots
  u32 expert, live, num_slots;

  MEMBER SlotBlock(const i32* sorted, const i32* block_experts, const i32* num_rows, u32 index,
                   u32 slots, u32 num_experts)
      : first((u64)sorted + (u64)index * (ROWS * 4)), live(0), num_slots(slots) {
    u32 word[1];
    load_scalar<1>((u64)num_rows, word);
    if (index * ROWS >= word[0]) return;
    load_scalar<1>((u64)block_experts + index * 4ull, word);
    expert = word[0];
    if (expert >= num_experts) return;
#pragma unroll
    for (int i = 0; i < ROWS; i += 32) {
      const u32 slot = *(const GLOBAL u32*)((GlobalBytes)first + (i + lane_id()) * 4);
      live += __builtin_popcount((u32)__builtin_amdgcn_uicmp(slot, num_slots, COMPARE_BELOW));
    }
  }

  // The slot of a row of the block; the first one where the row is padding.
  MEMBER u32 slot_of_row(u32 row) const {
    return *(const GLOBAL u32*)((GlobalBytes)first + (row < live ? row : 0) * 4);
  }

  // Which eight rows of the block this wave owns. Rows of padding are at the end; were they always
  // the last waves', and waves always dealt to the same SIMDs, the first SIMDs would do the work.
  MEMBER static u32 band() {
    return (wave_id() + block_x() + block_y()) % (ROWS / WAVE_ROWS);
  }

  // Slots of the wave's rows; those from `live` on are num_slots.
  MEMBER void slots_of_wave(u32 (&slots)[WAVE_ROWS]) const {
    load_scalar<WAVE_ROWS>(first + band() * (WAVE_ROWS * 4), slots);
  }
};
