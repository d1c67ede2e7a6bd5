// FP8 codes to fp16 pairs, exact for every finite code.
#include "common/types.hip"

// Four e4m3fn codes of one word as two fp16 pairs, in order: 8 instructions.
//
// A byte permute puts two codes into the high bytes of a pair. Shifted right by one with the sign
// and without the sign's second copy, those bits are the fp16 encoding of value / 256, also where
// the code is subnormal. The packed multiplication by 256 stays here, and is not left to the scale:
// dot2 may flush the fp16 subnormals that it would meet otherwise. Every result is 0 or normal.
//
// The codes 0x7F and 0xFF are NaN. Without NAN_CODES they come out as +-480; with it, for four more
// instructions, as NaN: of all results only 480 overflows when multiplied by 146.
template <bool NAN_CODES = false>
DEVICE void e4m3_decode(u32 word, u32& low, u32& high) {
  using Signed = Vec<short, 2>;
  u32 codes[2] = {__builtin_amdgcn_perm(0u, word, 0x010C000Cu),
                  __builtin_amdgcn_perm(0u, word, 0x030C020Cu)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const f16x2 part = bits<f16x2>(bits<u32>(bits<Signed>(codes[i]) >> (short)1) & 0xBFFFBFFFu);
    f16x2 value = part * bits<f16x2>(0x5C005C00u);
    if constexpr (NAN_CODES) {
      const f16x2 large = part * bits<f16x2>(0x78907890u);  // value * 146
      value = large * bits<f16x2>(0u) + value;
    }
    codes[i] = bits<u32>(value);
  }
  low = codes[0];
  high = codes[1];
}

// The same as the pairs (0,2) and (1,3): 7 instructions, since codes 1 and 3 are high bytes already.
DEVICE void e4m3_decode_alternating(u32 word, u32& even, u32& odd) {
  using Signed = Vec<short, 2>;
  const f16x2 scale = bits<f16x2>(0x5C005C00u);
  const u32 first = bits<u32>(bits<Signed>(word << 8) >> (short)1) & 0xBF80BF80u;
  const u32 second = bits<u32>(bits<Signed>(word) >> (short)1) & 0xBF80BF80u;
  even = bits<u32>(bits<f16x2>(first) * scale);
  odd = bits<u32>(bits<f16x2>(second) * scale);
}

// Four e5m2 codes of one word as two fp16 pairs, in order: a code is the high byte of its fp16
// number, infinities and NaN too. NOTE: its subnormals 2^-16, 2^-15 and 3 * 2^-16 are fp16
// subnormals, which no power of two keeps normal without overflow at the other end. A dot2 that
// flushes its inputs would drop them: 3 * 2^-16 of a range that goes to 57344.
DEVICE void e5m2_decode(u32 word, u32& low, u32& high) {
  low = __builtin_amdgcn_perm(0u, word, 0x010C000Cu);
  high = __builtin_amdgcn_perm(0u, word, 0x030C020Cu);
}
