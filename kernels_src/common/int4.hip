// Unsigned 4-bit codes to exact fp16 integers q - z.
//
// An fp16 with the bits 0x6400 | n is 1024 + n; with 0x5400 | (n << 4) it is 64 + n. So a code is
// masked where it stands, OR-ed into the mantissa of 1024 or 64, and one packed add of -(1024 + z)
// or -(64 + z) leaves q - z, exact for q in 0..15 and every z below. 9 instructions per word of 8
// codes: 4 and_or, 1 shift, 4 packed adds.
//
// Words hold 8 codes of one output column. A word gives 4 pairs, low half first:
//   shuffled (even k in the low half):  (k0,k1) (k2,k3) (k4,k5) (k6,k7)
//   natural  (code j at bit 4j):        (k0,k4) (k1,k5) (k2,k6) (k3,k7)
#include "common/types.hip"

struct Int4Zero {
  u32 low;   // -(1024 + z), both halves
  u32 high;  // -(64 + z), both halves
};

// z fits 6 bits (64 + z stays in the binade of 64): two full-rate 24-bit multiply-adds.
// bias: added to every z (GPTQ v1 stores z - 1).
DEVICE Int4Zero int4_zero(u32 z, u32 bias) {
  return {z * 0x10001u + (0xE400E400u + bias * 0x10001u),
          z * 0x100010u + (0xD400D400u + bias * 0x100010u)};
}

// z is any byte: through the conversion to fp16, exact.
DEVICE Int4Zero int4_zero_byte(u32 z) {
  const f16 value = (f16)(u16)z;
  const f16 low = (f16)-1024.0f - value, high = (f16)-64.0f - value;
  return {bits<u32>(f16x2{low, low}), bits<u32>(f16x2{high, high})};
}

DEVICE u32 int4_pair(u32 word, u32 mask, u32 exponent, u32 minus) {
  return bits<u32>(bits<f16x2>((word & mask) | exponent) + bits<f16x2>(minus));
}

DEVICE void int4_decode(u32 word, Int4Zero zero, u32 (&pairs)[4]) {
  const u32 upper = word >> 8;
  pairs[0] = int4_pair(word, 0x000F000Fu, 0x64006400u, zero.low);
  pairs[1] = int4_pair(word, 0x00F000F0u, 0x54005400u, zero.high);
  pairs[2] = int4_pair(upper, 0x000F000Fu, 0x64006400u, zero.low);
  pairs[3] = int4_pair(upper, 0x00F000F0u, 0x54005400u, zero.high);
}

// Four words of x (8 halves in order of k) brought into the pair order of natural words. On
// uniform x these are scalar packs, otherwise byte permutes.
DEVICE void pairs_of_natural(u32 (&x)[4]) {
  const u32 x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  x[0] = (x0 & 0xFFFFu) | (x2 << 16);
  x[1] = (x0 >> 16) | (x2 & 0xFFFF0000u);
  x[2] = (x1 & 0xFFFFu) | (x3 << 16);
  x[3] = (x1 >> 16) | (x3 & 0xFFFF0000u);
}
