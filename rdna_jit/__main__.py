"""`python -m rdna_jit COMMAND`: runs one of the package's commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

# Command -> (module:function, what it does). The module is imported when its command runs; the
# function is `main` if not named, and takes the arguments and gives the exit code.
COMMANDS = {
    "doctor": ("rdna_jit.doctor", "what was found and how, what is missing, what to do"),
    "isa": ("rdna_jit.tools.isa", "the machine code of a kernel, with what it occupies"),
    "run": ("rdna_jit.tools.launch:run", "one launch of a kernel, and what its tensors then hold"),
    "profile": ("rdna_jit.tools.launch:profile", "counts and estimated time of one launch"),
    "trace": ("rdna_jit.tools.launch:trace", "registers of a wave at an instruction or a line"),
    "probe": ("rdna_jit.tools.probe", "what only a card can answer, held against the emulator"),
    "check": ("rdna_jit.check", "every op against its float64 reference, at a model's shapes"),
    "demo": (
        "rdna_jit.demo.__main__",
        "quantised kernels on a real sentence encoder and a MoE layer",
    ),
}


def usage() -> str:
    """The list of commands."""
    rows = "\n".join(f"  {name:10} {text}" for name, (_, text) in COMMANDS.items())
    return f"usage: python -m rdna_jit COMMAND [--help]\n\n{rows}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 2 when there is no such command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        module, _, function = COMMANDS[arguments[0]][0].partition(":")
        run = getattr(importlib.import_module(module), function or "main")
        return int(run(arguments[1:]))
    if arguments and arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    print(usage(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
