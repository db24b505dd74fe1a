"""Files that `offramp predict` writes: the format is what the extension says, with ids and texts beside predictions."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import threading

import pandas as pd
import pyarrow.parquet as pq
import pytest

import offramp
from offramp.cli.main import main
from tests.calls import fails, json_lines
from tests.tiny import adaptive

REVIEWS = 'number,text\nr7,good film\nr9,"bad, dull ""plot"""\nr8,a long film\n'


@pytest.fixture
def reviews(tmp_path):
    file = tmp_path / "reviews.csv"
    file.write_text(REVIEWS)
    return file


def predicts(model, file, output, *options) -> None:
    assert main(["predict", str(model), str(file), "--output", str(output), *options]) == 0


def read(file) -> list[dict]:
    """Read a file of predictions with another library than the one that wrote it."""
    name = file.name.removesuffix(".gz")
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if name.endswith(".parquet"):
        return pd.read_parquet(io.BytesIO(content)).to_dict("records")
    if name.endswith((".jsonl", ".ndjson")):
        return pd.read_json(io.BytesIO(content), lines=True).to_dict("records")
    options = {"sep": "\t", "quoting": csv.QUOTE_NONE} if name.endswith(".tsv") else {}
    return pd.read_csv(io.BytesIO(content), **options).to_dict("records")


