from __future__ import annotations

import zipfile
from pathlib import Path

import numpy
import pytest

import rdna_jit
from rdna_jit import CompileError, ContractError, Template
from rdna_jit.template import literal, read_package_source

BODY = 'extern "C" __global__ __launch_bounds__(64) void k(float* x, int n) { x[n] = N; }\n'


def rendered(text: str, **values: object) -> str:
    template = Template(text + BODY.replace("N", "1"), name="k")
    return template.render(template.check(values))


def test_placeholders_become_values_and_the_rest_stays():
    text = "// about ${K}, which is not a placeholder\nconstexpr int K = ${K};\nusing T = ${T};\n"
    assert rendered(text, K=4096, T="float") == (
        '#line 1 "k.hip"\n'
        "// about ${K}, which is not a placeholder\nconstexpr int K = 4096;\nusing T = float;\n"
    ) + BODY.replace("N", "1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (False, "false"), (0, "0"), (-3, "(-3)"), (1 << 40, "1099511627776"),
        (0.1, "0.1"), (-2.0, "(-2.0)"), (float("inf"), "__builtin_inf()"),
        (float("-inf"), "(-__builtin_inf())"), (float("nan"), '__builtin_nan("")'),
        ("unsigned char", "unsigned char"),
    ],
)  # fmt: skip
def test_literals(value, text):
    assert literal(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (numpy.int64(7), "7"), (numpy.bool_(True), "true"), (numpy.float32(0.5), "0.5"),
        (numpy.uint8(255), "255"),
    ],
)  # fmt: skip
def test_numpy_scalars_count_as_pythons(value, text):
    assert f"constexpr auto V = {text};" in rendered("constexpr auto V = ${V};\n", V=value)


@pytest.mark.parametrize("value", [None, [1], numpy.ones(2), 1j, "", "int; evil()", "int // x"])
def test_values_of_other_kinds_are_refused_by_name(value):
    with pytest.raises(ContractError, match="V="):
        rendered("constexpr int V = ${V};\n", V=value)


@pytest.mark.parametrize(
    "opening",
    [
        "\n\n",
        "// line\n/* block\n   comment ; { */\n",
        "#pragma once\n#define A(x) \\\n  x\n#if 1\n#endif\n",
        "constexpr int A[2] = {1, 2};\n",
        "static constexpr bool F = true; inline constexpr int G = 1;\n",
        'static_assert(1 < 2, "a ; in a string // and no comment");\n',
        "typedef unsigned char byte;\nusing Fn = int (*)(int, int);\n",
        "constexpr int LONG =\n    1 +\n    2;\n",
        '#include "common/types.hip"\n',
    ],
)
def test_what_may_stand_before_a_placeholder(opening):
    assert "constexpr int K = 5;" in rendered(opening + "constexpr int K = ${K};\n", K=5)


@pytest.mark.parametrize(
    "text",
    [
        "int f() { return 1; }\nconstexpr int K = ${K};\n",
        "constexpr int twice(int a) { return 2 * a; }\nconstexpr int K = ${K};\n",
        "struct S {};\nconstexpr int K = ${K};\n",
        "#define K ${K}\n",
        "#if ${K}\n#endif\n",
        "static_assert(${K} > 0);\n",
        BODY.replace("N", "${K}"),
        BODY.replace("64", "${K}"),
        "namespace a { constexpr int K = ${K}; }\n",
    ],
)
def test_a_placeholder_outside_the_block_says_how_to_bind_it(text):
    with pytest.raises(ContractError, match=r"k.hip:\d+: the placeholder \${K} stands outside"):
        Template("\n" + text, name="k")


@pytest.mark.parametrize("text", ["${}", "${K + 1}", "${1K}", "${K"])
def test_malformed_placeholders(text):
    with pytest.raises(ContractError, match=r"k\.hip:2: .* is not a placeholder"):
        Template(f"\nconstexpr int K = {text};\n", name="k")


@pytest.mark.parametrize("source", ["", "  \n\t\n"])
def test_blank_source_is_refused(source):
    with pytest.raises(ContractError, match="empty"):
        Template(source)


def test_a_source_of_comments_only_does_not_kill_the_process():
    with pytest.raises((CompileError, ContractError)):
        Template("// nothing\n", name="nothing").specialise(arch="gfx1030").compile()


def template(**legal):
    return Template("constexpr int K = ${K};\nusing T = ${T};\n" + BODY, name="k", values=legal)


def test_misfits_are_named_on_both_sides():
    with pytest.raises(ContractError, match=r"no value for the placeholder T\b") as error:
        template().specialise(K=1)
    assert "K, T" in str(error.value)
    with pytest.raises(ContractError, match=r"no placeholder for the value G=128\b"):
        template().specialise(K=1, T="float", G=128)
    with pytest.raises(ContractError, match="placeholder K and no placeholder for the value Q=1"):
        template().specialise(Q=1, T="int")


