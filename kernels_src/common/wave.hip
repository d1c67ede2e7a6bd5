// Thread, wave and workgroup identity, barriers, and sums over lanes (wave32).
#include "common/types.hip"

DEVICE u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
DEVICE u32 lane_id() { return thread_x() & 31u; }

// A value that is the same in all lanes, moved to a scalar register. The compiler cannot prove it
// for anything made from the thread id.
DEVICE u32 uniform(u32 value) { return __builtin_amdgcn_readfirstlane(value); }
DEVICE u32 wave_id() { return uniform(thread_x() >> 5); }

// All threads of the workgroup; LDS written before is visible after.
DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// All threads of the workgroup, for LDS alone. block_barrier() also makes global memory visible, for
// which it empties the first cache: its lines would be fetched again in every step of a loop.
DEVICE void lds_barrier() {
#ifdef __NVPTX__
  block_barrier();
#else
  asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
  __builtin_amdgcn_s_barrier();
  asm volatile("" ::: "memory");
#endif
}

// Orders LDS traffic between the lanes of one wave, which run in lockstep: no instruction, but the
// compiler may not move LDS accesses across.
DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// The instruction scheduler moves nothing across. Keeps scalar loads of later steps from piling up
// in registers.
DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }

// DPP control words of gfx10: row_xmask:n lets lane i read lane i ^ n of its row of 16.
constexpr int DPP_ROW_XMASK = 0x160;

// value + (value of the lane whose index differs by XOR, XOR < 16): one v_add_f32 with DPP.
template <int XOR>
DEVICE float add_lane_xor(float value) {
  static_assert(XOR > 0 && XOR < 16, "inside one row of 16 lanes");
  const int other =
      __builtin_amdgcn_update_dpp(0, bits<int>(value), DPP_ROW_XMASK + XOR, 0xf, 0xf, true);
  return value + bits<float>(other);
}

// Sum over each aligned block of LANES lanes, in every lane of the block; always the same order.
template <int LANES>
DEVICE float sum_lanes(float value) {
  static_assert(LANES == 1 || LANES == 2 || LANES == 4 || LANES == 8 || LANES == 16 || LANES == 32,
                "a power of two of lanes");
  if constexpr (LANES >= 2) value = add_lane_xor<1>(value);
  if constexpr (LANES >= 4) value = add_lane_xor<2>(value);
  if constexpr (LANES >= 8) value = add_lane_xor<4>(value);
  if constexpr (LANES >= 16) value = add_lane_xor<8>(value);
  if constexpr (LANES == 32) {  // across the two rows: lane i reads lane i of the other row
    u32 other = __builtin_amdgcn_permlanex16(bits<u32>(value), bits<u32>(value), 0x76543210,
                                             0xfedcba98, false, false);
    // NOTE: hiprtc 5.2.3 moves the permute into a divergent branch that uses the sum, where the
    // other row's lanes are off.
    asm volatile("" : "+v"(other));
    value += bits<float>(other);
  }
  return value;
}
