"""The search is tested on trees of tiny ELF files, and once on this machine's own libraries."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rdna_jit import toolchain
from rdna_jit.config import config
from rdna_jit.errors import ToolchainError


def elf_with_build_id(build_id: bytes) -> bytes:
    """A 64-bit ELF file of one program header, a GNU build id note."""
    note = struct.pack("<III4s", 4, len(build_id), 3, b"GNU") + build_id
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 4, 4, 120, 120, 120, len(note), len(note), 4) + note


Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Makes libraries under a root, on a machine that has no other ones."""
    for name in ("RDNA_JIT_HIPRTC_LIBRARY", "RDNA_JIT_COMGR_LIBRARY", "ROCM_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(toolchain, "_OPT_ROCM", str(tmp_path / "opt" / "rocm*"))
    monkeypatch.setattr(toolchain, "_LOADER_CACHE", str(tmp_path / "ld.so.cache"))
    monkeypatch.setattr(toolchain, "_LOADER_FOLDERS", (str(tmp_path / "usr" / "lib"),))
    monkeypatch.setattr(toolchain, "_MAPS", str(tmp_path / "maps"))
    monkeypatch.setattr(toolchain, "_found", {})

    def make(*files: str) -> Path:
        for file in files:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(elf_with_build_id(file.encode()))
        return tmp_path

    return make


def found(kind: str = "hiprtc") -> tuple[str, str]:
    library = toolchain.find(kind)
    return os.path.relpath(library.path), library.found_by


def test_debian_has_hiprtc_inside_the_runtime(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(
        "usr/lib/libamdhip64.so.5",
        "usr/lib/libamd_comgr.so.2",
        "usr/lib/libhiprtc-builtins.so.5",
    )
    monkeypatch.chdir(root)
    assert found() == ("usr/lib/libamdhip64.so.5", "hiprtc inside libamdhip64.so.5")
    assert found("comgr") == ("usr/lib/libamd_comgr.so.2", "beside hiprtc")
    assert found("builtins") == ("usr/lib/libhiprtc-builtins.so.5", "beside hiprtc")
    assert found("hip") == ("usr/lib/libamdhip64.so.5", "system loader")


def test_every_place_wins_over_the_ones_after_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree("usr/lib/libamdhip64.so.5")
    monkeypatch.chdir(root)

    tree("cached/libhiprtc.so.5")
    (root / "ld.so.cache").write_bytes(b"glibc\0" + bytes(root / "cached/libhiprtc.so.5") + b"\0")
    toolchain._found.clear()
    assert found() == ("cached/libhiprtc.so.5", "system loader")

    tree("preferred/libhiprtc.so.6")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root / "preferred"))
    assert found() == ("preferred/libhiprtc.so.6", "system loader")

    tree("opt/rocm-6.10.0/lib/libhiprtc.so", "opt/rocm-6.9.1/lib/libhiprtc.so")
    toolchain._found.clear()
    assert found() == ("opt/rocm-6.10.0/lib/libhiprtc.so", toolchain._OPT_ROCM)

    tree("site/_rocm_sdk_core/__init__.py", "site/_rocm_sdk_core/lib/libhiprtc.so.7")
    monkeypatch.syspath_prepend(str(root / "site"))
    toolchain._found.clear()
    assert found() == (
        "site/_rocm_sdk_core/lib/libhiprtc.so.7",
        "Python package _rocm_sdk_core",
    )

    tree("rocm/lib64/libhiprtc.so.6")
    monkeypatch.setenv("ROCM_PATH", str(root / "rocm"))
    assert found() == ("rocm/lib64/libhiprtc.so.6", "ROCM_PATH")

    tree("mine/special.so")
    with config.scope(hiprtc_library=root / "mine/special.so"):
        assert found() == ("mine/special.so", "config.hiprtc_library (scope)")


