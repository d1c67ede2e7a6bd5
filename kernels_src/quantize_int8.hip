// Specialisation block: every value that the text below depends on.
constexpr int K = ${K};            // length of a row of x
constexpr int GROUP = ${GROUP};    // values that share a scale
constexpr int ORDER = ${ORDER};    // of the codes in an octet, see below
constexpr int TEAM = ${TEAM};      // threads per group, a power of two
constexpr int BLOCK = ${BLOCK};    // threads per workgroup
constexpr unsigned long long X_STRIDE = ${X_STRIDE};  // row stride, in elements
constexpr int CODE_STRIDE = ${CODE_STRIDE};  // bytes from row to row of codes; zeros behind column K
constexpr int X_ALIGN = ${X_ALIGN};  // what rows of x start on a multiple of, bytes

// Per row of x and group of neighbouring values, in fp32:
//
//   scale = absmax / 127      inverse = 127 / absmax (0 where absmax is 0)
//   code[k] = round half to even(x[k] * inverse)      sum = sum of the codes
//
// Both divisions and the product round to nearest, so the codes are -127..127 without a clamp. A
// group with an infinite or NaN value gets scale NaN, codes 0 and sum 0.
//
// ORDER is where the 8 codes of an octet of k go, byte 0 first. 0: in order. 1 and 2 match the
// nibbles that masks 0x0F0F0F0F cut from a word of int4 codes and from the word shifted by 4:
// 1: 0 4 1 5 2 6 3 7, for shuffled words; 2: 0 2 4 6 1 3 5 7, for natural ones.
//
// A team of TEAM threads owns a group; a thread keeps its octets in registers between the maximum
// and the codes, so x is read once. Limits: memory.
#include "common/types.hip"
#include "common/wave.hip"
#include "common/memory.hip"
#include "common/scan.hip"
#include "common/dot4.hip"

constexpr int GROUPS = K / GROUP;
constexpr int OCTETS = GROUP / 8;
constexpr int STORED = (GROUPS == 1 ? CODE_STRIDE : GROUP) / 8;  // octets of codes per group
constexpr int ROUNDS = ceil_div(STORED, TEAM);
constexpr int WAVES = TEAM / 32;
static_assert(K % GROUP == 0 && GROUP % 8 == 0, "groups are whole octets and tile the row");
static_assert(CODE_STRIDE % 8 == 0 && (GROUPS == 1 ? CODE_STRIDE >= K : CODE_STRIDE == K),
              "only a row of one group is padded");
static_assert(BLOCK % TEAM == 0 && BLOCK % 32 == 0, "workgroups are whole teams");

struct Octet {
  u32 halves[4];
};
DEVICE Octet load_octet(GlobalBytes at) {
  Octet x;
  if constexpr (X_ALIGN >= 4) {
    load<u32, 4, X_ALIGN>(at, 0, x.halves);
  } else {
    u16 parts[8];
    load<u16, 8, 2>(at, 0, parts);
#pragma unroll
    for (int i = 0; i < 4; ++i) x.halves[i] = parts[2 * i] | ((u32)parts[2 * i + 1] << 16);
  }
  return x;
}

struct Larger {
  MEMBER static u32 of(u32 a, u32 b) { return a > b ? a : b; }
};
struct Sum {
  MEMBER static u32 of(u32 a, u32 b) { return a + b; }
};

template <class Combine, int XOR>
DEVICE u32 with_lane_xor(u32 value) {
  return Combine::of(value, dpp_or_zero<DPP_ROW_XMASK + XOR>(value));
}

// The values of the team combined, in every thread of it. slots: one per wave.
template <class Combine>
DEVICE u32 of_team(u32 value, u32* slots) {
  if constexpr (TEAM >= 2) value = with_lane_xor<Combine, 1>(value);
  if constexpr (TEAM >= 4) value = with_lane_xor<Combine, 2>(value);
  if constexpr (TEAM >= 8) value = with_lane_xor<Combine, 4>(value);
  if constexpr (TEAM >= 16) value = with_lane_xor<Combine, 8>(value);
  if constexpr (TEAM >= 32) {
    value = Combine::of(__builtin_amdgcn_readlane(value, 0), __builtin_amdgcn_readlane(value, 16));
  }
  if constexpr (TEAM > 32) {
    // NOTE: hiprtc 5.2.3 takes wave / 2 * 2 + 1 for wave + 1 in the address of an LDS read.
    const u32 first = uniform(thread_x() / TEAM) * WAVES;
    if (lane_id() == 0) slots[wave_id()] = value;
    block_barrier();
    value = slots[first];
#pragma unroll
    for (int w = 1; w < WAVES; ++w) value = Combine::of(value, slots[first + w]);
  }
  return value;
}

