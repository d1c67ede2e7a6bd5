from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rdna_jit import emulator
from rdna_jit.device import device
from rdna_jit.disassembler import disassemble
from rdna_jit.tools import probe as command
from rdna_jit.tools import probe_inputs, probe_models, probe_report
from rdna_jit.tools.probe_questions import LANES, MNEMONICS, MOVES, VALUES, questions

pytestmark = pytest.mark.usefixtures("emulated")


@pytest.fixture
def probe() -> command.Probe:
    return command.Probe(device())


def question(instruction: str):
    return next(q for q in questions() if q.instruction == instruction)


@pytest.mark.parametrize("instruction", MNEMONICS)
def test_the_instruction_survives_the_compiler(instruction):
    """Exactly one, with its modifiers, and nothing that could stand for it."""
    mnemonic, *modifiers = MNEMONICS[instruction].split()
    program = VALUES.specialise("gfx1030", INSTRUCTION=instruction).program()
    isa = [i.text for i in disassemble(program.code_object) if i.text.startswith("v_")]
    found = [text for text in isa if re.match(rf"{mnemonic}(_e32|_e64)? ", text)]
    assert len(found) == 1
    assert all(modifier in found[0].split() for modifier in modifiers)
    addresses = r"v_(lshl|ashr|add_co|add_nc|cmp|mov_b32)"
    assert [text for text in isa if not re.match(addresses, text)] == found


@pytest.mark.parametrize("move", MOVES)
def test_the_move_runs_with_lanes_off(move):
    program = LANES.specialise("gfx1030", MOVE=move).program()
    isa = [i.text for i in disassemble(program.code_object)]
    at = next(i for i, text in enumerate(isa) if re.match(r"v_(mov_b32_dpp|permlane)", text))
    assert re.match(r"s_mov_b32 exec_lo, s\d+", isa[at - 2]) and isa[at - 1] == "s_nop 4"
    assert re.match(r"s_mov_b32 exec_lo, s\d+", isa[at + 1])
    wanted = MOVES[move].split()
    text = isa[at]
    assert text.startswith(wanted[0])
    if "permlane" in text:
        bits = re.search(r"op_sel:\[(\d),(\d)", text)
        fi, bound = (bits[1] == "1", bits[2] == "1") if bits else (False, False)
    else:
        assert "dpp8" not in wanted or "dpp8:" in text
        fi, bound = "fi:1" in text, "bound_ctrl" in text
    assert (fi, bound) == ("fi" in wanted, "bound_ctrl" in wanted)


@pytest.mark.parametrize(
    ("modes", "rule"),
    [
        ({"dot2": "chain"}, "chain"),
        ({"dot2": "chain", "dot2_flush": True}, "chain + flush"),
        ({"dot2": "exact"}, "exact"),
        ({"dot2": "exact", "dot2_flush": True}, "exact + flush"),
        ({"dot2": "gfx11"}, "gfx11"),
    ],
)
def test_every_dot2_mode_is_told_from_the_others(probe, modes, rule):
    with emulator.modes(**modes):
        answer = probe._answer(question("DOT2"))
    assert answer.rules == [rule]
    assert answer.total > 3000 and not answer.mismatches


def test_a_device_that_follows_no_rule_is_shown(probe, monkeypatch):
    monkeypatch.setattr(probe, "_ask", lambda name, operands: np.zeros(len(operands[0]), np.uint32))
    answer = probe._answer(replace(question("MED3_F32"), exact_nan=True))
    assert answer.rules == [] and answer.mismatches
    text = probe_report.answer_text(answer, verbose=True)
    assert "no rule explains all of it" in text and "signed zeros" in text


# What the emulator does today; each row is one of the rules that a card may follow.
EMULATED = {
    "CLAMP_MUL_F32": "-0 stays",
    "CLAMP_MAX_F16": "-0 stays",
    "CLAMP_PK_MAX_F16": "-0 stays",
    "OMOD_MUL_F32": "ignored",
    "MIN_F32": "a signalling NaN wins, quieted",
    "MED3_F32": "-0 below +0",
    "MED3_F16": "-0 below +0",
    "CVT_PK_U8_F32": "toward zero",
    "CVT_PKNORM_I16_F32": "product in f32, to nearest even",
    "CVT_PKNORM_U16_F16": "exact product, to nearest even",
}


@pytest.mark.parametrize("instruction", EMULATED)
def test_rules_of_the_emulator(probe, instruction):
    answer = probe._answer(question(instruction))
    assert EMULATED[instruction] in answer.rules
    assert len(answer.rules) < len(answer.matched)  # the operands tell rules apart


def test_moves_between_lanes(probe):
    asked = {
        "ROW_SHR": "kept",
        "ROW_SHR_BC": "zero",
        "DPP8": "zero",
        "PERMLANEX16_FI": "the source",
    }
    for name, off in asked.items():
        got = {mask: probe._move(name, mask) for mask in command._MASKS}
        received = command._received(name, got)
        assert received["off"] == off
        assert received["on"] == "the source" and received["off itself"] == "kept"


def test_distances_count_ulps():
    x = probe_inputs.words(np.float32([3.0, 5.0, 7.0]))
    third = probe_inputs.words(np.float32(1) / np.float32([3.0, 5.0, 7.0]))
    moved = third + np.array([0, 1, -2], np.int32).view(np.uint32)
    assert probe_models.distance("rcp", False, x, moved).tolist() == [0, 1, -2]
    half = np.float16([3.0, 0.25]).view(np.uint16).astype(np.uint32)
    near = (np.float16([1 / 3, 4]).view(np.uint16) - np.uint16([1, 0])).astype(np.uint32)
    assert probe_models.distance("rcp", True, half, near).tolist() == [-1, 0]


@pytest.mark.slow
def test_the_whole_probe_says_that_no_card_was_asked(report, command, tmp_path):
    record = tmp_path / "record.npz"
    status, out, errors = command("probe", "--json", "--save", str(record))
    assert status == 0, errors
    found = json.loads(out)
    assert found["asked"] == "emulator"
    assert all(answer["rules"] for answer in found["values"])
    assert len(found["moves"]) == len(MOVES)
    assert all(set(row["ulps"]) <= {"-1", "+0", "+1"} for row in found["transcendental"])
    with np.load(record) as saved:
        assert saved["DOT2.out"].dtype == np.uint32
    assert "No card was asked" in command("probe")[1]
