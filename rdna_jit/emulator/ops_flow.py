"""Control flow: branches, calls, barriers and waits."""

from __future__ import annotations

from rdna_jit.emulator import layout
from rdna_jit.emulator.decode import EXEC, VCC, Decoded
from rdna_jit.emulator.ir import I64, Value
from rdna_jit.emulator.registry import op
from rdna_jit.emulator.wave import Wave


@op("s_endpgm")
def _endpgm(c: Wave, i: Decoded) -> None:
    c.do("ret i32 0")


@op("s_branch")
def _branch(c: Wave, i: Decoded) -> None:
    c.go(c.edge(i, i.branch_target))


def _conditional(c: Wave, i: Decoded, taken: Value) -> None:
    c.branch(taken, c.edge(i, i.branch_target), c.code_label(i.end))


@op("s_cbranch_scc0", "s_cbranch_scc1")
def _cbranch_scc(c: Wave, i: Decoded) -> None:
    scc = c.scc()
    _conditional(c, i, scc if i.mnemonic.endswith("1") else ~scc)


@op("s_cbranch_vccz", "s_cbranch_vccnz", "s_cbranch_execz", "s_cbranch_execnz")
def _cbranch_mask(c: Wave, i: Decoded) -> None:
    zero = c.sgpr(VCC if "vcc" in i.mnemonic else EXEC).eq(0)
    _conditional(c, i, ~zero if i.mnemonic.endswith("nz") else zero)


# Calls
@op("s_getpc_b64")
def _getpc(c: Wave, i: Decoded) -> None:
    c.set_sgpr64(i.operands[0].index, c.host_address(i.end))


@op("s_setpc_b64")
def _setpc(c: Wave, i: Decoded) -> None:
    c.jump(c.scalar_source(i.operands[0], I64))


@op("s_swappc_b64")
def _swappc(c: Wave, i: Decoded) -> None:
    target = c.scalar_source(i.operands[1], I64)
    c.set_sgpr64(i.operands[0].index, c.host_address(i.end))
    c.jump(target)


@op("s_call_b64")
def _call(c: Wave, i: Decoded) -> None:
    c.set_sgpr64(i.operands[0].index, c.host_address(i.end))
    c.go(c.edge(i, i.branch_target))


# Barriers and waits
@op("s_barrier")
def _barrier(c: Wave, i: Decoded) -> None:
    c.suspend(i.end)


@op("s_waitcnt")
def _waitcnt(c: Wave, i: Decoded) -> None:
    if c.profile:
        field = i.simm16 & 0xFFFF
        _await_loads(c, (field & 0xF) | (field >> 14 & 3) << 4)
        if field >> 8 & 0x3F == 0:
            _await_scalar(c)


@op("s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt")
def _waitcnt_one(c: Wave, i: Decoded) -> None:
    if c.profile and i.mnemonic.endswith("vmcnt"):
        _await_loads(c, i.simm16 & 0x3F)
    elif c.profile and i.simm16 & 0x3F == 0:
        _await_scalar(c)


def _await_loads(c: Wave, allowed: int) -> None:
    if allowed < 63:
        c.do(f"call void @clock_wait(ptr %env, ptr %state, i64 {allowed})")


def _await_scalar(c: Wave) -> None:
    c.do("call void @clock_wait_scalar(ptr %env, ptr %state)")


@op(
    "s_nop", "s_sleep", "s_clause", "s_inst_prefetch", "s_waitcnt_vscnt", "s_waitcnt_expcnt",
    "s_waitcnt_depctr", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "s_gl1_inv", "s_setprio",
    "s_version", "s_ttracedata", "s_ttracedata_imm", "s_incperflevel", "s_decperflevel",
    "s_wakeup", "buffer_gl0_inv", "buffer_gl1_inv",
)  # fmt: skip
def _nothing(c: Wave, i: Decoded) -> None:
    """Memory is always up to date here, and time does not pass."""


@op("s_trap")
def _trap(c: Wave, i: Decoded) -> None:
    # Only the lanes that mean it are active.
    c.fault(layout.TRAP, i.address, c.count_zeros("cttz", c.exec_bits()))
    c.label(c.new_label("after"))


@op("s_memtime", "s_memrealtime")
def _clock(c: Wave, i: Decoded) -> None:
    c.set_sgpr64(i.operands[0].index, c.steps_done())
