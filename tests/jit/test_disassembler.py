import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from rdna_jit import toolchain
from rdna_jit.code_object import CodeObject
from rdna_jit.config import config
from rdna_jit.disassembler import _Disassembler, disassemble, listing
from rdna_jit.errors import ContractError, ToolchainError

from .sources import AXPY, TWO_KERNELS, compiled


def test_instructions_cover_the_kernel_without_gaps() -> None:
    code = CodeObject(compiled(AXPY))
    instructions = disassemble(code, "axpy")
    info = code.kernels["axpy"]
    address = info.entry
    for instruction in instructions:
        assert instruction.address == address
        assert instruction.size == 4 * len(instruction.words) > 0
        stored = struct.unpack(f"<{len(instruction.words)}I", code.read(address, instruction.size))
        assert instruction.words == stored
        address += instruction.size
    assert address == info.entry + info.size
    texts = [instruction.text for instruction in instructions]
    assert texts[-1] == "s_endpgm" and "s_barrier" in texts
    assert any(text.startswith("global_store_dword v[") for text in texts)
    assert all(text == text.strip() for text in texts)


def test_all_functions_come_in_order_and_bytes_do_as_well() -> None:
    data = compiled(TWO_KERNELS)
    code = CodeObject(data)
    everything = disassemble(data)
    assert everything == disassemble(code, "first") + disassemble(code, "second")
    assert [i.address for i in everything] == sorted(i.address for i in everything)


def test_an_unknown_kernel_is_named_with_the_known_ones() -> None:
    with pytest.raises(ContractError, match="no function 'third'; it has first, second"):
        disassemble(compiled(TWO_KERNELS), "third")


def test_words_that_are_no_instruction_are_shown_as_data() -> None:
    code = struct.pack("<4I", 0xBF800000, 0xFFFFFFFF, 0xBF810000, 0xF4080002)
    texts = [(i.address, i.text) for i in _Disassembler("gfx1030").run(code, 0x100)]
    assert texts == [
        (0x100, "s_nop 0"),
        (0x104, ".long 0xffffffff"),
        (0x108, "s_endpgm"),
        (0x10C, ".long 0xf4080002"),
    ]


def test_archs_differ_in_what_they_decode() -> None:
    # v_dot2_f32_f16 v0, v1, v2, v3
    code = struct.pack("<2I", 0xCC134000, 0x1C0E0501)
    assert _Disassembler("gfx1030").run(code, 0)[0].text.startswith("v_dot2_f32_f16 v0, v1, v2, v3")
    assert _Disassembler("gfx1010").run(code, 0)[0].text == ".long 0xcc134000"


def test_several_threads_get_the_same_answer() -> None:
    objects = [CodeObject(compiled(source)) for source in (AXPY, TWO_KERNELS)] * 8
    expected = [disassemble(code) for code in objects[:2]] * 8
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(disassemble, objects)) == expected


def test_a_listing_shows_functions_lines_and_words() -> None:
    text = listing(compiled(AXPY), "axpy")
    assert text.startswith("axpy:\n  ; kernels_src/axpy.hip:")
    assert "  ; kernels_src/axpy.hip:10\n" in text
    assert text.count("s_endpgm") == 1 and "bf810000" in text


def test_a_comgr_that_cannot_be_used_is_named() -> None:
    with (
        config.scope(comgr_library=toolchain.find("builtins").path),
        pytest.raises(ToolchainError, match="cannot be used as comgr"),
    ):
        _Disassembler("gfx1030")
