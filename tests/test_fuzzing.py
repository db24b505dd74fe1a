"""A few cases of `python -m tests.fuzzing`, in this process."""

from __future__ import annotations

import tempfile

from tests.fuzzing import Tally, Workspace

SEED, CASES = "f", range(12)  # of nine kinds, and fast


def test_a_dozen_cases_have_no_faults_and_are_reproducible(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # restored at the end
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    workspace, tally = Workspace(tmp_path.resolve()), Tally()
    workspace.make()
    reports = [workspace.case(SEED, number) for number in CASES]
    for report in reports:
        tally.add(report)
    assert not tally.findings, tally.table()
    again, first = workspace.case(SEED, 3), reports[3]
    assert (again.command, again.description, again.err) == (first.command, first.description, first.err)
