// Expert choice of a router: the TOP_K experts of each token and their weights. A wave per token.
//
//   logits [tokens, EXPERTS]; bias fp32 [EXPERTS]
//   weights fp32 [tokens, TOP_K], ids i32 [tokens, TOP_K], best first
//
// Experts are compared by score + bias, or without a bias by their logits, which have the order of
// the scores without their rounding. Values become unsigned integers of the same order: NaN above
// all, -0 equal to 0, and 0 for what cannot be chosen. The experts of a lane are neighbours and
// lanes never share a group's border, so the lowest lane that has the maximum has the lowest index.
//
// Limit on RDNA2: VALU, about 3.5 EXPERTS / 32 instructions per choice; latency for few tokens.

// ---- specialisation ----
constexpr int EXPERTS = ${EXPERTS};
constexpr int TOP_K = ${TOP_K};
constexpr int GROUPS = ${GROUPS};  // 1: no groups
constexpr int TOP_GROUPS = ${TOP_GROUPS};
using Logit = ${LOGIT_TYPE};
constexpr bool SIGMOID = ${SIGMOID};  // else softmax
constexpr bool HAS_BIAS = ${HAS_BIAS};
constexpr bool RENORMALIZE = ${RENORMALIZE};
constexpr int ALIGN = ${ALIGN};  // of a lane's logits, in bytes
constexpr int WAVES = ${WAVES};
// ---- end of specialisation ----

#include "common/moe_slots.hip"
#include "common/scan.hip"

constexpr int power_below(int n) { return n < 2 ? 1 : 2 * power_below(n / 2); }
constexpr int GROUP_LANES = power_below(32 / GROUPS), GROUP_EXPERTS = EXPERTS / GROUPS;
constexpr int OWN = ceil_div(GROUP_EXPERTS, GROUP_LANES);  // experts of a lane
constexpr bool FULL = OWN * 32 == EXPERTS && GROUPS * GROUP_LANES == 32;
constexpr float LOG2_E = 1.44269504f;
static_assert(EXPERTS % GROUPS == 0 && GROUPS <= 32 && TOP_K <= 32, "a lane per choice and group");

DEVICE u32 ordered(float value) {
  const u32 raw = bits<u32>(value + 0.0f);
  return value != value ? ~0u : raw ^ ((u32)((i32)raw >> 31) | 0x80000000u);
}
DEVICE float from_ordered(u32 key) {
  return bits<float>(key >> 31 ? key ^ 0x80000000u : ~key);
}

DEVICE float sigmoid(float t) {
  return __builtin_amdgcn_rcpf(1.0f + __builtin_exp2f(t * -LOG2_E));
}

// This lane's experts and logits.
struct Own {
  u32 begin, count;
  float logits[OWN];

  MEMBER explicit Own(GlobalBytes row) {
    const u32 within = lane_id() % GROUP_LANES * OWN, group = lane_id() / GROUP_LANES;
    begin = group * GROUP_EXPERTS + within;
    count = group >= GROUPS || within >= GROUP_EXPERTS ? 0 : GROUP_EXPERTS - within;
    Logit raw[OWN];
    if constexpr (FULL) {
      load<Logit, OWN, ALIGN>(row, begin * (u32)sizeof(Logit), raw);
    } else {
#pragma unroll
      for (u32 i = 0; i < OWN; ++i)
        raw[i] = *(const GLOBAL Logit*)(row + (i < count ? begin + i : 0) * (u32)sizeof(Logit));
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) logits[i] = (float)raw[i];
  }
  MEMBER bool has(u32 i) const { return FULL || i < count; }
};

struct Softmax {
  float largest, sum;
  MEMBER float unscaled(float logit) const { return __builtin_exp2f((logit - largest) * LOG2_E); }
};

// A NaN among the logits is the largest, and makes every score NaN.
DEVICE Softmax softmax_of(const Own& own) {
  u32 key = 0;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const u32 other = own.has(i) ? ordered(own.logits[i]) : 0;
    key = key > other ? key : other;
  }
  Softmax softmax{from_ordered(max_of_wave(key)), 0.0f};
  float part = 0.0f;
#pragma unroll
  for (int i = 0; i < OWN; ++i) part += own.has(i) ? softmax.unscaled(own.logits[i]) : 0.0f;
  softmax.sum = sum_lanes<32>(part);
  return softmax;
}

