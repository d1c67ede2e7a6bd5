import struct
from random import Random

import pytest

from rdna_jit import msgpack
from rdna_jit.code_object import CodeObject
from rdna_jit.errors import ContractError, UnsupportedArchError
from rdna_jit.line_table import SourceLine

from .sources import AXPY, SCRATCH, TWO_KERNELS, compiled


@pytest.fixture(scope="module")
def axpy() -> CodeObject:
    return CodeObject(compiled(AXPY))


def test_a_kernel_is_described_by_its_metadata(axpy: CodeObject) -> None:
    assert (axpy.arch, axpy.version, list(axpy.kernels)) == ("gfx1030", 4, ["axpy"])
    info = axpy.kernels["axpy"]
    assert [(a.name, a.kind, a.size, a.offset) for a in info.arguments] == [
        ("out", "pointer", 8, 0),
        ("x", "pointer", 8, 8),
        ("n", "value", 4, 16),
        ("a", "value", 4, 20),
    ]
    assert info.hidden == () and info.max_workgroup_size == 256
    assert info.signature == ("axpy(out: pointer, x: pointer, n: 4-byte value, a: 4-byte value)")
    resources = info.resources
    assert (resources.lds_bytes, resources.scratch_bytes) == (1024, 0)
    assert (resources.vgpr_spills, resources.sgpr_spills) == (0, 0)
    assert (resources.wavefront_size, resources.waves_per_simd) == (32, 16)
    assert 0 < resources.vgprs <= 16 and 0 < resources.sgprs <= 106


def test_the_descriptor_agrees_with_the_metadata(axpy: CodeObject) -> None:
    info = axpy.kernels["axpy"]
    descriptor = info.descriptor
    assert (descriptor.lds_bytes, descriptor.scratch_bytes) == (1024, 0)
    assert descriptor.kernarg_bytes == 24
    assert descriptor.properties >> 10 & 1, "wave32"
    granules = descriptor.rsrc1 & 0x3F
    assert granules * 8 < info.resources.vgprs <= granules * 8 + 8
    assert axpy.functions["axpy"] == (info.entry, info.size)
    assert axpy.read(info.entry, info.size)[-4:] == struct.pack("<I", 0xBF810000), "s_endpgm"


def test_the_mode_of_the_compute_unit_is_in_the_descriptor(axpy: CodeObject) -> None:
    wgp = CodeObject(compiled(AXPY, options=("-mno-cumode",)))
    modes = [c.kernels["axpy"].descriptor.rsrc1 >> 29 & 1 for c in (axpy, wgp)]
    assert modes == [0, 1]


def test_values_of_every_width_and_several_kernels() -> None:
    code = CodeObject(compiled(TWO_KERNELS))
    assert set(code.kernels) == {"first", "second"}
    arguments = code.kernels["second"].arguments
    assert [(a.name, a.size, a.offset) for a in arguments] == [
        ("out", 8, 0),
        ("a", 2, 8),
        ("b", 1, 10),
        ("c", 8, 16),
        ("d", 8, 24),
    ]


def test_device_data_is_readable_and_its_relocations_are_listed() -> None:
    code = CodeObject(compiled(TWO_KERNELS))
    table, size = next((s.va, s.size) for s in code.symbols.values() if s.name == "table")
    assert struct.unpack("<3f", code.read(table, size)) == (1.0, 2.0, 3.0)
    pointer = code.symbols["pointer"].va
    (relocation,) = (r for r in code.relocations if r.va == pointer)
    assert relocation.symbol + relocation.addend == table + 4


def test_text_holds_every_function(axpy: CodeObject) -> None:
    info = axpy.kernels["axpy"]
    start = info.entry - axpy.text_va
    assert axpy.text[start : start + info.size] == axpy.read(info.entry, info.size)


def test_memory_beyond_the_files_bytes_reads_as_zero_and_beyond_the_segment_not_at_all(
    axpy: CodeObject,
) -> None:
    for segment in axpy.segments:
        content = axpy.read(segment.va, segment.mem_size)
        stored = axpy.data[segment.offset : segment.offset + segment.file_size]
        assert content == stored + bytes(segment.mem_size - segment.file_size)
        with pytest.raises(ContractError, match="has no"):
            axpy.read(segment.va + segment.mem_size - 4, 8)


def test_scratch_is_reported() -> None:
    info = CodeObject(compiled(SCRATCH)).kernels["scratch"]
    assert info.resources.scratch_bytes == info.descriptor.scratch_bytes >= 128


