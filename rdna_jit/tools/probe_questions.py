"""The questions that a probe asks: instruction, operands, and the rules an answer may follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rdna_jit.spec import KernelSpec, Parameter
from rdna_jit.tools import probe_inputs as inputs
from rdna_jit.tools import probe_models as models
from rdna_jit.tools.probe_inputs import Groups
from rdna_jit.tools.probe_models import Model, Order

WORDS = "const u32*"
MNEMONICS = {
    "DOT2": "v_dot2_f32_f16",
    "DOT2C": "v_dot2c_f32_f16",
    "CLAMP_MUL_F32": "v_mul_f32 clamp",
    "CLAMP_MAX_F32": "v_max_f32 clamp",
    "CLAMP_MAX_F16": "v_max_f16 clamp",
    "CLAMP_PK_MAX_F16": "v_pk_max_f16 clamp",
    "OMOD_MUL_F32": "v_mul_f32 mul:2",
    "MIN_F32": "v_min_f32",
    "MAX_F32": "v_max_f32",
    "MED3_F32": "v_med3_f32",
    "MED3_F16": "v_med3_f16",
    "CVT_PK_U8_F32": "v_cvt_pk_u8_f32",
    **{
        f"CVT_PKNORM_{kind}_{source}": f"v_cvt_pknorm_{kind.lower()}_{source.lower()}"
        for kind in ("I16", "U16")
        for source in ("F32", "F16")
    },
    **{
        f"{name}_{kind}": f"v_{name.lower()}_{kind.lower()}"
        for name in ("RCP", "RSQ", "SQRT", "EXP", "LOG")
        for kind in ("F32", "F16")
    },
    "SIN_F32": "v_sin_f32",
    "COS_F32": "v_cos_f32",
}
MOVES = {
    "ROW_SHR": "v_mov_b32_dpp row_shr:1",
    "ROW_SHR_BC": "v_mov_b32_dpp row_shr:1 bound_ctrl",
    "ROW_SHR_FI": "v_mov_b32_dpp row_shr:1 fi",
    "ROW_SHR_BC_FI": "v_mov_b32_dpp row_shr:1 bound_ctrl fi",
    "XMASK": "v_mov_b32_dpp row_xmask:1",
    "XMASK_BC": "v_mov_b32_dpp row_xmask:1 bound_ctrl",
    "XMASK_FI": "v_mov_b32_dpp row_xmask:1 fi",
    "DPP8": "v_mov_b32_dpp dpp8",
    "DPP8_FI": "v_mov_b32_dpp dpp8 fi",
    "PERMLANE16": "v_permlane16_b32",
    "PERMLANE16_BC": "v_permlane16_b32 bound_ctrl",
    "PERMLANE16_FI": "v_permlane16_b32 fi",
    "PERMLANEX16": "v_permlanex16_b32",
    "PERMLANEX16_BC": "v_permlanex16_b32 bound_ctrl",
    "PERMLANEX16_FI": "v_permlanex16_b32 fi",
}
TRANSCENDENTALS = tuple(
    name for name in MNEMONICS if name.split("_")[0].lower() in models.TRANSCENDENTAL
)

VALUES = KernelSpec(
    name="probe_values",
    file="probe/values.hip",
    entry="probe_values",
    parameters=(
        *(Parameter(name, WORDS, align=4) for name in "abc"),
        Parameter("out", "u32*", "out", align=4),
        Parameter("n", "int", "size"),
    ),
    template={"INSTRUCTION": tuple(MNEMONICS)},
    block=256,
)
LANES = KernelSpec(
    name="probe_lanes",
    file="probe/lanes.hip",
    entry="probe_lanes",
    parameters=(
        Parameter("source", WORDS, align=4),
        Parameter("before", WORDS, align=4),
        Parameter("out", "u32*", "out", align=4),
        Parameter("active", "u32"),
    ),
    template={"MOVE": tuple(MOVES)},
    block=32,
)


@dataclass(frozen=True)
class Question:
    """`models` are the rules that may hold; `bits` of the result are compared. NaN equals NaN
    unless `exact_nan`. `emulator_modes` says that the rules are modes of the emulator instead."""

    instruction: str
    asks: str
    groups: Callable[[], Groups]
    models: Mapping[str, Model] = field(default_factory=dict)
    bits: int = 0xFFFFFFFF
    exact_nan: bool = False
    emulator_modes: bool = False
    requires: str = ""

    @property
    def mnemonic(self) -> str:
        return MNEMONICS[self.instruction]


def questions() -> Iterator[Question]:
    """Every question about one instruction's result."""
    for name in ("DOT2", "DOT2C"):
        yield Question(
            name,
            "how are the three terms added, and what happens to subnormals?",
            inputs.dot2,
            emulator_modes=True,
            requires="dot2",
        )
    yield from _clamps()
    yield Question(
        "OMOD_MUL_F32",
        "is an output multiplier applied while subnormals are kept?",
        lambda: inputs.clamped(False),
        {"ignored": models.omod_ignored, "applied": models.omod_applied},
    )
    yield from _orders()
    yield from _conversions()


