// Words at addresses that may be misaligned.
#include "common/types.hip"
#include "common/memory.hip"

// COUNT words of which only ALIGN bytes are aligned.
template <int COUNT, int ALIGN>
DEVICE void load_words(GlobalBytes base, u32 offset, u32 (&out)[COUNT]) {
  if constexpr (ALIGN >= 4) {
    load<u32, COUNT, ALIGN>(base, offset, out);
  } else if constexpr (ALIGN == 2) {
    u16 parts[COUNT * 2];
    load<u16, COUNT * 2, 2>(base, offset, parts);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) out[i] = parts[2 * i] | ((u32)parts[2 * i + 1] << 16);
  } else {
    u8 parts[COUNT * 4];
    load<u8, COUNT * 4, 1>(base, offset, parts);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      out[i] = parts[4 * i] | ((u32)parts[4 * i + 1] << 8) | ((u32)parts[4 * i + 2] << 16) |
               ((u32)parts[4 * i + 3] << 24);
    }
  }
}
