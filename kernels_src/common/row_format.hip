// Weights stored along K: the formats, and eight neighbouring weights of any as exact fp16 pairs.
#include "common/types.hip"
#include "common/int8.hip"
#include "common/fp8.hip"
#include "common/mxfp4.hip"

enum class Format { f16, i8, e4m3, e5m2, mxfp4, int4 };  // int4: decoded by int4.hip

constexpr int format_bits(Format format) {
  if (format == Format::f16) return 16;
  return format == Format::mxfp4 || format == Format::int4 ? 4 : 8;
}

// Words of eight weights.
template <Format FORMAT>
constexpr int OCTET = format_bits(FORMAT) / 4;

// Eight weights from `words` on as fp16 pairs in order. NAN_CODES: e4m3's NaN stays NaN.
template <Format FORMAT, bool NAN_CODES = false>
DEVICE void decode_octet(const u32* words, u32 (&pairs)[4]) {
  if constexpr (FORMAT == Format::f16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[i];
  } else if constexpr (FORMAT == Format::mxfp4) {
    e2m1_decode(words[0], pairs);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      u32 &low = pairs[2 * i], &high = pairs[2 * i + 1];
      if constexpr (FORMAT == Format::i8) int8_decode(words[i], low, high);
      if constexpr (FORMAT == Format::e4m3) e4m3_decode<NAN_CODES>(words[i], low, high);
      if constexpr (FORMAT == Format::e5m2) e5m2_decode(words[i], low, high);
    }
  }
}
