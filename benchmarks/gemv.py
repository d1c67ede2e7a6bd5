"""Counters of the decode kernel for weights along K, on the emulator: python -m benchmarks.gemv ...

One line per form of the operands, shape and number of rows: vector instructions per weight over the
whole kernel, registers and spills, workgroups and waves, bytes requested and touched, the time that
the model gives for a card over the time that the operands need from memory (floor), and the error
against float64. `--slice` cuts N, and the kernel is the one of the whole layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import counters
from rdna_jit import formats
from rdna_jit.emulator.cards import CARDS
from rdna_jit.ops._dense_gemv import GEMV_FP8, GemvCall, choose

Tensor = torch.Tensor
SHAPES = ((2560, 1536), (4096, 2560))  # N, K
ROWS = (1, 2, 4, 8, 16)
BLOCK = 128
# What the operands are: format of w, of x, and what has a scale per block of 128.
FORMS: dict[str, tuple[str, str, bool]] = {
    "f16": ("f16", "f16", False),
    "i8": ("i8", "f16", False),
    "i8 G=128": ("i8", "f16", True),
    "e4m3": ("e4m3", "f16", False),
    "e4m3 128^2": ("e4m3", "f16", True),
    "e5m2": ("e5m2", "f16", False),
    "w8a8": ("e4m3", "e4m3", False),
    "w8a8 128^2": ("e4m3", "e4m3", True),
    "mxfp4": ("mxfp4", "f16", True),
}
# Vector instructions per weight that (form, rows) may take.
MOST = {
    ("f16", 1): 0.65,
    ("f16", 8): 4.5,
    ("i8", 1): 1.9,
    ("i8", 8): 5.8,
    ("i8 G=128", 1): 2.1,
    ("i8 G=128", 8): 6.4,
    ("e4m3", 1): 2.7,
    ("e4m3", 8): 6.6,
    ("e4m3 128^2", 1): 2.8,
    ("e4m3 128^2", 8): 7.1,
    ("e5m2", 1): 1.2,
    ("e5m2", 8): 5.1,
    ("mxfp4", 1): 2.3,
    ("mxfp4", 8): 6.6,
}


@dataclass
class Row(counters.Row):
    """One measured launch; bytes in MB (1e6)."""

    form: str
    N: int
    K: int
    M: int
    valu_per_weight: float
    vgprs: int
    spills: int
    load_bytes: int
    workgroups: int
    waves: int
    waves_per_simd: int
    requested_mb: float
    touched_mb: float
    time_us: float
    floor_us: float
    bound_by: str
    rel_l2: float

    COLUMNS = (
        ("form", "{form:<11}"), ("N x K", "{N:>6}x{K:<6}"), ("M", "{M:>4}"),
        ("VALU/w", "{valu_per_weight:>8.3f}"), ("VGPRs", "{vgprs:>6}"), ("spills", "{spills:>7}"),
        ("load", "{load_bytes:>6}"), ("grid", "{workgroups:>7}x{waves:<3}"),
        ("w/SIMD", "{waves_per_simd:>7}"), ("req MB", "{requested_mb:>9.2f}"),
        ("MB", "{touched_mb:>8.2f}"), ("us", "{time_us:>9.2f}"), ("/floor", "{ratio:>7.2f}"),
        ("by", " {bound_by:<8}"), ("rel L2", "{rel_l2:>9.1e}"),
    )  # fmt: skip


@dataclass
class Operand:
    """Codes and scales of a matrix `[rows, K]`, and what they stand for in float64."""

    codes: Tensor
    scale: Tensor | None
    exact: Tensor

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + (0 if self.scale is None else self.scale.nbytes)


def operand(format: str, values: Tensor, blocks: tuple[int, int] | None) -> Operand:
    """`values` in a format, with a scale per block or per row."""
    wide = torch.float64
    if format == "f16":
        return Operand(values.half(), None, values.half().double())
    if format == "mxfp4":
        codes, scale = formats.quantize_mxfp4(values)
        return Operand(codes, scale, formats.dequantize_mxfp4(codes, scale, wide))
    if format == "i8":
        G = BLOCK if blocks else -1
        codes, scale = formats.quantize_int8(values, G, scale_dtype=torch.float32)
        return Operand(codes, scale, formats.dequantize_i8(codes, scale, dtype=wide))
    codes, scale = formats.quantize_fp8(values, format, blocks or "channel")
    return Operand(codes, scale, formats.dequantize_fp8(codes, scale, blocks, dtype=wide))


def describe(form: str, N: int, K: int, M: int) -> GemvCall:
    """The call of the kernel on contiguous operands of a form."""
    format, x_format, blocks = FORMS[form]
    group = {"mxfp4": 32}.get(format, BLOCK if blocks else 0)
    fields: dict[str, Any] = {}
    if format != "f16":
        fields = {"scale_bytes": 1 if format == "mxfp4" else 4, "scale_groups": blocks}
        fields["scale_stride"] = -(-K // group) if group else 1
    if format in ("e4m3", "e5m2") and blocks:
        fields["scale_rows"] = BLOCK
    if x_format != "f16":
        fields |= {"x_scales": True, "x_scale_groups": blocks}
        fields["x_scale_stride"] = -(-K // group) if group else 1
    w_stride = K // 2 if format == "mxfp4" else K
    return GemvCall(
        M, N, K, format, x_format, group=group,
        x_stride=K, w_stride=w_stride, out_stride=N, **fields,
    )  # fmt: skip


def measure(form: str, N: int, K: int, M: int, card: str, columns: int | None = None) -> Row:
    """Profile one call and compare its result with float64; `columns`: of N, those measured."""
    format, x_format, blocks = FORMS[form]
    call = describe(form, N, K, M)
    choice = choose(call)
    N = min(columns or N, N)
    values = choice.values | {"N": N, "OUT_STRIDE": N}
    kernel = call.spec.specialise(None, **values)
    g = torch.Generator().manual_seed(0)
    square = (BLOCK, BLOCK) if blocks and call.spec is GEMV_FP8 else (1, BLOCK) if blocks else None
    w = operand(format, 0.05 * torch.randn(N, K, generator=g), square)
    x = operand(x_format, torch.randn(M, K, generator=g), (1, BLOCK) if blocks else None)
    out = torch.full((M, N), torch.nan).half()
    rows = int(values["ROWS_PER_LANE"]) * 32 // int(values["LANES"])
    groups, waves = -(-N // rows) * int(values["M_TILES"]), int(values["WAVES"])
    profile = kernel.profile(
        groups, waves * 32, x.codes, w.codes, w.scale, x.scale, None, out, M, card=card
    )
    operands = w.nbytes + x.nbytes + out.nbytes
    return Row(
        form,
        N,
        K,
        M,
        valu_per_weight=profile.valu * 32 / (N * K),
        load_bytes=counters.widest_load(kernel),
        workgroups=groups,
        waves=waves,
        floor_us=operands / CARDS[card].read_gbs / 1e3,
        rel_l2=counters.errors(out, x.exact @ w.exact.T)[0],
        **counters.resources(kernel),
        **counters.figures(profile),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = counters.options_of(__doc__, ROWS)
    parser.add_argument("--form", nargs="*", default=tuple(FORMS), choices=tuple(FORMS))
    parser.add_argument("--slice", type=int, metavar="N", help="measure this many columns")
    options = parser.parse_args(arguments)
    rows = (
        measure(form, N, K, M, options.card, options.slice)
        for N, K in options.shape or SHAPES for form in options.form for M in options.rows
    )  # fmt: skip
    counters.show(Row.head(), rows, options.json)


if __name__ == "__main__":
    main()
