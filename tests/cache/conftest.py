import logging

import pytest

from rdna_jit.cache import report, usage
from rdna_jit.cache.store import Store


@pytest.fixture(autouse=True)
def fresh_process_state():
    """Warnings and load counts are per process; each test gets a process of its own, as it were."""
    report.forget()
    usage._counts.clear()
    yield
    usage._counts.clear()


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def store(root):
    return Store(root)


@pytest.fixture
def warnings_of(caplog):
    """The cache's warnings so far, as texts."""
    caplog.set_level(logging.WARNING, logger="rdna_jit")
    return lambda: [record.getMessage() for record in caplog.records]
