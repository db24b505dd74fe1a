"""A worker of an overwritten job that is still running does not change what the new job has finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from offramp.cluster.job import check_complete, finished_parts
from offramp.cluster.output_folder import LocalFolder, open_folder
from offramp.cluster.parts import Part, split
from offramp.cluster.worker import Worker
from offramp.data.source import Source
from offramp.errors import BadInput
from tests.cluster.test_cluster import make_worker, write_rows


class SlowFolder(LocalFolder):
    """A folder on a slow disk: something happens before or after a file is written."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def write(self, name: str, content: bytes) -> None:
        if SlowFolder.before:
            SlowFolder.before()
        super().write(name, content)
        if SlowFolder.after:
            SlowFolder.after()


class Killed(BaseException):
    """The end of a process."""


def kill() -> None:
    raise Killed


@pytest.fixture
def part(tmp_path) -> Part:
    return split([Source(str(write_rows(tmp_path, "jsonl")), "jsonl")], 100)[0]


@pytest.fixture
def old(folder, tmp_path, part) -> Worker:
    worker = make_worker(folder, tmp_path, Path(part.file), token="old")
    (tmp_path / "_job.json").write_text('{"token": "old"}')
    worker.folder = SlowFolder(str(tmp_path))
    return worker


@pytest.fixture
def overwrite(folder, tmp_path, part) -> Callable[[], int]:
    """Start the new job and predict its part."""
    worker = make_worker(folder, tmp_path, Path(part.file), token="new")

    def run() -> int:
        (tmp_path / "_job.json").write_text('{"token": "new"}')
        return worker.predict(part)

    return run


def test_a_part_that_an_old_worker_replaced_is_not_finished(tmp_path, part, overwrite, old, monkeypatch):
    monkeypatch.setattr(SlowFolder, "before", overwrite)
    monkeypatch.setattr(SlowFolder, "after", kill)
    with pytest.raises(Killed):
        old.predict(part)
    out = open_folder(str(tmp_path))
    assert (tmp_path / "part-000000.parquet").is_file()
    assert finished_parts(out, "old") == {0} and finished_parts(out, "new") == set()
    with pytest.raises(BadInput, match=r"Part 0 is missing in .*, or another job replaced it"):
        check_complete(out, "new", {0})
    assert overwrite() == 7
    check_complete(out, "new", {0})


def test_a_part_that_only_the_old_job_has_is_an_error(tmp_path, part, overwrite, old):
    """Readers of the folder would take its rows for predictions of the new job."""
    old.predict(replace(part, number=1))
    overwrite()
    with pytest.raises(BadInput, match=r"part-000001\.parquet was written by another job; delete it"):
        check_complete(open_folder(str(tmp_path)), "new", {0})


def test_an_old_worker_removes_its_own_part(tmp_path, part, overwrite, old, monkeypatch):
    monkeypatch.setattr(SlowFolder, "before", overwrite)
    with pytest.raises(BadInput, match="overwritten by another job"):
        old.predict(part)
    assert not (tmp_path / "part-000000.parquet").exists()


def test_an_old_worker_does_not_remove_the_part_of_the_new_job(tmp_path, part, overwrite, old, monkeypatch):
    monkeypatch.setattr(SlowFolder, "after", overwrite)
    with pytest.raises(BadInput, match="overwritten by another job"):
        old.predict(part)
    assert pyarrow.parquet.read_table(tmp_path / "part-000000.parquet").num_rows == 7
    assert finished_parts(open_folder(str(tmp_path)), "new") == {0}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 damaged \x08\x00\x00\x00PAR1", b"x" * 100])
def test_a_damaged_part_is_not_finished(tmp_path, content):
    (tmp_path / "part-000000.parquet").write_bytes(content)
    assert finished_parts(open_folder(str(tmp_path)), "job") == set()


def test_a_part_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "part-000000.parquet").mkdir()
    with pytest.raises(BadInput, match=r"Cannot read .*part-000000\.parquet: Is a directory"):
        finished_parts(open_folder(str(tmp_path)), "job")
