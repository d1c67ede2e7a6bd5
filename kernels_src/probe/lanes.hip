// One cross-lane move in one wave, with some lanes off: what `python -m rdna_jit probe` asks a card.
//
//   out[lane] = MOVE of source[], executed with EXEC = active; lanes that it does not write keep
//   before[lane]
//
// EXEC is set inside the assembly, so that every lane holds its source although it is off.

constexpr int ROW_SHR = 0, ROW_SHR_BC = 1, ROW_SHR_FI = 2, ROW_SHR_BC_FI = 3;
constexpr int XMASK = 4, XMASK_BC = 5, XMASK_FI = 6, DPP8 = 7, DPP8_FI = 8;
constexpr int PERMLANE16 = 10, PERMLANE16_BC = 11, PERMLANE16_FI = 12;
constexpr int PERMLANEX16 = 13, PERMLANEX16_BC = 14, PERMLANEX16_FI = 15;
constexpr int MOVE = ${MOVE};

#include "common/wave.hip"

#define ALL "row_mask:0xf bank_mask:0xf"
#define CASE(NAME, TEXT)                                                              \
  if constexpr (MOVE == NAME)                                                         \
  asm volatile("s_mov_b32 %1, exec_lo\n\ts_mov_b32 exec_lo, %3\n\ts_nop 4\n\t" TEXT    \
               "\n\ts_mov_b32 exec_lo, %1"                                            \
               : "+v"(r), "=&s"(saved)                                                \
               : "v"(source), "s"(active), "s"(0x67452301), "s"(0xefcdab89))

DEVICE u32 move(u32 source, u32 before, u32 active) {
  u32 r = before, saved;
  CASE(ROW_SHR, "v_mov_b32_dpp %0, %2 row_shr:1 " ALL);
  CASE(ROW_SHR_BC, "v_mov_b32_dpp %0, %2 row_shr:1 " ALL " bound_ctrl:0");
  CASE(ROW_SHR_FI, "v_mov_b32_dpp %0, %2 row_shr:1 " ALL " fi:1");
  CASE(ROW_SHR_BC_FI, "v_mov_b32_dpp %0, %2 row_shr:1 " ALL " bound_ctrl:0 fi:1");
  CASE(XMASK, "v_mov_b32_dpp %0, %2 row_xmask:1 " ALL);
  CASE(XMASK_BC, "v_mov_b32_dpp %0, %2 row_xmask:1 " ALL " bound_ctrl:0");
  CASE(XMASK_FI, "v_mov_b32_dpp %0, %2 row_xmask:1 " ALL " fi:1");
  CASE(DPP8, "v_mov_b32_dpp %0, %2 dpp8:[1,0,3,2,5,4,7,6]");
  CASE(DPP8_FI, "v_mov_b32_dpp %0, %2 dpp8:[1,0,3,2,5,4,7,6] fi:1");
  CASE(PERMLANE16, "v_permlane16_b32 %0, %2, %4, %5");
  CASE(PERMLANE16_BC, "v_permlane16_b32 %0, %2, %4, %5 op_sel:[0,1]");
  CASE(PERMLANE16_FI, "v_permlane16_b32 %0, %2, %4, %5 op_sel:[1,0]");
  CASE(PERMLANEX16, "v_permlanex16_b32 %0, %2, %4, %5");
  CASE(PERMLANEX16_BC, "v_permlanex16_b32 %0, %2, %4, %5 op_sel:[0,1]");
  CASE(PERMLANEX16_FI, "v_permlanex16_b32 %0, %2, %4, %5 op_sel:[1,0]");
  return r;
}

KERNEL __launch_bounds__(32) void probe_lanes(const u32* source, const u32* before, u32* out,
                                              u32 active) {
  out[lane_id()] = move(source[lane_id()], before[lane_id()], active);
}
