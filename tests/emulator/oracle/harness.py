"""Probe kernels: many instruction forms in one kernel, run on the emulator, held to the model.

A kernel is one wave per workgroup. Per group of forms with the same operand types it loads the
inputs of its workgroup; per form it sets the old destination, carry and EXEC, executes the
instruction and stores four result dwords per lane (the lane mask, if any, in the last).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rdna_jit import emulator
from rdna_jit.code_object import CodeObject
from tests.emulator.oracle.assembler import assemble
from tests.emulator.oracle.forms import (
    CARRY_IN,
    LANES,
    MASK_OUT,
    RESULT,
    Form,
    Outcome,
    Wave,
)
from tests.emulator.oracle.inputs import Inputs
from tests.emulator.oracle.types import DEFAULT_MODE, Anything, Mode, Pair, Type, accepts

LANE_BYTES, SCALAR_OFFSET, WAVE_BYTES = 48, 32 * 48, 32 * 48 + 32
FORMS_PER_KERNEL = 400
LDS_BYTES = 2048

_PROLOGUE = """
s_add_u32 s36, s0, s7
s_addc_u32 s37, s1, 0
s_mov_b64 s[38:39], s[2:3]
s_mov_b64 s[0:1], s[4:5]
s_mov_b32 s2, s6
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_load_dwordx2 s[10:11], s[0:1], 0x10
v_lshlrev_b32_e32 v2, 4, v0
s_lshl_b32 s20, s2, 9
v_add_nc_u32_e32 v2, s20, v2
v_mul_u32_u24_e32 v1, 48, v0
s_mul_i32 s8, s2, {wave_bytes}
s_waitcnt lgkmcnt(0)
s_add_u32 s8, s4, s8
s_addc_u32 s9, s5, 0
s_mov_b32 s21, {form_stride}
v_lshlrev_b32_e32 v3, 4, v0
v_lshl_add_u32 v4, s2, 9, v3
v_mov_b32_e32 v8, 4
s_mov_b32 s40, 4
v_add_co_u32 v6, vcc_lo, s10, v4
v_add_co_ci_u32_e64 v7, vcc_lo, s11, 0, vcc_lo
{mode}
"""

_GROUP = """
s_load_dwordx8 s[12:19], s[8:9], {scalar_offset}
global_load_dwordx4 v[10:13], v1, s[8:9]
global_load_dwordx4 v[14:17], v1, s[8:9] offset:16
global_load_dwordx4 v[18:21], v1, s[8:9] offset:32
s_add_u32 s8, s8, {group_bytes}
s_addc_u32 s9, s9, 0
s_waitcnt vmcnt(0) lgkmcnt(0)
"""

_FORM = """
v_mov_b32_e32 v24, v18
v_mov_b32_e32 v25, v19
v_mov_b32_e32 v26, v20
v_mov_b32_e32 v27, v21
s_mov_b32 vcc_lo, s13
s_mov_b32 s{carry_in}, s13
s_mov_b32 s{mask_out}, s13
s_mov_b32 exec_lo, s12
{instruction}
{save_mask}
s_mov_b32 exec_lo, -1
{mask_to_result}
global_store_dwordx4 v2, v[24:27], s[6:7]
v_add_nc_u32_e32 v2, s21, v2
"""


@dataclass(frozen=True)
class Failure:
    """One lane (or mask) of one form that is not as the model says."""

    text: str
    wave: int
    lane: int
    inputs: str
    got: str
    want: str

    def __str__(self) -> str:
        return (
            f"{self.text}\n    wave {self.wave} lane {self.lane} {self.inputs}\n"
            f"    got {self.got}, want {self.want}"
        )


Key = tuple[tuple[Type | Pair, ...], Type | Pair]


def key(form: Form) -> Key:
    """Forms with the same key share inputs."""
    return form.row.srcs, form.row.dst


def grouped(forms: Iterable[Form]) -> list[tuple[Key, list[Form]]]:
    groups: dict[Key, list[Form]] = {}
    for form in forms:
        groups.setdefault(key(form), []).append(form)
    return list(groups.items())


def kernel_text(groups: Sequence[tuple[Key, list[Form]]], waves: int, mode: Mode) -> str:
    """The body of a kernel of these groups for a launch of `waves` workgroups."""
    set_mode = ""
    if mode != DEFAULT_MODE:
        set_mode = f"s_round_mode {mode.bits & 15:#x}\ns_denorm_mode {mode.bits >> 4:#x}"
    lines = [_PROLOGUE.format(wave_bytes=WAVE_BYTES, form_stride=waves * 512, mode=set_mode)]
    for _, forms in groups:
        lines.append(_GROUP.format(scalar_offset=SCALAR_OFFSET, group_bytes=waves * WAVE_BYTES))
        lines += [_form_text(form) for form in forms]
    lines.append("s_endpgm")
    return "\n".join(line for block in lines for line in block.split("\n") if line)


def _form_text(form: Form) -> str:
    save = result = ""
    if form.writes_mask or form.row.result == "exec":
        save, result = f"s_mov_b32 s22, {form.mask_register}", f"v_mov_b32_e32 v{RESULT + 3}, s22"
    return _FORM.format(
        instruction=form.text,
        save_mask=save,
        mask_to_result=result,
        carry_in=CARRY_IN,
        mask_out=MASK_OUT,
    )


def input_bytes(waves: Sequence[Wave]) -> bytes:
    """The input region of one group."""
    words = np.zeros((len(waves), WAVE_BYTES // 4), np.uint32)
    for row, wave in zip(words, waves, strict=True):
        lanes = row[: SCALAR_OFFSET // 4].reshape(32, LANE_BYTES // 4)
        for place, size, values in (
            (0, 8, wave.sources[0]),
            (2, 8, wave.sources[1]),
            (4, 16, wave.sources[2]),
            (8, 16, wave.old),
        ):
            data = b"".join(value.to_bytes(size, "little") for value in values)
            lanes[:, place : place + size // 4] = np.frombuffer(data, np.uint32).reshape(32, -1)
        row[SCALAR_OFFSET // 4 :][:2] = wave.exec_mask, wave.carry
        scalars = np.array(wave.scalars, np.uint64).view(np.uint32)
        row[SCALAR_OFFSET // 4 + 2 :][:6] = scalars
    return words.tobytes()


def execute(
    code: bytes,
    entry: str,
    inputs: np.ndarray,
    results: np.ndarray,
    waves: int,
    tier: str = "quick",
) -> None:
    """Run one wave per workgroup. The arguments are the two buffers, and 512 bytes of memory for
    each wave."""
    program = emulator.Program(CodeObject(code), entry)
    memory = np.zeros(waves * 128, np.uint32)
    buffers = [
        emulator.Buffer(array.ctypes.data, array.nbytes, name)
        for name, array in (("inputs", inputs), ("results", results), ("memory", memory))
    ]
    kernarg = b"".join(buffer.address.to_bytes(8, "little") for buffer in buffers)
    with emulator.modes(tier=tier):
        program.launch((waves, 1, 1), (32, 1, 1), kernarg, buffers)


def run(
    groups: Sequence[tuple[Key, list[Form]]],
    data: dict[Key, list[Wave]],
    waves: int,
    mode: Mode = DEFAULT_MODE,
    tier: str = "quick",
) -> np.ndarray:
    """Results as uint32 of shape (forms, waves, 32 lanes, 4)."""
    code = assemble(kernel_text(groups, waves, mode), lds=LDS_BYTES, arch=groups[0][1][0].arch)
    inputs = np.frombuffer(b"".join(input_bytes(data[k]) for k, _ in groups), np.uint32).copy()
    count = sum(len(forms) for _, forms in groups)
    results = np.zeros((count, waves, 32, 4), np.uint32)
    execute(code, "probe", inputs, results, waves, tier)
    return results


def check(
    forms: Sequence[Form], waves: int, seed: int = 0, mode: Mode = DEFAULT_MODE, tier: str = "quick"
) -> list[Failure]:
    """Run forms on fresh inputs and compare; at most one failure per form."""
    failures: list[Failure] = []
    for kernel in _kernels(forms):
        groups = grouped(kernel)
        data = {k: [Inputs(*k, seed).wave(n) for n in range(waves)] for k, _ in groups}
        results = run(groups, data, waves, mode, tier)
        ordered = [(form, data[k]) for k, members in groups for form in members]
        for (form, inputs), got in zip(ordered, results, strict=True):
            failures += compare(form, inputs, got, mode)
    return failures


def _kernels(forms: Sequence[Form]) -> Iterable[list[Form]]:
    for arch in sorted({form.arch for form in forms}):
        ordered = [
            form for _, members in grouped(f for f in forms if f.arch == arch) for form in members
        ]
        for start in range(0, len(ordered), FORMS_PER_KERNEL):
            yield ordered[start : start + FORMS_PER_KERNEL]


def compare(form: Form, waves: Sequence[Wave], got: np.ndarray, mode: Mode) -> list[Failure]:
    """The first lane that differs from the model, if any."""
    for index, wave in enumerate(waves):
        outcome = form.evaluate(wave, mode)
        rows = [int.from_bytes(row.tobytes(), "little") for row in got[index]]
        uses_mask = outcome.mask is not None or outcome.exec_mask is not None
        for lane in LANES:
            failure = _lane(form, wave, outcome, lane, rows[lane], uses_mask)
            if failure:
                return [Failure(form.text, index, lane, _describe(wave, lane), *failure)]
        failure = _mask(outcome, rows[0] >> 96)
        if failure:
            return [
                Failure(form.text, index, failure[2], _describe(wave, failure[2]), *failure[:2])
            ]
    return []


def _lane(
    form: Form, wave: Wave, outcome: Outcome, lane: int, got: int, uses_mask: bool
) -> tuple[str, str] | None:
    kept = (1 << (96 if uses_mask else 128)) - 1
    for offset, width, expected in outcome.lanes[lane]:
        field = (1 << width) - 1
        kept &= ~(field << offset)
        if not accepts(expected, got >> offset & field):
            shown = hex(expected) if isinstance(expected, int) else str(expected)
            return f"{got >> offset & field:#x}", f"{shown} at bit {offset}"
    changed = (got ^ wave.old[lane]) & kept
    if changed:
        return f"{got:#x}", f"bits {changed:#x} unchanged from {wave.old[lane]:#x}"
    return None


def _mask(outcome: Outcome, got: int) -> tuple[str, str, int] | None:
    if outcome.exec_mask is not None:
        expected = [outcome.exec_mask >> lane & 1 for lane in LANES]
    elif outcome.mask is not None:
        expected = outcome.mask
    else:
        return None
    for lane in LANES:
        if not isinstance(expected[lane], Anything) and got >> lane & 1 != expected[lane]:
            return f"mask {got:#010x}", f"bit {lane} = {expected[lane]}", lane
    return None


def _describe(wave: Wave, lane: int) -> str:
    sources = " ".join(f"{column[lane]:#x}" for column in wave.sources)
    return (
        f"sources {sources} scalars {' '.join(map(hex, wave.scalars))} "
        f"old {wave.old[lane]:#x} exec {wave.exec_mask:#010x} carry {wave.carry:#010x}"
    )


def shuffled(forms: Sequence[Form], seed: int) -> list[Form]:
    """The forms in another order, so that kernels mix them differently."""
    order = list(forms)
    random.Random(seed).shuffle(order)
    return order
