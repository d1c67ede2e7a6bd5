// MXFP4: e2m1 codes to exact fp16 pairs, and their e8m0 scales to fp32.
#include "common/types.hip"
#include "common/memory.hip"

// Eight codes of one word, code j at bit 4j, as four fp16 pairs in order: 12 instructions.
//
// The byte permute is a table of eight bytes: the high bytes of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 in
// fp16, whose low bytes are all 0. One permute looks up the four even codes, one the odd ones; the
// signs are OR-ed in, and four permutes spread the bytes to neighbouring halves. No subnormals.
DEVICE void e2m1_decode(u32 word, u32 (&pairs)[4]) {
  constexpr u32 SMALL = 0x3E3C3800u, LARGE = 0x46444240u, MAGNITUDES = 0x07070707u;
  constexpr u32 SIGNS = 0x80808080u;
  u32 even = __builtin_amdgcn_perm(LARGE, SMALL, word & MAGNITUDES);
  u32 odd = __builtin_amdgcn_perm(LARGE, SMALL, (word >> 4) & MAGNITUDES);
  even |= (word << 4) & SIGNS;
  odd |= word & SIGNS;
  pairs[0] = __builtin_amdgcn_perm(odd, even, 0x040C000Cu);
  pairs[1] = __builtin_amdgcn_perm(odd, even, 0x050C010Cu);
  pairs[2] = __builtin_amdgcn_perm(odd, even, 0x060C020Cu);
  pairs[3] = __builtin_amdgcn_perm(odd, even, 0x070C030Cu);
}

// 2^(b - 127) of a scale byte b. Byte 0 is the fp32 subnormal 2^-127. Byte 255, NaN by the format,
// becomes infinity here, and a sum that meets it infinite or NaN.
DEVICE float e8m0_scale(u32 byte) {
  u32 exponent = byte << 23;
  launder_lane(exponent);  // else the maximum becomes a comparison and a selection
  return bits<float>(exponent > 0x00400000u ? exponent : 0x00400000u);
}
