// Gated activations: f(gate) * up, in fp32.
#include "common/silu.hip"

// swiglu is gate * sigmoid(alpha * gate) * (up + 1).
enum class Activation { silu, gelu, gelu_tanh, swiglu };

// t * Phi(t), Phi the normal distribution's integral: Abramowitz and Stegun 7.1.26 for erfc, whose
// error is 1.5e-7 of Phi's tail factor.
DEVICE float gelu(float t) {
  constexpr float HALF_LOG2_E = 0.72134752f, ROOT_HALF = 0.70710678f;
  const float z = __builtin_fabsf(t) * ROOT_HALF;
  const float r = __builtin_amdgcn_rcpf(__builtin_fmaf(0.3275911f, z, 1.0f));
  float poly = __builtin_fmaf(1.061405429f, r, -1.453152027f);
  poly = __builtin_fmaf(poly, r, 1.421413741f);
  poly = __builtin_fmaf(poly, r, -0.284496736f);
  poly = __builtin_fmaf(poly, r, 0.254829592f);
  const float tail = 0.5f * t * poly * r * __builtin_exp2f(t * t * -HALF_LOG2_E);
  return t > 0.0f ? t - tail : tail;
}

// 0.5 t (1 + tanh(u)) = t sigmoid(2 u), u = sqrt(2 / pi) (t + 0.044715 t^3).
DEVICE float gelu_tanh(float t) {
  constexpr float TWO_LOG2_E_ROOT = 2.30220821f;  // 2 sqrt(2 / pi) log2(e)
  const float u = t * __builtin_fmaf(0.044715f * t, t, 1.0f);
  return t * __builtin_amdgcn_rcpf(1.0f + __builtin_exp2f(u * -TWO_LOG2_E_ROOT));
}

// CLAMPED: gate from above and up to both sides, to limit. NaN passes.
template <Activation ACTIVATION, bool CLAMPED>
DEVICE float gated(float gate, float up, float limit, float alpha) {
  if constexpr (CLAMPED) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  if constexpr (ACTIVATION == Activation::swiglu) {
    return gate * sigmoid(alpha * gate) * (up + 1.0f);
  }
  if constexpr (ACTIVATION == Activation::gelu) return gelu(gate) * up;
  if constexpr (ACTIVATION == Activation::gelu_tanh) return gelu_tanh(gate) * up;
  return silu(gate) * up;
}
