"""Batch jobs with input, model and output on S3: the same as on disk, against a real local S3 server."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import offramp
from offramp.cli.main import main
from offramp.cluster.input_files import checksum, common_folder, expand_patterns, name_in, version
from offramp.cluster.job import finished_parts
from offramp.cluster.output_folder import open_folder
from offramp.cluster.parts import PartReader, split
from offramp.data.reading import extract_text, read_column_names, read_texts
from offramp.data.source import Source, infer_format
from offramp.errors import BadInput, BadValue, CannotWrite
from tests.cluster.conftest import NODE, ROWS
from tests.cluster.kills import error_of, start_driver, unexpected, wait_for
from tests.cluster.test_cluster import make_worker, write_rows


def upload(s3, folder: Path, prefix: str, pattern: str = "*") -> None:
    for path in folder.rglob(pattern):
        if path.is_file():
            s3.put_file(str(path), f"{prefix}/{path.relative_to(folder)}")


def names(s3, prefix: str) -> list[str]:
    return [path.removeprefix(f"{prefix}/") for path in s3.find(prefix)]


def read_predictions(s3, prefix: str) -> dict:
    tables = [pa.parquet.read_table(s3.open(path)).to_pylist() for path in s3.glob(f"{prefix}/part-*")]
    rows = [row for table in tables for row in table]
    assert len({row["id"] for row in rows}) == len(rows), "duplicate ids"
    return {row["id"]: row for row in rows}


def test_every_row_is_predicted_once_although_a_machine_and_the_driver_are_killed(
    folder, cluster, s3, temporary, tmp_path, capfd, monkeypatch
):
    """Input, model and output on S3, on two machines without a shared disk."""
    monkeypatch.chdir(tmp_path)
    upload(s3, folder / "model", "bucket/model")
    upload(s3, folder, "bucket/rows", "?.parquet")
    call = ["predict", "s3://bucket/model", "s3://bucket/rows", "--engine", "ray", "--output", "s3://bucket/answers"]
    call += ["--chunk", "50"]
    driver = start_driver([*call, "--workers", "2"], cluster.address)

    def wait_for_more(parts: int) -> int:
        count = len(s3.glob("bucket/answers/part-*"))
        return wait_for(lambda: max(0, len(s3.glob("bucket/answers/part-*")) - count - parts + 1)) + count + parts - 1

    wait_for_more(3)
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)  # ends with SIGKILL
    finished = wait_for_more(2)
    driver.kill()
    driver.wait()
    cluster.add_node(**NODE)
    assert 0 < finished < 40
    assert main(call) == 0
    assert "of 40 parts already existed" in capfd.readouterr().out
    predictions = read_predictions(s3, "bucket/answers")
    assert sorted(predictions) == list(range(ROWS))
    texts = [row for number in range(4) for row in pa.parquet.read_table(folder / f"{number}.parquet")["text"]]
    for number, answer in enumerate(offramp.load(folder / "model").predict([str(text) for text in texts])):
        assert (predictions[number]["label"], predictions[number]["exit_layer"]) == (answer.label, answer.exit_layer)
    assert unexpected(names(s3, "bucket/answers"), 40) == []
    assert not list(temporary.glob(".offramp-model-*"))
    assert list(tmp_path.iterdir()) == []  # no folder called `s3:`


@pytest.mark.parametrize("extension", ["csv", "tsv", "txt", "jsonl", "jsonl.gz", "parquet"])
def test_parts_and_texts_are_the_same_as_on_disk(s3, tmp_path, extension):
    path = write_rows(tmp_path, extension)
    url = f"s3://bucket/formats/{path.name}"
    s3.put_file(str(path), url)
    texts = {}
    for file in (str(path), url):
        source, reader = Source(file, infer_format(file)), PartReader()
        columns = read_column_names(source)
        parts = split([source], 2)
        rows = [
            (line, extract_text(source, line, row))
            for part in parts
            for line, row in reader.read(source, part, columns)
        ]
        texts[file] = rows, list(read_texts(source)), [(part.before, part.start, part.size) for part in parts]
    assert texts[str(path)] == texts[url]


def test_files_patterns_and_folders_are_found(s3):
    for name in ("in/a.csv", "in/b.csv", "in/more/c.csv", "in/_job.json", "in/.d.csv", "in/e.md"):
        s3.pipe_file(f"bucket/{name}", b"text\ngood\n")
    assert expand_patterns(["s3://bucket/in/a.csv"]) == ["s3://bucket/in/a.csv"]
    assert expand_patterns(["s3://bucket/in/*.csv"]) == ["s3://bucket/in/a.csv", "s3://bucket/in/b.csv"]
    files = expand_patterns(["s3://bucket/in/", "s3://bucket/in/*.csv"])
    assert files == [f"s3://bucket/in/{name}.csv" for name in ("a", "b", "more/c")]
    assert [name_in(common_folder(files), file) for file in files] == ["a.csv", "b.csv", "more/c.csv"]
    assert list(read_texts(Source("s3://bucket/in", "csv"))) == ["good"] * 3
    for missing in ("s3://bucket/none.csv", "s3://bucket/none/*.csv", "s3://bucket/none"):
        with pytest.raises(BadInput, match=re.escape(f"No such file: {missing}.")):
            expand_patterns([missing])
    with pytest.raises(BadInput, match="local and some are not"):
        expand_patterns(["s3://bucket/in/a.csv", __file__])


def test_a_copied_object_is_the_same_input(s3):
    s3.pipe_file("bucket/copied/a.csv", b"text\ngood\n")
    first = checksum("s3://bucket/copied/a.csv"), version("s3://bucket/copied/a.csv")
    s3.pipe_file("bucket/copied/a.csv", b"text\ngood\n")
    assert (checksum("s3://bucket/copied/a.csv"), version("s3://bucket/copied/a.csv")) == first
    s3.pipe_file("bucket/copied/a.csv", b"text\nevil\n")
    assert checksum("s3://bucket/copied/a.csv") != first[0] and version("s3://bucket/copied/a.csv") != first[1]


def test_a_worker_of_an_overwritten_job_writes_nothing(folder, s3, tmp_path):
    file = write_rows(tmp_path, "jsonl")
    (part,) = split([Source(str(file), "jsonl")], 100)
    out = open_folder("s3://bucket/overwritten")
    assert out.names() == [] and out.read("_job.json") is None
    out.write("_job.json", b'{"token": "mine"}')
    worker = make_worker(folder, tmp_path, file, folder=str(out))
    assert worker.predict(part) == 7 and finished_parts(out, "mine") == {0}
    assert finished_parts(out, "another") == set()
    out.write("_job.json", b'{"token": "another"}')
    out.remove(["part-000000.parquet", "never-written"])
    with pytest.raises(BadInput, match="s3://bucket/overwritten was overwritten by another job"):
        worker.predict(part)
    assert out.names() == ["_job.json"]


def test_uploads_of_killed_workers_are_aborted(s3):
    for key in ("uploads/part-000000.parquet", "uploads-of-others/part-000000.parquet"):
        s3.call_s3("create_multipart_upload", Bucket="bucket", Key=key)
    open_folder("s3://bucket/uploads").remove_incomplete()
    uploads = s3.call_s3("list_multipart_uploads", Bucket="bucket")["Uploads"]
    assert [upload["Key"] for upload in uploads] == ["uploads-of-others/part-000000.parquet"]


def test_a_folder_with_other_objects_is_not_overwritten(folder, s3, capsys):
    s3.pipe_file("bucket/mine/thesis.txt", b"mine")
    call = ["predict", folder / "model", folder / "0.parquet", "--engine", "ray", "--output", "s3://bucket/mine"]
    assert "contains other files than a job's predictions" in error_of(capsys, *call, "--overwrite")
    assert names(s3, "bucket/mine") == ["thesis.txt"]
    call[-1] = "s3://no-such-bucket/out"
    assert "Not found: s3://no-such-bucket/out" in error_of(capsys, *call)


def test_one_process_reads_s3_and_refuses_to_write_it(folder, s3, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    s3.pipe_file("bucket/one/in.csv", b"id,text\n1,good film\n2,bad film\n")
    assert main(["predict", str(folder / "model"), "s3://bucket/one/in.csv", "--output", "here.csv"]) == 0
    assert [line.split(",")[0] for line in Path("here.csv").read_text().split()] == ["id", "1", "2"]
    Path("here.csv").unlink()
    texts = "s3://bucket/one/in.csv"
    refused = "only `predict --engine ray` writes to object storage"
    model, labelled = folder / "model", folder / "0.parquet"
    assert refused in error_of(capsys, "predict", model, texts, "--output", "s3://bucket/one/out.csv")
    assert refused in error_of(capsys, "adapt", model, labelled, "--output", "s3://bucket/adapted")
    assert refused in error_of(capsys, "train", model, "--output", "s3://bucket/t", "--train-file", labelled)
    assert refused in error_of(capsys, "evaluate", model, "--file", labelled, "--output", "s3://bucket/evaluated")
    assert refused in error_of(capsys, "convert", model, "--output", "s3://bucket/converted")
    assert "only `predict --engine ray` loads models" in error_of(capsys, "predict", "s3://bucket/model", texts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    ["info {}", "adapt {} {rows} -o out", "export {}", "benchmark {} --file {rows}", "convert {} -o out", "serve {}"],
)
def test_commands_that_need_a_local_model_say_so(folder, tmp_path, capsys, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    arguments = call.format("s3://bucket/model", rows=folder / "0.parquet").split()
    message = "Cannot load s3://bucket/model: only predict --engine ray loads models from object storage"
    assert message in error_of(capsys, *arguments).replace("`", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("url", "package"), [("gs://bucket/x.csv", "gcsfs"), ("abfs://bucket/x.csv", "adlfs")])
def test_a_missing_package_is_named(folder, capsys, url, package):
    with pytest.raises(BadValue, match=f"needs the package {package}: pip install {package}"):
        expand_patterns([url])
    line = error_of(capsys, "predict", folder / "model", folder / "0.parquet", "--engine", "ray", "--output", url)
    assert f"pip install {package}" in line
    with pytest.raises(BadValue, match=r"Unsupported URL ftp://host/x: use a local path, s3://"):
        open_folder("ftp://host/x")


def test_an_object_that_cannot_be_written_is_one_line(s3):
    with pytest.raises(CannotWrite, match=r"s3://no-such-bucket/out/part-000000\.parquet"):
        open_folder("s3://no-such-bucket/out").write("part-000000.parquet", b"")
