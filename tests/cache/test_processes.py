"""Processes that race, die and fork, for real."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter

import pytest

from rdna_jit.cache import KernelCache
from rdna_jit.cache.lock import process_lock
from rdna_jit.cache.store import Store
from tests.cache.fakes import compiler, compiles, make_key, must_not_compile
from tests.cache.processes import finish, finish_all, origins, start

STEPS = ["created", "written", "synced", "renamed"]


def check_race(reports, count):
    counted = Counter(compiles(count))
    assert counted == {make_key(n).digest: 1 for n in range(8)}
    assert [report["warnings"] for report in reports] == [[]] * 16
    found = Counter(origin for report in reports for origin in origins(report))
    assert found == {"compiled": 8, "disk": 120}


def test_sixteen_processes_compile_each_of_eight_kernels_once(root, tmp_path):
    count = tmp_path / "count"
    at = time.time() + 1.0
    options = ("--count", count, "--seconds", 0.02, "--start", at, "--processes", 16)
    check_race(finish_all(start(root, 8, *options)), count)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_sixteen_processes_of_their_own_compile_each_kernel_once(root, tmp_path, attempt):
    count = tmp_path / "count"
    options = ("--count", count, "--seconds", 0.02, "--start", time.time() + 4.0)
    workers = [start(root, 8, *options) for _ in range(16)]
    check_race([finish(worker) for worker in workers], count)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_the_publish(root, tmp_path, step):
    count = tmp_path / "count"
    victim = start(root, 1, "--count", count, "--die-at", step)
    victim.communicate(timeout=30)
    assert victim.returncode == -signal.SIGKILL
    report = finish(start(root, 1, "--count", count, "--deadline", 5))
    published = step == "renamed"
    assert origins(report) == ["disk" if published else "compiled"]
    assert report["warnings"] == []
    assert len(compiles(count)) == (1 if published else 2)
    assert len(os.listdir(f"{root}/tmp")) == (0 if published else 1)
    assert origins(finish(start(root, 1))) == ["disk"]


def test_lock_of_a_process_that_died_in_its_compile_is_free(root):
    victim = start(root, 1, "--die-in-compile")
    victim.communicate(timeout=30)
    assert victim.returncode == -signal.SIGKILL
    assert os.listdir(f"{root}/locks")
    report = finish(start(root, 1, "--deadline", 20))
    assert origins(report) == ["compiled"] and report["warnings"] == []
    assert report["results"][0]["seconds"] < 5


def test_lock_held_by_a_live_process_is_waited_for_until_the_deadline(root, store, tmp_path):
    key = make_key(0)
    with process_lock(store, key.digest) as held:
        assert held
        report = finish(start(root, 1, "--deadline", 0.3))
    assert origins(report) == ["compiled"]
    assert len(report["warnings"]) == 1 and "another process" in report["warnings"][0]
    assert 0.3 <= report["results"][0]["seconds"] < 5


def test_waiter_uses_what_the_holder_publishes(root, tmp_path):
    count = tmp_path / "count"
    first = start(root, 1, "--count", count, "--seconds", 1.0)
    deadline = time.time() + 10
    while not compiles(count) and time.time() < deadline:
        time.sleep(0.02)
    second = start(root, 1, "--count", count)
    assert origins(finish(second)) == ["disk"]
    assert origins(finish(first)) == ["compiled"]
    assert len(compiles(count)) == 1


def test_lock_file_left_behind_means_nothing(root, store):
    key = make_key(0)
    store.prepare("locks")
    with open(f"{root}/locks/{key.digest[:3]}", "w") as file:
        file.write("12345\n")
    assert origins(finish(start(root, 1, "--deadline", 5))) == ["compiled"]


def test_fork_after_use_while_a_thread_compiles(store):
    """The child neither inherits the thread's locks nor compiles what the parent already had."""
    done, busy = make_key(1), make_key(2)
    kernels = KernelCache(store)
    kernels.get_or_compile(done, compiler(done))
    inside, leave = threading.Event(), threading.Event()

    def slow():
        inside.set()
        leave.wait(20)
        return compiler(busy)()

    thread = threading.Thread(target=kernels.get_or_compile, args=(busy, slow))
    thread.start()
    inside.wait(10)
    pid = os.fork()
    if pid == 0:
        try:
            kernels.lock_deadline = 0.2
            ok = kernels.get_or_compile(done, must_not_compile).origin == "memory"
            ok &= kernels.get_or_compile(busy, compiler(busy)).origin == "compiled"
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    deadline = time.time() + 20
    while (status := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.time() < deadline:
        time.sleep(0.02)
    if status == (0, 0):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    leave.set()
    thread.join()
    assert status[0] == pid and os.waitstatus_to_exitcode(status[1]) == 0
    assert KernelCache(store).get_or_compile(busy, must_not_compile).origin == "disk"


def _in_spawned(root, queue):
    key = make_key(5)
    kernels = KernelCache(Store(root))
    queue.put(kernels.get_or_compile(key, must_not_compile).origin)


def test_spawned_process_loads_what_its_parent_compiled(store):
    key = make_key(5)
    KernelCache(store).get_or_compile(key, compiler(key))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_spawned, args=(store.root, queue))
    process.start()
    assert queue.get(timeout=30) == "disk"
    process.join()


def test_load_in_a_new_process_imports_nothing_heavy(root):
    finish(start(root, 3))
    report = finish(start(root, 3))
    assert origins(report) == ["disk"] * 3
    assert report["imported"] == []


def test_cache_removed_under_a_running_process(store):
    import shutil

    first, second = make_key(1), make_key(2)
    kernels = KernelCache(store)
    kernels.get_or_compile(first, compiler(first))
    shutil.rmtree(store.root)
    assert kernels.get_or_compile(first, must_not_compile).origin == "memory"
    assert kernels.get_or_compile(second, compiler(second)).origin == "compiled"
    assert KernelCache(store).get_or_compile(second, must_not_compile).origin == "disk"


def test_entry_that_shows_up_late(store, tmp_path, monkeypatch):
    """A network mount may hide for a minute what another host published: we compile as well,
    publish over it and go on with our own bytes."""
    key = make_key()
    KernelCache(store).get_or_compile(key, compiler(key))
    monkeypatch.setattr(Store, "read", lambda self, kind, key, **options: None)
    assert KernelCache(store).get_or_compile(key, compiler(key)).origin == "compiled"
    monkeypatch.undo()
    assert KernelCache(store).get_or_compile(key, must_not_compile).origin == "disk"
    assert os.listdir(f"{store.root}/kernels") == [key.digest]
