"""Input files in all formats: what is read, and what raises, the same in every command."""

from __future__ import annotations

import gzip
import io
import json
import os
import re

import pytest

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.data import source
from offramp.data.reading import Source, infer_format, read_records, read_texts
from offramp.data.rows import DataOptions, load_rows
from offramp.errors import BadInput
from tests.calls import fails, json_lines
from tests.tiny import adaptive

QUESTIONS = ("question", "answer")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model for pairs, one for single texts, and one without recorded columns."""
    root = tmp_path_factory.mktemp("models")
    paths = {}
    for name, inputs in (("pairs", [*QUESTIONS]), ("single", ["review"]), ("unknown", None)):
        model = adaptive("bert", root / f"{name}-encoder", num_labels=3)
        model.config.inputs = inputs
        model.save_pretrained(root / name)
        paths[name] = root / name
    return paths


# file name, content, columns that the model was trained on, expected texts
READ = [
    ("a.csv", "id,question,answer\n1,a,b\n", QUESTIONS, [("a", "b")]),
    ("a.jsonl", '{"question": "a", "answer": "b"}\n', QUESTIONS, [("a", "b")]),
    ("a.jsonl", '{"text": "a", "pair": "b"}\n', QUESTIONS, [("a", "b")]),
    ("a.jsonl", '{"text": "a", "pair": "b"}\n', None, [("a", "b")]),
    ("a.csv", "text,pair\na,b\n", None, [("a", "b")]),
    ("a.csv", "text,pair\na,b\n", ("text",), ["a"]),
    ("a.csv", "sentence,review\na,b\n", ("review",), ["b"]),
    ("a.tsv", "question\tsentence\na\tb\n", ("question", "sentence"), [("a", "b")]),
    # an empty line is an empty text if lines are texts, and is skipped if rows have columns
    ("a.txt", "a\n\nb\n", None, ["a", "", "b"]),
    ("a.tsv", "text\na\n\nb\n", None, ["a", "", "b"]),
    ("a.csv", "text\na\n\nb\n", None, ["a", "", "b"]),
    ("a.tsv", "text\tid\na\t1\n\nb\t2\n\n", None, ["a", "b"]),
    ("a.csv", "text,id\na,1\n\n,2\n\n", None, ["a", ""]),
    ("a.jsonl", '{"text": "a"}\n\n{"text": ""}\n', None, ["a", ""]),
]


@pytest.mark.parametrize(("name", "content", "inputs", "texts"), READ)
@pytest.mark.parametrize("packed", [False, True])
def test_valid_files_are_read(name, content, inputs, texts, packed, tmp_path):
    file = tmp_path / (f"{name}.gz" if packed else name)
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    input_source = Source(str(file), infer_format(str(file)), inputs=inputs)
    assert list(read_texts(input_source)) == texts
    if input_source.format != "text":  # as the reader for training
        assert len(list(read_records(input_source))) == len(texts)


# file name, content, part of the error
NO_PAIR = "the model was trained on pairs (question, answer), and the second text is missing; use --pair-column"
INVALID = [
    ("a.txt", "a\n", f"is read as plain text; {NO_PAIR}"),
    ("a.csv", "question,id\na,1\n", f"has the columns question, id; {NO_PAIR}"),
    ("a.jsonl", '{"question": "a"}\n', f"line 1: the fields are question; {NO_PAIR}"),
    ("a.jsonl", '"a"\n', f"line 1: {NO_PAIR}"),
    ("a.jsonl", '{"question": "a", "answer": "b"}\n{"question": "a"}\n', "line 2: the fields are question; "),
    ("a.txt.gz", gzip.compress(b"a\n" * 99, mtime=0)[:-9], "the gzip data is truncated or corrupt"),
    ("a.txt", gzip.compress(b"a\n" * 99, mtime=0)[:20], "the gzip data is truncated or corrupt"),
]


@pytest.mark.parametrize(("name", "content", "message"), INVALID)
def test_invalid_files_raise(name, content, message, models, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    model = models["pairs" if "pairs" in message or "line 2" in message else "unknown"]
    assert message in fails(capsys, "predict", model, file)
    assert message in fails(capsys, "evaluate", model, "--file", file, "-o", tmp_path / "run")


def test_a_model_for_pairs_reads_its_own_columns(models, tmp_path, capsys):
    rows = [{"id": 1, "question": "good film", "answer": "bad plot"}, {"id": 2, "question": "bad", "answer": "good"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = json_lines(
        capsys,
        "predict",
        models["unknown"],
        tmp_path / "q.jsonl",
        "--text-column",
        "question",
        "--pair-column",
        "answer",
    )
    assert json_lines(capsys, "predict", models["pairs"], tmp_path / "q.jsonl") == named
    config = AdaptiveModel.from_pretrained(models["pairs"]).config
    data = load_rows(str(models["pairs"]), config, DataOptions(file=str(tmp_path / "q.jsonl")), "dev")
    assert data.rows.texts == [(row["question"], row["answer"]) for row in rows]
    assert "trained on single texts" in fails(
        capsys,
        "predict",
        models["single"],
        tmp_path / "q.jsonl",
        "--text-column",
        "question",
        "--pair-column",
        "answer",
    )


def test_gzip_from_standard_input(models, capsys, monkeypatch):
    class Input:
        buffer = io.BufferedReader(io.BytesIO(gzip.compress(b"good film\nbad\n")))

    monkeypatch.setattr("sys.stdin", Input)
    assert len(json_lines(capsys, "predict", models["unknown"], "-")) == 2


def test_endless_input_raises(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 100_000)
    for kind in ("text", "csv", "jsonl"):
        error = fails(capsys, "predict", models["unknown"], "/dev/zero", "--input-format", kind)
        assert "/dev/zero, line 1: longer than 100,000 bytes" in error
    for command in (["evaluate", models["unknown"], "-o", tmp_path / "run"], ["calibrate", models["unknown"]]):
        assert "must be a file or a folder" in fails(capsys, *command, "--file", "/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert "File not found" in fails(
        capsys,
        "train",
        models["unknown"],
        "--train-file",
        tmp_path / "pipe",
        "--dev-file",
        tmp_path / "pipe",
        "-o",
        tmp_path / "m",
    )


def test_a_damaged_parquet_file_raises(models, tmp_path, capsys):
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["good film", "bad"] * 50}), file)
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56  # the data of a column; the schema is at the end
    file.write_bytes(content)
    assert "a.parquet cannot be read as Parquet" in fails(capsys, "predict", models["unknown"], file)


def test_an_unclosed_quote_raises(tmp_path, monkeypatch):
    monkeypatch.setattr("offramp.data.reading.MAX_LINE_BYTES", 1000)
    (tmp_path / "a.csv").write_text('text,id\na,1\n"b,2\n' + "c,3\n" * 1000)
    with pytest.raises(Exception, match=r"line 3: invalid CSV .*Is a closing quote missing"):
        list(read_texts(Source(str(tmp_path / "a.csv"), "csv")))


def test_training_records_its_columns(tmp_path, capsys):
    from tests.tiny import save_encoder

    save_encoder("bert", tmp_path / "encoder")
    lines = "".join(f"good film,bad plot {number},{number % 2}\n" for number in range(40)) + ",,1\n"
    (tmp_path / "own.csv").write_text("question,answer,label\n" + lines)
    call = ["train", "encoder", "--train-file", "own.csv", "--dev-file", "own.csv", "--text-column", "question"]
    call += ["--pair-column", "answer", "--max-steps", "1", "--cpu", "--select", "none", "-o", "model"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(call) == 0
    assert "of them empty (pairs of question and answer)" in capsys.readouterr().out
    assert AdaptiveModel.from_pretrained(tmp_path / "model").config.inputs == ["question", "answer"]
    (tmp_path / "more.csv").write_text("answer,question\nbad,good\n")
    assert len(json_lines(capsys, "predict", tmp_path / "model", tmp_path / "more.csv")) == 1


# -- folders and JSON arrays ----------------------------------------------------------------------


ARRAYS = [
    '[{"text": "good film"}, {"text": "bad"}]',
    '["good film", "bad"]',
    '\n  [\n  {\n    "text": "good film",\n    "label": [1, 2]\n  },\n  {"text":\n "bad"}\n]\n\n',
    '[ "good film"\n,\n"bad" ]',
]


@pytest.mark.parametrize("content", ARRAYS)
def test_a_json_array_is_read(content, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(content)
    assert list(read_texts(Source(str(file), "jsonl"))) == ["good film", "bad"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"}, 7]', "line 1: expected a text or an object with a text field, got int 7"),
        ('[\n{"text": "a"}\n', "line 2: invalid JSON array (it does not end with ])"),
        ('[\n{"text": "a"}\n{"text": "b"}]', "line 3: invalid JSON array (expected a comma or ]"),
        ('[\n{"text": "a"},\n{"text": b}\n]', "line 3: invalid JSON (Expecting value)"),
        ('[{"text": "a"}\n] x', "line 2: invalid JSON array (there is text after the end"),
        ('["a", "b"]\n["c", "d"]\n', "line 1: expected a text or an object with a text field, got list"),
    ],
)
def test_a_broken_json_array_is_reported(content, message, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(BadInput, match=re.escape(message)):
        list(read_texts(Source(str(file), "jsonl")))


def test_a_long_array_is_read_one_element_at_a_time(tmp_path):
    file = tmp_path / "a.json"
    rows = [{"text": f"good film {number}"} for number in range(20_000)]
    file.write_text(json.dumps(rows, indent=1))
    texts = read_texts(Source(str(file), "jsonl"))
    assert next(texts) == "good film 0" and sum(1 for _ in texts) == 19_999


def test_a_folder_of_files_is_read_in_the_order_of_their_names(trained_on_text, tmp_path, capsys):
    folder = tmp_path / "pq"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "2.csv").write_text("text,id\nbad,7\n")
    (folder / "1.csv.gz").write_bytes(gzip.compress(b"id,text\n3,good film\n4,a film\n"))
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden.csv").write_text("text\nx\n")
    rows = json_lines(capsys, "predict", trained_on_text, folder)
    assert [row["id"] for row in rows] == ["3", "4", "7"]
    (folder / "3.jsonl").write_text("{}")
    assert "have different formats (csv, jsonl)" in fails(capsys, "predict", trained_on_text, folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "contains no data files (.txt, .tsv" in fails(capsys, "predict", trained_on_text, empty)


def test_a_folder_of_labelled_files_is_evaluated(trained_on_text, tmp_path, capsys):
    folder = tmp_path / "dev"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.tsv").write_text("text\tlabel\ngood film\tLABEL_0\nbad\tLABEL_1\n")
    assert main(["evaluate", trained_on_text, "--file", str(folder), "--no-live", "-o", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["data"]["rows"] == 6


@pytest.fixture(scope="module")
def trained_on_text(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("text")
    adaptive("bert", root / "encoder", num_labels=2).save_pretrained(root / "model")
    return str(root / "model")