def test_every_instruction_has_the_line_it_came_from(axpy: CodeObject) -> None:
    lines = AXPY.splitlines()[1:]

    def line_of(text: str) -> int:
        return next(number for number, line in enumerate(lines, 1) if text in line)

    info = axpy.kernels["axpy"]
    places = [axpy.source_lines.get(pc) for pc in range(info.entry, info.entry + info.size, 4)]
    assert all(place is not None for place in places)
    assert {place.file for place in places if place} == {"kernels_src/axpy.hip"}
    seen = {place.line for place in places if place}
    for text in ("tile[lane] = x[i]", "s_barrier", "a * x + 1.0f", "scaled(tile"):
        assert line_of(text) in seen, text
    assert seen <= set(range(line_of("extern"), len(lines) + 1)) | {line_of("a * x")}
    assert axpy.source_lines.get(info.entry - 4) is None
    assert axpy.source_lines.get(info.entry + info.size) is None


@pytest.mark.parametrize("version", ["-gdwarf-4", "-gdwarf-5"])
def test_line_tables_of_both_dwarf_versions_agree(version: str, axpy: CodeObject) -> None:
    other = CodeObject(compiled(AXPY, options=(version,)))
    assert other.text == axpy.text
    entry, size = axpy.functions["axpy"]
    barrier = next(
        pc for pc in range(entry, entry + size, 4) if other.read(pc, 4) == b"\0\0\x8a\xbf"
    )
    assert other.source_lines.get(barrier) == SourceLine("kernels_src/axpy.hip", 10)
    assert axpy.source_lines.get(barrier) == other.source_lines.get(barrier)


def test_an_object_without_line_tables_has_an_empty_one() -> None:
    bare = CodeObject(compiled(AXPY, options=("-g0",)))
    assert not bare.source_lines and bare.source_lines.get(bare.kernels["axpy"].entry) is None


def test_every_truncation_is_refused_or_read_never_worse(axpy: CodeObject) -> None:
    for size in range(0, len(axpy.data), 61):
        try:
            CodeObject(axpy.data[:size])
        except ContractError as error:
            assert "not a usable gfx10 code object" in str(error)


def test_random_damage_is_refused_or_read_never_worse(axpy: CodeObject) -> None:
    random = Random(1)
    refused = 0
    for _ in range(600):
        data = bytearray(axpy.data)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            damaged = CodeObject(bytes(data))
            damaged.source_lines.get(damaged.text_va)
        except (ContractError, UnsupportedArchError):
            refused += 1
    assert refused > 100


def test_other_files_are_refused() -> None:
    with open("/proc/self/exe", "rb") as executable:
        for data in (b"", b"text", executable.read(), b"__CLANG_OFFLOAD_BUNDLE__"):
            with pytest.raises(ContractError, match="not a usable gfx10 code object"):
                CodeObject(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x7f", 127),
        (b"\xff", -1),
        (b"\xc0", None),
        (b"\xc2", False),
        (b"\xc3", True),
        (b"\xcc\xff", 255),
        (b"\xcd\x01\x00", 256),
        (b"\xce\x00\x01\x00\x00", 65536),
        (b"\xcf" + b"\xff" * 8, (1 << 64) - 1),
        (b"\xd0\x80", -128),
        (b"\xd1\x80\x00", -32768),
        (b"\xd2\xff\xff\xff\xfe", -2),
        (b"\xd3" + b"\xff" * 8, -1),
        (b"\xca\x3f\x80\x00\x00", 1.0),
        (b"\xcb\x40" + bytes(7), 2.0),
        (b"\xa2hi", "hi"),
        (b"\xd9\x02hi", "hi"),
        (b"\xda\x00\x02hi", "hi"),
        (b"\xdb\x00\x00\x00\x02hi", "hi"),
        (b"\xc4\x01\x00", b"\0"),
        (b"\x92\x01\x02", [1, 2]),
        (b"\xdc\x00\x01\x07", [7]),
        (b"\xdd\x00\x00\x00\x01\x07", [7]),
        (b"\x81\xa1a\x01", {"a": 1}),
        (b"\xde\x00\x01\xa1a\x01", {"a": 1}),
        (b"\xdf\x00\x00\x00\x01\xa1a\x01", {"a": 1}),
    ],
)
def test_messagepack_values(data: bytes, value: object) -> None:
    decoded = msgpack.decode(data)
    assert decoded == value and type(decoded) is type(value)


@pytest.mark.parametrize("data", [b"", b"\xa5hi", b"\xc1", b"\x92\x01", b"\xa1\xff", b"\xcd\x01"])
def test_broken_messagepack_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="MessagePack"):
        msgpack.decode(data)
