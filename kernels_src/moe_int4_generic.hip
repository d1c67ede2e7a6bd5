// MoE int4 decode for every shape and view that the layout can hold: the slow, plain way.
//
//   gate_up: act[slot, n] = fp16( silu(W1[e, n] . x[token]) * (W1[e, I + n] . x[token]) )
//   down:    out[m, h] = fp16( sum over live slots of weight * (W2[e, h] . act[slot]) + residual )
//
// Layouts as in moe_int4_gate_up and moe_int4_down, but act is in natural order, experts and rows
// of the weights may be strided, and any tensor may be misaligned. One wave computes one row of
// the output of one slot (gate_up) or token (down); lanes stride over K.

// ---- specialisation ----
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr int INTERMEDIATE = ${INTERMEDIATE};
constexpr int GROUP_1 = ${GROUP_1};            // codes per scale along H, in w1
constexpr int GROUP_2 = ${GROUP_2};            // and along I, in w2
constexpr bool HAS_ZEROS = ${HAS_ZEROS};        // of w1
constexpr bool HAS_ZEROS_2 = ${HAS_ZEROS_2};    // of w2
constexpr bool HAS_MAP = ${HAS_MAP};
constexpr bool HAS_RESIDUAL = ${HAS_RESIDUAL};
using Id = ${ID_TYPE};
constexpr int ID_STRIDE = ${ID_STRIDE};        // elements from token to token
using RouterWeight = ${WEIGHT_TYPE};
constexpr int WEIGHT_STRIDE = ${WEIGHT_STRIDE};
constexpr bool BY_WORD = ${BY_WORD};           // 8 codes at a time; else one
constexpr int CODES_ALIGN = ${CODES_ALIGN};    // what rows start on a multiple of, in bytes
constexpr int VECTOR_ALIGN = ${VECTOR_ALIGN};  // of x and act
// ---- end of specialisation ----

#include "common/int4_rows.hip"
#include "common/moe_slots.hip"
#include "common/silu.hip"

constexpr int WAVES = 8;
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;
static_assert(!BY_WORD || (HIDDEN % 8 == 0 && INTERMEDIATE % 8 == 0), "words tile the rows");
static_assert(!BY_WORD || (GROUP_1 % 8 == 0 && GROUP_2 % 8 == 0), "a word lies in one group");

template <int K_, int GROUP_, bool HAS_ZEROS_>
struct Form {
  static constexpr int K = K_, GROUP = GROUP_;
  static constexpr bool HAS_ZEROS = HAS_ZEROS_;
};
using Form1 = Form<HIDDEN, GROUP_1, HAS_ZEROS>;
using Form2 = Form<INTERMEDIATE, GROUP_2, HAS_ZEROS_2>;

// One row: codes, scales and zeros of all its groups.
template <class Form>
struct Row {
  GlobalBytes codes, scales, zeros;
  u32 zero_shift;

  MEMBER float scale(u32 group) const {
    return (float)*(const GLOBAL f16*)(scales + group * 2);
  }
  MEMBER u32 zero(u32 group) const {
    if constexpr (!Form::HAS_ZEROS) return 8;
    return *(const GLOBAL u8*)(zeros + group) >> zero_shift & 15;
  }
};

// A matrix with strides: in bytes for codes and zeros, in elements for scales.
template <class Form>
struct Matrix {
  const u8* codes;
  const f16* scales;
  const u8* zeros;
  i64 codes_expert, scales_expert, zeros_expert;
  i32 codes_row, scales_row, zeros_row;

  MEMBER Row<Form> row(u32 expert, u32 index) const {
    return {global_bytes(codes) + expert * codes_expert + index * (i64)codes_row,
            global_bytes(scales) + (expert * scales_expert + index * (i64)scales_row) * 2,
            global_bytes(zeros) + expert * zeros_expert + index / 2 * (i64)zeros_row,
            (index & 1) * 4};
  }
};

// 8 halves as 4 words.
DEVICE void load_octet(GlobalBytes x, u32 k, u32 (&words)[4]) {
  u16 halves[8];
  load<u16, 8, VECTOR_ALIGN>(x, k * 2, halves);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = halves[2 * i] | (u32)halves[2 * i + 1] << 16;
}

