// A chain of dependent loads: each one's address is the one's before it result.
#include "common/wave.hip"

KERNEL __launch_bounds__(32) void chase(const u32* next, u32* out, int steps) {
  u32 at = 0;
  asm volatile("" : "+v"(at));
  for (int s = 0; s < steps; ++s) at = next[at];
  out[lane_id()] = at;
}
