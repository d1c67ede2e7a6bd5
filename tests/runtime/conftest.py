from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rdna_jit import config
from rdna_jit.runtime import hip
from tests.runtime.stub_library import HostTensors, Stub, build


@pytest.fixture(scope="session")
def stub_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def stub(stub_path: Path) -> Stub:
    return Stub(stub_path)


@contextmanager
def backend(stub: Stub, side: HostTensors, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hip backend on the stub for the whole process: a scope would not reach new threads."""
    monkeypatch.setattr(hip, "torch_side", side)
    config.backend, config.hip_library = "hip", stub.path
    try:
        yield
    finally:
        del config.backend, config.hip_library
        stub.library.hipSetDevice(0)


@pytest.fixture
def card(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostTensors]:
    """CPU tensors as those of one gfx1030."""
    side = HostTensors(stub)
    with backend(stub, side, monkeypatch):
        yield side


@pytest.fixture
def cards(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostTensors]:
    """Two devices, a gfx1030 and a gfx1031."""
    side = HostTensors(stub, devices=2, archs=("gfx1030", "gfx1031"))
    with backend(stub, side, monkeypatch):
        yield side
