"""Counters of the dense fp16 and int8 kernels on the emulator: python -m benchmarks.gemv ...

One line per op, shape and number of rows: vector instructions per weight over the whole kernel,
registers and spills, workgroups and waves, bytes requested and touched, the time that the model
gives for a card over the time that the operands need from memory (floor), and the error against
float64. `--slice` cuts N, and the kernel is the one of the whole layer.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

import torch

from benchmarks.dense import _weight_load_bytes
from rdna_jit.emulator.cards import CARDS
from rdna_jit.ops._dense_gemv import GemvCall, choose

SHAPES = ((2560, 1536), (4096, 2560))  # N, K
ROWS = (1, 2, 4, 8, 16)
# Vector instructions per weight that (op, rows) may take.
MOST = {
    ("gemv_f16", 1): 0.65,
    ("gemv_f16", 8): 4.5,
    ("gemv_i8", 1): 1.9,
    ("gemv_i8", 8): 5.8,
}


@dataclass
class Row:
    """One measured launch; bytes in MB (1e6)."""

    op: str
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

    @property
    def line(self) -> str:
        return (
            f"{self.op:<9}{self.N:>6}x{self.K:<6}{self.M:>4}{self.valu_per_weight:>8.3f}"
            f"{self.vgprs:>6}{self.spills:>7}{self.load_bytes:>6}"
            f"{self.workgroups:>7}x{self.waves:<3}{self.waves_per_simd:>6}"
            f"{self.requested_mb:>9.2f}{self.touched_mb:>8.2f}{self.time_us:>9.2f}"
            f"{self.time_us / self.floor_us:>7.2f} {self.bound_by:<8}{self.rel_l2:>9.1e}"
        )


HEAD = (
    f"{'op':<9}{'N x K':>13}{'M':>4}{'VALU/w':>8}{'VGPRs':>6}{'spills':>7}{'load':>6}{'grid':>11}"
    f"{'w/SIMD':>6}{'req MB':>9}{'MB':>8}{'us':>9}{'/floor':>7} {'by':<8}{'rel L2':>9}"
)


def measure(op: str, N: int, K: int, M: int, card: str, columns: int | None = None) -> Row:
    """Profile one call and compare its result with float64; `columns`: of N, those measured."""
    g = torch.Generator().manual_seed(0)
    int8 = op == "gemv_i8"
    call = GemvCall(M, N, K, 4 if int8 else 0, x_stride=K, w_stride=K, out_stride=N)
    values, _, _ = choose(call)
    N = min(columns or N, N)
    values |= {"N": N, "OUT_STRIDE": N}
    kernel = call.spec.specialise(None, **values)
    x = torch.randn(M, K, generator=g).half()
    scale = 1e-3 + 1e-3 * torch.rand(N, generator=g) if int8 else None
    if int8:
        w = torch.randint(-127, 128, (N, K), generator=g, dtype=torch.int8)
    else:
        w = (0.05 * torch.randn(N, K, generator=g)).half()
    out = torch.full((M, N), torch.nan).half()
    rows = int(values["ROWS_PER_LANE"]) * 32 // int(values["LANES"])
    groups, waves = -(-N // rows) * int(values["M_TILES"]), int(values["WAVES"])
    profile = kernel.profile(groups, waves * 32, x, w, scale, None, out, M, card=card)
    want = x.double() @ w.double().T
    operands = w.nbytes + x.nbytes + out.nbytes
    if scale is not None:
        want *= scale.double()
        operands += scale.nbytes
    resources = kernel.resources
    return Row(
        op,
        N,
        K,
        M,
        valu_per_weight=profile.valu * 32 / (N * K),
        vgprs=resources.vgprs,
        spills=resources.vgpr_spills + resources.sgpr_spills,
        load_bytes=_weight_load_bytes(kernel.isa()),
        workgroups=groups,
        waves=waves,
        waves_per_simd=resources.waves_per_simd,
        requested_mb=profile.bytes_loaded / 1e6,
        touched_mb=profile.lines_distinct * 128 / 1e6,
        time_us=profile.time_us,
        floor_us=operands / CARDS[card].read_gbs / 1e3,
        bound_by=profile.bound_by,
        rel_l2=float((out.double() - want).norm() / want.norm()),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--card", default="V620", choices=sorted(CARDS))
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, metavar="M")
    parser.add_argument("--op", nargs="*", default=("gemv_f16", "gemv_i8"))
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("N", "K"))
    parser.add_argument("--slice", type=int, metavar="N", help="measure this many columns")
    options = parser.parse_args(arguments)
    if not options.json:
        print(HEAD)
    for N, K in options.shape or SHAPES:
        for op in options.op:
            for M in options.rows:
                row = measure(op, N, K, M, options.card, options.slice)
                print(json.dumps(asdict(row)) if options.json else row.line, flush=True)


if __name__ == "__main__":
    main()
