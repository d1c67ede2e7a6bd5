"""A translated and compiled kernel, from the cache or made now."""

from __future__ import annotations

import ctypes
import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rdna_jit.emulator import jit, loader
from rdna_jit.emulator.library import library
from rdna_jit.emulator.options import Options
from rdna_jit.emulator.tables import Block, Site

if TYPE_CHECKING:
    from rdna_jit.emulator.machine import Program
    from rdna_jit.emulator.translate import Translation

# Operations longer than this become functions of their own; a call costs about as much to run.
_INLINE_LINES = 60
# Without AVX-512 only so many instructions of innermost loops are translated in place: they take
# 5 ms each to compile, calls of operations less than 1 ms, and long code runs no faster for it.
_INLINE_LOOPS = 400


class Variant(NamedTuple):
    """What a translation depends on besides the code."""

    options: Options
    profile: bool
    stops: tuple[int, ...] = ()


class Executable:
    """Machine code of one kernel and tier, with the tables that explain it."""

    def __init__(self, tier: str, data: bytes, tables: dict[str, Any]) -> None:
        """`data` is object code; `tables` come from `_tables`, perhaps by way of JSON."""
        self.tier = tier
        self._image = loader.Image(data, {**jit.runtime_image().symbols, **library().symbols})
        self.wave_function = self._image.symbols["wave"]
        self.sites = [Site(*row) for row in tables["sites"]]
        self.blocks = [Block(*row) for row in tables["blocks"]]
        self.resume_points: list[int] = tables["resume_points"]
        self.vgprs: int = tables["vgprs"]
        self.unsupported: dict[int, str] = {int(k): v for k, v in tables["unsupported"].items()}
        self.order_dependent: bool = tables["order_dependent"]
        self.instructions = sum(block.instructions for block in self.blocks)
        self.uses_flat = any(site.space == "flat" for site in self.sites)


def build(program: Program, variant: Variant, tier: jit.Tier) -> Executable:
    """Translate and compile, and leave the result in the cache."""
    # Here and not above: a kernel from the cache needs none of them.
    from rdna_jit.emulator.float_mode import FloatMode
    from rdna_jit.emulator.operations import module
    from rdna_jit.emulator.translate import translate

    translation = translate(
        program.code,
        program.info.entry,
        functions=program.functions,
        options=variant.options,
        float_mode=FloatMode.of_kernel(program.info.descriptor.rsrc1),
        vgpr_count=8 * ((program.info.descriptor.rsrc1 & 0x3F) + 1),
        profile=variant.profile,
        inline_memory=tier == "optimised" and jit.has_avx512(),
        vector_exec=not jit.has_avx512(),
        inline_lines=_INLINE_LINES,
        out_of_line=tier == "quick" or not jit.has_avx512(),
        inline_loops=_INLINE_LOOPS if tier == "optimised" else 0,
        stops=variant.stops,
    )
    tables = _tables(translation)
    operations = {o.name: o for o in translation.operations}
    tables["operations"] = library().provide(
        operations, lambda missing: module([operations[name] for name in missing])
    )
    data = jit.compile_ir(translation.ir, tier)
    jit.publish(_key(program, variant, tier), _pack(tables, data))
    return Executable(tier, data, tables)


def cached(program: Program, variant: Variant, tier: jit.Tier) -> Executable | None:
    """The executable if the cache has a sound one."""
    content = jit.fetch(_key(program, variant, tier))
    if content is None:
        return None
    try:
        (length,) = struct.unpack_from("<Q", content)
        tables = json.loads(content[8 : 8 + length])
        if not library().load(tables["operations"]):
            return None
        return Executable(tier, content[8 + length :], tables)
    except (ValueError, KeyError, TypeError, struct.error, loader.LoadError):
        return None


def _key(program: Program, variant: Variant, tier: str) -> str:
    code = program.code_object
    place = f"{code.arch} {code.text_va} {program.info.entry} {variant} {tier}"
    place += f" {program.info.descriptor.rsrc1:#x}"
    return jit.key("kernel", place, code.text)


def _tables(t: Translation) -> dict[str, Any]:
    return {
        "sites": t.sites,
        "blocks": [(b.pc, b.instructions, b.counts) for b in t.blocks],
        "resume_points": t.resume_points,
        "vgprs": t.vgprs,
        "unsupported": {str(pc): reason for pc, reason in t.unsupported.items()},
        "order_dependent": t.order_dependent,
    }


def _pack(tables: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(tables).encode()
    return struct.pack("<Q", len(text)) + text + data


RunFunction = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)


@cache
def run_function() -> ctypes._CFunctionType:  # type: ignore[name-defined]
    """`run(grid, env, first, last)` of the runtime; ctypes drops the interpreter lock for it."""
    return RunFunction(jit.runtime_image().symbols["run"])