@pytest.mark.parametrize(
    ("legal", "value", "expected"),
    [
        (range(1, 33), 0, r"1\.\.32"),
        (range(1, 33), 33, r"1\.\.32"),
        (range(32, 4097, 32), 48, r"32\.\.4096 in steps of 32"),
        (range(1, 33), 1.5, r"1\.\.32"),
        ((1, 2, 4), 3, "one of 1, 2, 4"),
        (("float", "int"), "double", "one of 'float', 'int'"),
    ],
)
def test_values_out_of_range_are_named_with_the_range(legal, value, expected):
    with pytest.raises(
        ContractError, match=f"K={value!r} is not a legal.*placeholder K.*{expected}"
    ):
        template(K=legal).specialise(K=value, T="int")


def test_equal_values_render_equal_text():
    t = template(K=range(0, 9))
    sources = {t.specialise(K=k, T="int").source for k in (1, 1.0, True, numpy.int32(1))}
    assert len(sources) == 1
    assert "constexpr int K = 1;" in sources.pop()


def test_legal_values_for_no_placeholder_are_refused():
    with pytest.raises(ContractError, match="declared for 'Q'"):
        template(Q=(1, 2))


def test_includes_of_ours_are_expanded_once_with_their_own_lines():
    text = '#include "common/types.hip"\n#include "common/types.hip"\n' + BODY.replace("N", "1")
    kernel = Template(text, name="k").specialise()
    assert kernel.source.count('#line 1 "kernels_src/common/types.hip"') == 1
    assert '#line 2 "k.hip"' in kernel.source
    assert "#include" not in kernel.source


def test_a_commented_include_stays(tmp_path):
    text = '// #include "common/nowhere.hip"\n' + BODY.replace("N", "1")
    assert '// #include "common/nowhere.hip"' in Template(text).specialise().source


def test_includes_beside_a_users_file(tmp_path):
    (tmp_path / "part.hip").write_text("__device__ int seven() { return 7; }\n")
    (tmp_path / "mine.hip").write_text(
        'constexpr int K = ${K};\n#include "part.hip"\n' + BODY.replace("N", "K + seven()")
    )
    t = Template.from_file(tmp_path / "mine.hip", values={"K": range(10)})
    kernel = t.specialise(K=3, arch="gfx1030")
    assert (t.name, t.label) == ("mine", "mine.hip")
    assert '#line 1 "part.hip"' in kernel.source
    assert str(tmp_path) not in kernel.source
    assert kernel.compile().resources.wavefront_size == 32


def test_a_missing_include_names_file_and_line():
    with pytest.raises(ContractError, match=r'k\.hip:2: #include "common/nowhere\.hip"'):
        Template('\n#include "common/nowhere.hip"\n', name="k").specialise()


def test_placeholders_in_an_included_file_are_refused(tmp_path):
    (tmp_path / "part.hip").write_text("\nconstexpr int K = ${K};\n")
    (tmp_path / "mine.hip").write_text('#include "part.hip"\n' + BODY)
    with pytest.raises(ContractError, match=r"part\.hip:2: .*placeholder \${K}"):
        Template.from_file(tmp_path / "mine.hip").specialise()


def test_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Template.from_file(tmp_path / "none.hip")
    with pytest.raises(ContractError, match="no file"):
        Template.from_package("none.hip")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_errors_show_our_file_and_line_after_includes(newline):
    lines = ["constexpr int K = ${K};", '#include "common/types.hip"', "", "u32 oops = nonsense;"]
    kernel = Template(newline.join([*lines, BODY]), name="mine").specialise(K=1, arch="gfx1030")
    with pytest.raises(CompileError) as error:
        kernel.compile()
    assert "mine.hip:4" in error.value.log
    assert "nonsense" in error.value.excerpt
    assert error.value.kernel == "mine" and error.value.arch == "gfx1030"


def test_package_sources_are_found_from_a_zip(tmp_path, monkeypatch):
    root = Path(rdna_jit.__file__).parent
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as target:
        target.write(
            root.parent / "kernels_src" / "common" / "types.hip", "kernels_src/common/types.hip"
        )
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.setattr("rdna_jit.template.__file__", str(tmp_path / "x" / "template.py"))
    assert read_package_source("common/types.hip")
    assert read_package_source("common/none.hip") is None


@pytest.mark.parametrize("source", [None, b"x", 3, "\ud800"])
def test_a_source_is_text(source):
    with pytest.raises(ContractError, match="text"):
        Template(source)
