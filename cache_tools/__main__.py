"""`rdna-jit-cache COMMAND`: look at, check, shrink, fill and move the kernel cache."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# name: (module, what it does, examples)
COMMANDS = {
    "list": ("listing", "list the cached kernels", ["list", "list --arch gfx1030 --sort size"]),
    "show": ("listing", "everything about one kernel", ["show 3fa9c1", "show 3fa9c1 --isa"]),
    "verify": ("upkeep", "check every entry", ["verify", "verify --repair"]),
    "prune": (
        "upkeep",
        "remove least recently used entries",
        ["prune --max-bytes 500M", "prune --older-than 30d"],
    ),
    "clear": ("upkeep", "remove every entry", ["clear", "clear --dir /opt/kernels"]),
    "warm": (
        "warm",
        "compile ahead, without a GPU",
        ["warm --recorded run.jsonl", "warm --model flash-next --arch gfx1030 --arch gfx1031"],
    ),
    "export": ("bundles", "write entries to one archive", ["export kernels.tar.gz"]),
    "import": ("bundles", "read such an archive", ["import kernels.tar.gz --dir /opt/kernels"]),
    "doctor": ("doctor", "what is found, what would fail, what to do", ["doctor", "doctor --json"]),
}
EPILOG = """\
examples:
  rdna-jit-cache list --sort size        rdna-jit-cache show 3fa9c1 --isa
  rdna-jit-cache warm --model flash-next --arch gfx1030
  rdna-jit-cache export kernels.tar.gz   rdna-jit-cache COMMAND --help

exit status: 0 done, 1 something is wrong with entries or the machine (the output says what),
2 the command could not be carried out
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser(words).parse_args(words)
    from rdna_jit.errors import RdnaJitError

    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except (RdnaJitError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader, `head` for one, has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"rdna-jit-cache: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The whole parser; only the modules of commands that occur in `words` are imported."""
    parser = argparse.ArgumentParser(
        prog="rdna-jit-cache",
        description="Looks at, checks, shrinks, fills and moves the cache of compiled kernels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module_name, summary, examples) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog="examples:\n" + "\n".join(f"  rdna-jit-cache {e}" for e in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--json", action="store_true", help="print JSON")
        if name not in words:
            continue
        module = importlib.import_module(f"cache_tools.{module_name}")
        getattr(module, f"configure_{name}")(command)
        command.set_defaults(run=getattr(module, f"run_{name}"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