DEVICE u32 largest_magnitude(const Octet& x) {
  u32 largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest = Larger::of(largest, x.halves[i] & 0x7FFFu);
    largest = Larger::of(largest, x.halves[i] >> 16 & 0x7FFFu);
  }
  return largest;
}

// The code of x in the low byte. Adding 1.5 * 2^23 rounds to an integer, half to even, which then
// stands in the mantissa.
DEVICE u32 code_of(f16 x, float inverse) {
  float scaled = (float)x * inverse;
  asm("" : "+v"(scaled));  // no fused multiply-add: the product rounds on its own
  return bits<u32>(scaled + 12582912.0f);
}

// Four codes, one per byte.
DEVICE u32 pack(u32 a, u32 b, u32 c, u32 d) {
  const u32 low = __builtin_amdgcn_perm(b, a, 0x0C0C0400u);
  const u32 high = __builtin_amdgcn_perm(d, c, 0x04000C0Cu);
  return low | high;
}

DEVICE Vec<u32, 2> codes_of(const Octet& x, float inverse) {
  u32 c[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const f16x2 pair = bits<f16x2>(x.halves[i]);
    c[2 * i] = code_of(pair.x, inverse);
    c[2 * i + 1] = code_of(pair.y, inverse);
  }
  if constexpr (ORDER == 1) return {pack(c[0], c[4], c[1], c[5]), pack(c[2], c[6], c[3], c[7])};
  if constexpr (ORDER == 2) return {pack(c[0], c[2], c[4], c[6]), pack(c[1], c[3], c[5], c[7])};
  return {pack(c[0], c[1], c[2], c[3]), pack(c[4], c[5], c[6], c[7])};
}

// count: groups of all rows.
KERNEL __launch_bounds__(BLOCK) void quantize_int8(const f16* __restrict x, u8* __restrict codes,
                                                   float* __restrict scale, i32* __restrict sums,
                                                   u32 count) {
  __shared__ u32 maxima[BLOCK / 32], totals[BLOCK / 32];
  const u32 index = block_x() * (BLOCK / TEAM) + thread_x() / TEAM;
  const u32 member = thread_x() % TEAM;
  const bool live = index < count;
  const u32 safe = live ? index : count - 1;  // teams past the end read the last group
  const u32 row = safe / GROUPS, group = safe % GROUPS;
  const GlobalBytes from = global_bytes(x) + (row * X_STRIDE + group * GROUP) * 2;
  GLOBAL char* to = (GLOBAL char*)(u64)codes + (row * (u64)CODE_STRIDE + group * GROUP);

  Octet octets[ROUNDS];
  u32 largest = 0;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const u32 octet = r * TEAM + member;
    octets[r] = {};
    if ((r + 1) * TEAM <= OCTETS || octet < OCTETS) octets[r] = load_octet(from + octet * 16);
  }
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) largest = Larger::of(largest, largest_magnitude(octets[r]));
  largest = of_team<Larger>(largest, maxima);

  const bool finite = largest < 0x7C00u;
  const float absmax = (float)bits<f16>((u16)largest);
  const float inverse = largest != 0 ? 127.0f / absmax : 0.0f;
  u32 sum = 0;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const u32 octet = r * TEAM + member;
    Vec<u32, 2> words = codes_of(octets[r], inverse);
    if (!finite) words = {};
    sum = (u32)dot4(words.x, 0x01010101u, dot4(words.y, 0x01010101u, (i32)sum));
    const bool stored = (r + 1) * TEAM <= STORED || octet < STORED;
    if (live && stored) *(GLOBAL Vec<u32, 2>*)(to + octet * 8) = words;
  }
  sum = of_team<Sum>(sum, totals);
  if (live && member == 0) {
    ((GLOBAL float*)(u64)scale)[index] = finite ? absmax / 127.0f : __builtin_nanf("");
    ((GLOBAL u32*)(u64)sums)[index] = sum;
  }
}
