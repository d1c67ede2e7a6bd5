import pytest

from cache_tools.model_calls import calls
from cache_tools.output import Progress
from rdna_jit import config, models
from rdna_jit.dispatch import plan_of
from rdna_jit.errors import ContractError
from rdna_jit.tools.calls import parse


@pytest.mark.parametrize("model", models.MODELS.values(), ids=models.MODELS.keys())
def test_shapes_fit_their_groups_and_splits(model):
    for layers in model.dense.values():
        for layer in layers:
            assert layer.N > 0 and layer.K > 0
            if layer.format == "int4":
                assert layer.K % model.group == 0 and layer.N % 8 == 0
    if model.experts is not None:
        routed = model.experts
        assert routed.hidden % routed.group == 0 and routed.top_k <= routed.experts
        for experts, intermediate in routed.splits.values():
            assert routed.experts % experts == 0 and routed.intermediate % intermediate == 0
            assert intermediate % routed.group == 0
    assert model.dense or model.experts


def test_dense_layers_shrink_with_the_number_of_ranks():
    dense = models.get("qwen3.8-27b").dense
    sizes = {tp: sum(la.N * la.K for la in layers) for tp, layers in dense.items()}
    assert sizes[1] == 2 * sizes[2] == 4 * sizes[4]
    assert {(8704, 5120), (5120, 4352)} <= {(la.N, la.K) for la in dense[4]}


def test_calls_follow_split_and_rows():
    flash = models.get("flash-next")
    made = calls(flash, "EP4", (1, 4))
    decode = [call for call in made if call.startswith("moe.moe_int4_decode")]
    # With and without a residual.
    assert len(decode) == 4 and all("u8[128,1280,1280]" in call for call in decode)
    assert "(f16[4,2560]" in decode[3] and "expert_map=i32[512]" in decode[3]
    assert decode[3].endswith("residual=f16[4,2560])") and "residual" not in decode[2]
    assert "moe.topk_router(f16[4,512], 10)" in made
    assert "moe.moe_align_block_size(i32[4,10], 32, 512, expert_map=i32[512])" in made
    assert not any("expert_map" in call for call in calls(flash, "PP3", (1,)))
    with pytest.raises(ContractError, match=r"no split TP3; .*EP4"):
        calls(flash, "TP3", (1,))
    dense = calls(flash, "TP4", (16, 64))
    assert "linear.gemv_f16(f16[16,2560], f16[62080,2560])" in dense
    assert "linear.gemv_i8(f16[16,320], i8[10240,320], f16[10240])" in dense
    assert "linear.f16_gemm(f16[64,2560], f16[62080,2560])" in dense
    assert "linear.int8_gemm(f16[64,320], i8[10240,320], f16[10240])" in dense
    assert not any("gemv" in call and "(f16[64," in call for call in dense)
    experts = calls(models.get("deepseek-v4-flash"), "TP4", (1,))
    assert any(
        call.startswith("moe.moe_decode(f16[1,4096], u8[256,1024,2048], u8[256,1024,128]")
        and 'format="mxfp4"' in call
        for call in experts
    )


@pytest.mark.parametrize("name, split", [("qwen3-30b-a3b", "TP2"), ("deepseek-v4-flash", "TP4")])
def test_calls_of_experts_are_planned(name, split):
    kernels = {}
    with config.scope(backend="emulator"):
        for text in calls(models.get(name), split, (1, 512)):
            op, arguments, options = parse(text)
            if text.startswith("moe."):
                kernels[text.partition("(")[0], len(arguments[0])] = plan_of(
                    op, *arguments, **options
                ).kernel
    assert kernels["moe.fused_moe", 1] == "moe_grouped"
    assert kernels["moe.fused_moe", 512] == "moe_tile"
    assert kernels["moe.topk_router", 512] == "moe_topk_router"
    assert kernels["moe.moe_align_block_size", 1] == "moe_align"


def test_objects_in_calls():
    text = "moe.fused_moe(f16[1,32], MoEWeights('f16', f16[1,64,32], None, f16[1,32,32], None))"
    assert parse(text)[1][1].format == "f16"
    with pytest.raises(ValueError, match="Weights is no object of ops; known are MoEWeights"):
        parse("moe.fused_moe(Weights())")
    with pytest.raises(ValueError, match="MoEWeights: format: expected one of"):
        parse("moe.fused_moe(MoEWeights('f17', f16[1], None, f16[1], None))")


def test_unknown_model_names_the_known():
    with pytest.raises(ContractError, match="flash-next"):
        models.get("gpt-2")


def test_progress_shows_on_terminals_only(monkeypatch, capsys):
    progress = Progress(2)
    progress.step("a")
    progress.end()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(2)
    progress.step("first")
    progress.step("second")
    progress.end()
    shown = capsys.readouterr().err
    assert "1/2 first" in shown and "2/2 second" in shown and shown.endswith("\n")
