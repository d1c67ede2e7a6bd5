from __future__ import annotations

import struct

import numpy
import pytest
import torch

from rdna_jit import ContractError, Template
from rdna_jit.runtime.arguments import (
    Signature,
    declared_parameters,
    resolve_type,
)
from tests.runtime.kernels import ADD, TYPES

SIGNATURE = (
    "types(signed char a, double b, unsigned char c, short d, const float* p, bool e, _Float16 f, "
    "long g, unsigned short h, unsigned int i, float j, unsigned long k, void* q)"
)
VALUES = [-5, 2.5, 200, -300, 0x1122334455667788, True, 0.5, -(1 << 40), 65535, 1 << 31, 1.25]
VALUES += [(1 << 64) - 1, None]
CODES = "<b", "<d", "<B", "<h", "<Q", "<?", "<e", "<q", "<H", "<I", "<f", "<Q", "<Q"


@pytest.fixture(scope="module")
def types() -> Signature:
    return TYPES.specialise(arch="gfx1030").program().signature


def no_tensors(slot: object, tensor: object) -> int:
    raise AssertionError("no tensor was passed")


def replaced(index: int, value: object) -> list[object]:
    return [value if i == index else v for i, v in enumerate(VALUES)]


def test_every_byte_lies_where_the_code_object_says(types):
    arguments = TYPES.specialise(arch="gfx1030").arguments
    expected = bytearray(arguments[-1].offset + arguments[-1].size)
    for argument, code, value in zip(arguments, CODES, VALUES, strict=True):
        piece = struct.pack(code, 0 if value is None else value)
        assert len(piece) == argument.size
        expected[argument.offset : argument.offset + argument.size] = piece
    assert types.pack(VALUES, no_tensors) == expected


def test_gaps_are_zero(types):
    ones = [-1, 0.0, 255, -1, 0, True, 0.0, -1, 65535, (1 << 32) - 1, 0.0, (1 << 64) - 1, None]
    packed = types.pack(ones, no_tensors)
    covered = {b for s in types.slots for b in range(s.offset, s.offset + s.size)}
    assert len(covered) < len(packed)
    assert all(packed[b] == 0 for b in range(len(packed)) if b not in covered)


def test_signature_shows_resolved_types(types):
    assert str(types) == SIGNATURE


@pytest.mark.parametrize("count", [0, 12, 14])
def test_wrong_count_is_a_type_error_with_the_signature(types, count):
    with pytest.raises(TypeError, match=r"types\(signed char a.* takes 13 arguments, got") as error:
        types.pack([0] * count, no_tensors)
    assert isinstance(error.value, ContractError)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, 1.5), (0, "1"), (0, None), (0, torch.ones(1, dtype=torch.int32)), (0, numpy.ones(1)),
        (1, "2.5"), (1, None), (1, torch.ones(1)), (4, 1.5), (4, "p"), (4, True), (4, b"p"),
        (5, 0.5), (5, None), (7, 1.0), (10, None), (12, []),
    ],
)  # fmt: skip
def test_wrong_type_is_a_type_error_with_the_signature(types, index, value):
    name = types.slots[index].name
    with pytest.raises(TypeError, match=rf"types\(.*\): {name} must be") as error:
        types.pack(replaced(index, value), no_tensors)
    assert isinstance(error.value, ContractError)
    assert error.value.name == name


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, 128), (0, -129), (2, 256), (2, -1), (3, 32768), (3, -32769), (4, -1), (4, 1 << 64),
        (5, 2), (5, -1), (6, 65520.0), (6, -1e6), (7, 1 << 63), (8, 65536), (8, -1), (9, 1 << 32),
        (9, -1), (10, 1e39), (11, 1 << 64), (12, -1),
    ],
)  # fmt: skip
def test_value_out_of_range_is_a_value_error_with_the_signature(types, index, value):
    with pytest.raises(ValueError, match=rf"types\(.*\): {types.slots[index].name} must be"):
        types.pack(replaced(index, value), no_tensors)


@pytest.mark.parametrize(
    ("index", "value", "same_as"),
    [
        (0, numpy.int8(-5), -5), (0, True, 1), (1, numpy.float32(0.5), 0.5), (1, 3, 3.0),
        (5, numpy.bool_(True), True), (5, 0, False), (6, float("inf"), float("inf")),
        (6, numpy.float16(65504), 65504.0), (7, numpy.int64(-7), -7), (9, numpy.uint32(7), 7),
        (10, 7, 7.0), (12, numpy.uint64(1 << 63), 1 << 63),
    ],
)  # fmt: skip
def test_numpy_scalars_and_widening_are_taken(types, index, value, same_as):
    plain = types.pack(replaced(index, same_as), no_tensors)
    assert types.pack(replaced(index, value), no_tensors) == plain


