// Integer scans and maxima over the lanes of a wave. All lanes take part.
#include "common/wave.hip"

constexpr int DPP_ROW_SHR = 0x110;  // row_shr:n lets lane i read lane i - n of its row of 16

template <int CONTROL>
DEVICE u32 dpp_or_zero(u32 value) {
  return (u32)__builtin_amdgcn_update_dpp(0, (int)value, CONTROL, 0xf, 0xf, true);
}

// Sum of this lane's value and those of the lanes below.
DEVICE u32 sum_lower_lanes(u32 value) {
  value += dpp_or_zero<DPP_ROW_SHR + 1>(value);
  value += dpp_or_zero<DPP_ROW_SHR + 2>(value);
  value += dpp_or_zero<DPP_ROW_SHR + 4>(value);
  value += dpp_or_zero<DPP_ROW_SHR + 8>(value);
  const u32 lower_row = __builtin_amdgcn_readlane(value, 15);
  return value + (lane_id() < 16 ? 0 : lower_row);
}

template <int XOR>
DEVICE u32 max_lane_xor(u32 value) {
  const u32 other = dpp_or_zero<DPP_ROW_XMASK + XOR>(value);
  return value > other ? value : other;
}

// The largest value of the wave, in a scalar register.
DEVICE u32 max_of_wave(u32 value) {
  value = max_lane_xor<1>(value);
  value = max_lane_xor<2>(value);
  value = max_lane_xor<4>(value);
  value = max_lane_xor<8>(value);
  const u32 low = __builtin_amdgcn_readlane(value, 0), high = __builtin_amdgcn_readlane(value, 16);
  return low > high ? low : high;
}
