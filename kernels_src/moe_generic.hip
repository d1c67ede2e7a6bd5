// MoE decode for every shape and view that the layouts can hold: the slow, plain way.
//
//   gate_up: act[slot, n] = fp16( f(W1[e, n] . x[token]) * (W1[e, I + n] . x[token]) )
//   down:    out[m, h] = fp16( sum over live slots of weight * (W2[e, h] . act[slot]) + residual )
//
// Layouts as in moe_gate_up and moe_down, but act is in natural order, experts and rows of weights
// and scales may be strided, and any tensor may be misaligned. One wave computes one row of the
// output of one slot (gate_up) or token (down); lanes stride over K.

// ---- specialisation ----
#include "common/gated.hip"
#include "common/rows.hip"
constexpr Format FORMAT = Format::${FORMAT};
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_1 = ${GROUP_1};            // weights per scale along H, in w1
constexpr int GROUP_2 = ${GROUP_2};            // and along I, in w2
constexpr int SCALE_ROWS_1 = ${SCALE_ROWS_1};  // rows per scale
constexpr int SCALE_ROWS_2 = ${SCALE_ROWS_2};
constexpr int SCALE_BYTES_1 = ${SCALE_BYTES_1};  // 0: none, 1: e8m0, 2: fp16, 4: fp32
constexpr int SCALE_BYTES_2 = ${SCALE_BYTES_2};
constexpr bool HAS_ZEROS = ${HAS_ZEROS};        // of w1
constexpr bool HAS_ZEROS_2 = ${HAS_ZEROS_2};    // of w2
constexpr bool HAS_MAP = ${HAS_MAP};
constexpr bool HAS_RESIDUAL = ${HAS_RESIDUAL};
using Id = ${ID_TYPE};
constexpr int ID_STRIDE = ${ID_STRIDE};        // elements from token to token
using RouterWeight = ${WEIGHT_TYPE};
constexpr int WEIGHT_STRIDE = ${WEIGHT_STRIDE};
constexpr Activation ACTIVATION = Activation::${ACTIVATION};
constexpr bool CLAMPED = ${CLAMPED};
constexpr bool BY_OCTET = ${BY_OCTET};         // 8 weights at a time; else one
constexpr int WEIGHTS_ALIGN = ${WEIGHTS_ALIGN};  // what rows start on a multiple of, in bytes
constexpr int VECTOR_ALIGN = ${VECTOR_ALIGN};  // of x and act
// ---- end of specialisation ----

#include "common/moe_slots.hip"

constexpr int WAVES = 8;
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;
using Form1 = RowFormat<FORMAT, HIDDEN, 2 * INTERMEDIATE, GROUP_1, SCALE_ROWS_1, SCALE_BYTES_1,
                        HAS_ZEROS>;
using Form2 =
    RowFormat<FORMAT, INTERMEDIATE, HIDDEN, GROUP_2, SCALE_ROWS_2, SCALE_BYTES_2, HAS_ZEROS_2>;
constexpr bool whole_octets(int k, int group) {
  return k % 8 == 0 && (group % 8 == 0 || group >= k);
}
static_assert(!BY_OCTET || (whole_octets(HIDDEN, GROUP_1) && whole_octets(INTERMEDIATE, GROUP_2)),
              "octets tile the rows, each in one group");

// Strides: in bytes for weights and zeros, in elements for scales.
struct Strides {
  i64 weights_expert, scales_expert, zeros_expert;
  i32 weights_row, scales_row, zeros_row;
};

// One row: weights, scales and zeros of all its groups.
template <class Form>
struct Row {
  GlobalBytes weights, scales, zeros;
  u32 zero_shift;

  MEMBER Row(const WeightMatrix& matrix, const Strides& strides, u32 expert, u32 index)
      : weights(global_bytes(matrix.weights) + expert * strides.weights_expert +
                index * (i64)strides.weights_row),
        scales(global_bytes(matrix.scales) +
               (expert * strides.scales_expert + index / Form::SCALE_ROWS * (i64)strides.scales_row) *
                   Form::SCALE_BYTES),
        zeros(global_bytes(matrix.zeros) + expert * strides.zeros_expert +
              index / 2 * (i64)strides.zeros_row),
        zero_shift((index & 1) * 4) {}

  MEMBER float scale(u32 group) const {
    using Stored = typename StoredScale<Form::SCALE_BYTES>::Type;
    if constexpr (Form::SCALE_BYTES == 0) return 1.0f;
    return scale_value<Form::SCALE_BYTES>(
        *(const GLOBAL Stored*)(scales + group * Form::SCALE_BYTES));
  }
  MEMBER u32 zero(u32 group) const {
    if constexpr (!Form::HAS_ZEROS) return 8;
    return *(const GLOBAL u8*)(zeros + group) >> zero_shift & 15;
  }
};

// 8 halves as 4 words.
DEVICE void load_octet(GlobalBytes x, u32 k, u32 (&words)[4]) {
  u16 halves[8];
  load<u16, 8, VECTOR_ALIGN>(x, k * 2, halves);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = halves[2 * i] | (u32)halves[2 * i + 1] << 16;
}

