"""A process of its own that uses a cache: python -m tests.cache.worker ROOT KEYS [options].

Prints one JSON object: for each key whether the right bytes came and from where, the warnings
that were logged, and which heavy modules got imported.
"""

import argparse
import json
import logging
import os
import signal
import sys
import time

from rdna_jit.cache import KernelCache, store, trust
from tests.cache.fakes import code_of, compiler, make_key

HEAVY = ("filelock", "platformdirs", "hip", "torch", "rdna_jit.compiler", "rdna_jit.toolchain")


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("keys", type=int)
    parser.add_argument("--count")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--deadline", type=float, default=30.0)
    parser.add_argument("--start", type=float, default=0.0, help="wait until this time")
    parser.add_argument("--processes", type=int, default=1, help="fork into this many")
    parser.add_argument("--key-file", help="signing key")
    parser.add_argument("--readonly", help="a read-only layer")
    parser.add_argument("--die-at", help="step of the publish at which to kill -9 this process")
    parser.add_argument("--die-in-compile", action="store_true")
    arguments = parser.parse_args(argv)
    children = []
    for _ in range(arguments.processes - 1):
        children.append(os.fork())
        if not children[-1]:
            children = []
            break
    report = use(arguments)
    # One write per process, so that lines do not mix.
    os.write(1, (json.dumps(report) + "\n").encode())
    return max([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children], default=0)


def use(arguments):
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("rdna_jit").addHandler(handler)
    if arguments.die_at:
        store.publish_step = lambda step, path: step == arguments.die_at and die()
    secret = trust.read_signing_key(arguments.key_file) if arguments.key_file else None
    own = store.Store(arguments.root, signing_key=secret)
    layers = []
    if arguments.readonly:
        layers = [store.Store(arguments.readonly, readonly=True, signing_key=secret)]
    kernels = KernelCache(own, layers, lock_deadline=arguments.deadline)
    time.sleep(max(0.0, arguments.start - time.time()))
    results = []
    for number in range(arguments.keys):
        key = make_key(number)
        compile = compiler(key, arguments.count, arguments.seconds, arguments.size)
        began = time.perf_counter()
        entry = kernels.get_or_compile(key, die if arguments.die_in_compile else compile)
        spent = time.perf_counter() - began
        right = entry.code_object == code_of(key, arguments.size)
        results.append({"right": right, "origin": entry.origin, "seconds": spent})
    imported = [name for name in HEAVY if name in sys.modules]
    return {"results": results, "warnings": warnings, "imported": imported}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
