import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdna_jit import __main__ as commands
from rdna_jit import doctor, toolchain
from rdna_jit.config import config
from rdna_jit.doctor import Finding


def findings_of(name: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.name == name]


@pytest.fixture
def no_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_OPT_ROCM", str(tmp_path / "opt" / "rocm*"))
    monkeypatch.setattr(toolchain, "_LOADER_CACHE", str(tmp_path / "ld.so.cache"))
    monkeypatch.setattr(toolchain, "_LOADER_FOLDERS", (str(tmp_path / "lib"),))
    monkeypatch.setattr(toolchain, "_found", {})
    monkeypatch.setattr(toolchain, "mapped", lambda stem: None)
    for name in ("ROCM_PATH", "LD_LIBRARY_PATH", "RDNA_JIT_HIPRTC_LIBRARY"):
        monkeypatch.delenv(name, raising=False)


def test_this_machine_is_well(tmp_path: Path) -> None:
    environment = os.environ | {"RDNA_JIT_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-m", "rdna_jit", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["ok"] is True
    by_name = {finding["name"]: finding for finding in report["findings"]}
    for name in ("system", "torch", "hip-python", "llvmlite", "hiprtc", "comgr", "compile", "arch"):
        assert by_name[name]["status"] == "ok", by_name[name]
    assert "found by:" in by_name["hiprtc"]["detail"]
    assert by_name["compile"]["detail"].endswith("1 instructions")
    assert by_name["setting"]["detail"].startswith("cache_dir = ")


@pytest.mark.usefixtures("no_libraries")
def test_missing_libraries_are_errors_with_places_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_device", lambda: iter(()))
    assert doctor.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    for name in ("hiprtc", "comgr"):
        index = next(i for i, line in enumerate(lines) if line.startswith(f"error    {name} "))
        assert f"{tmp_path}/lib/" in lines[index]
        assert "apt install libamdhip64-5" in lines[index + 1]
    assert any(line.startswith("note     hip ") for line in lines), "the emulator needs no HIP"
    assert lines[-1] == "2 to repair"


def test_a_compiler_that_kills_its_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "import os; os.abort()")
    (finding,) = doctor._compile()
    assert finding.status == "error" and "killed by signal 6" in finding.detail
    monkeypatch.setattr(doctor, "_PROBE", "raise RuntimeError('no such symbol')")
    (finding,) = doctor._compile()
    assert finding.detail == "RuntimeError: no such symbol"


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor._PACKAGES, "no-such-package", "no-such-package")
    findings = list(doctor._packages())
    assert findings[-1] == Finding(
        "no-such-package", "error", "not installed", "pip install no-such-package"
    )


def test_settings_that_differ_are_listed_and_bad_ones_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RDNA_JIT_BACKEND", "cuda")
    monkeypatch.setenv("RDNA_JIT_STRCT", "1")
    with config.scope(moe_v2=True):
        findings = {finding.detail: finding for finding in doctor._settings()}
    assert findings["moe_v2 = True (scope)"].status == "ok"
    (bad,) = (finding for detail, finding in findings.items() if "RDNA_JIT_BACKEND" in detail)
    assert bad.status == "error" and "emulator" in bad.detail
    assert findings["RDNA_JIT_STRCT is not a setting"] == Finding(
        "setting", "warning", "RDNA_JIT_STRCT is not a setting", "did you mean RDNA_JIT_STRICT?"
    )


def test_the_override_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDNA_JIT_ARCH", raising=False)
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.1")
    chosen, note = doctor._arch()
    assert chosen.detail.startswith("gfx1031 by HSA_OVERRIDE_GFX_VERSION")
    assert note.status == "note" and "report gfx1031" in note.detail
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "9.0.6")
    (finding,) = doctor._guarded(doctor._arch)
    assert finding.status == "error" and "gfx906" in finding.detail


def test_cards_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(doctor, "_KFD", tmp_path / "kfd")
    (finding,) = doctor._cards()
    assert finding.status == "note" and "no AMD GPU" in finding.detail
    for node, version in enumerate((0, 100300, 90010, 110001)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(
            f"cpu_cores_count 0\ngfx_target_version {version}\n"
        )
    cards, permission = doctor._cards()
    assert cards.detail == "the kernel driver shows gfx1030, gfx90a, gfx1101"
    assert permission.status == "error" and "usermod" in permission.remedy
    (tmp_path / "kfd").touch()
    assert [finding.status for finding in doctor._cards()] == ["ok"]


def test_what_a_section_raises_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _broken() -> None:
        raise OSError("disk on fire")

    (finding,) = doctor._guarded(_broken)  # type: ignore[arg-type]
    assert finding == Finding("broken", "error", "OSError: disk on fire", "please report this")


def test_the_dispatcher_lists_and_runs_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands.main([]) == 2 and "doctor" in capsys.readouterr().err
    assert commands.main(["no-such-command"]) == 2
    assert commands.main(["--help"]) == 0 and "doctor" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "collect", lambda: [Finding("x", "warning", "odd")])
    assert commands.main(["doctor"]) == 0
    assert capsys.readouterr().out == f"warning  {'x':13} odd\nall is well\n"


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_exists(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "rdna_jit", name, "--help"], capture_output=True, check=False
    )
    assert run.returncode == 0 and b"usage:" in run.stdout