// The largest and second largest of each group's keys, in all its lanes.
template <int XOR>
DEVICE void merge_two(u32& first, u32& second) {
  if constexpr (XOR < GROUP_LANES) {
    u32 a, b;
    if constexpr (XOR < 16) {
      a = dpp_or_zero<DPP_ROW_XMASK + XOR>(first);
      b = dpp_or_zero<DPP_ROW_XMASK + XOR>(second);
    } else {
      a = __builtin_amdgcn_ds_bpermute((lane_id() ^ 16) * 4, first);
      b = __builtin_amdgcn_ds_bpermute((lane_id() ^ 16) * 4, second);
    }
    const u32 low = first < a ? first : a, next = second > b ? second : b;
    first = first > a ? first : a;
    second = low > next ? low : next;
    merge_two<XOR * 2>(first, second);
  }
}

// Whether this lane's group is among the TOP_GROUPS best: by its best expert, or with a bias by
// the sum of its best two. Ties go to the lower group.
DEVICE bool group_chosen(const u32 (&keys)[OWN]) {
  u32 first = 0, second = 0;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const u32 low = first < keys[i] ? first : keys[i];
    first = first > keys[i] ? first : keys[i];
    second = second > low ? second : low;
  }
  merge_two<1>(first, second);
  const u32 score = HAS_BIAS ? ordered(from_ordered(first) + from_ordered(second)) : first;
  const u32 group = lane_id() / GROUP_LANES;
  u32 better = 0;
#pragma unroll
  for (u32 g = 0; g < GROUPS; ++g) {
    const u32 other = __builtin_amdgcn_readlane(score, g * GROUP_LANES);
    better += other > score || (other == score && g < group);
  }
  return better < TOP_GROUPS;
}

// Takes the best key of the wave out; returns its expert.
DEVICE u32 take_best(u32 (&keys)[OWN], u32 begin) {
  u32 mine = keys[0];
#pragma unroll
  for (int i = 1; i < OWN; ++i) mine = mine > keys[i] ? mine : keys[i];
  const u32 best = max_of_wave(mine);
  const u32 winner = __builtin_ctz(lanes_equal(mine, best));
  bool looking = lane_id() == winner;
  u32 expert = begin;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const bool hit = looking && keys[i] == best;
    keys[i] = hit ? 0 : keys[i];
    expert = hit ? begin + i : expert;
    looking = looking && !hit;
  }
  return __builtin_amdgcn_readlane(expert, winner);
}

KERNEL __launch_bounds__(WAVES * 32) void moe_topk_router(
    const Logit* __restrict logits, const float* __restrict bias, float* __restrict weights,
    i32* __restrict ids, int num_tokens, int logits_stride, float scale) {
  const u32 token = block_x() * WAVES + wave_id(), lane = lane_id();
  if (token >= (u32)num_tokens) return;
  const GlobalBytes row = global_bytes(logits) + (u64)token * (u32)logits_stride * sizeof(Logit);
  const Own own(row);
  Softmax softmax{0.0f, 1.0f};
  if constexpr (!SIGMOID) softmax = softmax_of(own);
  u32 keys[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    float value = own.logits[i];
    if constexpr (HAS_BIAS) {
      const u32 index = own.has(i) ? own.begin + i : 0;
      value = SIGMOID ? sigmoid(value) : softmax.unscaled(value) / softmax.sum;
      value += *(const GLOBAL float*)(global_bytes(bias) + index * 4);
    }
    keys[i] = own.has(i) ? ordered(value) : 0;
  }
  if constexpr (TOP_GROUPS < GROUPS) {
    const bool chosen = group_chosen(keys);
#pragma unroll
    for (int i = 0; i < OWN; ++i) keys[i] = chosen ? keys[i] : 0;
  }
  u32 expert = 0;  // lane t: the expert of choice t
#pragma unroll 1
  for (u32 t = 0; t < TOP_K; ++t) {
    const u32 best = take_best(keys, own.begin);
    expert = lane == t ? best : expert;
  }
  const float logit = (float)*(const GLOBAL Logit*)(row + expert * (u32)sizeof(Logit));
  float weight = SIGMOID ? sigmoid(logit) : softmax.unscaled(logit);
  float total = softmax.sum;
  if constexpr (RENORMALIZE) total = sum_lanes<32>(lane < TOP_K ? weight : 0.0f);
  if constexpr (RENORMALIZE || !SIGMOID) weight = total == 0.0f ? 0.0f : weight / total;
  if (lane < TOP_K) {
    const u32 at = (token * TOP_K + lane) * 4;
    *(GLOBAL float*)((GLOBAL char*)(u64)weights + at) = weight * scale;
    *(GLOBAL u32*)((GLOBAL char*)(u64)ids + at) = expert;
  }
}
