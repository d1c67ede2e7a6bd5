"""One declaration per kernel; argument packing, checks, the warm-up list and the docs follow it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rdna_jit import arch as archs
from rdna_jit.errors import ContractError, UnsupportedArchError
from rdna_jit.template import Legal, Template, Value

if TYPE_CHECKING:
    from rdna_jit.code_object import KernelInfo
    from rdna_jit.kernel import Kernel

Block = int | tuple[int, ...]
Role = Literal["in", "out", "inout", "scratch", "size"]

_REGISTRY: dict[str, KernelSpec] = {}


@dataclass(frozen=True)
class Parameter:
    """One kernel argument: `ctype` as in the source ("const half*", "int"); `align` in bytes is
    what the kernel needs of a pointer."""

    name: str
    ctype: str
    role: Role = "in"
    align: int = 1

    @property
    def is_pointer(self) -> bool:
        return self.ctype.rstrip().endswith("*")


@dataclass(frozen=True)
class KernelSpec:
    """A kernel of `kernels_src`: file, entry, ordered parameters and legal template values.

    `block` is threads per workgroup, or a function of the template values that gives them;
    `dynamic_lds` likewise, in bytes. `requires` names the capabilities of arch.py that the kernel
    needs ("dot2"). Constructing a spec registers it; names are unique.
    """

    name: str
    file: str
    entry: str
    parameters: tuple[Parameter, ...]
    template: Mapping[str, Legal] = field(hash=False)
    block: Block | Callable[[Mapping[str, Value]], Block] = 256
    requires: frozenset[str] = frozenset()
    # -nogpuinc: our sources use builtins alone, and the compile is several times faster.
    options: tuple[str, ...] = ("-mno-cumode", "-nogpuinc")
    dynamic_lds: int | Callable[[Mapping[str, Value]], int] = 0

    def __post_init__(self) -> None:
        if self.name in _REGISTRY:
            raise ContractError(f"a kernel spec named {self.name!r} is registered already")
        object.__setattr__(self, "_kernels", {})
        object.__setattr__(self, "_lock", threading.Lock())
        object.__setattr__(self, "_template", None)
        _REGISTRY[self.name] = self

    def missing(self, arch: str) -> tuple[str, ...]:
        """Capabilities that the kernel needs and the arch lacks."""
        return tuple(sorted(self.requires - archs.get(arch).capabilities))

    def block_of(self, values: Mapping[str, Value]) -> Block:
        """Threads per workgroup for these template values."""
        return self.block(values) if callable(self.block) else self.block

    def dynamic_lds_of(self, values: Mapping[str, Value]) -> int:
        """Bytes of dynamic LDS for these template values."""
        return self.dynamic_lds(values) if callable(self.dynamic_lds) else self.dynamic_lds

    def source(self) -> Template:
        """The kernel's template, read once."""
        template: Template | None = self._template  # type: ignore[attr-defined]
        if template is None:
            template = Template.from_package(self.file, self.template)
            undeclared = set(template.placeholders) - set(self.template)
            if undeclared:
                raise ContractError(
                    f"kernel {self.name}: {template.label} has the placeholder "
                    f"{', '.join(sorted(undeclared))} without declared values"
                )
            object.__setattr__(self, "_template", template)
        return template

    def specialise(self, arch: str | None = None, **values: object) -> Kernel:
        """The kernel for these template values: one object per (arch, values), not yet compiled.

        `arch` None: that of the tensors' device at launch.
        """
        key = (arch, tuple(sorted(values.items())))
        kernels: dict[object, Kernel] = self._kernels  # type: ignore[attr-defined]
        kernel = kernels.get(key)
        if kernel is None:
            made = self._make(arch, values)
            with self._lock:  # type: ignore[attr-defined]
                kernel = kernels.setdefault(key, made)
        return kernel

    def _make(self, arch: str | None, values: Mapping[str, object]) -> Kernel:
        from rdna_jit.kernel import Kernel

        lacking = self.missing(arch) if arch else ()
        if arch and lacking:
            raise UnsupportedArchError(
                f"kernel {self.name} needs {', '.join(lacking)}, which {arch} does not have; "
                "choose a kernel without that requirement",
                arch=arch,
            )
        template = self.source()
        checked = template.check(values)
        return Kernel(
            name=self.name,
            source=template.render(checked),
            values=checked,
            arch=arch,
            entry=self.entry,
            options=self.options,
            spec=self,
        )

    def check(self, info: KernelInfo) -> None:
        """Compare the declaration with what the compiler made; ContractError shows both."""
        declared = [(p.name, "pointer" if p.is_pointer else "value") for p in self.parameters]
        found = [(a.name, a.kind) for a in info.arguments]
        agree = len(declared) == len(found) and all(
            kind == found_kind and (not found_name or found_name == name)
            for (name, kind), (found_name, found_kind) in zip(declared, found, strict=True)
        )
        if not agree:
            raise ContractError(
                f"kernel {self.name}: the declaration has the parameters {_listed(declared)}, the "
                f"code object's {info.name} has {_listed(found)}; make them agree"
            )


def registry() -> dict[str, KernelSpec]:
    """All declared kernels by name. Importing the op modules declares them."""
    return dict(_REGISTRY)


def _listed(arguments: list[tuple[str, str]]) -> str:
    return "(" + ", ".join(f"{kind} {name}".rstrip() for name, kind in arguments) + ")"