@pytest.mark.parametrize("ending", [".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.gz", ".tsv.gz"])
def test_the_extension_sets_the_format(ending, model, reviews, tmp_path, capsys):
    expected = json_lines(capsys, "predict", model, reviews)
    output = tmp_path / f"answers{ending}"
    predicts(model, reviews, output, "--id-column", "number", "--with-text")
    rows = read(output)
    assert [row["id"] for row in rows] == ["r7", "r9", "r8"]
    text = 'bad, dull "plot"'
    assert [row["text"] for row in rows] == ["good film", text, "a long film"]
    assert [row["label"] for row in rows] == [row["label"] for row in expected]
    assert [row["exit_layer"] for row in rows] == [row["exit_layer"] for row in expected]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected], abs=1e-6)
    assert capsys.readouterr().out == f"Wrote {output}: 3 rows.\n"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("answers.txt", [], "unknown extension .txt. Use .jsonl, .csv, .tsv or .parquet"),
        ("answers.json", [], "unknown extension .json"),
        ("answers.xlsx", [], "unknown extension .xlsx"),
        ("answers.csv", ["--format", "jsonl"], "the extension stands for csv, but --format is jsonl"),
        ("answers.parquet.gz", [], "Parquet files are compressed already"),
        ("-", ["--format", "parquet"], "Parquet is written to files only"),
    ],
)
def test_other_extensions_are_refused(name, options, message, model, reviews, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "predict", model, reviews, "--output", name, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["reviews.csv"]


def test_a_name_without_extension_is_json_lines_and_a_format_may_be_set(model, reviews, tmp_path):
    predicts(model, reviews, tmp_path / "answers")
    assert len([json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]) == 3
    predicts(model, reviews, tmp_path / "answers.out", "--format", "csv")
    assert (tmp_path / "answers.out").read_text().startswith("label,score,exit_layer\n")


def test_a_column_id_is_written_without_an_option(model, tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 41, "text": "good film"}\n{"id": 42, "text": "bad"}\n')
    assert [row["id"] for row in json_lines(capsys, "predict", model, file)] == [41, 42]
    predicts(model, file, tmp_path / "out.parquet", "--all-scores")
    table = pq.read_table(tmp_path / "out.parquet")
    assert [str(table.schema.field(name).type) for name in ("id", "label", "score", "score_no")] == [
        "int64",
        "string",
        "double",
        "double",
    ]
    assert table.column("id").to_pylist() == [41, 42]
    capsys.readouterr()
    file.write_text('{"id": 41, "text": "good film"}\n{"id": "x", "text": "bad"}\n')
    assert "ids must all be integers" in fails(capsys, "predict", model, file, "-o", tmp_path / "mixed.parquet")
    assert not (tmp_path / "mixed.parquet").exists()


def test_ids_from_standard_input_and_of_chunks(model, tmp_path, capsys, monkeypatch):
    rows = "".join(json.dumps({"key": number, "text": "good film " * (number % 5 + 1)}) + "\n" for number in range(9))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    options = ["--input-format", "jsonl", "--id-column", "key", "--with-text", "--chunk", "2"]
    predictions = json_lines(capsys, "predict", model, "-", *options)
    assert [row["id"] for row in predictions] == list(range(9))
    assert all(row["text"] == "good film " * (row["id"] % 5 + 1) for row in predictions)


def test_a_wrong_id_column_is_reported(model, reviews, texts, tmp_path, capsys):
    assert "Unknown column 'nmber'. Did you mean 'number'?" in fails(
        capsys, "predict", model, reviews, "--id-column", "nmber"
    )
    assert "plain text, which has no columns; remove --id-column" in fails(
        capsys, "predict", model, texts, "--id-column", "id"
    )
    with pytest.raises(offramp.OfframpError, match="`with_text=` needs `output=`"):
        offramp.predict(model, ["good film"], with_text=True)
    with pytest.raises(offramp.OfframpError, match="not for a list of texts"):
        offramp.predict(model, ["good film"], id_column="id", output=tmp_path / "x.csv")


def test_the_text_of_single_texts_has_one_column(model, tmp_path):
    """A model may not record whether it reads pairs; the file shows it."""
    (tmp_path / "a.txt").write_text("good film\n\n")
    assert main(["predict", model, str(tmp_path / "a.txt"), "--with-text", "-o", str(tmp_path / "o.csv")]) == 0
    assert [*read(tmp_path / "o.csv")[0]] == ["text", "label", "score", "exit_layer"]
    (tmp_path / "b.csv").write_text("text,pair\ngood,bad film\n")
    assert main(["predict", model, str(tmp_path / "b.csv"), "--with-text", "-o", str(tmp_path / "p.csv")]) == 0
    assert {"text": "good", "pair": "bad film"}.items() <= read(tmp_path / "p.csv")[0].items()


def test_the_text_of_a_list_of_words_is_the_words_joined(tmp_path):
    adaptive("bert", tmp_path / "encoder", labels=["O", "B-X"], problem_type="token_classification").save_pretrained(
        tmp_path / "model"
    )
    (tmp_path / "a.conll").write_text("good O\nbad B-X\nfilm O\n\n")
    offramp.predict(tmp_path / "model", str(tmp_path / "a.conll"), output=tmp_path / "o.jsonl", with_text=True)
    (row,) = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert row["text"] == "good bad film" and "pair" not in row


def test_both_texts_of_a_pair_are_written(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", num_labels=2)
    model.config.inputs = ["question", "answer"]
    model.save_pretrained(tmp_path / "model")
    table = pd.DataFrame({"question": ["good"], "answer": ["bad film"], "number": ["a1"]})
    offramp.predict(tmp_path / "model", table, output=tmp_path / "o.csv", id_column="number", with_text=True)
    assert read(tmp_path / "o.csv")[0] | {"label": 0, "score": 0} == {
        "id": "a1",
        "text": "good",
        "pair": "bad film",
        "label": 0,
        "score": 0,
        "exit_layer": 4,
    }


def test_ids_of_every_type_are_written_unchanged(model, tmp_path):
    times = pd.to_datetime(["2026-01-02 03:04:05", "2026-01-03 00:00:00"])
    table = pd.DataFrame({"text": ["good", "bad"], "time": times, "number": [1.5, 0.12345678], "name": ["a  b", "c"]})
    table.to_parquet(tmp_path / "in.parquet")
    for column, expected in (
        ("time", ["2026-01-02 03:04:05", "2026-01-03 00:00:00"]),
        ("number", ["1.5", "0.12345678"]),
        ("name", ["a  b", "c"]),
    ):
        for ending in ("jsonl", "csv", "tsv", "parquet"):
            output = tmp_path / f"{column}.{ending}"
            predicts(model, tmp_path / "in.parquet", output, "--id-column", column)
            assert [str(row["id"]) for row in read(output)] == expected, output.name


def test_a_missing_id_is_empty_unless_ids_were_asked_for(model, tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 1, "text": "good"}\n{"id": null, "text": "bad"}\n{"text": "film"}\n')
    assert [row["id"] for row in json_lines(capsys, "predict", model, file)] == [1, None, None]
    predicts(model, file, tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").column("id").to_pylist() == [1, None, None]
    capsys.readouterr()
    assert "line 2: field 'id' is missing" in fails(capsys, "predict", model, file, "--id-column", "id")


def test_files_that_were_read_without_ids_still_are(model, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("id,text,x,x\n1,good,2,3\n")
    assert "id" not in json_lines(capsys, "predict", model, tmp_path / "a.csv")[0]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "1.csv").write_text("id,text\n1,good\n")
    (folder / "2.csv").write_text("text\nbad\n")
    rows = json_lines(capsys, "predict", model, folder)
    assert len(rows) == 2 and not any("id" in row for row in rows)


def test_a_named_pipe_is_read_once(model, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for options, ids in (([], None), (["--id-column", "id"], ["7", "8"])):
        writer = threading.Thread(target=pipe.write_text, args=("id,text\n7,good\n8,bad\n",))
        writer.start()
        rows = json_lines(capsys, "predict", model, pipe, "--input-format", "csv", *options)
        writer.join()
        assert len(rows) == 2 and [row.get("id") for row in rows] == (ids or [None, None])


def test_an_output_in_the_folder_that_is_read_is_refused(model, tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.csv").write_text("text\ngood\n")
    assert "lies in the folder that is read" in fails(capsys, "predict", model, folder, "-o", folder / "out.csv")
    assert "lies in the folder of the texts" in fails(capsys, "adapt", model, folder, "-o", folder / "fast")
    assert [path.name for path in folder.iterdir()] == ["a.csv"]
