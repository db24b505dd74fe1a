"""The input of a batch job: recognized by its content, read once, and read as in a single process."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import offramp
from offramp.cli.main import main
from offramp.cluster.input_files import UnchangedFiles, checksum, version
from offramp.cluster.job import finished_parts, part_metadata, start_job
from offramp.cluster.output_folder import open_folder
from offramp.cluster.parts import PartReader, split
from offramp.cluster.run import JobOptions, plan_job
from offramp.data.parquet import ParquetRows
from offramp.data.source import Source
from offramp.errors import BadInput, CannotWrite
from tests.cluster.kills import error_of
from tests.cluster.test_cluster import make_worker


def plan(folder: Path, out: Path, file: Path, **changes):
    source = Source(str(file), "csv")
    options = JobOptions([str(file)], str(out), source, {}, {}, **changes)
    return plan_job(str(folder / "model"), offramp.load(folder / "model"), options, [source])[1]


def test_a_copy_of_a_file_is_the_same_job_and_a_changed_file_is_not(folder, tmp_path):
    file, out = tmp_path / "rows.csv", open_folder(str(tmp_path / "out"))
    file.write_text("text\ngood\n")
    token = start_job(out, plan(folder, tmp_path / "out", file), False)
    file.unlink()
    file.write_text("text\ngood\n")
    os.utime(file, (1, 1))
    assert start_job(out, plan(folder, tmp_path / "out", file), False) == token
    stat = file.stat()
    file.write_text("text\nevil\n")  # the same size and date
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(CannotWrite, match="different or modified input files"):
        start_job(out, plan(folder, tmp_path / "out", file), False)
    assert checksum(str(file))[0] == len("text\nevil\n")


def test_a_copy_with_another_date_is_the_same_input_and_is_read_once(folder, tmp_path):
    """Each machine may have its own copies, at the same path."""
    file = tmp_path / "rows.csv"
    file.write_text("text\ngood\nbad\n")
    first, second = (json.dumps(vars(part)) for part in split([Source(str(file), "csv")], 1))
    worker = make_worker(folder, tmp_path, file)
    os.utime(file, (1, 1))
    assert worker({"part": [first]})["error"] == [""]
    file.write_text("text\nevil\nbad\n")  # the same size; with the date of the copy it is not read again
    os.utime(file, (1, 1))
    assert worker({"part": [second]})["error"] == [""]
    os.utime(file, (2, 2))
    assert "was modified while the job was running" in worker({"part": [second]})["error"][0]


def test_a_file_that_changes_while_it_is_split_is_an_error(tmp_path):
    """The driver has no checksum of what it split, so only an equal date is accepted."""
    file = tmp_path / "rows.csv"
    file.write_text("text\ngood\n")
    files = UnchangedFiles({str(file): version(str(file))}, {})
    files.check(str(file))
    os.utime(file, (1, 1))
    with pytest.raises(BadInput, match="was modified while the job was running"):
        files.check(str(file))


def test_the_folder_of_a_killed_job_can_be_continued_and_overwritten(folder, tmp_path):
    """Hidden files are no reason to refuse it: they are what a killed process had not completed."""
    file, path = tmp_path / "rows.csv", tmp_path / "out"
    file.write_text("text\ngood\n")
    path.mkdir()
    (path / f"._job.{'0' * 32}").write_text("{")  # killed before there was a job
    job, out = plan(folder, path, file), open_folder(str(path))
    token = start_job(out, job, False)
    (path / f".part-000001.{'a' * 32}").write_text("half")
    table = pa.table({"id": [1]}).replace_schema_metadata(part_metadata(token))
    pa.parquet.write_table(table, path / "part-000000.parquet")
    assert start_job(out, job, False) == token and finished_parts(out, token) == {0}
    assert start_job(out, job, True) != token and out.names() == ["_job.json"]
    out.remove_incomplete()
    assert [item.name for item in path.iterdir()] == ["_job.json"]


def test_a_row_group_is_decoded_once_however_many_parts_it_has(tmp_path):
    file = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.table({"text": [str(row) for row in range(10_000)]}), file, row_group_size=6000)
    source, reader, decoders = Source(str(file), "parquet"), PartReader(), set()
    for part in split([source], 500)[::2]:  # another worker reads the others
        rows = list(reader.read(source, part, ["text"]))
        assert rows == [(row + 1, {"text": str(row)}) for row in range(part.before, part.before + 500)]
        decoders.add(id(reader.parquet.batches))
    assert len(decoders) == 2  # one per row group


def test_ranges_of_rows_can_be_read_in_any_order(tmp_path):
    file, rng = tmp_path / "rows.parquet", random.Random(0)
    with pa.parquet.ParquetWriter(file, pa.schema({"text": pa.string()})) as writer:
        for size in (3, 0, 5000, 1, 1024, 0):
            writer.write_table(pa.table({"text": ["x"] * size}, schema=writer.schema), max(size, 1))
    total, reader = 6028, ParquetRows(Source(str(file), "parquet"))
    for _ in range(50):
        first, rows = rng.randrange(total), rng.randrange(3000)
        expected = list(range(first + 1, min(first + rows, total) + 1))
        assert [number for number, _ in reader.read(first, rows)] == expected
    assert len(list(reader.read())) == total


HEADER = "x,id,text,x\n"


def test_unused_columns_of_one_name_are_read_as_in_a_single_process(folder, tmp_path, capsys):
    file, out = tmp_path / "rows.csv", tmp_path / "out"
    out.mkdir()
    file.write_text(HEADER + "1,7,good film,2\n3,8,bad film,4\n")
    for column, options, ids in ((None, [], ["rows.csv:2", "rows.csv:3"]), ("id", ["--id-column", "id"], ["7", "8"])):
        single = tmp_path / "single.jsonl"
        assert main(["predict", str(folder / "model"), str(file), "-o", str(single), "--overwrite", *options]) == 0
        expected = [json.loads(line) for line in single.read_text().splitlines()]
        assert plan(folder, out, file, id_column=column).id_column == column
        worker = make_worker(folder, out, file, id_column=column)
        for part in split([Source(str(file), "csv")], 1):
            assert worker({"part": [json.dumps(vars(part))]})["error"] == [""]
        rows = pa.parquet.read_table(out, schema=worker.schema).to_pylist()
        assert [row["label"] for row in rows] == [row["label"] for row in expected]
        assert [row["id"] for row in rows] == ids
        assert [row.get("id") for row in expected] == (ids if column else [None, None])


@pytest.mark.parametrize(("header", "name"), [("text,id,text", "text"), ("text,key,key", "key")])
def test_used_columns_of_one_name_are_an_error_as_in_a_single_process(folder, tmp_path, capsys, header, name):
    file = tmp_path / "rows.csv"
    file.write_text(f"{header}\na,b,c\n")
    call = ["predict", folder / "model", file, "--output", tmp_path / "out.csv"]
    call += ["--id-column", "key"] if name == "key" else []
    message = f"has two columns named '{name}'"
    assert message in error_of(capsys, *call)
    assert message in error_of(capsys, *call, "--engine", "ray")


def test_a_link_to_nothing_is_called_that(folder, tmp_path, capsys):
    """As input and as output, in one process and on Ray."""
    link, file = tmp_path / "link", folder / "0.parquet"
    link.symlink_to("nowhere")
    message = f"{link} (a symbolic link to nowhere, which does not exist)"
    for engine in ([], ["--engine", "ray"]):
        assert message in error_of(capsys, "predict", folder / "model", link, "--output", tmp_path / "out", *engine)
    assert message in error_of(capsys, "predict", folder / "model", file, "--output", link, "--engine", "ray")
    assert link.is_symlink() and not (tmp_path / "nowhere").exists()
    with pytest.raises(BadInput, match=r"File not found: .*link .a symbolic link to nowhere"):
        offramp.evaluate(folder / "model", link)
