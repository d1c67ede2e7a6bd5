import os

import pytest

from rdna_jit.cache import KernelCache
from rdna_jit.cache.status import status
from rdna_jit.config import config
from tests.cache.commands import command, command_json
from tests.cache.fakes import compiler, make_key


def test_cache_in_good_order(store):
    KernelCache(store).get_or_compile(make_key(), compiler(make_key()))
    with config.scope(cache_dir=store.root, cache=True, cache_readonly=()):
        found = status()
    [root] = found.roots
    assert root.entries == 1 and root.mode == "0700" and root.exists
    assert found.problems == root.problems == []


def test_cache_that_will_be_made_is_no_problem_and_is_not_made(tmp_path):
    with config.scope(cache_dir=tmp_path / "a" / "b"):
        [root] = status().roots
    assert root.problems == [] and not root.exists
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("case", ["open", "file", "layer", "key"])
def test_problems_say_what_to_do(tmp_path, case):
    path, layers, key_file = tmp_path / "cache", (), None
    if case == "open":
        path.mkdir()
        path.chmod(0o777)
    elif case == "file":
        path.write_text("")
    elif case == "layer":
        layers = (tmp_path / "none",)
    else:
        key_file = tmp_path / "no_key"
    with config.scope(cache_dir=path, cache_readonly=layers, cache_key_file=key_file):
        found = status()
    problems = [*found.problems, *(p for root in found.roots for p in root.problems)]
    word = {"open": "chmod go-w", "file": "choose another", "layer": "READONLY", "key": "KEY_FILE"}
    assert len(problems) == 1 and word[case] in problems[0]


def test_doctor_reports_the_cache(store, monkeypatch, capsys):
    monkeypatch.setenv("RDNA_JIT_CACHE_DIR", store.root)
    store.prepare("kernels")
    monkeypatch.setattr("rdna_jit.doctor._compile", lambda: iter(()))
    got, out, _ = command(capsys, "doctor")
    assert got in (0, 1) and store.root in out and "0700" in out
    report = command_json(capsys, "doctor", status=got)
    assert report["cache"]["roots"][0]["root"] == store.root
    assert report["ok"] == (got == 0) and report["findings"]
