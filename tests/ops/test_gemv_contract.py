"""Bad input to the dense fp16 and int8 ops, the choice of values, and the compiled kernels."""

from __future__ import annotations

import pytest
import torch

import rdna_jit
from benchmarks.gemv import MOST, measure
from rdna_jit import ContractError
from rdna_jit.code_object import CodeObject
from rdna_jit.kernel import Kernel
from rdna_jit.ops._dense_gemv import GemvCall, choose, waves_per_workgroup
from rdna_jit.ops.linear import dense_gemm_int8, gemv_f16, gemv_i8
from tests.ops.clang import compile_with_clang

M, N, K = 2, 16, 64
QUICK = {("f16", 1), ("i8", 8), ("e4m3 128^2", 8), ("mxfp4", 1)}
SHAPES = [  # N, K of layers
    (4096, 2560), (2560, 2560), (1536, 2560), (2560, 1536), (512, 2560), (1280, 2560), (2560, 640),
    (320, 10240), (336, 10240), (10240, 320), (62080, 2560), (96, 5120), (248320, 5120), (3, 8),
]  # fmt: skip


def halves(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


def bytes_(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int8)


F16 = {"x": halves(M, K), "w": halves(N, K)}
I8 = {"x": halves(M, K), "w_i8": bytes_(N, K), "scale": torch.ones(N)}
DENSE = {**I8, "w": halves(N, K)}
BAD = [
    # op, its good arguments, the argument, its bad value, what the message says
    (gemv_f16, F16, "x", halves(M, K).bfloat16(), r"x: expected torch.float16.*call x.half\(\)"),
    (gemv_f16, F16, "x", None, "x: expected a torch.float16 tensor"),
    (gemv_f16, F16, "x", halves(33, K), "x: expected 1..32 rows, got 33.*torch.matmul"),
    (gemv_f16, F16, "x", halves(K, M).t(), "x: expected a contiguous last dimension"),
    (gemv_f16, F16, "w", halves(N, K + 8), r"w: expected shape \[any, 64\], got \[16, 72\]"),
    (gemv_f16, F16, "w", halves(K, N).t(), "w: expected a contiguous last dimension"),
    (gemv_f16, F16, "w", bytes_(N, K), "w: expected torch.float16"),
    (gemv_f16, F16, "w", halves(N, K).to("meta"), "w: expected a tensor on cpu, as x"),
    (gemv_f16, F16, "bias", halves(N + 1), r"bias: expected shape \[16\]"),
    (gemv_f16, F16, "out", halves(M + 1, N), r"out: expected shape \[2, 16\]"),
    (gemv_f16, F16, "out", halves(1, N).expand(M, N), "out: expected rows apart"),
    (gemv_i8, I8, "x", halves(17, K), "x: expected 1..16 rows, got 17.*dense_gemm_int8"),
    (gemv_i8, I8, "w_i8", bytes_(N, K).to(torch.uint8), "w_i8: expected torch.int8"),
    (gemv_i8, I8, "w_i8", bytes_(N, K - 8), r"w_i8: expected shape \[any, 64\]"),
    (gemv_i8, I8, "scale", torch.ones(N).double(), "scale: expected torch.float16"),
    (gemv_i8, I8, "scale", torch.ones(N + 1), r"scale: expected shape \[16\]"),
    (gemv_i8, I8, "scale", torch.ones(2 * N)[::2], "scale: expected a contiguous last dim"),
    (gemv_i8, I8, "bias", torch.ones(N), r"call bias.half\(\)"),
    (dense_gemm_int8, DENSE, "w", halves(N, K + 8), r"w: expected shape \[16, 64\]"),
    (dense_gemm_int8, DENSE, "w", None, "w: expected a torch.float16 tensor"),
    (dense_gemm_int8, DENSE, "w_i8", halves(N, K), "w_i8: expected torch.int8"),
    (dense_gemm_int8, {**DENSE, "x": halves(40, K)}, "bias", halves(3), "bias: expected shape"),
]


@pytest.mark.parametrize("op, good, name, value, says", BAD)
def test_refusals_name_op_and_argument(op, good, name, value, says):
    with pytest.raises(ContractError, match=says) as caught:
        op(**{**good, name: value})
    assert str(caught.value).startswith(f"{op.__name__}: {name}: ")


def test_k_comes_in_eights():
    with pytest.raises(ContractError, match="x: expected K a positive multiple of 8, got K = 12"):
        gemv_f16(halves(1, 12), halves(4, 12))
    x, w, ones = halves(1, 12), bytes_(4, 12), torch.ones(4)
    assert torch.equal(dense_gemm_int8(x, halves(0), w, ones), torch.full((1, 4), 12.0).half())


def test_out_may_not_overlap_an_input():
    x = halves(M, K)
    with pytest.raises(ContractError, match="out: expected memory apart from x"):
        gemv_f16(x, halves(N, K), out=x[:, :N])
    q = bytes_(N, K)
    with pytest.raises(ContractError, match="out: expected memory apart from w_i8"):
        gemv_i8(x, q, torch.ones(N), out=q.view(torch.float16)[:M, :N])


def described(rows: int, N: int, K: int, scale_bytes: int, **more) -> GemvCall:
    """A call on contiguous fp16 weights, or int8 ones where there are scales."""
    strides = {"x_stride": K, "w_stride": K, "out_stride": N}
    kind = "i8" if scale_bytes else "f16"
    return GemvCall(rows, N, K, kind, scale_bytes=scale_bytes, **{**strides, **more})


@pytest.mark.parametrize("N, K", SHAPES)
@pytest.mark.parametrize("scale_bytes", [0, 2])
def test_choices_are_legal_fill_the_chip_and_keep_the_order_for_every_m(N, K, scale_bytes):
    orders = set()
    for rows in range(1, 17 if scale_bytes else 33):
        call = described(rows, N, K, scale_bytes)
        choice = choose(call)
        values, (groups,), candidates = choice.values, choice.grid, choice.candidates
        call.spec.source().check(values)  # every value is declared legal
        assert values["M_TILE"] * values["M_TILES"] >= rows
        assert sum(c.taken for c in candidates if c.kernel.startswith("M_TILE")) == 1
        side = values["ROWS_PER_LANE"] * 32 // values["LANES"]
        assert groups == -(-N // side) * values["M_TILES"]
        assert groups >= 36 or side * 36 > N
        assert values["ROWS_PER_LANE"] >= 2 or N < 1152
        order = ("LANES", "UNIT", "UNROLL", "WAVES")
        orders.add(tuple(values[name] for name in order))
    assert len(orders) == 1


def test_waves_share_k_evenly():
    for steps in range(1, 200):
        for streams in (1, 40, 300, 5000):
            waves = waves_per_workgroup(steps, streams)
            assert 1 <= waves <= min(steps, 16)
            assert -(-steps // waves) * waves <= 1.34 * steps, (steps, streams, waves)


def test_explain_says_what_runs_and_why():
    x, q, s = halves(12, 40), bytes_(16, 40), torch.ones(16)
    text = str(rdna_jit.explain(dense_gemm_int8, x, halves(0), q, s))
    assert "dense_gemm_int8(M=12, N=16, K=40) runs gemv_i8" in text
    assert "the smallest tile for 12 rows" in text
    assert "UNIT=16: K is not a multiple of 16: 8-byte loads" in text
    text = str(rdna_jit.explain(dense_gemm_int8, halves(40, 40), halves(0), q, s))
    assert "runs torch.matmul" in text and "gemv_i8: 40 rows, it takes 1..16" in text
    assert "the fp16 weight was released" in text


@pytest.mark.slow
def test_compiled_for_a_large_batch_still_chooses_by_the_real_one():
    q, s, released = bytes_(16, 40), torch.ones(16), halves(0)
    compiled = torch.compile(
        lambda x: dense_gemm_int8(x, released, q, s), backend="eager", dynamic=True
    )
    x = halves(512, 40)
    torch._dynamo.mark_dynamic(x, 0)
    assert compiled(x).shape == (512, 16)
    rdna_jit.dispatch_log(clear=True)
    compiled(halves(1, 40))
    assert rdna_jit.dispatch_log()[-1].kernel == "gemv_i8"


def spills(code_object: CodeObject) -> tuple[int, int, int]:
    (info,) = code_object.kernels.values()
    found = info.resources
    return found.vgpr_spills, found.sgpr_spills, found.scratch_bytes


def kernel(rows: int, N: int, K: int, scale_bytes: int, arch: str | None = None, **more) -> Kernel:
    call = described(rows, N, K, scale_bytes, **more)
    return call.spec.specialise(arch, **choose(call).values)


@pytest.mark.slow
@pytest.mark.parametrize("N, K", [*SHAPES, (577, 1000), (2310, 136)])
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("scale_bytes", [0, 4])
def test_nothing_spills_in_any_compiler(rows, N, K, scale_bytes, tmp_path):
    made = kernel(rows, N, K, scale_bytes, has_bias=True)
    assert spills(CodeObject(made.code_object)) == (0, 0, 0)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize("align", [1, 2, 4])
def test_nothing_spills_for_misaligned_rows(rows, align, tmp_path):
    made = kernel(rows, 2560, 1536, 4, x_align=max(align, 2), w_align=align)
    assert spills(CodeObject(made.code_object)) == (0, 0, 0)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


def test_a_second_compiler_takes_the_source(tmp_path):
    made = kernel(8, 2310, 1544, 4, has_bias=True)
    assert spills(compile_with_clang(made, tmp_path)) == (0, 0, 0)


@pytest.mark.parametrize("arch", ["gfx1010", "gfx1012"])
def test_chips_without_dot_instructions_take_mixed_fma(arch):
    isa = kernel(2, 64, 256, 4, arch).isa()
    assert ("v_dot2" in isa) == (arch == "gfx1012")
    assert "v_fma_mix" in isa or arch == "gfx1012"


@pytest.mark.parametrize(
    "form, rows",
    [pytest.param(*key, marks=[] if key in QUICK else pytest.mark.slow) for key in MOST],
)
def test_counters_are_within_the_budget(form, rows):
    row = measure(form, 2560, 1536, rows, "V620")
    assert row.valu_per_weight <= MOST[form, rows]
    assert row.spills == 0 and row.rel_l2 <= 5e-4
    assert row.load_bytes == 16 and row.workgroups >= 36
    assert row.time_us <= 1.25 * row.floor_us
