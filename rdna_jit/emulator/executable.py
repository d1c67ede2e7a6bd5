"""A translated and compiled kernel, from the cache or made now."""

from __future__ import annotations

import ctypes
import json
import struct
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING

from rdna_jit.emulator import jit, loader
from rdna_jit.emulator.context import Options
from rdna_jit.emulator.float_mode import FloatMode
from rdna_jit.emulator.operations import library
from rdna_jit.emulator.translate import Block, Translation, translate
from rdna_jit.emulator.wave import Site

# Operations longer than this become functions of their own; a call costs about as much to run.
_INLINE_LINES = 60

if TYPE_CHECKING:
    from rdna_jit.emulator.machine import Program


@dataclass(frozen=True)
class Variant:
    """What a translation depends on besides the code."""

    options: Options
    profile: bool
    stops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Executable:
    """Machine code of one kernel and tier, with the tables that explain it."""

    tier: str
    image: loader.Image
    sites: list[Site]
    blocks: list[Block]
    resume_points: list[int]
    vgprs: int
    unsupported: dict[int, str]
    order_dependent: bool

    @property
    def wave_function(self) -> int:
        return self.image.symbols["wave"]

    @property
    def uses_flat(self) -> bool:
        return any(site.space == "flat" for site in self.sites)


def build(program: Program, variant: Variant, tier: jit.Tier) -> Executable:
    """Translate and compile, and leave the result in the cache."""
    translation = translate(
        program.code,
        program.info.entry,
        functions=program.functions,
        options=variant.options,
        float_mode=FloatMode(program.info.descriptor.rsrc1 >> 12 & 0xFF),
        vgpr_count=8 * ((program.info.descriptor.rsrc1 & 0x3F) + 1),
        profile=variant.profile,
        inline_memory=tier == "optimised" and jit.has_avx512(),
        vector_exec=not jit.has_avx512(),
        inline_lines=_INLINE_LINES,
        out_of_line=tier == "quick",
        stops=variant.stops,
    )
    tables = _tables(translation)
    tables["operations"] = library().provide(translation.operations)
    data = jit.compile_ir(translation.ir, tier)
    jit.publish(_key(program, variant, tier), _pack(tables, data))
    return _executable(tier, tables, data)


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
        return _executable(tier, tables, content[8 + length :])
    except (ValueError, KeyError, TypeError, struct.error, loader.LoadError):
        return None


def _key(program: Program, variant: Variant, tier: str) -> str:
    code = program.code_object
    place = f"{code.arch} {code.text_va} {program.info.entry} {variant} {tier}"
    place += f" {program.info.descriptor.rsrc1:#x}"
    return jit.key("kernel", place, code.text)


def _tables(t: Translation) -> dict[str, object]:
    return {
        "sites": [astuple(site) for site in t.sites],
        "blocks": [asdict(block) for block in t.blocks],
        "resume_points": t.resume_points,
        "vgprs": t.vgprs,
        "unsupported": {str(pc): reason for pc, reason in t.unsupported.items()},
        "order_dependent": t.order_dependent,
    }


def _pack(tables: dict[str, object], data: bytes) -> bytes:
    text = json.dumps(tables).encode()
    return struct.pack("<Q", len(text)) + text + data


def _executable(tier: str, tables: dict, data: bytes) -> Executable:  # type: ignore[type-arg]
    return Executable(
        tier=tier,
        image=loader.Image(data, {**jit.runtime_image().symbols, **library().symbols}),
        sites=[Site(*row) for row in tables["sites"]],
        blocks=[Block(**row) for row in tables["blocks"]],
        resume_points=tables["resume_points"],
        vgprs=tables["vgprs"],
        unsupported={int(pc): reason for pc, reason in tables["unsupported"].items()},
        order_dependent=tables["order_dependent"],
    )


RunFunction = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)


def run_function() -> ctypes._CFunctionType:  # type: ignore[name-defined]
    """`run(grid, env, first, last)` of the runtime; ctypes drops the interpreter lock for it."""
    return RunFunction(jit.runtime_image().symbols["run"])
