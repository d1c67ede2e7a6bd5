"""A compiler that makes deterministic bytes and counts itself in a file, over all processes."""

import hashlib
import os
import time
from types import SimpleNamespace

from rdna_jit.cache import Key


def make_key(number=0, source="__global__ void k() {}", arch="gfx1030"):
    return Key.make(f"{source} // {number}", ("-mno-cumode",), arch, "compiler-1")


def code_of(key, size=4096):
    seed = hashlib.sha256(key.digest.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def compiler(key, count_file=None, seconds=0.0, size=4096, log=""):
    """A function to hand to get_or_compile; appends one line per call to ``count_file``."""

    def compile():
        if count_file is not None:
            fd = os.open(count_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, f"{key.digest} {os.getpid()}\n".encode())
            os.close(fd)
        time.sleep(seconds)
        return SimpleNamespace(code_object=code_of(key, size), log=log, seconds=seconds)

    return compile


def compiles(count_file):
    """Digest of each compile that happened, in order."""
    if not os.path.exists(count_file):
        return []
    with open(count_file) as file:
        return [line.split()[0] for line in file]


def must_not_compile():
    raise AssertionError("compiled what the cache should have held")
