"""The command line: its output, and one line and an exit code for every error."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from offramp.cli.main import COMMANDS, main
from tests import programs
from tests.calls import fails, json_lines
from tests.tiny import LAYERS

GOLDEN = Path(__file__).parents[1] / "golden"


# -- predict ---------------------------------------------------------------------------------------


def test_predict_handles_every_line_even_an_empty_one(model, texts, capsys):
    rows = json_lines(capsys, "predict", model, texts)
    assert len(rows) == 3
    assert set(rows[0]) == {"label", "score", "exit_layer"}
    assert {row["label"] for row in rows} <= {"no", "perhaps", "yes"}
    rows = json_lines(capsys, "predict", model, texts, "--all-scores", "--policy", "never")
    assert [row["exit_layer"] for row in rows] == [LAYERS] * 3
    assert set(rows[0]["scores"]) == {"no", "perhaps", "yes"}


def test_predict_reads_standard_input(model, capsys, monkeypatch):
    class Stdin:
        buffer = io.BufferedReader(io.BytesIO(b"a film\nbad"))

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert len(json_lines(capsys, "predict", model, "-")) == 2


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.tsv", "id\tsentence\n1\tgood film\n2\tbad\n", []),
        ("a.tsv", "\ufeffid\tsentence\r\n1\tgood film\r\n2\tbad\r\n", []),
        ("a.tsv", "1\tgood film\n2\tbad\n", ["--no-header", "--text-column", "2"]),
        ("a.csv", 'text,id\n"good film",1\nbad,2\n', []),
        ("a.csv", 'words,id\n"good\nfilm",1\nbad,2\n', ["--text-column", "words"]),
        ("a.jsonl", '{"text": "good film"}\n\n{"text": "bad"}\n', []),
        ("a.jsonl", '"good film"\n"bad"\n', []),
        ("a.json", '{"x": "good film"}\n{"x": "bad"}\n', ["--text-column", "x"]),
        ("a.data", "good film\nbad\n", []),
        ("a.tsv", "id\tsentence\n1\tgood film\n2\tbad\n\n\n", []),
        ("a.csv", "text,id\ngood film,1\nbad,2\n\n", []),
        ("a.data", "sentence\ngood film\nbad", ["--input-format", "tsv"]),
    ],
)
def test_predict_reads_every_format_alike(name, content, options, model, tmp_path, capsys):
    file = tmp_path / name
    file.write_bytes(content.encode())
    plain = tmp_path / "plain.txt"
    plain.write_text("good film\nbad\n")
    rows = json_lines(capsys, "predict", model, file, *options)
    if any("id" in row for row in rows):
        assert [row.pop("id") for row in rows] == ["1", "2"]
    assert rows == json_lines(capsys, "predict", model, plain)


def test_a_unicode_line_separator_does_not_end_a_line(model, tmp_path, capsys):
    file = tmp_path / "a.txt"
    file.write_text("good\u0085film\u2028bad\n")
    assert len(json_lines(capsys, "predict", model, file)) == 1


def test_pairs_are_read_from_two_columns(model, tmp_path, capsys):
    file = tmp_path / "a.tsv"
    file.write_text("q\ts\ngood film\tbad plot\nbad\tfilm\n")
    pairs = json_lines(capsys, "predict", model, file, "--text-column", "q", "--pair-column", "s")
    single = json_lines(capsys, "predict", model, file, "--text-column", "q")
    assert len(pairs) == len(single) == 2
    assert pairs != single


def test_predict_writes_tsv_and_files(model, texts, tmp_path, capsys):
    out = tmp_path / "answers.tsv"
    assert main(["predict", model, texts, "--output", str(out), "--all-scores"]) == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "label\tscore\texit_layer\tscore_no\tscore_perhaps\tscore_yes"
    assert len(lines) == 4
    assert capsys.readouterr().out == f"Wrote {out}: 3 rows.\n"
    rows = json_lines(capsys, "predict", model, texts)
    assert [line.split("\t")[0] for line in lines[1:]] == [row["label"] for row in rows]
    assert [int(line.split("\t")[2]) for line in lines[1:]] == [row["exit_layer"] for row in rows]


def test_policy_threshold_and_budget_come_from_the_command_line(model, texts, capsys):
    assert {row["exit_layer"] for row in json_lines(capsys, "predict", model, texts, "--policy", "layer:3")} == {3}
    rows = json_lines(capsys, "predict", model, texts, "--policy", "entropy:0", "--threshold", "0,9,0")
    assert rows == json_lines(capsys, "predict", model, texts, "--policy", "entropy", "--threshold", "0,9,0", "-o", "-")
    assert {row["exit_layer"] for row in rows} == {2}
    rows = json_lines(capsys, "predict", model, texts, "--policy", "never", "--max-layers", "1")
    assert {row["exit_layer"] for row in rows} == {1}


def test_long_texts_get_a_warning(model, tmp_path, capsys):
    file = tmp_path / "long.txt"
    file.write_text("good " * 200_000 + "\nbad\n")
    assert main(["predict", model, str(file)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == "offramp: 1 of 2 texts is longer than 38 tokens and is truncated.\n"


@pytest.mark.parametrize(
    ("content", "name", "options", "message"),
    [
        (b"", "a.txt", [], "a.txt contains no texts"),
        (b"id\tsentence\n", "a.tsv", [], "a.tsv contains no texts"),
        (b"good\n\xff\xfe\n", "a.txt", [], "line 2: byte 1 (0xff) is not UTF-8"),
        (
            b"a\tb\tsentence\n1\t2\tx\n1\t2\n",
            "a.tsv",
            [],
            "line 3: 2 columns, expected 3 (a, b, sentence). Is a tab missing?",
        ),
        (b"id,text\n1\n", "a.csv", [], "line 2: 1 column, expected 2"),
        (b'id,text\n1,"x\n', "a.csv", [], "line 2: invalid CSV"),
        (b"a\tb\n1\t2\n", "a.tsv", [], "has the columns a, b; use --text-column"),
        (b"a\tsentense\n1\t2\n", "a.tsv", ["--text-column", "sentence"], "Did you mean 'sentense'?"),
        (b"a\tb\n", "a.tsv", ["--no-header", "--text-column", "3"], "Unknown column number '3'"),
        (b'{"text": "a"}\n{"text": 3}\n', "a.jsonl", [], "line 2: field 'text' is 3, expected a string"),
        (b'{"text": "a"}\n{"text": \n', "a.jsonl", [], "line 2: invalid JSON"),
        (b'{"txt": "a", "n": 1}\n', "a.jsonl", [], "line 1: the fields are txt, n"),
        (b"[1]\n", "a.jsonl", [], "line 1: expected a text or an object with a text field, got int 1"),
        (b'{"text": "bad \\ud83d"}\n', "a.jsonl", [], "line 1: character 5 of the text is an unpaired surrogate"),
        (b"[" * 100_000, "a.jsonl", [], "line 1: unreadable JSON"),
        (b'{"text": ' + b"1" * 5000 + b"}", "a.jsonl", [], "line 1: unreadable JSON"),
        (b"a\tsentence\n1\tx\n2\n3\ty\n", "a.tsv", [], "line 3: 1 column, expected 2"),
        (b"a\n", "a.txt", ["--text-column", "x"], "plain text, which has no columns"),
        (b"a\n", "a.txt", ["--policy", "entropi:0.2"], "Did you mean 'entropy'?"),
        (b"a\n", "a.txt", ["--policy", "entropy:nan"], "threshold must be finite and at least 0, got nan"),
        (b"a\n", "a.txt", ["--policy", "entropy:-0.1"], "threshold must be finite and at least 0, got -0.1"),
        (
            b"a\n",
            "a.txt",
            ["--policy", "entropy:0.1", "--threshold", "nan"],
            "threshold must be finite and at least 0, got nan",
        ),
        (
            b"a\n",
            "a.txt",
            ["--policy", "layer:9"],
            "Layer 9 has no exit; the exits of this model are on layers 1, 2, 3, 4",
        ),
        (b"a\n", "a.txt", ["--policy", "entropy:0.1,0.2"], "2 thresholds for 4 exits"),
        (b"a\n", "a.txt", ["--policy", "learned:0.1"], "needs an LTE module"),
        (b"a\n", "a.txt", ["--threshold", "0.3"], "has no threshold"),
        (b"a\n", "a.txt", ["--threshold", "x"], "--threshold"),
        (b"a\n", "a.txt", ["--max-layers", "0"], "must be at least 1 (the first exit's layer)"),
        (b"a\n", "a.txt", ["--batch-tokens", "0"], "--batch-tokens must be at least 1"),
    ],
)
def test_predict_reports_errors_and_writes_nothing(content, name, options, message, model, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    error = fails(capsys, "predict", model, tmp_path / name, *options, "--output", tmp_path / "out.jsonl")
    assert message in error
    assert sorted(tmp_path.iterdir()) == before


def test_predict_reports_missing_files(model, texts, tmp_path, capsys):
    assert "File not found" in fails(capsys, "predict", model, tmp_path / "none.txt")
    assert "Folder not found" in fails(capsys, "predict", tmp_path / "none", texts)
    assert "no config.json" in fails(capsys, "predict", tmp_path, texts)
    assert "is a file" in fails(capsys, "predict", texts, texts)
    assert "does not exist" in fails(capsys, "predict", model, texts, "--output", tmp_path / "no" / "out.jsonl")


def test_an_existing_output_needs_overwrite(model, texts, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    assert "--overwrite" in fails(capsys, "predict", model, texts, "--output", out)
    assert out.read_text() == "precious"
    assert main(["predict", model, texts, "--output", str(out), "--overwrite"]) == 0
    assert len(out.read_text().splitlines()) == 3


def test_an_invalid_input_does_not_change_an_existing_output(model, tmp_path, capsys):
    out, file = tmp_path / "out.jsonl", tmp_path / "a.txt"
    out.write_text("precious")
    file.write_bytes(b"fine\n\xff\n")
    fails(capsys, "predict", model, file, "--output", out, "--overwrite")
    assert out.read_text() == "precious"


# -- the program, in a separate process ------------------------------------------------------


def test_help_has_examples_and_unknown_commands_get_a_suggestion(capsys):
    assert main([]) == 0
    pages = [capsys.readouterr().out]
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
        assert main(arguments) == 0
        pages.append(capsys.readouterr().out)
    for text in pages:
        assert "examples:" in text
        assert max(map(len, text.splitlines())) <= 120
    assert "Did you mean 'predict'?" in fails(capsys, "pedict")
    assert "required" in fails(capsys, "predict")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_help_pages_are_valid_commands(name):
    """Their options and values are parsed; the pages of the documentation run such commands."""
    module = importlib.import_module(f"offramp.cli.{name}")
    lines = [shlex.split(line, comments=True) for line in module.EXAMPLES.splitlines() if "offramp " in line]
    examples = [line[line.index("offramp") + 1 :] for line in lines]
    assert any(example[0] == name for example in examples)
    for command, *words in examples:
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"offramp.cli.{command}").add_arguments(parser)
        parser.parse_args(words)


@pytest.mark.parametrize(("lines", "limit"), [(5000, 100_000), (3, 50)])
def test_a_full_disk_exits_with_2_and_writes_nothing(lines, limit, model, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a lovely film\n" * lines)
    call = ["predict", model, file, "--output", tmp_path / "out.jsonl"]
    (done,) = programs.run((programs.offramp, call, limit_files, limit))
    assert done.code == 2
    assert "Cannot write" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_stops_a_conversion(tmp_path):
    call = ["convert", GOLDEN / "deebert-bert-2" / "checkpoint", "--output", tmp_path / "out"]
    (done,) = programs.run((programs.offramp, call, limit_files, 5000))
    assert done.code == 2
    assert "Cannot write" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def limit_files(size: int) -> None:
    """Limit the file size in this process."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_standard_output_exits_with_2(model, texts):
    (done,) = programs.run((programs.interpreter, ["predict", model, texts], print_to, "/dev/full"))
    assert done.code == 2
    assert "Cannot write standard output: No space left on device" in done.stderr


def print_to(file: str) -> None:
    """Redirect standard output of this process."""
    os.dup2(os.open(file, os.O_WRONLY), 1)


def test_a_closed_pipe_is_not_an_error(model, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a lovely film\n" * 20_000)
    process = programs.Started(programs.interpreter, ["predict", model, file])
    assert json.loads(process.stdout.readline())["label"]
    process.stdout.close()  # as `head -n 1` does
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


def test_ctrl_c_exits_with_130_and_writes_nothing(model, tmp_path):
    """The input is a pipe that never ends."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = programs.Started(
        programs.offramp, ["predict", model, "-", "--output", tmp_path / "out.jsonl"], read_from, pipe
    )
    write = os.open(pipe, os.O_WRONLY)
    os.write(write, b"a lovely film\n" * 100)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".out.jsonl*.part")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.glob(".out.jsonl*.part"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(write)
    assert process.stderr.read().count("\n") == 1
    assert list(tmp_path.iterdir()) == [pipe]


def read_from(file: Path) -> None:
    """Redirect standard input of this process."""
    sys.stdin = file.open()
