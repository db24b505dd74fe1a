"""Files as users have them: what is read as what, and what is refused, in every reader alike."""

from __future__ import annotations

import gzip
import io
import json
import os

import pytest

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.data import source
from offramp.data.reading import Source, infer_format, read_records, read_texts
from offramp.data.rows import DataOptions, load_rows
from tests.calls import fails, json_lines
from tests.tiny import adaptive

QUESTIONS = ("question", "answer")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of pairs, one of single texts, and one of which nobody knows."""
    root = tmp_path_factory.mktemp("models")
    made = {}
    for name, inputs in (("pairs", [*QUESTIONS]), ("single", ["review"]), ("unknown", None)):
        model = adaptive("bert", root / f"{name}-encoder", num_labels=3)
        model.config.inputs = inputs
        model.save_pretrained(root / name)
        made[name] = root / name
    return made


# the file's name, what it holds, the columns that the model was trained on: what is read
READ = [
    ("a.csv", "id,question,answer\n1,a,b\n", QUESTIONS, [("a", "b")]),
    ("a.jsonl", '{"question": "a", "answer": "b"}\n', QUESTIONS, [("a", "b")]),
    ("a.jsonl", '{"text": "a", "pair": "b"}\n', QUESTIONS, [("a", "b")]),
    ("a.jsonl", '{"text": "a", "pair": "b"}\n', None, [("a", "b")]),
    ("a.csv", "text,pair\na,b\n", None, [("a", "b")]),
    ("a.csv", "text,pair\na,b\n", ("text",), ["a"]),
    ("a.csv", "sentence,review\na,b\n", ("review",), ["b"]),
    ("a.tsv", "question\tsentence\na\tb\n", ("question", "sentence"), [("a", "b")]),
    # an empty line is an empty text where lines are texts, and no row where rows have columns
    ("a.txt", "a\n\nb\n", None, ["a", "", "b"]),
    ("a.tsv", "text\na\n\nb\n", None, ["a", "", "b"]),
    ("a.csv", "text\na\n\nb\n", None, ["a", "", "b"]),
    ("a.tsv", "text\tid\na\t1\n\nb\t2\n\n", None, ["a", "b"]),
    ("a.csv", "text,id\na,1\n\n,2\n\n", None, ["a", ""]),
    ("a.jsonl", '{"text": "a"}\n\n{"text": ""}\n', None, ["a", ""]),
]


@pytest.mark.parametrize(("name", "content", "inputs", "texts"), READ)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_read(name, content, inputs, texts, packed, tmp_path):
    file = tmp_path / (f"{name}.gz" if packed else name)
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    wanted = Source(str(file), infer_format(str(file)), inputs=inputs)
    assert list(read_texts(wanted)) == texts
    if wanted.format != "text":  # training's reader sees the same rows
        assert len(list(read_records(wanted))) == len(texts)


# what a model of pairs is given, and what it says
NO_PARTNER = "the model was trained on pairs (question, answer), and there is no partner; say with --pair-column"
REFUSED = [
    ("a.txt", "a\n", f"is read as plain text; {NO_PARTNER}"),
    ("a.csv", "question,id\na,1\n", f"has the columns question, id; {NO_PARTNER}"),
    ("a.jsonl", '{"question": "a"}\n', f"line 1: the fields are question; {NO_PARTNER}"),
    ("a.jsonl", '"a"\n', f"line 1: {NO_PARTNER}"),
    ("a.jsonl", '{"question": "a", "answer": "b"}\n{"question": "a"}\n', "line 2: the fields are question; "),
    ("a.txt.gz", gzip.compress(b"a\n" * 99, mtime=0)[:-9], "what gzip packed is cut off or damaged"),
    ("a.txt", gzip.compress(b"a\n" * 99, mtime=0)[:20], "what gzip packed is cut off or damaged"),
]


@pytest.mark.parametrize(("name", "content", "told"), REFUSED)
def test_what_is_refused(name, content, told, models, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    model = models["pairs" if "pairs" in told or "line 2" in told else "unknown"]
    assert told in fails(capsys, "predict", model, file)
    assert told in fails(capsys, "evaluate", model, "--file", file, "-o", tmp_path / "run")


def test_a_model_of_pairs_answers_its_own_columns(models, tmp_path, capsys):
    rows = [{"id": 1, "question": "good film", "answer": "bad plot"}, {"id": 2, "question": "bad", "answer": "good"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = answers(
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


def test_packed_texts_come_through_a_pipe(models, capsys, monkeypatch):
    class Input:
        buffer = io.BufferedReader(io.BytesIO(gzip.compress(b"good film\nbad\n")))

    monkeypatch.setattr("sys.stdin", Input)
    assert len(json_lines(capsys, "predict", models["unknown"], "-")) == 2


def test_what_has_no_end_is_refused(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 100_000)
    for kind in ("text", "csv", "jsonl"):
        told = fails(capsys, "predict", models["unknown"], "/dev/zero", "--input-format", kind)
        assert "/dev/zero, line 1: longer than 100,000 bytes" in told
    for command in (["evaluate", models["unknown"], "-o", tmp_path / "run"], ["calibrate", models["unknown"]]):
        assert "is a folder, a pipe or a device" in fails(capsys, *command, "--file", "/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert "No file" in fails(
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


def test_a_damaged_parquet_file_is_named(models, tmp_path, capsys):
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["good film", "bad"] * 50}), file)
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56  # a column's own bytes; the list of columns stands at the end
    file.write_bytes(content)
    assert "a.parquet cannot be read as Parquet" in fails(capsys, "predict", models["unknown"], file)


def test_a_quote_that_is_never_closed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("offramp.data.reading.MAX_LINE_BYTES", 1000)
    (tmp_path / "a.csv").write_text('text,id\na,1\n"b,2\n' + "c,3\n" * 1000)
    with pytest.raises(Exception, match=r"line 3: not CSV .*Is a quote not closed"):
        list(read_texts(Source(str(tmp_path / "a.csv"), "csv")))


def test_training_remembers_its_columns(tmp_path, capsys):
    from tests.tiny import save_encoder

    save_encoder("bert", tmp_path / "encoder")
    lines = "".join(f"good film,bad plot {number},{number % 2}\n" for number in range(40)) + ",,1\n"
    (tmp_path / "own.csv").write_text("question,answer,label\n" + lines)
    call = ["train", "encoder", "--train-file", "own.csv", "--dev-file", "own.csv", "--text-column", "question"]
    call += ["--pair-column", "answer", "--max-steps", "1", "--cpu", "--select", "none", "-o", "model"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(call) == 0
    told = capsys.readouterr().err
    assert "of them empty (pairs of question and answer)" in told
    assert AdaptiveModel.from_pretrained(tmp_path / "model").config.inputs == ["question", "answer"]
    (tmp_path / "more.csv").write_text("answer,question\nbad,good\n")
    assert len(json_lines(capsys, "predict", tmp_path / "model", tmp_path / "more.csv")) == 1
