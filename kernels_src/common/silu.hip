// t * sigmoid(t).
#include "common/types.hip"

DEVICE float silu(float t) {
  constexpr float LOG2_E = 1.44269504f;
  return t * __builtin_amdgcn_rcpf(1.0f + __builtin_exp2f(t * -LOG2_E));
}
