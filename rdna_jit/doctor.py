"""`python -m rdna_jit doctor`: what was found and how, what is missing, what to do.

Nothing here can end the process: the test compile, where a broken library might, runs in a child.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from . import arch, toolchain
from ._version import __version__
from .config import config
from .errors import RdnaJitError

_PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "hip-python": "hip-python",
    "filelock": "filelock",
    "platformdirs": "platformdirs",
    "llvmlite": "'rdna_jit[emulator]'",
}
_PURPOSES = {
    "hiprtc": "compiles kernels",
    "comgr": "disassembles, for isa() and the emulator",
    "builtins": "HIP's declarations for hiprtc",
    "hip": "launches on a GPU",
}
_KFD = Path("/dev/kfd")
_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
_PROBE = """
import sys
from rdna_jit.compiler import compile_source
from rdna_jit.disassembler import disassemble
source = 'extern "C" __global__ void __launch_bounds__(32) probe() {}'
result = compile_source(source, arch=sys.argv[1])
print(f"{result.seconds:.2f} s, {len(disassemble(result.code_object))} instructions")
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `status` is "ok", "note", "warning" or "error"; what is not ok has
    a `remedy` where there is one. Only errors make the doctor's exit code 1."""

    name: str
    status: str
    detail: str
    remedy: str = ""


def collect() -> list[Finding]:
    """Every finding, in the order of the report."""
    sections = (_system, _packages, _libraries, _compile, _arch, _cards, _device, _cache, _settings)
    return [finding for section in sections for finding in _guarded(section)]


def render(findings: Sequence[Finding]) -> str:
    """The report as text, one line per finding, remedies under their line."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:8} {finding.name:13} {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':22} -> {finding.remedy}")
    errors = sum(finding.status == "error" for finding in findings)
    lines.append(f"{errors} to repair" if errors else "all is well")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 1 when something has to be repaired, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m rdna_jit doctor", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="the findings as one JSON object")
    arguments = parser.parse_args(argv)
    findings = collect()
    ok = all(finding.status != "error" for finding in findings)
    if arguments.json:
        print(json.dumps({"ok": ok, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        print(render(findings))
    return 0 if ok else 1


def _guarded(section: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A section's findings; what it raises becomes a finding as well."""
    try:
        yield from section()
    except RdnaJitError as error:
        message, _, rest = str(error).partition("\n")
        yield Finding(section.__name__.strip("_"), "error", message, rest.strip())
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        yield Finding(section.__name__.strip("_"), "error", detail, "please report this")


def _system() -> Iterator[Finding]:
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.platform()
    detail = f"rdna_jit {__version__}, Python {platform.python_version()}, {system}"
    yield Finding("system", "ok", detail)
    folder = tempfile.gettempdir()
    if not os.access(folder, os.W_OK):
        yield Finding("temp folder", "error", f"{folder} cannot be written", "set TMPDIR")


def _packages() -> Iterator[Finding]:
    for package, requirement in _PACKAGES.items():
        try:
            yield Finding(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "error", "not installed", f"pip install {requirement}")


def _libraries() -> Iterator[Finding]:
    for kind, purpose in _PURPOSES.items():
        library, searched = toolchain.search(kind)
        if library is not None:
            identity = toolchain.build_id(library.path)[:16]
            version = f"{library.version}, " if library.version else ""
            detail = f"{library.path} ({version}build {identity}; found by: {library.found_by})"
            yield Finding(kind, "ok", detail)
            continue
        # Without builtins some releases work, and without HIP the emulator does.
        status = "error" if kind in ("hiprtc", "comgr") else "note"
        detail = f"not found ({purpose}); searched " + "; ".join(searched)
        yield Finding(kind, status, detail, toolchain.install_command())


def _compile() -> Iterator[Finding]:
    """A compile and a disassembly in a child process, which a broken library may kill."""
    target, _ = arch.choose()
    hiprtc, comgr = (toolchain.search(kind)[0] for kind in ("hiprtc", "comgr"))
    if hiprtc is None or comgr is None:
        return
    environment = os.environ | {
        "RDNA_JIT_HIPRTC_LIBRARY": str(hiprtc.path),
        "RDNA_JIT_COMGR_LIBRARY": str(comgr.path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE, target.name],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding("compile", "error", "a test compile took more than 120 s", "is the CPU busy?")
        return
    if child.returncode == 0:
        yield Finding("compile", "ok", f"test kernel for {target.name}: {child.stdout.strip()}")
        return
    lines = child.stderr.strip().splitlines() or [f"exit status {child.returncode}"]
    if child.returncode < 0:
        lines = [f"the compiler's process was killed by signal {-child.returncode}"]
    yield Finding("compile", "error", lines[-1], toolchain.install_command())


def _arch() -> Iterator[Finding]:
    chosen, reason = arch.choose()
    capabilities = ", ".join(sorted(chosen.capabilities)) or "no dot instructions"
    yield Finding("arch", "ok", f"{chosen.name} by {reason}: {chosen.chips}; {capabilities}")
    overriding = arch.override()
    if overriding is not None:
        yield Finding(
            "override",
            "note",
            f"HSA_OVERRIDE_GFX_VERSION={config.hsa_override} makes every GPU of this process "
            f"report {overriding.name}",
        )


def _cards() -> Iterator[Finding]:
    """GPUs that the kernel driver knows, whether or not torch can use them."""
    names = []
    for properties in sorted(_TOPOLOGY.glob("*/properties")):
        for line in properties.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "gfx_target_version" and int(value):
                major, minor, stepping = (
                    int(value) // 10000,
                    int(value) // 100 % 100,
                    int(value) % 100,
                )
                names.append(f"gfx{major}{minor:x}{stepping:x}")
    if not names:
        yield Finding("cards", "note", "the kernel driver shows no AMD GPU: the emulator is used")
        return
    known = [name for name in names if name in arch.ARCHS]
    yield Finding("cards", "ok" if known else "note", f"the kernel driver shows {', '.join(names)}")
    if known and not os.access(_KFD, os.R_OK | os.W_OK):
        remedy = "sudo usermod -aG render,video $USER, then log in again"
        yield Finding("permission", "error", f"this user may not open {_KFD}", remedy)


def _device() -> Iterator[Finding]:
    from .device import device

    yield Finding("device", "ok", str(device()))


def _cache() -> Iterator[Finding]:
    from .cache.status import status

    state = status()
    for root in state.roots:
        kind = "read only" if root.readonly else f"at most {state.max_bytes >> 20} MiB"
        detail = f"{root.root}: {root.entries} entries, {root.nbytes >> 10} KiB, {kind}"
        yield Finding("cache", "ok", detail)
    if not state.enabled:
        yield Finding("cache", "note", "off: kernels are kept in memory only")
    problems = [*state.problems, *(p for root in state.roots for p in root.problems)]
    yield from (Finding("cache", "warning", problem) for problem in problems)


def _settings() -> Iterator[Finding]:
    settings = config.settings()
    for setting in settings:
        source = config.source(setting.name)
        if source != "default":
            try:
                detail = f"{setting.name} = {getattr(config, setting.name)} ({source})"
                yield Finding("setting", "ok", detail)
            except RdnaJitError as error:
                yield Finding("setting", "error", str(error))
    names = [setting.env for setting in settings]
    for name in sorted(os.environ):
        if name.startswith("RDNA_JIT_") and name not in names:
            close = get_close_matches(name, names, 1)
            remedy = f"did you mean {close[0]}?" if close else "unset it"
            yield Finding("setting", "warning", f"{name} is not a setting", remedy)
