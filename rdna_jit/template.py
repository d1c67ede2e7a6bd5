"""HIP text with `${NAME}` placeholders, specialised into plain source.

A template opens with its *specialisation block*: the leading run of blank lines, comments,
preprocessor lines and `constexpr` / `using` / `typedef` / `static_assert` statements. The block
ends at the first other statement. Placeholders stand only in the block's `constexpr`, `using` and
`typedef` statements, so the rest of the file is ordinary code that an editor and a compiler read:

    constexpr int N = ${N};
    using T = ${T};
    extern "C" __global__ __launch_bounds__(256) void scale(T* x, float a) { ... N ... }

`#include "common/x.hip"` is replaced by that file of the package's `kernels_src` (each file once),
because the run-time compiler finds no files. `#line` directives keep the compiler's messages, and
the line tables, on the names and lines of the files as written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from rdna_jit.errors import ContractError, ContractTypeError

if TYPE_CHECKING:
    from rdna_jit.kernel import Kernel

Value = bool | int | float | str
Legal = range | tuple[Value, ...]


_TOKEN = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.S)
_PLACEHOLDER = re.compile(r"\$\{([^}\n]*)\}?")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.M)
_STATEMENT = re.compile(
    r"\s+|#(?:\\\n|[^\n])*|static_assert\s*\("
    r"|(?P<binding>(?:(?:static|inline)\s+)*(?:constexpr\s[^=({;]*=|using\s|typedef\s))"
)
_NO_TYPE = (";", "\n", "#", "$", "//", "/*")  # what no name of a type holds


class Template:
    """Templated HIP text.

    `values` maps a placeholder to its legal values (a range or a tuple); a placeholder that it
    does not name takes any value. Raises ContractError when a placeholder stands outside the
    specialisation block or when `values` names one that the text does not have.
    """

    def __init__(
        self,
        source: str,
        name: str = "kernel",
        values: Mapping[str, Legal] | None = None,
        *,
        label: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.name = name
        self.label = label or f"{name}.hip"
        if not isinstance(source, str):
            raise ContractTypeError(
                f"{self.label}: the source is text, got {type(source).__name__}; "
                "Template.from_file reads a file"
            )
        try:
            source.encode()
        except UnicodeEncodeError as error:
            raise ContractError(f"{self.label}: the source is no valid text: {error}") from error
        self.text = source.replace("\r\n", "\n")
        self.values = dict(values or {})
        self._folder = folder
        if not self.text.strip():
            raise ContractError(f"{self.label}: the source is empty; give it a __global__ kernel")
        self._sites = _find_placeholders(self.text, self.label)
        self.placeholders = tuple(dict.fromkeys(name for name, _, _ in self._sites))
        for unknown in self.values.keys() - set(self.placeholders):
            raise ContractError(
                f"{self.label}: legal values are declared for {unknown!r}, which is no placeholder "
                f"of the text; it has {_names(self.placeholders)}"
            )

    def __repr__(self) -> str:
        return f"Template({self.label!r}, placeholders={list(self.placeholders)})"

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], values: Mapping[str, Legal] | None = None
    ) -> Template:
        """A template of the user's own. Includes are looked up beside the file, then in ours."""
        file = Path(path)
        text = file.read_text(encoding="utf-8")
        return cls(text, file.stem, values, label=file.name, folder=file.parent)

    @classmethod
    def from_package(cls, file: str, values: Mapping[str, Legal] | None = None) -> Template:
        """A kernel file of this package, named relative to `kernels_src`."""
        text = read_package_source(file)
        if text is None:
            raise ContractError(f"kernels_src has no file {file!r}")
        return cls(text, Path(file).stem, values, label=f"kernels_src/{file}")

    def specialise(
        self,
        *,
        arch: str | None = None,
        entry: str | None = None,
        options: tuple[str, ...] = (),
        **values: object,
    ) -> Kernel:
        """Bind every placeholder; returns a Kernel, which compiles at first use.

        `arch` None: that of the tensors' device at launch. `entry` None: the file's only kernel.
        """
        from rdna_jit.kernel import Kernel

        checked = self.check(values)
        return Kernel(
            name=self.name,
            source=self.render(checked),
            values=checked,
            arch=arch,
            entry=entry,
            options=tuple(options),
        )

    def check(self, values: Mapping[str, object]) -> dict[str, Value]:
        """The values in the placeholders' order, made canonical; ContractError names misfits."""
        missing = [name for name in self.placeholders if name not in values]
        extra = [f"{name}={value!r}" for name, value in values.items() if not self._has(name)]
        problems = []
        if missing:
            problems.append(f"no value for the placeholder {_names(missing)}")
        if extra:
            problems.append(f"no placeholder for the value {', '.join(extra)}")
        if problems:
            raise ContractError(
                f"{self.label}: {' and '.join(problems)}; its placeholders are "
                f"{_names(self.placeholders)}"
            )
        return {name: self._legal(name, values[name]) for name in self.placeholders}

    def render(self, values: Mapping[str, Value]) -> str:
        """Specialised source: placeholders replaced, includes expanded, `#line` in front."""
        pieces, end = [], 0
        for name, start, stop in self._sites:
            pieces += [self.text[end:start], literal(values[name])]
            end = stop
        text = "".join(pieces) + self.text[end:]
        return f'#line 1 "{self.label}"\n' + self._expand(text, self.label, set())

    def _has(self, name: str) -> bool:
        return name in self.placeholders

    def _legal(self, name: str, value: object) -> Value:
        plain = _plain(name, value, self.label)
        legal = self.values.get(name)
        if legal is None:
            return plain
        if plain not in legal:
            raise ContractError(
                f"{self.label}: {name}={value!r} is not a legal value of the placeholder {name}; "
                f"expected {_describe(legal)}"
            )
        # 1, 1.0 and True are equal: the declared spelling decides, so that equal calls render
        # equal text.
        return int(plain) if isinstance(legal, range) else legal[legal.index(plain)]

    def _expand(self, text: str, label: str, seen: set[str]) -> str:
        pieces, end = [], 0
        for match in _INCLUDE.finditer(without_comments(text)):
            file = match[1]
            pieces.append(text[end : match.start()])
            end = match.end()
            if file in seen:
                continue
            seen.add(file)
            inner_label, inner = self._included(file, label, text.count("\n", 0, match.start()) + 1)
            after = text.count("\n", 0, match.end()) + 2
            body = self._expand(inner.rstrip("\n"), inner_label, seen)
            pieces.append(f'#line 1 "{inner_label}"\n{body}\n#line {after} "{label}"')
        return "".join(pieces) + text[end:]

    def _included(self, file: str, label: str, line: int) -> tuple[str, str]:
        inner_label, text = f"kernels_src/{file}", None
        if self._folder is not None:
            own = Path(self._folder, file)
            if own.is_file():
                inner_label, text = file, own.read_text(encoding="utf-8")
        if text is None:
            text = read_package_source(file)
        if text is None:
            raise ContractError(
                f'{label}:{line}: #include "{file}" is neither in kernels_src nor beside the '
                "template's file; kernels include no system headers"
            )
        # `#pragma once` is right for editors, but draws a warning once the text stands in the file.
        text = text.replace("\r\n", "\n").replace("#pragma once", "")
        for name, start, _ in _scan(text):
            where = f"{inner_label}:{_line(text, start)}"
            raise ContractError(
                f"{where}: an included file may not hold the placeholder ${{{name}}}"
            )
        return inner_label, text


