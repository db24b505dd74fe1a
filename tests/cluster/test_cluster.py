"""`offramp predict --engine ray`: a real cluster on this machine; a worker and a driver are killed, nothing is lost."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import offramp
from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.cluster.job import begin
from offramp.cluster.parts import read_part, split
from offramp.cluster.run import JobOptions, plan
from offramp.cluster.worker import Work, Worker
from offramp.data.reading import columns_of, text_of
from offramp.data.source import Source, format_of
from offramp.errors import BadInput
from tests.calls import fails
from tests.tiny import WORDS, adaptive

LABELS = ["bad", "good", "so so"]
ROWS = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cluster")
    model = adaptive("bert", root / "encoder", labels=LABELS)
    model.config.policy = {"name": "entropy", "threshold": 1.05}
    model.save_pretrained(root / "model")
    drawn = random.Random(0)
    texts = [" ".join(drawn.choice(WORDS) for _ in range(drawn.randint(1, 12))) for _ in range(ROWS)]
    for number in range(4):
        some = slice(number * 500, number * 500 + 500)
        table = pa.table({"id": list(range(ROWS))[some], "text": texts[some], "more": ["x"] * 500})
        pa.parquet.write_table(table, root / f"{number}.parquet", row_group_size=120)
    return root


@pytest.fixture(scope="module")
def cluster():
    """A node of its own, two cores; its address."""
    pytest.importorskip("ray", reason="ray is not installed (pip install '.[ray]')")
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    os.environ |= settings | {"RAY_worker_niceness": "0"}  # 15 as it comes: beside other tests it would hardly run
    import ray

    about = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield about["gcs_address"] if "gcs_address" in about else about.address_info["gcs_address"]
    ray.shutdown()


def workers() -> list[int]:
    """The processes that hold a model."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            line = (place / "cmdline").read_bytes() if place.name.isdigit() else b""
        except OSError:
            continue
        if line.startswith(b"ray::MapWorker"):
            found.append(int(place.name))
    return found


