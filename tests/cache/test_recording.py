import json
import os

from rdna_jit.cache import record, recording
from rdna_jit.config import config


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_specialisation_is_written_once(tmp_path):
    path = tmp_path / "run.jsonl"
    with config.scope(record=path):
        for _ in range(2):
            record("axpy", {"K": 4096, "M": 1}, "gfx1030")
            record("axpy", {"K": 4096, "M": 2}, "gfx1030")
    assert lines(path) == [
        {"spec": "axpy", "values": {"K": 4096, "M": 1}, "arch": "gfx1030"},
        {"spec": "axpy", "values": {"K": 4096, "M": 2}, "arch": "gfx1030"},
    ]


def test_nothing_happens_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("RDNA_JIT_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    record("axpy", {"K": 1}, "gfx1030")
    assert os.listdir(tmp_path) == []


def test_file_that_cannot_be_written_warns_once(tmp_path, warnings_of):
    with config.scope(record=tmp_path):
        for n in range(3):
            record("axpy", {"K": n}, "gfx1030")
    assert len(warnings_of()) == 1 and "RDNA_JIT_RECORD" in warnings_of()[0]


def test_processes_append_whole_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    with config.scope(record=path):
        children = []
        for child in range(4):
            pid = os.fork()
            if pid == 0:
                for n in range(50):
                    record("spec", {"child": child, "n": n}, "gfx1030")
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
    assert len({json.dumps(line) for line in lines(path)}) == 200
    assert (str(path), "x") not in recording._written
