// Signed bytes to exact fp16 integers.
#include "common/types.hip"

// Four codes -128..127 of one word as two fp16 pairs, in order. Five instructions: one exclusive or
// makes them q + 128, two byte permutes put each under the high byte 0x64, which is 1024 + 128 + q
// as fp16, and two packed adds of -1152 leave q.
DEVICE void int8_decode(u32 word, u32& low, u32& high) {
  const u32 biased = word ^ 0x80808080u;
  const f16x2 minus = bits<f16x2>(0xE480E480u);
  const u32 first = __builtin_amdgcn_perm(0x64646464u, biased, 0x04010400u);
  const u32 second = __builtin_amdgcn_perm(0x64646464u, biased, 0x04030402u);
  low = bits<u32>(bits<f16x2>(first) + minus);
  high = bits<u32>(bits<f16x2>(second) + minus);
}
