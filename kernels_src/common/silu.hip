// sigmoid(t), and t * sigmoid(t).
#include "common/types.hip"

DEVICE float sigmoid(float t) {
  constexpr float LOG2_E = 1.44269504f;
  return __builtin_amdgcn_rcpf(1.0f + __builtin_exp2f(t * -LOG2_E));
}
DEVICE float silu(float t) { return t * sigmoid(t); }
