"""The model reproduces the published figures that docs/calibration.md says it covers."""

from __future__ import annotations

import math

import pytest

from benchmarks import calibration
from benchmarks.calibration import Row

pytestmark = pytest.mark.usefixtures("emulated")


def within(rows: list[Row], error: float) -> None:
    wrong = {row.name: row.ratio for row in rows if abs(math.log(row.ratio)) > math.log1p(error)}
    assert rows and not wrong


def test_issue_rates():
    rows = [row for row in calibration.issue() if row.modelled]
    assert [row.name for row in rows][:2] == ["v_fmac_f32", "v_pk_fma_f16"]
    within([row for row in rows if row.name.startswith("v_")], 0.05)
    within(rows, 0.10)


def test_lds_conflicts():
    rows = list(calibration.lds())
    assert [row.name for row in rows] == [f"{2 << n}-way conflict" for n in range(5)]
    within(rows, 0.15)


@pytest.mark.slow
def test_memory():
    rows = [row for row in calibration.memory() if row.modelled and row.unit == "GB/s"]
    within(rows, 0.03)


@pytest.mark.slow
def test_loads_in_flight():
    within([row for row in calibration.in_flight() if row.modelled], 0.20)


def test_the_table_states_the_error():
    rows = [
        Row("a", "first", "us", 10, 11),
        Row("a", "second", "us", 10, 10),
        Row("a", "left out", "us", 10, 90, "why", modelled=False),
        Row("kernels", "other", "us", 10, 50),
    ]
    text = calibration.table(rows)
    assert "2 figures that the model covers: mean error 4.9%" in text
    assert "worst 1.10 (first)" in text and "9.00  why" in text
