// MoE for many tokens, last: router weights, the sum over a token's slots, the residual.
//
//   out[m, h] = fp16( sum over live slots of weight * partial[m, j, h] + residual[m, h] )
//
// partial  fp32 [tokens, TOP_K, H], of dead slots not read; out fp16 [tokens, H], every element
// written; residual may be out itself
//
// A thread has four columns of one token. Slots are added in their order, in fp32, and the result
// is rounded once.
//
// Limit: DRAM.

// ---- specialisation ----
constexpr int TOP_K = ${TOP_K};
constexpr int HIDDEN = ${HIDDEN};
constexpr bool WEIGHTED = ${WEIGHTED};  // else the weights are in the partial sums
constexpr bool HAS_RESIDUAL = ${HAS_RESIDUAL};
constexpr bool HAS_MAP = ${HAS_MAP};
using Id = ${ID_TYPE};
constexpr int ID_STRIDE = ${ID_STRIDE};  // elements from token to token
using RouterWeight = ${WEIGHT_TYPE};
constexpr int WEIGHT_STRIDE = ${WEIGHT_STRIDE};
constexpr int RESIDUAL_ALIGN = ${RESIDUAL_ALIGN};  // of rows, in bytes
constexpr int OUT_ALIGN = ${OUT_ALIGN};
// ---- end of specialisation ----

#include "common/moe_slots.hip"

constexpr int BATCH = TOP_K < 4 ? TOP_K : 4;  // slots whose loads are in flight together
using Slots = Router<Id, TOP_K, ID_STRIDE, HAS_MAP>;
static_assert(HIDDEN % 4 == 0, "quads of columns");

KERNEL __launch_bounds__(256) void moe_combine(
    const float* __restrict partial, const Id* __restrict topk_ids,
    const i32* __restrict expert_map, const RouterWeight* __restrict topk_weights,
    const f16* residual, f16* out, int num_experts, int num_ids, i64 residual_stride,
    i64 out_stride) {
  const Slots router{topk_ids, expert_map, (u32)num_ids, (u32)num_experts};
  const u32 token = block_y(), first_slot = token * TOP_K;
  u32 column = block_x() * 1024 + thread_x() * 4;
  const bool inside = HIDDEN % 1024 == 0 || column < HIDDEN;
  if (!inside) column = 0;  // its lane still looks for live slots
  float sums[4] = {};
#pragma unroll 1
  for (u32 j0 = 0; j0 < TOP_K; j0 += 32) {
    const u32 experts = expert_of_lane(router, first_slot + j0 + lane_id(), first_slot + TOP_K);
    u32 live = lanes_differ(experts, DEAD);
#pragma unroll 1
    while (live != 0) {
      const u32 count = __builtin_popcount(live);
      float parts[BATCH][4], weights[BATCH];
#pragma unroll
      for (int q = 0; q < BATCH; ++q) {  // past the last live slot the last again
        const u32 slot = first_slot + j0 + __builtin_ctz(live);
        const GlobalBytes from = launder_base(global_bytes(partial) + slot * (HIDDEN * 4ull));
        u32 lane = column * 4;
        launder_lane(lane);
        load<float, 4>(from, lane, parts[q]);
        const u32 at = strided<TOP_K, WEIGHT_STRIDE>(slot);
        if constexpr (WEIGHTED) weights[q] = (float)topk_weights[at];
        const u32 rest = live & (live - 1);
        live = rest != 0 ? rest : live;
      }
#pragma unroll
      for (int q = 0; q < BATCH; ++q) {
        if (q >= count) continue;
#pragma unroll
        for (int n = 0; n < 4; ++n)
          sums[n] = WEIGHTED ? __builtin_fmaf(weights[q], parts[q][n], sums[n]) : sums[n] + parts[q][n];
      }
      if (count <= BATCH) break;
    }
  }
  if (!inside) return;
  if constexpr (HAS_RESIDUAL) {
    f16 add[4];
    load<f16, 4, RESIDUAL_ALIGN>(global_bytes(residual + token * residual_stride), column * 2, add);
#pragma unroll
    for (int n = 0; n < 4; ++n) sums[n] += (float)add[n];
  }
  f16 rounded[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) rounded[n] = (f16)sums[n];
  store<f16, 4, OUT_ALIGN>((GLOBAL char*)(u64)(out + token * out_stride), column * 2, rounded);
}