def wait_for(found, seconds: float = 120):
    """Until there is something."""
    end = time.monotonic() + seconds
    while not (there := found()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return there


def answers(out: Path) -> dict:
    table = pa.dataset.dataset(out).to_table().to_pylist()
    assert len({row["id"] for row in table}) == len(table), "an id twice"
    return {row["id"]: row for row in table}


def test_a_worker_and_the_driver_are_killed_and_every_row_is_answered_once(folder, cluster, capfd, monkeypatch):
    monkeypatch.chdir(folder)
    out = folder / "answers"
    call = ["predict", "model", "*.parquet", "--engine", "ray", "--output", "answers", "--chunk", "50"]
    driver = subprocess.Popen([sys.executable, "-m", "offramp", *call, "--workers", "1", "--address", cluster])
    wait_for(lambda: list(out.glob("part-*")))
    before = workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    after = len(list(out.glob("part-*")))
    wait_for(lambda: len(list(out.glob("part-*"))) > after)  # another worker went on by itself
    driver.kill()
    driver.wait()
    there = len(list(out.glob("part-*")))
    assert before and 0 < there < 40
    assert main(call) == 0
    told = capfd.readouterr().out
    rows, parts, left = map(
        int, re.search(r": (\d+) rows answered in (\d+) parts; (\d+) of 40 ", told.replace(",", "")).groups()
    )
    assert rows == 50 * parts and parts + left == 40 and left >= there  # the killed driver's worker may end its part
    expected = list(offramp.load("model").predict([row["text"] for row in _rows(folder)]))
    found = answers(out)
    assert sorted(found) == list(range(ROWS))
    for number, answer in enumerate(expected):
        row = found[number]
        assert (row["label"], row["exit_layer"]) == (answer.label, answer.exit_layer)
        assert row["score"] == pytest.approx(answer.score, abs=2e-6)
    stamps = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main(call) == 0  # a finished job is left as it is
    assert "0 rows answered in 0 parts; 40 of 40 parts" in capfd.readouterr().out
    assert stamps == {file.name: file.stat().st_mtime_ns for file in out.iterdir()}


def _rows(folder: Path) -> list[dict]:
    return [row for number in range(4) for row in pa.parquet.read_table(folder / f"{number}.parquet").to_pylist()]


TEXTS = ["good film", 'a "very" dull, long\nplot', "not good", "", "bad", "lovely\r\nfilm", "ünïcode"]


def flat(text: str) -> str:
    return text.replace("\n", " ").replace("\r", "")


def written(root: Path, kind: str) -> Path:
    """The same rows in every format."""
    file = root / f"rows.{kind}"
    if kind.endswith("csv"):
        with file.open("w", newline="", encoding="utf-8") as out:
            table = csv.writer(out)
            table.writerow(["key", "text"])
            table.writerows([[f"k{place}", text] for place, text in enumerate(TEXTS)])
    elif kind == "tsv":
        lines = [f"k{place}\t{flat(text)}\n" for place, text in enumerate(TEXTS)]
        file.write_text("key\ttext\n" + "".join(lines), "utf-8")
    elif kind == "txt":
        file.write_text("".join(flat(text) + "\n" for text in TEXTS), "utf-8")
    elif kind == "parquet":
        table = pa.table({"key": [f"k{place}" for place in range(len(TEXTS))], "text": TEXTS})
        pa.parquet.write_table(table, file, row_group_size=3)
    else:
        lines = "\n\n".join(json.dumps({"key": f"k{place}", "text": text}) for place, text in enumerate(TEXTS))
        file.write_bytes(gzip.compress(lines.encode()) if kind.endswith("gz") else lines.encode())
    return file


@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_parts_are_the_file(tmp_path, kind, rows):
    """However a file is cut: its texts, in order, with the lines that they are on."""
    file = str(written(tmp_path, kind))
    source = Source(file, format_of(file))
    parts = split([source], rows)
    found = [
        (line, text_of(source, line, row))
        for part in parts
        for line, row in read_part(source, part, columns_of(source))
    ]
    expected = [
        text if kind in ("csv", "jsonl", "jsonl.gz", "parquet") else text.replace("\n", " ").replace("\r", "")
        for text in TEXTS
    ]
    lines = {
        "csv": [2, 3, 5, 6, 7, 8, 10],
        "tsv": range(2, 9),
        "jsonl": range(1, 14, 2),
        "jsonl.gz": range(1, 14, 2),
    }
    assert [text for _, text in found] == expected
    assert [line for line, _ in found] == list(lines.get(kind, range(1, 8)))
    assert len(parts) >= (1 if kind.endswith("gz") else len(TEXTS) // rows)


def worker(folder: Path, out: Path, file: Path, **changes) -> Worker:
    runner = offramp.load(folder / "model")
    work = {
        "model": str(folder / "model"),
        "fingerprint": runner.fingerprint,
        "machine": {},
        "options": {"chunk": 3},
        "source": Source("", format_of(str(file))),
        "folder": str(out),
        "root": str(file.parent),
        "id_column": None,
        "id_is_number": False,
        "all_scores": False,
        "stamps": {str(file): (file.stat().st_size, file.stat().st_mtime_ns)},
        "token": "mine",
    }
    (out / "_job.json").write_text('{"token": "mine"}')
    return Worker(Work(**(work | changes)))


def test_a_worker_writes_a_part_and_tells_the_users_mistakes(folder, tmp_path):
    file = written(tmp_path, "jsonl")
    (part,) = split([Source(str(file), "jsonl")], 100)
    one = worker(folder, tmp_path, file, all_scores=True)
    assert one.answer(part) == 7
    rows = pa.parquet.read_table(tmp_path / "part-000000.parquet").to_pylist()
    assert [row["id"] for row in rows] == [f"rows.jsonl:{line}" for line in range(1, 14, 2)]
    assert sum(rows[0][f"score_{label}"] for label in LABELS) == pytest.approx(1, abs=1e-5)
    file.write_text('{"text": "good"}\n{"text": 5}\n')
    (part,) = split([Source(str(file), "jsonl")], 100)
    one = worker(folder, tmp_path, file)
    told = one({"part": [json.dumps(vars(part))]})
    assert told["rows"] == [0] and "line 2: field 'text' holds 5" in told["error"][0]
    assert not list(tmp_path.glob(".part*"))
    with pytest.raises(BadInput, match="there is no key"):
        worker(folder, tmp_path, file, id_column="key").answer(part)
    assert "another model on this machine" in worker(folder, tmp_path, file, fingerprint="other").fault
    (part,) = split([Source(str(written(tmp_path, "jsonl.gz")), "jsonl")], 2)  # packed: neither start nor size
    packed = worker(folder, tmp_path, tmp_path / "rows.jsonl.gz")
    assert packed({"part": [json.dumps(vars(part))]}) == {"part": [0], "rows": [7], "error": [""]}
    (tmp_path / "_job.json").write_text('{"token": "another job"}')
    assert "belongs to another job by now" in packed({"part": [json.dumps(vars(part))]})["error"][0]
    written(tmp_path, "jsonl.gz").touch()
    assert "was changed while the job ran" in packed({"part": [json.dumps(vars(part))]})["error"][0]


def test_mistakes_are_one_line(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = ["predict", folder / "model"]
    there = str(folder / "*.parquet")
    ray = ["--engine", "ray", "--output", "out"]
    assert "no file nothing/*.csv" in fails(capsys, *call, "nothing/*.csv", *ray)
    assert "It is a folder" in fails(capsys, *call, folder, *ray)
    assert "name it with --output" in fails(capsys, *call, there, "--engine", "ray")
    assert "go with --engine ray" in fails(capsys, *call, there, "--workers", 2)
    assert "with --engine ray" in fails(capsys, *call, "a.txt", "b.txt")
    assert "leave --format out" in fails(capsys, *call, there, *ray, "--format", "tsv")
    assert "No column is called 'textt'" in fails(capsys, *call, there, *ray, "--text-column", "textt")
    assert "No column is called 'idd'" in fails(capsys, *call, there, *ray, "--id-column", "idd")
    assert "workers is 0" in fails(capsys, *call, there, *ray, "--workers", 0)
    assert "chunk is 0" in fails(capsys, *call, there, *ray, "--chunk", 0)
    assert "not standard input" in fails(capsys, *call, "-", *ray)
    assert not Path("out").exists()
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    assert "something else than a job's answers" in fails(capsys, *call, there, *ray)
    assert "something else than a job's answers" in fails(capsys, *call, there, *ray, "--overwrite")
    assert Path("out/mine.txt").read_text() == "mine"
    Path("out/mine.txt").rename("out/part-000000.parquet")  # named as ours are, but it is no job's
    assert "something else than a job's answers" in fails(capsys, *call, there, *ray, "--overwrite")
    assert Path("out/part-000000.parquet").read_text() == "mine"
    assert "where the answers go" in fails(capsys, *call, "out/*.parquet", *ray)


def test_without_ray_the_pip_line_is_told(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    told = fails(
        capsys, "predict", folder / "model", folder / "0.parquet", "--engine", "ray", "--output", tmp_path / "o"
    )
    assert "needs ray: pip install '.[ray]'" in told and not (tmp_path / "o").exists()


def test_another_jobs_folder_is_refused(folder, tmp_path, capsys):
    """What began with one model, policy or input does not go on with another."""
    file = written(tmp_path, "csv")
    out = tmp_path / "out"
    out.mkdir()
    runner = offramp.load(folder / "model")
    source = Source(str(file), "csv")
    options = JobOptions([str(file)], out, source, {}, {}, rows=3)
    _, job = plan(str(folder / "model"), runner, options, [source])
    begin(out, job, False)
    call = ["predict", folder / "model", file, "--engine", "ray", "--output", out]
    assert "another --chunk" in fails(capsys, *call)
    assert "another policy" in fails(capsys, *call, "--chunk", 3, "--policy", "never")
    assert "another id column" in fails(capsys, *call, "--chunk", 3, "--id-column", "key")
    other = AdaptiveModel.from_pretrained(folder / "model")
    next(other.parameters()).data += 1
    other.save_pretrained(tmp_path / "other")
    assert "another model" in fails(capsys, "predict", tmp_path / "other", *call[2:], "--chunk", 3)
    file.write_text(file.read_text() + "k9,more\n")
    assert "or they were changed" in fails(capsys, *call, "--chunk", 3)