def _clamps() -> Iterator[Question]:
    asks = "what does clamp make of -0?"
    signs = {"-0 stays": 0x80000000, "-0 becomes +0": 0}
    f32 = {name: models.clamp_f32(sign) for name, sign in signs.items()}
    for name in ("CLAMP_MUL_F32", "CLAMP_MAX_F32"):
        yield Question(name, asks, lambda: inputs.clamped(False), f32)
    for name, packed in (("CLAMP_MAX_F16", False), ("CLAMP_PK_MAX_F16", True)):
        f16 = {rule: models.clamp_f16(sign, packed) for rule, sign in signs.items()}
        yield Question(name, asks, lambda: inputs.clamped(True), f16)


def _orders() -> Iterator[Question]:
    f32, f16 = Order(32), Order(16)
    for name, least in (("MIN_F32", True), ("MAX_F32", False)):
        rules = {
            "a signalling NaN wins, quieted": f32.bound(least),
            "every NaN loses": f32.bound(least, signalling_wins=False),
        }
        asks = "which of -0 and +0, number and NaN?"
        yield Question(name, asks, lambda: inputs.ordered(2), rules, exact_nan=True)
    asks = "which zero is in the middle, and what of NaN?"
    for name, order, bits, half in (
        ("MED3_F32", f32, 0xFFFFFFFF, False),
        ("MED3_F16", f16, 0xFFFF, True),
    ):
        rules = {
            "-0 below +0": order.median(zeros_equal=False),
            "zeros equal, the larger of the rest": order.median(zeros_equal=True),
        }
        groups = (lambda: inputs.ordered(3, True)) if half else (lambda: inputs.ordered(3))
        yield Question(name, asks, groups, rules, bits, exact_nan=True)


def _conversions() -> Iterator[Question]:
    # negative values saturate, so "down" would say the same as "toward zero"
    rules = {name: models.byte_of_float(name) for name in models.ROUNDINGS if name != "down"}
    yield Question("CVT_PK_U8_F32", "how is it rounded?", inputs.bytes_of_floats, rules)
    for kind in ("I16", "U16"):
        for source in ("F32", "F16"):
            half = source == "F16"
            # exact ties are +-0.5 alone, where both ways of breaking them agree
            products = (
                {"exact product": True}
                if half
                else {"product in f32": False, "exact product": True}
            )
            rules = {
                f"{product}, {rounding}": models.norm(rounding, kind == "I16", half, exact)
                for product, exact in products.items()
                for rounding in models.ROUNDINGS
                if not exact or rounding != "halves away from zero"
            }
            groups = (
                (lambda: inputs.normalised(True)) if half else (lambda: inputs.normalised(False))
            )
            yield Question(f"CVT_PKNORM_{kind}_{source}", "how is it rounded?", groups, rules)
