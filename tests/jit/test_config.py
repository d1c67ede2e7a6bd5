import os
import threading
from pathlib import Path

import pytest

from rdna_jit.config import Config, config, option
from rdna_jit.errors import ContractError


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Config:
    """A Config of its own, in an environment without our variables."""
    for setting in config.settings():
        monkeypatch.delenv(setting.env, raising=False)
    return Config()


def test_defaults_are_the_documented_ones(fresh: Config) -> None:
    for setting in fresh.settings():
        assert getattr(fresh, setting.name) == setting.default, setting.name
        assert fresh.source(setting.name) == "default"
        assert setting.doc and setting.env == setting.env.upper()
    assert len({setting.env for setting in fresh.settings()}) == len(fresh.settings())
    assert (fresh.backend, fresh.cache_max_bytes, fresh.moe_skinny_max_m) == ("auto", 2 << 30, 8)


def test_scope_wins_over_python_wins_over_environment(
    fresh: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDNA_JIT_BACKEND", "hip")
    assert (fresh.backend, fresh.source("backend")) == ("hip", "environment")
    fresh.backend = "emulator"
    assert (fresh.backend, fresh.source("backend")) == ("emulator", "python")
    with fresh.scope(backend="auto"):
        assert (fresh.backend, fresh.source("backend")) == ("auto", "scope")
        with fresh.scope(backend="hip", strict=True):
            assert fresh.backend == "hip" and fresh.strict
        assert fresh.backend == "auto" and not fresh.strict
    assert fresh.backend == "emulator"
    del fresh.backend
    assert fresh.backend == "hip"


def test_a_scope_ends_with_an_exception_and_stays_in_its_thread(fresh: Config) -> None:
    seen = []
    with pytest.raises(RuntimeError), fresh.scope(strict=True):
        thread = threading.Thread(target=lambda: seen.append(fresh.strict))
        thread.start()
        thread.join()
        raise RuntimeError
    assert seen == [False] and not fresh.strict


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("strict", "ON", True),
        ("strict", "no", False),
        ("cache", "off", False),
        ("moe_skinny_max_m", "16", 16),
        ("cache_max_bytes", "123", 123),
        ("cache_max_bytes", "1.5G", None),
        ("cache_max_bytes", "3GiB", 3 << 30),
        ("cache_max_bytes", "512m", 512 << 20),
        ("checks", "races, steps=1000", ("races", "steps=1000")),
        ("checks", "steps=0", None),
        ("checks", "everything", None),
        ("disabled_kernels", "A,B ,", ("A", "B")),
        ("cache_readonly", f"/a{os.pathsep}/b", (Path("/a"), Path("/b"))),
        ("cache_dir", "~/x", Path.home() / "x"),
        ("strict", "2", None),
        ("moe_skinny_max_m", "-1", None),
        ("moe_skinny_max_m", "8.0", None),
        ("backend", "cuda", None),
        ("backend", " Emulator ", "emulator"),
        ("arch", "gfx1010", "gfx1010"),
    ],
)
def test_the_environment_is_read_strictly_and_late(
    fresh: Config, monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    env = option(name).env
    monkeypatch.setenv(env, text)
    if value is not None:
        assert getattr(fresh, name) == value
        return
    with pytest.raises(ContractError, match=env) as caught:
        getattr(fresh, name)
    assert caught.value.name == env and caught.value.got == text


def test_an_empty_variable_counts_as_unset(fresh: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDNA_JIT_CACHE_MAX_BYTES", "")
    assert fresh.cache_max_bytes == 2 << 30 and fresh.source("cache_max_bytes") == "default"


def test_values_from_python_are_checked_at_once(fresh: Config) -> None:
    with pytest.raises(ContractError, match=r"config\.strict"):
        fresh.strict = 1  # type: ignore[assignment]
    with pytest.raises(ContractError, match="moe_skinny_max_m"), fresh.scope(moe_skinny_max_m=True):
        pass
    with pytest.raises(ContractError, match="no setting is called"), fresh.scope(colour="red"):
        pass
    with pytest.raises(AttributeError):
        fresh.colour = "red"  # type: ignore[attr-defined]
    fresh.cache_dir = None
    assert fresh.cache_dir is None


def test_version_names_the_state_of_all_settings(
    fresh: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = fresh.version
    assert fresh.version == start
    monkeypatch.setenv("VLLM_RDNA_MOE_V2", "1")
    by_environment = fresh.version
    fresh.moe_v2 = False
    by_python = fresh.version
    with fresh.scope(moe_v2=True):
        by_scope = fresh.version
        assert fresh.version == by_scope
    assert len({start, by_environment, by_python, by_scope}) == 4
    assert fresh.version == by_python
    with fresh.scope(moe_v2=True):
        assert fresh.version == by_scope, "an equal state has an equal number"
    del fresh.moe_v2
    assert fresh.version == by_environment
    monkeypatch.delenv("VLLM_RDNA_MOE_V2")
    assert fresh.version == start
