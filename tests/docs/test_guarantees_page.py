"""The tables of the page about guarantees are computed again."""

from __future__ import annotations

import pytest
from scipy import stats

from offramp.calibration.risks import Guarantee
from tests.pages import read, table


def test_the_table_of_rows_per_class_is_the_librarys():
    lines = table(read("explanation/guarantees.md"), "limit")
    expected = [(risk, confidence) for risk in (1, 5, 10, 20) for confidence in (90, 95)]
    assert [tuple(float(cell.strip("% ")) for cell in line[:2]) for line in lines] == expected
    for (risk, confidence), line in zip(expected, lines, strict=True):
        level = 1 - confidence / 100
        assert Guarantee(confidence=confidence / 100).limit_rows_needed(risk / 100) == int(line[2])
        for errors, cell in zip((0, 1, 2, 5, 10), line[2:], strict=True):
            count = int(cell.replace(",", ""))
            assert stats.binom.cdf(errors, count, risk / 100) <= level < stats.binom.cdf(errors, count - 1, risk / 100)


def test_the_risk_that_a_number_of_rows_reaches():
    """With k changes allowed, the first threshold that fails is where the (k + 1)-th of n uniform risks lies."""
    for line in table(read("explanation/guarantees.md"), "test rows"):
        rows, changes, reached = int(line[0].replace(",", "")), int(line[1]), float(line[2].strip("% "))
        assert stats.binom.cdf(changes, rows, 0.02) <= 0.1 < stats.binom.cdf(changes + 1, rows, 0.02)
        assert 100 * (changes + 1) / (rows + 1) == pytest.approx(reached, abs=0.005)
