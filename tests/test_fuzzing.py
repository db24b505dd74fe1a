"""A few of the cases that `python -m tests.fuzzing` makes by the thousand, in this process."""

from __future__ import annotations

import os
import tempfile

import pytest

from tests.fuzzing import Ground, Tally

SEED, CASES = "smoke", range(12)


@pytest.fixture
def ground(tmp_path, monkeypatch):
    """A world to spoil; the process goes back to where it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    made = Ground(tmp_path.resolve())
    made.make()
    return made


def test_a_dozen_cases_end_as_they_should(ground):
    tally = Tally()
    for number in CASES:
        tally.add(ground.case(SEED, number))
        os.chdir(ground.root)
    assert not tally.findings, tally.table()


def test_a_case_is_the_same_again(ground):
    first, second = (ground.case(SEED, 3) for _ in range(2))
    assert (first.kind, first.command, first.told, first.ending) == (
        second.kind,
        second.command,
        second.told,
        second.ending,
    )