def test_comgr_comes_from_beside_hiprtc_first(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(
        "usr/lib/libamd_comgr.so.2",
        "rocm/lib/libhiprtc.so.6",
        "other/lib/libhiprtc.so.7",
        "other/lib/libamd_comgr.so.3",
    )
    monkeypatch.chdir(root)
    monkeypatch.setenv("ROCM_PATH", str(root / "rocm"))
    assert found("comgr") == ("usr/lib/libamd_comgr.so.2", "system loader")
    with config.scope(hiprtc_library=root / "other/lib/libhiprtc.so.7"):
        assert found("comgr") == ("other/lib/libamd_comgr.so.3", "beside hiprtc")


def test_a_missing_library_says_what_was_searched_and_what_to_install(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree("rocm/lib/other.so")
    (root / "rocm/lib/libhiprtc.so").write_text("INPUT(libhiprtc.so.6)")
    monkeypatch.setenv("ROCM_PATH", str(root / "rocm"))
    with pytest.raises(ToolchainError) as caught:
        toolchain.hiprtc()
    text = str(caught.value)
    for place in (
        f"{root}/rocm/lib/libhiprtc.so[.N] (ROCM_PATH)",
        f"{root}/usr/lib/libhiprtc.so[.N] (system loader)",
        f"{root}/usr/lib/libamdhip64.so.5 (hiprtc inside libamdhip64.so.5)",
        "apt install libamdhip64-5 libhiprtc-builtins5 libamd-comgr2",
    ):
        assert place in text
    assert len(caught.value.searched) == len(set(caught.value.searched))


def test_an_explicit_setting_is_never_replaced_by_a_guess(tree: Tree) -> None:
    root = tree("usr/lib/libamdhip64.so.5")
    (root / "text.so").write_text("not ELF")
    for path in (root / "text.so", root / "absent.so", root):
        with (
            config.scope(hiprtc_library=path),
            pytest.raises(ToolchainError, match=r"config\.hiprtc_library"),
        ):
            toolchain.hiprtc()


def test_identity_follows_the_content_of_the_libraries(tree: Tree) -> None:
    root = tree("usr/lib/libamdhip64.so.5", "usr/lib/libamd_comgr.so.2")
    first = toolchain.identity()
    assert first.split()[:3] == [
        f"hiprtc={b'usr/lib/libamdhip64.so.5'.hex()}",
        f"comgr={b'usr/lib/libamd_comgr.so.2'.hex()}",
        "builtins=none",
    ]
    (root / "usr/lib/libamd_comgr.so.2").write_bytes(elf_with_build_id(b"another build"))
    assert toolchain.identity() != first
    tree("usr/lib/libhiprtc-builtins.so.5")
    assert "builtins=none" not in toolchain.identity()


def test_a_library_without_build_id_is_known_by_its_content(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.so", "b.so", "c.so"))
    header = elf_with_build_id(b"")[:54] + struct.pack("<HH", 56, 0) + bytes(6)
    first.write_bytes(header + b"content")
    second.write_bytes(header + b"content")
    third.write_bytes(header + b"other content")
    assert toolchain.build_id(first) == toolchain.build_id(second) != toolchain.build_id(third)


def test_the_runtime_that_is_mapped_already_wins(tree: Tree) -> None:
    root = tree("usr/lib/libamdhip64.so.5", "torch/libamdhip64.so")
    assert toolchain.hiprtc().path == root / "usr/lib/libamdhip64.so.5"
    row = "7f0d02547000-7f0d02548000 r-xp 00000000 08:01 1234567"
    maps = [f"{row:<73}{root}/{name}\n" for name in ("usr/lib/libamdhip64.so.5", "usr/lib/x.so")]
    (root / "maps").write_text("".join([f"{row}\n", *maps]))
    assert toolchain.mapped("libamdhip64.so") == root / "usr/lib/libamdhip64.so.5"
    # With torch's own copy there too, the one that only compiles is not the one that launches.
    (root / "maps").write_text("".join([*maps, f"{row:<73}{root}/torch/libamdhip64.so\n"]))
    assert toolchain.hip().path == root / "torch/libamdhip64.so"
    assert toolchain.hip().found_by == "mapped by this process"


def test_mapped_sees_the_libraries_of_this_process() -> None:
    path = toolchain.mapped("libc.so")
    assert path is not None and path.samefile(path.parent / "libc.so.6")


def test_this_machines_toolchain_is_found_without_loading_it() -> None:
    code = (
        "from rdna_jit import toolchain; print(toolchain.identity());"
        "assert not any(map(toolchain.mapped, ('libhiprtc', 'libamdhip64', 'libamd_comgr')));"
        "import sys; assert not {'hip', 'rocm', 'torch', 'ctypes'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    ids = dict(part.split("=") for part in run.stdout.split()[:3])
    assert list(ids) == ["hiprtc", "comgr", "builtins"]
    assert all(len(bytes.fromhex(value)) >= 8 for value in ids.values())
    assert run.stdout.strip() == toolchain.identity()
