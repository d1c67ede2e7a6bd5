"""The command line over a cache of made-up kernels."""

import os
import subprocess
import sys
import time

import pytest

from cache_tools.__main__ import COMMANDS
from cache_tools.output import age, size
from rdna_jit.cache import BlobStore, KernelCache
from rdna_jit.cache.store import Store
from tests.cache.commands import command, command_json
from tests.cache.fakes import code_of, compiler, make_key
from tests.cache.processes import PROJECT, finish, start


@pytest.fixture
def filled(store):
    kernels = KernelCache(store)
    for n in range(3):
        key = make_key(n, arch=f"gfx103{n}")
        metadata = {"kernel": f"kernel_{n}", "spec": "s", "values": {"K": 128 << n, "M": 1}}
        kernels.get_or_compile(key, compiler(key, size=1000 * (n + 1), log="a note"), metadata)
    BlobStore("emulator", store).put(make_key(9).digest, b"object")
    return store


def test_list_has_one_object_per_key(filled, capsys):
    rows = command_json(capsys, "list", "--dir", filled.root)
    assert [row["key"] for row in rows] == [make_key(n, arch=f"gfx103{n}").digest for n in range(3)]
    first = rows[0]
    assert first["kernel"] == "kernel_0" and first["values"] == {"K": 128, "M": 1}
    assert first["arch"] == "gfx1030" and first["hits"] == 0 and first["readable"]
    assert first["bytes"] == os.path.getsize(filled.path("kernels", first["key"]))
    everything = command_json(capsys, "list", "--dir", filled.root, "--all")
    assert [row["kind"] for row in everything] == ["emulator"] + ["kernels"] * 3


def test_list_chooses_and_sorts(filled, capsys):
    listed = command_json(capsys, "list", "--dir", filled.root, "--sort", "size")
    assert [row["kernel"] for row in listed] == ["kernel_2", "kernel_1", "kernel_0"]
    assert len(command_json(capsys, "list", "--dir", filled.root, "--arch", "gfx1031")) == 1
    assert len(command_json(capsys, "list", "--dir", filled.root, "--kernel", "l_2")) == 1
    assert command_json(capsys, "list", "--dir", filled.root, "--arch", "gfx906") == []


def test_list_for_people(filled, capsys):
    status, out, _ = command(capsys, "list", "--dir", filled.root)
    lines = out.splitlines()
    assert status == 0 and lines[0].split()[:4] == ["key", "kernel", "parameters", "arch"]
    assert "K=128,M=1" in lines[1] and "gfx1030" in lines[1]
    assert lines[-1].startswith("3 entries, ")


def test_list_counts_loads(store, capsys):
    finish(start(store.root, 2))
    for _ in range(3):
        finish(start(store.root, 1))
    rows = command_json(capsys, "list", "--dir", store.root, "--sort", "hits")
    assert [row["hits"] for row in rows] == [3, 0]


def test_list_shows_damaged_entries_and_does_not_fail(filled, capsys):
    key = make_key(0, arch="gfx1030").digest
    os.truncate(filled.path("kernels", key), 10)
    rows = command_json(capsys, "list", "--dir", filled.root)
    assert [row["readable"] for row in rows if row["key"] == key] == [False]
    assert "(unreadable)" in command(capsys, "list", "--dir", filled.root)[1]


def test_list_leaves_last_use_alone(filled, capsys):
    if os.geteuid() != 0:
        pytest.skip("only root may read without a trace")
    path = filled.path("kernels", make_key(0, arch="gfx1030").digest)
    os.utime(path, (1e9, 1e9))
    command(capsys, "list", "--dir", filled.root)
    command(capsys, "verify", "--dir", filled.root)
    assert os.stat(path).st_atime == 1e9


def test_a_cache_that_is_not_there_yet_lists_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RDNA_JIT_CACHE_DIR", str(tmp_path / "none"))
    assert command_json(capsys, "list") == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["list", "verify", "prune", "clear"])
def test_a_folder_that_is_named_must_be_there(tmp_path, capsys, name):
    status, _, err = command(capsys, name, "--dir", tmp_path / "typo")
    assert status == 2 and "typo" in err and not (tmp_path / "typo").exists()


def test_show_finds_by_prefix(filled, capsys):
    key = make_key(1, arch="gfx1031")
    facts = command_json(capsys, "show", key.digest[:8], "--dir", filled.root, "--source", "--log")
    assert facts["key"] == key.digest and facts["state"] == "good"
    assert facts["source"] == key.source and facts["log"] == "a note"
    status, out, _ = command(capsys, "show", key.digest, "--dir", filled.root)
    assert status == 0 and "kernel_1" in out and "-mno-cumode" in out and key.source not in out


@pytest.mark.parametrize("prefix, problem", [("ab", "at least 4"), ("zzzz", "no entry")])
def test_show_of_no_entry(filled, capsys, prefix, problem):
    status, out, err = command(capsys, "show", prefix, "--dir", filled.root)
    assert status == 2 and out == "" and problem in err


def test_verify_and_repair(filled, capsys):
    assert command_json(capsys, "verify", "--dir", filled.root) == {"good": 4, "problems": []}
    path = filled.path("kernels", make_key(0, arch="gfx1030").digest)
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    found = command_json(capsys, "verify", "--dir", filled.root, status=1)
    assert found["good"] == 3 and found["problems"][0]["path"] == path
    assert os.path.exists(path)
    found = command_json(capsys, "verify", "--repair", "--dir", filled.root)
    assert found["problems"][0]["repaired"] and not os.path.exists(path)
    assert command_json(capsys, "verify", "--dir", filled.root) == {"good": 3, "problems": []}


