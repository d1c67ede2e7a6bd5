"""Command line of the demo: prints tables, or one JSON object with ``--json``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rdna_jit.errors import RdnaJitError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; 0 when every bar is met, 1 otherwise, 2 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m rdna_jit demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)

    from rdna_jit.demo import moe_layer, sentences

    show = not (args.json or args.no_progress) and sys.stderr.isatty()
    try:
        encoder = sentences.run(progress=show)
        layer = moe_layer.run()
    except RdnaJitError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    ok = encoder.ok and layer.ok
    if args.json:
        report = {"minilm": encoder.to_dict(), "moe": layer.to_dict(), "ok": ok}
        print(json.dumps(report, indent=2))
    else:
        print(encoder.table(), layer.table(), "demo: " + ("ok" if ok else "FAILED"), sep="\n\n")
    return 0 if ok else 1
