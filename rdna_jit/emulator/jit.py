"""IR -> object code, through llvmlite.

Two tiers: `quick` compiles several times faster, `optimised` runs up to three times as fast; both
compute the same bits. llvmlite is imported on the first compilation, not before.
"""

from __future__ import annotations

import hashlib
import threading
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rdna_jit.emulator import layout, loader
from rdna_jit.errors import ToolchainError

Tier = Literal["quick", "optimised"]
_TRIPLE = 'target triple = "x86_64-unknown-linux-gnu"\n'
# Bytes of IR, about 2,000 instructions of a kernel, from which level 2 of LLVM's pipeline takes a
# third longer than level 1 and leaves the same code.
_LONG = 1_500_000
_lock = threading.Lock()


def compile_ir(ir: str, tier: Tier) -> bytes:
    """A relocatable x86-64 object of one module."""
    llvm = _llvm()
    with _lock:
        machine = _target_machine(tier)
        module = llvm.parse_assembly(_TRIPLE + ir)
        # NOTE: without it LLVM aligns 64-bit fields to 4 bytes, unlike ctypes.
        module.data_layout = str(machine.target_data)
        level = 1 if tier == "quick" or len(ir) > _LONG else 2
        tuning = llvm.create_pipeline_tuning_options(speed_level=level)
        tuning.loop_vectorization = tuning.slp_vectorization = False
        passes = llvm.create_pass_builder(machine, tuning)
        if tier == "quick":
            manager = llvm.create_new_function_pass_manager()
            manager.add_sroa_pass()
            manager.add_simplify_cfg_pass()
            manager.add_instruction_combine_pass()
            for function in module.functions:
                if not function.is_declaration:
                    manager.run(function, passes)
        else:
            passes.getModulePassManager().run(module, passes)
        return bytes(machine.emit_object(module))


@cache
def _llvm() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise ToolchainError(
            "the emulator needs llvmlite to translate kernels",
            library="llvmlite",
            searched=(f"import llvmlite: {error}",),
            install="pip install 'rdna_jit[emulator]'",
        ) from None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _target_machine(tier: Tier) -> Any:
    llvm = _llvm()
    # NOTE: without -prefer-256-bit LLVM splits 512-bit operations on several CPUs that have them.
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features,
        opt=0 if tier == "quick" else 1,
        reloc="pic",
        codemodel="small",
    )


@cache
def cpu_identity() -> str:
    """What object code depends on, read without llvmlite."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    wanted = ("vendor_id", "cpu family", "model", "flags")
    return "\n".join(line for line in lines if line.split("\t")[0].strip() in wanted)


@cache
def has_avx512() -> bool:
    """Whether a wave's register is two native vectors; else it is four, and code is twice as
    large and much slower to compile."""
    return "avx512bw" in cpu_identity()


@cache
def source_digest() -> str:
    """Digest of the emulator's own source: a change of it invalidates every translation."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted([*folder.glob("*.py"), *folder.glob("runtime/*.ll")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def key(*parts: str | bytes) -> str:
    """The cache key of an object made from `parts` on this CPU by this source."""
    digest = hashlib.sha256()
    for part in (source_digest(), cpu_identity(), *parts):
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


@cache
def runtime_image() -> loader.Image:
    """The runtime module, compiled once per machine."""
    name = key("runtime")
    data = fetch(name)
    if data is not None:
        try:
            return loader.Image(data, {})
        except loader.LoadError:
            pass
    data = compile_ir(layout.runtime_source(), "optimised")
    publish(name, data)
    return loader.Image(data, {})


# The blob store of the cache package; without it everything still works, only slower.
def fetch(name: str) -> bytes | None:
    store = _store()
    try:
        return None if store is None else store.get(name)
    except Exception:
        return None


def publish(name: str, data: bytes) -> None:
    store = _store()
    if store is not None:
        try:
            store.put(name, data)
        except Exception:
            return


def _store() -> Any:
    try:
        from rdna_jit.cache import blobs

        return blobs("emulator")
    except Exception:
        return None
