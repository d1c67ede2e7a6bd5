// Loads and stores in the form that gfx10 encodes without address arithmetic: a scalar base (two
// scalar registers) plus a 32-bit lane offset plus an immediate of -2048..2047.
#include "common/types.hip"

// Hides where a value comes from. NOTE: without it the compiler turns base + offset into a 64-bit
// vector address, two VALU instructions per load. Launder a lane offset in the basic block of its
// loads (in place: a laundered copy costs a move), and a base after each advance, else constant
// offsets beyond the immediate's range are folded back into vector adds.
DEVICE void launder_lane(u32& offset) { asm("" : "+v"(offset)); }
template <class T>
DEVICE void launder_scalar(T& value) {
  asm("" : "+s"(value));
}
DEVICE GlobalBytes launder_base(GlobalBytes base) {
  asm("" : "+s"(base));
  return base;
}

// COUNT elements of T at base + offset. ALIGN: what the address is a multiple of, in bytes; less
// than the vector's size means narrower loads.
template <class T, int COUNT, int ALIGN = sizeof(T) * COUNT>
DEVICE void load(GlobalBytes base, u32 offset, T (&out)[COUNT]) {
  constexpr int WIDTH = sizeof(T) * COUNT < ALIGN ? COUNT : ALIGN / sizeof(T);
  static_assert(WIDTH > 0 && COUNT % WIDTH == 0, "elements are aligned, vectors tile the row");
  if constexpr (WIDTH == 1) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) out[i] = *(const GLOBAL T*)(base + offset + i * sizeof(T));
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
      const Vec<T, WIDTH> v = *(const GLOBAL Vec<T, WIDTH>*)(base + offset + i * sizeof(T));
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) out[i + j] = v[j];
    }
  }
}

// COUNT elements of T to an address that is a multiple of ALIGN bytes.
template <class T, int COUNT, int ALIGN = sizeof(T) * COUNT>
DEVICE void store(GLOBAL char* base, u32 offset, const T (&in)[COUNT]) {
  constexpr int WIDTH = sizeof(T) * COUNT < ALIGN ? COUNT : ALIGN / sizeof(T);
  static_assert(WIDTH > 0 && COUNT % WIDTH == 0, "elements are aligned, vectors tile the row");
  if constexpr (WIDTH == 1) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) *(GLOBAL T*)(base + offset + i * sizeof(T)) = in[i];
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
      Vec<T, WIDTH> v;
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) v[j] = in[i + j];
      *(GLOBAL Vec<T, WIDTH>*)(base + offset + i * sizeof(T)) = v;
    }
  }
}

// COUNT 32-bit words at a wave-uniform address (multiple of 4): one scalar load.
template <int COUNT>
DEVICE void load_scalar(u64 address, u32 (&out)[COUNT]) {
  // NOTE: an alignment on a vector type that depends on COUNT is ignored; on a struct it holds.
  struct __attribute__((packed, aligned(4))) Words {
    Vec<u32, COUNT> words;
  };
  const Vec<u32, COUNT> v = ((const CONSTANT Words*)address)->words;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) out[i] = v[i];
}
