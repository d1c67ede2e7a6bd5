import pytest

from rdna_jit.cache import Key
from rdna_jit.config import config

BASE = dict(source="a", options=("-O3",), arch="gfx1030", compiler_identity="c1")


@pytest.mark.parametrize(
    "change",
    [
        {"source": "b"},
        {"options": ()},
        {"options": ("-O3", "-g")},
        {"arch": "gfx1031"},
        {"compiler_identity": "c2"},
    ],
)
def test_every_input_changes_the_key(change):
    assert Key.make(**BASE).digest != Key.make(**{**BASE, **change}).digest


def test_equal_inputs_make_equal_keys():
    assert Key.make(**BASE) == Key.make(**{**BASE, "options": ["-O3"]})


def test_fields_do_not_run_into_each_other():
    first = Key.make("x", ("a", "bc"), "gfx1030", "c")
    second = Key.make("x", ("ab", "c"), "gfx1030", "c")
    assert first.digest != second.digest


def test_options_that_hiprtc_appends_change_the_key(monkeypatch):
    plain = Key.make(**BASE).digest
    monkeypatch.setenv("HIPRTC_COMPILE_OPTIONS_APPEND", "-g")
    assert Key.make(**BASE).digest != plain
    assert config.hiprtc_append == "-g"


def test_directory_and_clock_do_not_change_the_key(monkeypatch, tmp_path):
    before = Key.make(**BASE).digest
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert Key.make(**BASE).digest == before


def test_odd_text_makes_a_key():
    assert len(Key.make("\udcff \0 \u2028", ("\udc80",), "gfx1030", "").digest) == 64
