"""Command line of the demo: prints tables, or one JSON object with ``--json``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rdna_jit.errors import RdnaJitError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; 0 when every bar is met, 1 otherwise, 2 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m rdna_jit demo", description=__doc__)
    parser.add_argument(
        "--format",
        help="only the encoder, with its layers in these formats: gptq, awq, int8, fp8, mxfp4, f16 "
        "(separated by commas) or all",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)

    from rdna_jit.demo import moe_layer, sentences

    known = [*sentences.FORMATS, "all"]
    names = args.format.split(",") if args.format else ["gptq"]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--format {unknown[0]!r}: expected some of {', '.join(known)}")
    if "all" in names:
        names = list(sentences.FORMATS)
    show = not (args.json or args.no_progress) and sys.stderr.isatty()
    try:
        encoder = sentences.run(names, progress=show)
        layer = None if args.format else moe_layer.run()
    except RdnaJitError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    parts: dict[str, Any] = {"minilm": encoder, **({"moe": layer} if layer else {})}
    ok = all(part.ok for part in parts.values())
    if args.json:
        report = {name: part.to_dict() for name, part in parts.items()}
        print(json.dumps({**report, "ok": ok}, indent=2))
    else:
        tables = [part.table() for part in parts.values()]
        print(*tables, "demo: " + ("ok" if ok else "FAILED"), sep="\n\n")
    return 0 if ok else 1
