import pytest

from rdna_jit import arch
from rdna_jit.config import config
from rdna_jit.errors import ContractError, UnsupportedArchError


def test_the_table_holds_the_gfx10_family() -> None:
    assert list(arch.ARCHS) == [f"gfx101{i}" for i in range(4)] + [f"gfx103{i}" for i in range(7)]
    without_dot = {name for name, row in arch.ARCHS.items() if not row.dot2}
    assert without_dot == {"gfx1010", "gfx1013"}
    assert arch.get("gfx1013").capabilities == frozenset()
    assert arch.get("gfx1011").capabilities == {"dot2", "dot4", "dot8"}


def test_names_are_matched_exactly_up_to_case_and_feature_suffix() -> None:
    assert arch.get("GFX1030:xnack-").name == "gfx1030"
    for name in ("gfx1100", "gfx103", "", "gfx10300", "1030", None):
        with pytest.raises(UnsupportedArchError, match=r"gfx1010, .*gfx1036") as caught:
            arch.get(name)  # type: ignore[arg-type]
        assert caught.value.known == tuple(arch.ARCHS)


@pytest.mark.parametrize(
    ("name", "vgprs", "waves"),
    [
        ("gfx1030", 1, 16),
        ("gfx1030", 64, 16),
        ("gfx1030", 65, 12),
        ("gfx1030", 128, 8),
        ("gfx1030", 256, 4),
        ("gfx1010", 1, 20),
        ("gfx1010", 48, 20),
        ("gfx1010", 56, 18),
        ("gfx1010", 256, 4),
    ],
)
def test_waves_by_registers(name: str, vgprs: int, waves: int) -> None:
    assert arch.get(name).waves_per_simd(vgprs) == waves


def test_the_hsa_override_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDNA_JIT_ARCH", raising=False)
    monkeypatch.delenv("HSA_OVERRIDE_GFX_VERSION", raising=False)
    assert arch.override() is None
    assert arch.choose() == (arch.get("gfx1030"), "default")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.2")
    assert arch.choose() == (arch.get("gfx1032"), "HSA_OVERRIDE_GFX_VERSION")
    with config.scope(arch="gfx1012"):
        assert arch.choose() == (arch.get("gfx1012"), "RDNA_JIT_ARCH")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    with pytest.raises(UnsupportedArchError, match="gfx1100"):
        arch.choose()
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "gfx1030")
    with pytest.raises(ContractError, match="HSA_OVERRIDE_GFX_VERSION"):
        arch.override()


def test_missing_dot_instructions_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    arch.note_missing_dots.cache_clear()
    for _ in range(2):
        for name in ("gfx1010", "gfx1030"):
            arch.note_missing_dots(name)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["gfx1010"]
