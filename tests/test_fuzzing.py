"""A few of the cases that `python -m tests.fuzzing` makes by the thousand, in this process."""

from __future__ import annotations

import tempfile

from tests.fuzzing import Ground, Tally

SEED, CASES = "f", range(12)  # of nine kinds, and quick


def test_a_dozen_cases_end_as_they_should_and_alike_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back again in the end
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    ground, tally = Ground(tmp_path.resolve()), Tally()
    ground.make()
    reports = [ground.case(SEED, number) for number in CASES]
    for report in reports:
        tally.add(report)
    assert not tally.findings, tally.table()
    again = ground.case(SEED, 3)
    assert (again.command, again.told, again.err) == (reports[3].command, reports[3].told, reports[3].err)