def literal(value: Value) -> str:
    """C++ spelling of a template value. Strings are type names and stand as they are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if value != value:
        return '__builtin_nan("")'
    if value in (float("inf"), float("-inf")):
        return "__builtin_inf()" if value > 0 else "(-__builtin_inf())"
    return repr(value) if value >= 0 else f"({value!r})"


def read_package_source(file: str) -> str | None:
    """Text of a `kernels_src` file, from a checkout, an installed wheel or a zip; None without."""
    beside = os.path.join(os.path.dirname(os.path.dirname(__file__)), "kernels_src", file)
    try:
        with open(beside, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        pass
    try:
        found = resources.files("kernels_src").joinpath(file)
        return found.read_text(encoding="utf-8") if found.is_file() else None
    except (ModuleNotFoundError, OSError):
        return None


def _plain(name: str, value: object, label: str) -> Value:
    """Python scalar of a template value; numpy's scalars count as Python's."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, str) and (
        not value.strip() or any(mark in value for mark in (";", "\n", "#", "$", "//", "/*"))
    ):
        raise ContractError(f"{label}: {name}={value!r} is not the name of a type or constant")
    if isinstance(value, (bool, int, float, str)):
        return value
    raise ContractError(
        f"{label}: {name}={value!r} is a {type(value).__name__}; the placeholder {name} takes an "
        "int, bool, float, or the name of a type as a string"
    )


def without_comments(text: str) -> str:
    """Same length and line breaks, comments blanked."""

    def blank(match: re.Match[str]) -> str:
        token = match[0]
        return token if token[0] == '"' else "\n".join(" " * len(s) for s in token.split("\n"))

    return _TOKEN.sub(blank, text)


def _scan(text: str) -> list[tuple[str, int, int]]:
    found = _PLACEHOLDER.finditer(without_comments(text))
    return [(match[1], match.start(), match.end()) for match in found]


def _find_placeholders(text: str, label: str) -> list[tuple[str, int, int]]:
    """Sites (name, start, end) of the placeholders, each checked to stand in a binding."""
    sites = _scan(text)
    bindings = _bindings(without_comments(text)) if sites else []
    for name, start, _ in sites:
        where = f"{label}:{_line(text, start)}"
        if not name.isidentifier():
            raise ContractError(f"{where}: ${{{name}}} is not a placeholder; write ${{NAME}}")
        if not any(low <= start < high for low, high in bindings):
            raise ContractError(
                f"{where}: the placeholder ${{{name}}} stands outside the specialisation block. "
                f"Bind it at the top of the file (constexpr int {name} = ${{{name}}}; or using "
                f"{name} = ${{{name}}};) and use that name here"
            )
    return sites


def _bindings(code: str) -> list[tuple[int, int]]:
    """Spans of the constexpr, using and typedef statements that open comment-free text."""
    spans, position = [], 0
    while found := _STATEMENT.match(code, position):
        start, position = position, found.end()
        if found["binding"]:
            position = _statement_end(code, start)
            spans.append((start, position))
        elif code.startswith("static_assert", start):
            position = _statement_end(code, start)
    return spans


def _statement_end(code: str, start: int) -> int:
    """Index after the `;` that ends the statement; a `${X}` does not open a brace for long."""
    depth = 0
    for index in range(start, len(code)):
        char = code[index]
        depth += (char in "({[") - (char in ")}]")
        if char == ";" and depth == 0:
            return index + 1
    return len(code)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _names(names: object) -> str:
    return ", ".join(names) or "none"  # type: ignore[arg-type]


def _describe(legal: Legal) -> str:
    if isinstance(legal, range):
        step = f" in steps of {legal.step}" if legal.step != 1 else ""
        last = legal[-1] if len(legal) else legal.start
        return f"{legal.start}..{last}{step}"
    return "one of " + ", ".join(repr(value) for value in legal)
