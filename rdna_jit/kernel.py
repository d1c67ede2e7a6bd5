"""The handle that a user holds: source, ISA, resources, launch, profile."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rdna_jit import arch as archs
from rdna_jit.errors import ContractError
from rdna_jit.runtime.base import Extent, LaunchFunction, Loaded, Program, Runtime

if TYPE_CHECKING:
    from rdna_jit.cache import Entry
    from rdna_jit.code_object import Argument, CodeObject, KernelInfo, Resources
    from rdna_jit.compiler import CompileResult
    from rdna_jit.emulator.profile import Profile
    from rdna_jit.emulator.trace import Stop
    from rdna_jit.runtime.timing import Timing
    from rdna_jit.spec import KernelSpec
    from rdna_jit.template import Value


class Kernel:
    """A specialised kernel, made by `Template.specialise` or `KernelSpec.specialise`.

    It compiles and loads when first needed: once per arch and device, safe from any thread.
    Without `arch` it compiles for the tensors' device; properties that need a code object then use
    the current device's arch.
    """

    def __init__(
        self,
        *,
        name: str,
        source: str,
        values: Mapping[str, Value],
        arch: str | None = None,
        entry: str | None = None,
        options: tuple[str, ...] = (),
        spec: KernelSpec | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.values = dict(values)
        self.arch = archs.get(arch).name if arch is not None else None
        self.entry = entry
        self.options = options
        self.spec = spec
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._programs: dict[str, Program] = {}
        self._loaded: dict[tuple[Runtime, int], Loaded] = {}
        self._fast: LaunchFunction | None = None

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"Kernel({self.name}[{values}], arch={self.arch})"

    def compile(self) -> Kernel:
        """Compile now, for `arch` or the current device's; returns the kernel.

        CompileError shows the compiler's message with our file, line and source.
        """
        self.program()
        return self

    @property
    def log(self) -> str:
        """The compiler's log."""
        arch = self.program().arch
        return self._entries[arch].log

    @property
    def code_object(self) -> bytes:
        """The ELF file that runs."""
        return self.program().code_object.data

    @property
    def digest(self) -> str:
        """Key of the code object in the cache."""
        return self.program().digest

    @property
    def resources(self) -> Resources:
        """Registers, LDS, scratch, spills and occupancy, from the code object."""
        return self.program().info.resources

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Name, kind, size and offset of each argument, from the code object."""
        return self.program().info.arguments

    @property
    def signature(self) -> str:
        """The argument list as C declares it."""
        return str(self.program().signature)

    def isa(self) -> str:
        """Disassembly of the kernel."""
        from rdna_jit import disassembler

        program = self.program()
        return disassembler.listing(program.code_object, program.info.name)

    def launch(
        self,
        grid: Extent,
        block: Extent,
        *args: object,
        dynamic_lds: int = 0,
        stream: object = None,
    ) -> None:
        """Run the kernel on the tensors' device, on torch's current stream.

        `grid` counts workgroups and `block` threads: an int or a tuple of 1 to 3. Arguments are
        tensors (their data pointer), numbers, or None (a null pointer), checked against the code
        object; a tensor of floats for a float pointer must have its width. `dynamic_lds` is in
        bytes. Raises ContractError (a ValueError; ContractTypeError is a TypeError as well) before
        the launch and LaunchError when HIP refuses it.
        """
        fast = self._fast
        if fast is not None:
            fast(grid, block, *args, dynamic_lds=dynamic_lds, stream=stream)
        else:
            self._launch(grid, block, args, dynamic_lds, stream)

    def _launch(
        self,
        grid: Extent,
        block: Extent,
        args: tuple[object, ...],
        dynamic_lds: int,
        stream: object,
    ) -> None:
        """The checked way; also chooses the fast one for the next call."""
        from rdna_jit import runtime

        state = runtime.state()
        target = runtime.current()
        loaded = self._load(target, target.index_of(args))
        loaded.launch(grid, block, args, dynamic_lds, stream)
        fast = self._fast = loaded.fast_launch(self._launch)
        # An attribute of the object hides the method: one Python frame less per launch.
        if fast is None:
            self.__dict__.pop("launch", None)
        else:
            runtime.allow(fast, state)
            self.__dict__["launch"] = fast

    def warm(self, index: int | None = None) -> Kernel:
        """Compile and load on a device (the current one), so that a launch only launches."""
        from rdna_jit import runtime

        target = runtime.current()
        self._load(target, target.index_of(()) if index is None else index)
        return self

    def profile(
        self, grid: Extent, block: Extent, *args: object, card: str = "V620", dynamic_lds: int = 0
    ) -> Profile:
        """Run on the emulator with CPU tensors; counters, and the time estimated for `card`."""
        from rdna_jit import runtime
        from rdna_jit.runtime.emulator import EmulatorLoaded

        loaded = self._load(runtime.emulator_runtime(), 0)
        assert isinstance(loaded, EmulatorLoaded)
        return loaded.profile(grid, block, args, dynamic_lds, card)

    def trace(
        self,
        grid: Extent,
        block: Extent,
        *args: object,
        at: int | str,
        workgroup: Extent = 0,
        wave: int | None = 0,
        hits: int = 1,
        dynamic_lds: int = 0,
    ) -> list[Stop]:
        """Run one workgroup on the emulator until a wave reaches `at`; returns what it holds.

        `at` is an instruction's address in `isa()`, a source line ("axpy.hip:12"), or how an
        instruction begins ("v_dot2"). The wave (None: any) stops before the instruction, `hits`
        times, then the launch ends; a list that is shorter says that the workgroup did.
        """
        from rdna_jit import runtime
        from rdna_jit.runtime.emulator import EmulatorLoaded

        loaded = self._load(runtime.emulator_runtime(), 0)
        assert isinstance(loaded, EmulatorLoaded)
        return loaded.trace(
            grid, block, args, dynamic_lds, at=at, workgroup=workgroup, wave=wave, hits=hits
        )

    def time(
        self,
        grid: Extent,
        block: Extent,
        *args: object,
        dynamic_lds: int = 0,
        samples: int = 30,
    ) -> Timing:
        """Median time on a card, with warm clocks and operands that miss its 128 MB cache.

        NoDeviceError on the emulator: estimate there with `profile`.
        """
        from rdna_jit.runtime import timing

        return timing.measure(self, grid, block, args, dynamic_lds, samples)

    def program(self, arch: str | None = None) -> Program:
        """The compiled kernel for `arch`: the kernel's own, or the current device's."""
        name = arch or self.arch
        if name is None:
            from rdna_jit.device import device

            name = device().arch
        program = self._programs.get(name)
        if program is None:
            with self._lock:
                program = self._programs.get(name) or self._compile(name)
                self._programs[name] = program
        return program

    def _load(self, target: Runtime, index: int) -> Loaded:
        loaded = self._loaded.get((target, index))
        if loaded is None:
            with self._lock:
                loaded = self._loaded.get((target, index))
                if loaded is None:
                    target.before_load(self.name)
                    program = self.program(self.arch or target.device(index).arch)
                    loaded = self._loaded[target, index] = target.load(program, index)
        return loaded

    def _compile(self, arch: str) -> Program:
        from rdna_jit import cache, toolchain
        from rdna_jit.code_object import CodeObject

        def build() -> CompileResult:
            from rdna_jit.compiler import compile_source

            name = _file_name(self.source)
            return compile_source(
                self.source, arch=arch, options=self.options, name=name, kernel=self.name
            )

        identity = toolchain.identity()
        key = cache.Key.make(self.source, self.options, archs.get(arch).name, identity)
        kernels, metadata = cache.default(), self._metadata()
        entry = kernels.get_or_compile(key, build, metadata)
        undeclared = self.source if self.spec is None else None
        cache.record(self.name, self.values, arch, source=undeclared, options=self.options)
        try:
            code_object = CodeObject(entry.code_object)
        except ContractError as error:
            # Whole, by its digest, and still no code object: somebody published something else.
            entry = kernels.rebuild(key, build, metadata, why=str(error))
            code_object = CodeObject(entry.code_object)
        info = self._find_entry(code_object)
        if self.spec is not None:
            self.spec.check(info)
            archs.note_missing_dots(arch)
        self._entries[arch] = entry
        signature = self._signature(info)
        parameters = self.spec.parameters if self.spec is not None else ()
        outputs = frozenset(p.name for p in parameters if p.role == "out")
        return Program(self.name, code_object, info, signature, key.digest, outputs)

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"kernel": self.name, "values": self.values}
        if self.spec is not None:
            metadata["spec"] = self.spec.name
        return metadata

    def _find_entry(self, code_object: CodeObject) -> KernelInfo:
        kernels = code_object.kernels
        names = {plain_name(name): name for name in kernels}
        if self.entry is None and len(kernels) == 1:
            return next(iter(kernels.values()))
        name = self.entry if self.entry in kernels else names.get(self.entry or "")
        if name is None:
            wanted = "more than one kernel" if self.entry is None else f"no kernel {self.entry!r}"
            raise ContractError(
                f"{self.name}: the source has {wanted}; pass entry= one of "
                f"{', '.join(names) or '(it has no __global__ function)'}",
                name="entry",
                got=self.entry,
            )
        return kernels[name]

    def _signature(self, info: KernelInfo) -> Any:
        from rdna_jit.runtime import arguments

        entry = plain_name(info.name)
        if self.spec is not None:
            declared = [(p.ctype, p.name) for p in self.spec.parameters]
        else:
            declared = arguments.declared_parameters(self.source, entry)
        resolved = [(arguments.resolve_type(c, self.source), name) for c, name in declared]
        # Ops have checked their tensors, and pass packed weights through pointers of other types.
        source = self.source if self.spec is None else None
        return arguments.Signature.make(entry, info.arguments, resolved, source)


def plain_name(symbol: str) -> str:
    """A kernel's name as written: C++ mangling of a plain function undone."""
    digits = ""
    for char in symbol.removeprefix("_Z"):
        if not char.isdecimal():
            break
        digits += char
    if not symbol.startswith("_Z") or not digits:
        return symbol
    start = 2 + len(digits)
    return symbol[start : start + int(digits)]


def _file_name(source: str) -> str:
    """The name that the source's first #line directive gives."""
    return source.split('"', 2)[1] if source.startswith('#line 1 "') else "kernel.hip"
