"""`offramp predict --engine ray` on a real local cluster: no row is lost when a worker and a driver are killed."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import offramp
from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.cluster.input_files import checksum, version
from offramp.cluster.job import start_job
from offramp.cluster.output_folder import open_folder
from offramp.cluster.parts import PartReader, split
from offramp.cluster.run import JobOptions, plan_job
from offramp.cluster.worker import Worker, WorkerSettings
from offramp.data.reading import extract_text, read_column_names
from offramp.data.source import Source, infer_format
from offramp.errors import BadInput
from offramp.files.error_lines import first_line, last_line
from tests.calls import fails
from tests.cluster.conftest import LABELS, ROWS
from tests.cluster.kills import error_of, kill_workers, start_driver, unexpected, wait_for
from tests.taggers import LONG, tagger


def read_predictions(out: Path) -> dict:
    table = pa.dataset.dataset(out).to_table().to_pylist()
    assert len({row["id"] for row in table}) == len(table), "duplicate ids"
    return {row["id"]: row for row in table}


def test_every_row_is_predicted_once_although_a_worker_and_the_driver_are_killed(
    folder, cluster, temporary, capfd, monkeypatch
):
    monkeypatch.chdir(folder)
    out = folder / "answers"
    call = ["predict", "model", "*.parquet", "--engine", "ray", "--output", "answers", "--chunk", "50"]
    driver = start_driver([*call, "--workers", "1"], cluster.address)
    wait_for(lambda: list(out.glob("part-*")))
    killed = kill_workers(temporary)
    count = len(list(out.glob("part-*")))
    wait_for(lambda: len(list(out.glob("part-*"))) > count)  # another worker has continued
    driver.kill()
    driver.wait()
    finished = len(list(out.glob("part-*")))
    assert killed and 0 < finished < 40
    assert main(call) == 0
    printed = capfd.readouterr().out
    rows, parts, skipped = map(
        int, re.search(r": (\d+) rows in (\d+) parts; (\d+) of 40 ", printed.replace(",", "")).groups()
    )
    assert rows == 50 * parts and parts + skipped == 40
    assert skipped >= finished  # the killed driver's worker may still finish its part
    expected = list(offramp.load("model").predict([row["text"] for row in _rows(folder)]))
    predictions = read_predictions(out)
    assert sorted(predictions) == list(range(ROWS))
    for number, answer in enumerate(expected):
        row = predictions[number]
        assert (row["label"], row["exit_layer"]) == (answer.label, answer.exit_layer)
        assert row["score"] == pytest.approx(answer.score, abs=2e-6)
    assert not unexpected([path.name for path in out.iterdir()], 40)
    assert not list(temporary.glob(".offramp-model-*"))
    for number in range(4):  # the same bytes, copied later
        os.utime(folder / f"{number}.parquet")
    stamps = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main(call) == 0  # a finished job is not changed
    assert "0 rows in 0 parts; 40 of 40 parts" in capfd.readouterr().out
    assert stamps == {file.name: file.stat().st_mtime_ns for file in out.iterdir()}


def test_a_job_that_fails_leaves_nothing_hidden(folder, cluster, temporary, tmp_path, capfd):
    """One row without a text ends the job while another worker is busy or still loads the model."""
    texts = [row["text"] for row in _rows(folder)]
    texts[900] = None
    pa.parquet.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet")
    call = ["predict", folder / "model", tmp_path / "rows.parquet", "--engine", "ray", "--output", tmp_path / "out"]
    assert "rows.parquet, line 901: field 'text' is None" in error_of(capfd, *call, "--chunk", 100)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "_job.json" in names and all(re.fullmatch(r"_job\.json|part-0000\d\d\.parquet", name) for name in names)
    assert not list(temporary.glob(".offramp-model-*"))


def _rows(folder: Path) -> list[dict]:
    return [row for number in range(4) for row in pa.parquet.read_table(folder / f"{number}.parquet").to_pylist()]


TEXTS = ["good film", 'a "very" dull, long\nplot', "not good", "", "bad", "lovely\r\nfilm", "ünïcode"]


def flat(text: str) -> str:
    return text.replace("\n", " ").replace("\r", "")


def write_rows(root: Path, extension: str) -> Path:
    """Write the same rows in any format."""
    file = root / f"rows.{extension}"
    if extension.endswith("csv"):
        with file.open("w", newline="", encoding="utf-8") as out:
            table = csv.writer(out)
            table.writerow(["key", "text"])
            table.writerows([[f"k{index}", text] for index, text in enumerate(TEXTS)])
    elif extension == "tsv":
        lines = [f"k{index}\t{flat(text)}\n" for index, text in enumerate(TEXTS)]
        file.write_text("key\ttext\n" + "".join(lines), "utf-8")
    elif extension == "txt":
        file.write_text("".join(flat(text) + "\n" for text in TEXTS), "utf-8")
    elif extension == "parquet":
        table = pa.table({"key": [f"k{index}" for index in range(len(TEXTS))], "text": TEXTS})
        pa.parquet.write_table(table, file, row_group_size=3)
    else:
        lines = "\n\n".join(json.dumps({"key": f"k{index}", "text": text}) for index, text in enumerate(TEXTS))
        file.write_bytes(gzip.compress(lines.encode()) if extension.endswith("gz") else lines.encode())
    return file


@pytest.mark.parametrize("extension", ["csv", "tsv", "txt", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_the_parts_contain_the_whole_file(tmp_path, extension, rows):
    """However a file is split: its texts, in order, with their line numbers."""
    file = str(write_rows(tmp_path, extension))
    source = Source(file, infer_format(file))
    parts, reader = split([source], rows), PartReader()
    texts = [
        (line, extract_text(source, line, row))
        for part in parts
        for line, row in reader.read(source, part, read_column_names(source))
    ]
    expected = [text if extension in ("csv", "jsonl", "jsonl.gz", "parquet") else flat(text) for text in TEXTS]
    lines = {
        "csv": [2, 3, 5, 6, 7, 8, 10],
        "tsv": range(2, 9),
        "jsonl": range(1, 14, 2),
        "jsonl.gz": range(1, 14, 2),
    }
    assert [text for _, text in texts] == expected
    assert [line for line, _ in texts] == list(lines.get(extension, range(1, 8)))
    assert len(parts) >= (1 if extension.endswith("gz") else len(TEXTS) // rows)


def make_worker(folder: Path, out: Path, file: Path, /, **changes) -> Worker:
    runner = offramp.load(folder / "model")
    settings = {
        "model": str(folder / "model"),
        "fingerprint": runner.fingerprint,
        "machine": {},
        "options": {"chunk": 3},
        "source": Source("", infer_format(str(file))),
        "folder": str(out),
        "root": str(file.parent),
        "id_column": None,
        "id_is_number": False,
        "all_scores": False,
        "versions": {str(file): version(str(file))},
        "checksums": {str(file): checksum(str(file))},
        "token": "mine",
    }
    (out / "_job.json").write_text('{"token": "mine"}')
    return Worker(WorkerSettings(**(settings | changes)))


def test_a_worker_writes_a_part_and_returns_errors(folder, tmp_path):
    file = write_rows(tmp_path, "jsonl")
    (part,) = split([Source(str(file), "jsonl")], 100)
    worker = make_worker(folder, tmp_path, file, all_scores=True)
    assert worker.predict(part) == 7
    rows = pa.parquet.read_table(tmp_path / "part-000000.parquet").to_pylist()
    assert [row["id"] for row in rows] == [f"rows.jsonl:{line}" for line in range(1, 14, 2)]
    assert sum(rows[0][f"score_{label}"] for label in LABELS) == pytest.approx(1, abs=1e-5)
    file.write_text('{"text": "good"}\n{"text": 5}\n')
    (part,) = split([Source(str(file), "jsonl")], 100)
    worker = make_worker(folder, tmp_path, file)
    results = worker({"part": [json.dumps(vars(part))]})
    assert results["rows"] == [0] and "line 2: field 'text' is 5" in results["error"][0]
    assert not list(tmp_path.glob(".part*"))
    with pytest.raises(BadInput, match="field 'key' is missing"):
        make_worker(folder, tmp_path, file, id_column="key").predict(part)
    assert "differs between this machine" in make_worker(folder, tmp_path, file, fingerprint="other").error
    (part,) = split([Source(str(write_rows(tmp_path, "jsonl.gz")), "jsonl")], 2)  # gzip: neither start nor size
    gzip_worker = make_worker(folder, tmp_path, tmp_path / "rows.jsonl.gz")
    assert gzip_worker({"part": [json.dumps(vars(part))]}) == {"part": [0], "rows": [7], "error": [""]}
    (tmp_path / "_job.json").write_text('{"token": "another job"}')
    assert "overwritten by another job" in gzip_worker({"part": [json.dumps(vars(part))]})["error"][0]
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "other"}'))
    assert "was modified while the job was running" in gzip_worker({"part": [json.dumps(vars(part))]})["error"][0]


def test_a_worker_writes_entities_as_json(tmp_path):
    tagger(tmp_path / "tagger").save_pretrained(tmp_path / "model")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in (LONG, "a lovely film", "")))
    (part,) = split([Source(str(file), "jsonl")], 100)
    assert make_worker(tmp_path, tmp_path, file).predict(part) == 3
    rows = pa.parquet.read_table(tmp_path / "part-000000.parquet").to_pylist()
    expected = [answer.to_dict() for answer in offramp.load(tmp_path / "model").predict([LONG, "a lovely film", ""])]
    assert [json.loads(row["entities"]) for row in rows] == [answer["entities"] for answer in expected]
    assert rows[0]["entities"] != "[]" and rows[2]["entities"] == "[]"


def test_any_error_of_a_worker_that_starts_is_returned(folder, tmp_path):
    """Ray would start the worker again and again if it were raised."""
    file = write_rows(tmp_path, "jsonl")
    (part,) = split([Source(str(file), "jsonl")], 100)
    worker = make_worker(folder, tmp_path, file, machine={"threads": "2"})
    (error,) = worker({"part": [json.dumps(vars(part))]})["error"]
    assert re.fullmatch(r"A worker on \S+ cannot start \(TypeError: .*\)\.", error)


def test_errors_are_one_line(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = ["predict", folder / "model"]
    pattern = str(folder / "*.parquet")
    ray = ["--engine", "ray", "--output", "out"]
    assert "No such file: nothing/*.csv" in fails(capsys, *call, "nothing/*.csv", *ray)
    assert "different formats (jsonl, parquet)" in fails(capsys, *call, folder, *ray)
    (folder / "empty").mkdir(exist_ok=True)
    assert "The folder contains no data files." in fails(capsys, *call, folder / "empty", *ray)
    assert "set --output to a folder" in fails(capsys, *call, pattern, "--engine", "ray")
    assert "--workers needs --engine ray" in fails(capsys, *call, pattern, "--workers", 2)
    assert "use --engine ray" in fails(capsys, *call, "a.txt", "b.txt")
    assert "remove --format" in fails(capsys, *call, pattern, *ray, "--format", "tsv")
    assert "Unknown column 'textt'" in fails(capsys, *call, pattern, *ray, "--text-column", "textt")
    assert "Unknown column 'idd'" in fails(capsys, *call, pattern, *ray, "--id-column", "idd")
    assert "workers must be at least 1" in fails(capsys, *call, pattern, *ray, "--workers", 0)
    assert "chunk must be at least 1" in fails(capsys, *call, pattern, *ray, "--chunk", 0)
    assert "not standard input" in fails(capsys, *call, "-", *ray)
    assert not Path("out").exists()
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    assert "other files than a job's predictions" in fails(capsys, *call, pattern, *ray)
    assert "other files than a job's predictions" in fails(capsys, *call, pattern, *ray, "--overwrite")
    assert Path("out/mine.txt").read_text() == "mine"
    Path("out/mine.txt").rename("out/part-000000.parquet")  # the name of a part, but not of a job
    assert "other files than a job's predictions" in fails(capsys, *call, pattern, *ray, "--overwrite")
    assert Path("out/part-000000.parquet").read_text() == "mine"
    assert "in the output folder" in fails(capsys, *call, "out/*.parquet", *ray)


def test_an_error_of_ray_without_a_message_is_named(folder, tmp_path, capsys, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is not installed")

    def fail(*arguments, **options):
        raise ConnectionError

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    call = ["predict", folder / "model", folder / "0.parquet", "--engine", "ray", "--output", tmp_path / "out"]
    assert "Cannot start Ray here: ConnectionError." in fails(capsys, *call)


@pytest.mark.parametrize(
    ("message", "first", "last"),
    [("", "ValueError", "ValueError"), ("\n", "ValueError", "ValueError"), ("one.\n two.\n", "one", "two")],
)
def test_one_line_of_any_message(message, first, last):
    assert (first_line(ValueError(message)), last_line(ValueError(message))) == (first, last)


def test_without_ray_the_error_names_the_pip_command(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = fails(
        capsys, "predict", folder / "model", folder / "0.parquet", "--engine", "ray", "--output", tmp_path / "o"
    )
    assert "needs ray: pip install '.[ray]'" in line and not (tmp_path / "o").exists()


def test_the_folder_of_a_different_job_is_an_error(folder, tmp_path, capsys):
    """A job cannot be resumed with a different model, policy or input."""
    file = write_rows(tmp_path, "csv")
    out = tmp_path / "out"
    out.mkdir()
    runner = offramp.load(folder / "model")
    source = Source(str(file), "csv")
    options = JobOptions([str(file)], str(out), source, {}, {}, rows=3)
    _, job = plan_job(str(folder / "model"), runner, options, [source])
    start_job(open_folder(str(out)), job, False)
    call = ["predict", folder / "model", file, "--engine", "ray", "--output", out]
    assert "different --chunk" in fails(capsys, *call)
    assert "different policy" in fails(capsys, *call, "--chunk", 3, "--policy", "never")
    assert "different id column" in fails(capsys, *call, "--chunk", 3, "--id-column", "key")
    other = AdaptiveModel.from_pretrained(folder / "model")
    next(other.parameters()).data += 1
    other.save_pretrained(tmp_path / "other")
    assert "different model" in fails(capsys, "predict", tmp_path / "other", *call[2:], "--chunk", 3)
    file.write_text(file.read_text() + "k9,more\n")
    assert "modified input files" in fails(capsys, *call, "--chunk", 3)


def test_partial_files_of_killed_processes_are_removed(tmp_path):
    leftovers = [tmp_path / f".part-000003.{'0a' * 16}", tmp_path / f"._job.{'b1' * 16}"]
    other = tmp_path / ".part-of-something-else"
    for path in (*leftovers, other):
        path.touch()
    open_folder(str(tmp_path)).remove_incomplete()
    assert list(tmp_path.iterdir()) == [other]