DEVICE u32 load_codes(GlobalBytes codes, u32 k) {
  u8 bytes[4];
  load<u8, 4, CODES_ALIGN>(codes, k / 2, bytes);
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (u32)bytes[3] << 24;
}

// This lane's part of row . x.
template <class Form>
DEVICE float dot_row(const Row<Form>& row, GlobalBytes x) {
  constexpr int K = Form::K, GROUP = Form::GROUP;
  float sum = 0.0f;
  if constexpr (BY_WORD) {
    for (u32 k = lane_id() * 8; k < K; k += 32 * 8) {
      u32 vector[4], pairs[4];
      load_octet(x, k, vector);
      to_pair_order(vector);
      int4_decode(load_codes(row.codes, k), int4_zero(row.zero(k / GROUP), 0), pairs);
      float dot = dot2_start<false>(vector[0], pairs[0]);
#pragma unroll
      for (int i = 1; i < 4; ++i) dot = dot2(vector[i], pairs[i], dot);
      sum = __builtin_fmaf(row.scale(k / GROUP), dot, sum);
    }
  } else {
    for (u32 k = lane_id(); k < K; k += 32) {
      const u32 code = *(const GLOBAL u8*)(row.codes + k / 2) >> k % 2 * 4 & 15;
      const float weight = (float)((i32)code - (i32)row.zero(k / GROUP));
      const float value = (float)*(const GLOBAL f16*)(x + k * 2);
      sum = __builtin_fmaf(row.scale(k / GROUP), weight * value, sum);
    }
  }
  return sum;
}

// Grid (blocks of channels, choices, tokens).
KERNEL __launch_bounds__(WAVES * 32) void moe_int4_gate_up_any(
    const f16* __restrict x, const u8* __restrict w1, const f16* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    f16* __restrict act, int num_experts, int num_ids, int x_stride, long long codes_expert,
    long long scales_expert, long long zeros_expert, int codes_row, int scales_row,
    int zeros_row) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const u32 slot = block_z() * TOP_K + block_y();
  const u32 expert = expert_of_slot(router, slot);
  const u32 channel = block_x() * WAVES + wave_id();
  if (expert == DEAD || channel >= INTERMEDIATE) return;
  const Matrix<Form1> w{w1, scales, zeros, codes_expert, scales_expert, zeros_expert,
                 codes_row, scales_row, zeros_row};
  const GlobalBytes token = global_bytes(x) + block_z() * (i64)x_stride * 2;
  const float gate = sum_lanes<32>(dot_row(w.row(expert, channel), token));
  const float up = sum_lanes<32>(dot_row(w.row(expert, INTERMEDIATE + channel), token));
  if (lane_id() == 0) act[slot * (u64)INTERMEDIATE + channel] = (f16)(silu(gate) * up);
}

// Grid (blocks of columns, tokens).
KERNEL __launch_bounds__(WAVES * 32) void moe_int4_down_any(
    const f16* __restrict act, const u8* __restrict w2, const f16* __restrict scales,
    const u8* __restrict zeros, const Id* __restrict topk_ids, const i32* __restrict expert_map,
    const RouterWeight* __restrict topk_weights, const f16* residual, f16* out, int num_experts,
    int num_ids, int residual_stride, int out_stride, long long codes_expert,
    long long scales_expert, long long zeros_expert, int codes_row, int scales_row,
    int zeros_row) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const u32 token = block_y(), column = block_x() * WAVES + wave_id();
  if (column >= HIDDEN) return;
  const Matrix<Form2> w{w2, scales, zeros, codes_expert, scales_expert, zeros_expert,
                 codes_row, scales_row, zeros_row};
  float total = 0.0f;
  for (u32 slot = token * TOP_K; slot < (token + 1) * TOP_K; ++slot) {
    const u32 expert = expert_of_slot(router, slot);
    if (expert == DEAD) continue;
    const float weight = (float)topk_weights[strided<TOP_K, WEIGHT_STRIDE>(slot)];
    const GlobalBytes vector = global_bytes(act) + slot * (u64)(INTERMEDIATE * 2);
    const float dot = dot_row(w.row(expert, column), vector);
    total = __builtin_fmaf(weight, dot, total);
  }
  total = sum_lanes<32>(total);
  if (lane_id() != 0) return;
  if constexpr (HAS_RESIDUAL) total += (float)residual[token * (i64)residual_stride + column];
  out[token * (i64)out_stride + column] = (f16)total;
}