// The weights k .. k + 7 of a row.
DEVICE void load_weights(GlobalBytes weights, u32 k, u32 (&words)[OCTET<FORMAT>]) {
  constexpr int WORDS = OCTET<FORMAT>;
  if constexpr (WEIGHTS_ALIGN >= 4) {
    load<u32, WORDS, 4>(weights, k / 8 * (WORDS * 4), words);
  } else {
    u8 bytes[WORDS * 4];
    load<u8, WORDS * 4, 1>(weights, k / 8 * (WORDS * 4), bytes);
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      words[i] = bytes[4 * i] | bytes[4 * i + 1] << 8 | bytes[4 * i + 2] << 16 |
                 (u32)bytes[4 * i + 3] << 24;
  }
}

// One weight without its scale.
template <class Form>
DEVICE float one_weight(const Row<Form>& row, u32 k) {
  constexpr int BITS = format_bits(FORMAT);
  if constexpr (BITS == 16) return (float)*(const GLOBAL f16*)(row.weights + k * 2);
  u32 code = *(const GLOBAL u8*)(row.weights + k * BITS / 8);
  if constexpr (BITS == 4) code = code >> k % 2 * 4 & 15;
  if constexpr (FORMAT == Format::int4) return (float)((i32)code - (i32)row.zero(k / Form::GROUP));
  u32 words[OCTET<FORMAT>] = {code}, pairs[4];
  decode_octet<FORMAT>(words, pairs);
  return (float)bits<f16>((u16)pairs[0]);
}

// This lane's part of row . x.
template <class Form>
DEVICE float dot_row(const Row<Form>& row, GlobalBytes x) {
  constexpr int K = Form::K, GROUP = Form::GROUP;
  float sum = 0.0f;
  if constexpr (BY_OCTET) {
    for (u32 k = lane_id() * 8; k < K; k += 32 * 8) {
      u32 vector[4], words[OCTET<FORMAT>], pairs[4];
      load_octet(x, k, vector);
      to_pair_order<FORMAT>(vector);
      load_weights(row.weights, k, words);
      const u32 zero = FORMAT == Format::int4 ? row.zero(k / GROUP) : 0;
      decode_weights<FORMAT>(words, int4_zero(zero, 0), pairs);
      float dot = dot2_start<false>(vector[0], pairs[0]);
#pragma unroll
      for (int i = 1; i < 4; ++i) dot = dot2(vector[i], pairs[i], dot);
      sum = __builtin_fmaf(row.scale(k / GROUP), dot, sum);
    }
  } else {
    for (u32 k = lane_id(); k < K; k += 32) {
      const float value = (float)*(const GLOBAL f16*)(x + k * 2);
      sum = __builtin_fmaf(row.scale(k / GROUP), one_weight(row, k) * value, sum);
    }
  }
  return sum;
}

// Grid (blocks of channels, choices, tokens).
KERNEL __launch_bounds__(WAVES * 32) void moe_gate_up_any(
    const f16* __restrict x, const void* __restrict w1, const void* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    f16* __restrict act, int num_experts, int num_ids, int x_stride, float limit, float alpha,
    long long weights_expert, long long scales_expert, long long zeros_expert, int weights_row,
    int scales_row, int zeros_row) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const u32 slot = block_z() * TOP_K + block_y();
  const u32 expert = expert_of_slot(router, slot);
  const u32 channel = block_x() * WAVES + wave_id();
  if (expert == DEAD || channel >= INTERMEDIATE) return;
  const WeightMatrix w{w1, scales, zeros};
  const Strides strides{weights_expert, scales_expert, zeros_expert,
                        weights_row,    scales_row,    zeros_row};
  const GlobalBytes token = global_bytes(x) + block_z() * (i64)x_stride * 2;
  const Row<Form1> gate_row(w, strides, expert, channel);
  const Row<Form1> up_row(w, strides, expert, INTERMEDIATE + channel);
  const float gate = sum_lanes<32>(dot_row(gate_row, token));
  const float up = sum_lanes<32>(dot_row(up_row, token));
  if (lane_id() == 0)
    act[slot * (u64)INTERMEDIATE + channel] =
        (f16)gated<ACTIVATION, CLAMPED>(gate, up, limit, alpha);
}

// Grid (blocks of columns, tokens).
KERNEL __launch_bounds__(WAVES * 32) void moe_down_any(
    const f16* __restrict act, const void* __restrict w2, const void* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    const RouterWeight* __restrict topk_weights, const f16* residual, f16* out, int num_experts,
    int num_ids, int residual_stride, int out_stride, long long weights_expert,
    long long scales_expert, long long zeros_expert, int weights_row, int scales_row,
    int zeros_row) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const u32 token = block_y(), column = block_x() * WAVES + wave_id();
  if (column >= HIDDEN) return;
  const WeightMatrix w{w2, scales, zeros};
  const Strides strides{weights_expert, scales_expert, zeros_expert,
                        weights_row,    scales_row,    zeros_row};
  float total = 0.0f;
  for (u32 slot = token * TOP_K; slot < (token + 1) * TOP_K; ++slot) {
    const u32 expert = expert_of_slot(router, slot);
    if (expert == DEAD) continue;
    const float weight = (float)topk_weights[strided<TOP_K, WEIGHT_STRIDE>(slot)];
    const GlobalBytes vector = global_bytes(act) + slot * (u64)(INTERMEDIATE * 2);
    const float dot = dot_row(Row<Form2>(w, strides, expert, column), vector);
    total = __builtin_fmaf(weight, dot, total);
  }
  total = sum_lanes<32>(total);
  if (lane_id() != 0) return;
  if constexpr (HAS_RESIDUAL) total += (float)residual[token * (i64)residual_stride + column];
  out[token * (i64)out_stride + column] = (f16)total;
}