def test_verify_reports_what_would_not_be_trusted(filled, capsys):
    os.chmod(filled.path("kernels", make_key(0, arch="gfx1030").digest), 0o666)
    found = command_json(capsys, "verify", "--repair", "--dir", filled.root, status=1)
    assert [problem["state"] for problem in found["problems"]] == ["untrusted"]


def test_prune_by_size_and_by_age(filled, capsys):
    now = time.time()
    for n in range(3):
        path = filled.path("kernels", make_key(n, arch=f"gfx103{n}").digest)
        os.utime(path, (now - n * 86400, now - 9 * 86400))
    pruned = command_json(capsys, "prune", "--older-than", "36h", "--dir", filled.root)
    assert pruned["removed"] == 1 and pruned["kept"] == 3
    pruned = command_json(capsys, "prune", "--max-bytes", "0", "--dir", filled.root)
    assert pruned["kept"] == 0 and pruned["kept_bytes"] == 0
    assert command_json(capsys, "prune", "--dir", filled.root)["removed"] == 0


def test_clear(filled, capsys):
    with open(f"{filled.root}/kernels/notes.txt", "w") as file:
        file.write("mine")
    assert command_json(capsys, "clear", "--dir", filled.root)["removed"] == 4
    assert list(filled.entries()) == []
    # What is no entry is none of its business.
    assert os.path.exists(f"{filled.root}/kernels/notes.txt")


def test_export_and_import(filled, tmp_path, capsys):
    archive, other = tmp_path / "kernels.tar.gz", tmp_path / "other"
    assert command_json(capsys, "export", archive, "--dir", filled.root)["entries"] == 3
    assert command_json(capsys, "import", archive, "--dir", other)["entries"] == 3
    key = make_key(2, arch="gfx1032")
    assert Store(str(other)).read("kernels", key.digest).payload == code_of(key, 3000)
    again = command_json(capsys, "import", archive, "--dir", other)
    assert (again["entries"], again["present"]) == (0, 3)


def test_export_of_some(filled, tmp_path, capsys):
    archive = tmp_path / "k.tar.gz"
    options = ("--dir", filled.root)
    assert command_json(capsys, "export", archive, "--arch", "gfx1031", *options)["entries"] == 1
    prefix = make_key(0, arch="gfx1030").digest[:6]
    assert command_json(capsys, "export", archive, prefix, *options)["entries"] == 1
    assert command_json(capsys, "export", archive, "--all", *options)["entries"] == 4
    status, _, err = command(capsys, "export", archive, "--arch", "gfx906", *options)
    assert status == 2 and "nothing to export" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "missing.tar.gz"],
        ["import", "/dev/null"],
        ["import", __file__],
        ["export", "/nonexistent/k.tar.gz", "abcd"],
        ["show", "0123456789"],
        ["warm"],
        ["warm", "--recorded", "missing.jsonl"],
        ["warm", "--recorded", __file__],
        ["warm", "--arch", "gfx906", "--recorded", "/dev/null"],
        ["prune", "--max-bytes", "many"],
        ["prune", "--older-than", "yesterday"],
        ["frobnicate"],
        [],
    ],
)
def test_mistakes_get_one_message_and_status_2(tmp_path, capsys, arguments):
    extra = ["--dir", tmp_path / "cache"] if arguments and arguments[0] in COMMANDS else []
    status, out, err = command(capsys, *arguments, *extra)
    assert status == 2 and out == ""
    assert err.strip() and "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("--recorded", b"\xff\xfe\n"),
        ("--calls", b"linear.w4a16_gemv(f16[1,-8], i32[1,8], f16[1,8])"),
    ],
)
def test_warm_names_the_file_that_it_cannot_use(tmp_path, capsys, option, content):
    file = tmp_path / "list"
    file.write_bytes(content)
    status, _, err = command(capsys, "warm", option, file, "--dir", tmp_path)
    assert status == 2 and str(file) in err and "Traceback" not in err


def test_cache_that_is_off_is_said(capsys, monkeypatch):
    monkeypatch.setenv("RDNA_JIT_CACHE", "off")
    status, _, err = command(capsys, "list")
    assert status == 2 and "RDNA_JIT_CACHE" in err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_examples(capsys, name):
    status, out, _ = command(capsys, name, "--help")
    assert status == 0 and f"rdna-jit-cache {name}" in out and "--json" in out


def test_runs_as_a_module_and_ends_quietly_in_a_closed_pipe(filled):
    run = [sys.executable, "-m", "cache_tools", "list", "--dir", filled.root]
    done = subprocess.run(run, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0 and "3 entries" in done.stdout
    piped = subprocess.Popen(run, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    piped.stdout.close()
    assert b"Traceback" not in piped.stderr.read() and piped.wait(30) == 0
    piped.stderr.close()


def test_control_characters_of_an_entry_do_not_reach_the_terminal(store, capsys):
    key = make_key(0)
    metadata = {"kernel": "\x1b[2J\ud800", "values": {"a": "x\n\x07"}}
    KernelCache(store).get_or_compile(key, compiler(key), metadata)
    for words in (["list"], ["show", key.digest]):
        status, out, _ = command(capsys, *words, "--dir", store.root)
        assert status == 0 and "\\x1b[2J\\ud800" in out
        assert all(c.isprintable() or c == "\n" for c in out)


def test_sizes_and_ages():
    assert [size(t) for t in ("10", "1K", "1.5MiB", "2g", "3 GB")] == [
        10,
        1024,
        3 << 19,
        2 << 30,
        3 << 30,
    ]
    assert [age(t) for t in ("90s", "2m", "12h", "1.5d", "1w")] == [90, 120, 43200, 129600, 604800]
