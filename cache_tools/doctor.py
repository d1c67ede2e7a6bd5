"""doctor: toolchain and devices as `python -m rdna_jit doctor` sees them, and more on the cache."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from cache_tools.output import print_json, print_table, size_text


def configure_doctor(parser: argparse.ArgumentParser) -> None:
    """No options of its own: the doctor looks at what the settings say."""


def run_doctor(arguments: argparse.Namespace) -> int:
    from rdna_jit import doctor
    from rdna_jit.cache.status import status

    findings = doctor.collect()
    is_well = all(finding.status != "error" for finding in findings)
    state = status()
    if arguments.json:
        found = [asdict(finding) for finding in findings]
        print_json({"ok": is_well, "findings": found, "cache": asdict(state)})
        return 0 if is_well else 1
    print(doctor.render(findings))
    if state.roots:
        print()
        titles = ("cache folder", "mode", "entries", "size", "left-overs", "set-aside", "use")
        rows = [
            (
                root.root,
                root.mode or "absent",
                str(root.entries),
                size_text(root.nbytes),
                str(root.temporaries),
                str(root.set_aside),
                "read only" if root.readonly else "read and write",
            )
            for root in state.roots
        ]
        print_table(titles, rows, right="entries size left-overs set-aside")
    return 0 if is_well else 1
