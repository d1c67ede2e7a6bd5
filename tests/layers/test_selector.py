"""Which class serves a layer, the switches that change it, and what is said."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, QuantizedLinear, config
from rdna_jit.dispatch import FallbackError
from rdna_jit.layers import NoKernelError, crossover, kernels, selector
from rdna_jit.layers.kernels import KERNELS, LinearKernel
from tests.layers.packing import Codes, activations, generator

N, K = 24, 128
WEIGHT = torch.randn(N, K, generator=generator(0))
W4, HYBRID, BLAS = (
    "RDNA2W4A16LinearKernel", "RDNAHybridW4A16LinearKernel", "BLASFallbackLinearKernel",
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(selector, "_logged", set())
    monkeypatch.setattr(selector, "_warned", set())
    monkeypatch.setattr("rdna_jit.dispatch._warned", set())
    crossover.clear_crossovers()
    with config.scope(backend="emulator", strict=False):
        yield
    crossover.clear_crossovers()


def layer(format: str = "int4", **options) -> QuantizedLinear:
    return QuantizedLinear.quantize(WEIGHT, format, **options)


def taken(made: QuantizedLinear, rows: int = 1) -> str:
    plan = made.plan(activations(rows, K))
    (name,) = (c.kernel for c in plan.candidates if c.taken and c.kernel.endswith("LinearKernel"))
    return name


def reasons(made: QuantizedLinear, rows: int = 1) -> dict[str, str]:
    return {c.kernel: c.reason for c in made.plan(activations(rows, K)).candidates}


def test_the_order_of_preference():
    assert [taken(layer(f)) for f in ("int4", "int8", "f16")] == [
        W4, "RDNA2W8A16Int8LinearKernel", "RDNA2FP16LinearKernel",
    ]  # fmt: skip
    assert reasons(layer())[HYBRID] == f"comes after {W4}"
    assert reasons(layer())["RDNA2W8A16Int8LinearKernel"] == "serves i8"


def test_warm_compiles_what_a_call_needs():
    made, x = layer(), activations(1, K)
    rdna_jit.dispatch_log(clear=True)
    plan = rdna_jit.warm(made, x)
    assert [launch.kernel.name for launch in plan.launches] == ["w4a16_decode"]
    assert not rdna_jit.dispatch_log()
    with config.scope(disabled_kernels=(W4, HYBRID)):
        assert rdna_jit.warm(made, x).kernel == "torch.matmul"


def test_explain_has_the_class_and_the_kernel():
    text = str(rdna_jit.explain(layer(), activations(1, K)))
    assert "gptq_gemm(M=1, N=24, K=128, G=128) runs w4a16_decode" in text
    assert f"taken    {W4}: group 128" in text and "M_TILE=1" in text


@pytest.mark.parametrize("name", ("disabled_kernels", "own_disabled_kernels"))
def test_disabled_classes_are_passed_over(name):
    made, x = layer(), activations(1, K)
    y = made(x)
    with config.scope(**{name: (W4,)}):
        assert taken(made) == HYBRID
        assert "DISABLED_KERNELS names it" in reasons(made)[W4]
        assert torch.equal(made(x), y)
    with config.scope(**{name: (W4, HYBRID)}):
        rdna_jit.dispatch_log(clear=True)
        close = made(x)
        assert taken(made) == BLAS
        assert [d.kernel for d in rdna_jit.dispatch_log()] == ["torch.matmul"]
    assert torch.allclose(close.float(), y.float(), atol=5e-3)
    assert taken(made) == W4


def test_no_class_left_lists_every_reason():
    with config.scope(disabled_kernels=(W4, HYBRID, BLAS)), pytest.raises(NoKernelError) as caught:
        layer()(activations(1, K))
    text = str(caught.value)
    assert "no kernel serves QuantizedLinear (int4, group 128, zeros) N=24 K=128" in text
    for kernel in KERNELS:
        assert f"\n  {kernel.__name__}: " in text


def test_a_disabled_inner_kernel_gives_way_inside_the_op():
    with config.scope(own_disabled_kernels=("w4a16_decode",)):
        plan = layer().plan(activations(1, K))
        assert (taken(layer()), plan.kernel) == (W4, "dense_tile")
    with config.scope(own_disabled_kernels=("w4a16_decode", "dense_tile")):
        assert taken(layer()) == BLAS
        assert reasons(layer())[W4] == "RDNA_JIT_DISABLED_KERNELS names its kernel w4a16_decode"


@pytest.mark.parametrize(
    "force, want",
    [
        (f"gptq_gemm:{HYBRID}", HYBRID),
        (f"quantized_linear:{BLAS}", BLAS),
        ("gptq_gemm:torch.matmul", BLAS),
        ("gptq_gemm:w4a16_decode", W4),
        ("gptq_gemm:dense_tile", W4),
        (f"gemv_f16:{BLAS}", W4),
    ],
)
def test_forced_kernels(force, want):
    with config.scope(force_kernel=force):
        assert taken(layer()) == want


def test_a_forced_kernel_that_cannot_serve_is_an_error():
    with (
        config.scope(force_kernel="gptq_gemm:gemv_i8"),
        pytest.raises(NoKernelError, match="RDNA_JIT_FORCE_KERNEL asks for gemv_i8"),
    ):
        layer()(activations(1, K))
    with pytest.raises(ContractError, match="OP:KERNEL pairs"):
        config.force_kernel = "gemv_i8"


def test_unknown_names_are_warned_about_once(caplog):
    names = ("RDNA2W4A16LinearKernl", "ExllamaLinearKernel", "w4a16_decod")
    with caplog.at_level(logging.WARNING, "rdna_jit"), config.scope(disabled_kernels=names):
        made = layer()
        for rows in (1, 2):
            made(activations(rows, K))
    assert [record.getMessage() for record in caplog.records] == [
        f"VLLM_DISABLED_KERNELS names {name!r}, which is no kernel; the nearest is {nearest}"
        for name, nearest in ((names[0], W4), (names[2], "w4a16_decode"))
    ]


def test_one_line_says_what_is_used(caplog):
    with caplog.at_level(logging.INFO, "rdna_jit"):
        for made in (layer(), layer(), layer("int8")):
            made(activations(1, K))
            made(activations(2, K))
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("Using")] == [
        f"Using {W4} for QuantizedLinear (int4, group 128, zeros), 1 rows",
        "Using RDNA2W8A16Int8LinearKernel for QuantizedLinear (i8, scales per channel), 1 rows",
    ]


def test_a_makeshift_is_a_fallback(caplog):
    codes = Codes.random(N, K, 8)  # no kernel has groups of 8
    made = QuantizedLinear.from_gptq(**codes.gptq())
    x = activations(2, K)
    with caplog.at_level(logging.WARNING, "rdna_jit"):
        y, again = made(x), made(x)
    assert torch.equal(y, again)
    assert len(caplog.records) == 1
    assert "needs groups of a multiple of 32 rows, the layer has 8" in caplog.text
    want = x.double() @ codes.weight().t()
    assert (y.double() - want).norm() < 1e-3 * want.norm()
    with config.scope(strict=True), pytest.raises(FallbackError, match="groups of a multiple"):
        made(x)


def test_many_rows_go_to_matmul_above_a_crossover_that_was_set():
    made = layer()
    rdna_jit.layers.set_crossover(8)
    assert (taken(made, 8), taken(made, 9), taken(made, 33)) == (W4, BLAS, HYBRID)
    rdna_jit.layers.set_crossover(40)
    assert (taken(made, 40), taken(made, 41)) == (W4, HYBRID)
    assert reasons(made, 41)[W4] == "torch.matmul is faster above 40 rows (set)"
    rdna_jit.layers.set_crossover(50, format="int4", N=N, K=K)
    assert (taken(made, 50), taken(made, 51)) == (W4, HYBRID)
    rdna_jit.layers.set_crossover(None, format="gptq", N=N, K=K)
    assert taken(made, 5000) == W4
    rdna_jit.layers.clear_crossovers()
    with config.scope(linear_blas_rows=1):
        assert taken(made, 2) == BLAS


def test_a_class_that_calls_no_op_is_explained_and_logged():
    class PlainLinearKernel(LinearKernel):
        """For the test."""

        formats = ("int4",)

        @classmethod
        def apply(cls, x, form, t, bias):
            return x.new_ones((x.shape[0], form.N))

    made, x = layer(), activations(3, K)
    before = made(x)
    KERNELS.insert(0, PlainLinearKernel)
    try:
        for disabled in ((), "w4a16_decode"):  # a setting that looks at kernels inside classes
            with config.scope(own_disabled_kernels=disabled):
                rdna_jit.dispatch_log(clear=True)
                assert bool((made(x) == 1).all())
                assert [d.kernel for d in rdna_jit.dispatch_log()] == ["PlainLinearKernel"]
                assert taken(made, 3) == rdna_jit.warm(made, x).kernel == "PlainLinearKernel"
        with config.scope(own_disabled_kernels=("PlainLinearKernel",)):
            assert taken(made, 3) == W4
        assert "runs PlainLinearKernel\n" in str(rdna_jit.explain(made, x))
    finally:
        KERNELS.remove(PlainLinearKernel)
    assert torch.equal(made(x), before)


@pytest.mark.parametrize("format", ("int4", "awq", "int8", "fp8", "e5m2", "mxfp4", "f16"))
def test_matmul_serves_every_format_without_a_bias(format):
    rdna_jit.layers.set_crossover(8)
    made, x = layer(format), activations(9, K)
    assert made.bias is None and taken(made, 9) == BLAS
    want = x.double() @ made.dequantize(torch.float64).t()
    assert (made(x).double() - want).norm() < 1e-3 * want.norm()


def test_a_call_made_before_a_switch_does_not_freeze_it():
    made, x = layer(), activations(40, K)
    made(x)
    rdna_jit.layers.set_crossover(33)
    rdna_jit.dispatch_log(clear=True)
    made(x)
    assert rdna_jit.dispatch_log()[-1].kernel == "torch.matmul"


def test_ours_serve_above_the_crossover_when_matmul_is_disabled():
    rdna_jit.layers.set_crossover(33)
    with config.scope(disabled_kernels=(HYBRID, BLAS)):
        assert taken(layer(), 64) == W4


def test_a_class_of_ones_own():
    class Twice(LinearKernel):
        """For the test."""

        formats = ("int4",)

        @classmethod
        def uses_matmul(cls, call):
            return True

        @classmethod
        def apply(cls, x, form, t, bias):
            return 2 * kernels.matmul(x, form, t, bias)

    made, x = layer(), activations(1, K)
    y = made(x)
    KERNELS.insert(0, Twice)
    try:
        assert torch.allclose(made(x).float(), 2 * y.float(), atol=1e-2)
    finally:
        KERNELS.remove(Twice)


def test_the_crossover_is_measured_once_on_a_card(monkeypatch):
    calls = []

    class Clock:
        backend = "hip"

        def __init__(self):
            self.torch = self

        def is_capturing(self):
            return len(calls) < 1

        def synchronize(self):
            pass

        def time_us(self, launch):
            launch()
            kind, rows = calls[-1]
            return {"ours": 2.0 * rows, "blas": 400.0 + rows}[kind]

    form = layer().form
    clock = Clock()
    monkeypatch.setattr("rdna_jit.runtime.current", lambda: clock)
    monkeypatch.setattr(crossover, "_WARM_SECONDS", 0)
    assert not crossover.to_measure(form, 0, 512)  # capturing
    calls.append(("start", 0))
    assert not crossover.to_measure(form, 0, crossover.LEAST_ROWS)
    assert crossover.to_measure(form, 0, 512)
    found = crossover.measure(
        form,
        0,
        lambda rows: calls.append(("ours", rows)),
        lambda rows: calls.append(("blas", rows)),
    )
    assert (found.rows, found.source) == (256, "measured")
    assert not crossover.to_measure(form, 0, 512)
    assert crossover.crossover(form, 0) == found
    assert [t[0] for t in found.times_us] == list(crossover.MEASURED_ROWS)
    assert str(*rdna_jit.layers.crossovers().values()) == "above 256 rows (measured)"


def test_the_first_large_call_measures(monkeypatch, caplog):
    samples = []

    class Clock:
        def synchronize(self):
            pass

        def time_us(self, launch):
            launch()
            samples.append(len(samples) // crossover._SAMPLES % 2)  # ours, then torch.matmul
            return 1.0 if samples[-1] else 9.0

    real = crossover.to_measure
    monkeypatch.setattr(crossover, "_clock", Clock)
    monkeypatch.setattr(crossover, "_WARM_SECONDS", 0)
    monkeypatch.setattr(crossover, "MEASURED_ROWS", (64, 80))
    monkeypatch.setattr(
        crossover, "to_measure",
        lambda form, index, rows: rows > 64 and crossover.crossover(form, 0).source == "modelled",
    )  # fmt: skip
    made, x = layer(), activations(70, K)
    with caplog.at_level(logging.INFO, "rdna_jit"):
        made(x[:64])
        assert not samples
        made(x)
        made(x)
    assert len(samples) == 2 * 2 * crossover._SAMPLES
    assert "N=24 K=128: torch.matmul above 64 rows (measured), found in" in caplog.text
    assert (taken(made, 64), taken(made, 65)) == (W4, HYBRID)
    assert not real(made.form, 0, 5000)  # the emulator measures nothing


def test_a_huge_layer_is_measured_with_fewer_rows():
    form = QuantizedLinear(128, 24, "int8").form
    assert crossover.measured_rows(form) == crossover.MEASURED_ROWS
    assert crossover.measured_rows(replace(form, N=248320)) == (64, 256)
    assert crossover.measured_rows(replace(form, N=1 << 30)) == (64,)


def test_the_estimate():
    form = replace(layer().form, N=5120, K=5120)
    for rows in crossover.MEASURED_ROWS:
        ours, blas = crossover.modelled_us(form, rows)
        assert ours > 2e-6 * rows * 5120**2 / 38.1  # not above the rate of dots
        assert blas > 2e-6 * rows * 5120**2 / 21
    assert crossover.modelled(form) is None
    assert crossover.crossover(form, -1) == crossover.Crossover(None, "modelled")


@pytest.mark.parametrize("format", ["int8", "mxfp4", "f16"])
@pytest.mark.parametrize("K", [64, 1536, 17408])
def test_the_estimate_pads_columns_for_both(format, K):
    form = QuantizedLinear(K, 128, format).form
    for N in (72, 136, 200, 264, 4104):
        assert crossover.modelled(replace(form, N=N)) is None
    small = crossover.modelled(replace(form, N=40))
    assert (small is None) == (K == 64 and format != "f16"), "half of a tile's columns are idle"


def test_wins_are_read_from_the_large_end():
    def times(*wins: bool):
        return tuple((10 * i, 1.0, 2.0 if win else 0.5) for i, win in enumerate(wins, 1))

    last = crossover._last_win
    assert last(times(True, True, False)) == 20
    assert last(times(True, False, True)) is None
    assert last(times(False, False)) == crossover.LEAST_ROWS