def test_tensors_go_through_the_device(types):
    x, seen = torch.ones(4), []

    def address(slot, tensor):
        seen.append((slot.name, tensor))
        return 0xABC0

    packed = types.pack(replaced(4, x), address)
    assert seen == [("p", x)]
    offset = types.slots[4].offset
    assert packed[offset : offset + 8] == struct.pack("<Q", 0xABC0)


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("void k()", []),
        ("void k(void)", []),
        ("void k(const float* __restrict__ x, int n)", [("const float*", "x"), ("int", "n")]),
        ("void k(unsigned n, float *x[])", [("unsigned", "n"), ("float **", "x")]),
        ("void k(Pair<int, float>* p, /* , */ int)", [("Pair<int, float>*", "p"), ("int", "")]),
        ("__launch_bounds__(64) void k(int a // first\n, int b)", [("int", "a"), ("int", "b")]),
    ],
)
def test_parameters_are_read_from_the_source(declaration, expected):
    source = f'int k(int);\nvoid other(); extern "C" __global__ {declaration} {{ }}'
    found = declared_parameters(source, "k")
    assert [(c.replace(" __restrict__", ""), n) for c, n in found] == expected


def test_a_missing_entry_says_how_to_declare_it():
    with pytest.raises(ContractError, match="declare the entry"):
        declared_parameters("void k(int a) { }", "k")


@pytest.mark.parametrize(
    ("ctype", "builtin"),
    [
        ("T", "float"), ("const Word", "unsigned int"), ("Half", "_Float16"), ("COUNT", "int"),
        ("unsigned long int", "unsigned long"), ("long long", "long"), ("uint8_t", "unsigned char"),
        ("size_t", "unsigned long"), ("Chain", "unsigned int"), ("signed char", "signed char"),
    ],
)  # fmt: skip
def test_aliases_are_resolved(ctype, builtin):
    source = (
        "using T = float;\ntypedef unsigned Word;\nusing Half = half;\n#define COUNT int\n"
        "using Chain = const Word;\n"
    )
    assert resolve_type(ctype, source) == builtin


@pytest.mark.parametrize(
    "declared",
    ["struct Pair { float a, b; };", "typedef float Pair __attribute__((ext_vector_type(2)));"],
)
def test_structs_and_vectors_by_value_are_refused(declared):
    from rdna_jit import Template

    text = declared + ' extern "C" __global__ __launch_bounds__(32) void k(float* x, Pair p) {'
    text += " *(Pair*)x = p; }"
    with pytest.raises(ContractError, match=r"'p' of type 'Pair'.*through a pointer"):
        Template(text, name="k").specialise(arch="gfx1030").program()


def test_dtype_of_tensor_appears_but_not_its_data(types):
    with pytest.raises(TypeError, match=r"got Tensor torch.float32 \(100000,\) on cpu") as error:
        types.pack(replaced(0, torch.ones(100000)), no_tensors)
    assert len(str(error.value)) < 500


def test_add_packs_null_bias():
    signature = ADD.specialise(STEP=1, arch="gfx1030").program().signature
    packed = signature.pack([16, None, 32, 0.5, 7], no_tensors)
    assert bytes(packed) == struct.pack("<QQQfi", 16, 0, 32, 0.5, 7)


def test_floats_of_another_width_are_refused_and_bits_are_taken(types):
    p = next(i for i, slot in enumerate(types.slots) if slot.name == "p")
    assert types.slots[p].floats == "float32"

    def address(slot, tensor):
        return tensor.data_ptr()

    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        with pytest.raises(ContractError, match=r"p must be a float32 tensor .*\.view"):
            types.pack(replaced(p, torch.zeros(4, dtype=dtype)), address)
    for dtype in (torch.float32, torch.int32, torch.uint8):
        assert types.pack(replaced(p, torch.zeros(4, dtype=dtype)), address)


@pytest.mark.parametrize("pointer", ["f16*", "const f16* __restrict__", "T*", "const half *"])
def test_a_pointer_to_an_alias_of_a_float_is_checked(pointer):
    text = f"""using f16 = _Float16;
    typedef f16 T;
    extern "C" __global__ void k({pointer} x, float* y) {{ y[0] = x[0]; }}"""
    kernel = Template(text, name="k").specialise(arch="gfx1030")
    assert [slot.floats for slot in kernel.program().signature.slots] == ["float16", "float32"]
