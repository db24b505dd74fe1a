"""Outputs: concurrent runs, links, a closed or full standard output, signals."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from offramp import AdaptiveModel
from offramp.cli.main import main
from offramp.training.folder import last_checkpoint
from tests import programs
from tests.calls import fails
from tests.reviews import settings, weights
from tests.tiny import adaptive

GOLDEN = Path(__file__).parents[1] / "golden"
FAST = ["--max-steps", "1", "--cpu", "--batch-size", "8", "--select", "none", "--calibration-split", "0"]


@pytest.fixture
def call(encoders, glue, tmp_path):
    """A training run of one second."""
    return ["train", str(encoders["bert"]), "--task", "sst-2", "--data-dir", str(glue), *FAST, "-o"]


# -- two runs at once ------------------------------------------------------------------------------


def wait_for(file: Path) -> None:
    """Make the first run hold its lock until the file exists."""
    from offramp.training import run

    usual = run._train

    def slow(*arguments):
        (file.parent / "begun").touch()
        while not file.exists():
            time.sleep(0.02)
        return usual(*arguments)

    run._train = slow


def start_second(begun: Path, end: Path) -> None:
    """Start the second run during the first, and let the first continue once the second has failed."""
    from offramp.cli import main as command

    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    usual = command._fail

    def fail(*arguments):
        end.touch()
        return usual(*arguments)

    command._fail = fail


def test_a_second_run_into_the_same_folder_fails_and_names_the_first(call, tmp_path):
    first, other = programs.run(
        (programs.offramp, [*call, str(tmp_path / "model")], wait_for, tmp_path / "end"),
        (programs.offramp, [*call, str(tmp_path / "model")], start_second, tmp_path / "begun", tmp_path / "end"),
    )
    assert first.code == 0, first.stderr
    assert other.code == 2
    (error,) = other.stderr.splitlines()
    assert error.startswith("offramp: Process ") and f"is writing {tmp_path / 'model'}; wait" in error
    assert error.split()[2].isdigit()
    assert AdaptiveModel.from_pretrained(tmp_path / "model")
    assert not (tmp_path / ".model.lock").exists()


def test_the_lock_of_a_killed_run_is_ignored(call, tmp_path):
    (tmp_path / ".model.lock").write_text("1")
    assert main([*call, str(tmp_path / "model")]) == 0
    assert not (tmp_path / ".model.lock").exists()


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["folder", "dangling", "run"])
def test_an_output_link_fills_its_target(target, call, tmp_path):
    real = tmp_path / "elsewhere" / "real"
    real.parent.mkdir()
    if target != "dangling":
        real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert main([*call, str(tmp_path / "link")]) == 0
    if target == "run":
        before = weights(real)
        assert main([*call, str(tmp_path / "link"), "--overwrite", "--seed", "7"]) == 0
        assert any(not before[name].equal(value) for name, value in weights(real).items())
    assert (tmp_path / "link").is_symlink() and (real / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]
    assert [path.name for path in real.parent.iterdir()] == ["real"]


def test_a_link_to_a_file_is_not_a_folder(call, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert "is a file; pass a folder" in fails(capsys, *call, tmp_path / "link")
    assert (tmp_path / "mine").read_text() == "mine"


# output name, how to make it, and the error
INVALID_OUTPUTS = [
    ("x" * 300, None, "File name too long"),
    ("loop", lambda path: path.symlink_to(path), "ymlink loop|Too many levels"),
    ("pipe", os.mkfifo, "is a file; pass a folder"),
    ("-", None, "pass a folder|choose another"),
]


@pytest.mark.parametrize("command", ["train", "convert", "compare", "evaluate"])
@pytest.mark.parametrize(("name", "make", "message"), INVALID_OUTPUTS)
def test_an_invalid_output_is_reported_in_one_line(command, name, make, message, call, trained, tmp_path, capsys):
    from tests.evaluation.test_compare import write_run

    write_run(tmp_path / "run", [(4, 0.8), (2, 0.7)])
    write_run(tmp_path / "other", [(4, 0.8), (2, 0.7)])
    output = tmp_path / name
    if make is not None:
        make(output)
    calls = {
        "train": call[:-1],
        "convert": ["convert", GOLDEN / "pabee-bert" / "checkpoint"],
        "compare": ["compare", tmp_path / "run", tmp_path / "other"],
        "evaluate": ["evaluate", trained, "--no-live"],
    }
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        if name == "-":
            patch.chdir(tmp_path)
        assert re.search(message, fails(capsys, *calls[command], "--output", "-" if name == "-" else output))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_name_that_is_not_utf8_is_reported_in_one_line(model, tmp_path, capsys):
    odd = os.fsdecode(b"/tmp/\xff")
    for line in (["info", odd], ["predict", str(model), odd], ["evaluate", str(model), "-o", odd]):
        assert main(line) == 2
        assert capsys.readouterr().err.endswith("is not UTF-8; use UTF-8 in options and file names.\n")


def test_a_truncated_checkpoint_is_skipped(trained, tmp_path, caplog):
    stage = max((trained / "checkpoints").glob("*"), key=lambda path: len(list(path.glob("checkpoint-*"))))
    copy = shutil.copytree(stage, tmp_path / "stage")
    checkpoints = sorted(copy.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert last_checkpoint(copy) == checkpoints[-1] and len(checkpoints) > 1
    for name in ("optimizer.pt", "model.safetensors", "config.json"):
        content = (checkpoints[-1] / name).read_bytes()
        (checkpoints[-1] / name).write_bytes(content[: len(content) // 2])
        assert last_checkpoint(copy) == checkpoints[-2]
        assert f"{name} is truncated or corrupt" in caplog.text
        (checkpoints[-1] / name).write_bytes(content)


# -- standard output ------------------------------------------------------------------------------


class Full(io.StringIO):
    """A full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def model(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints"))


def commands(model, tmp_path):
    """Return calls that print, and the folders they write."""
    run = tmp_path / "run"
    return {
        "info": (["info", model], None),
        "predict": (["predict", model, tmp_path / "a.txt"], None),
        "evaluate": (["evaluate", model, "-o", run, "--no-live", "--policy", "entropy", "--thresholds", "0.5"], run),
        "compare": (["compare", run, run, "--names", "a,b", "-o", tmp_path / "compared"], tmp_path / "compared"),
        "calibrate": (["calibrate", model, "--risk", "0.05", "--confidence", "0.9"], None),
        "recipes": (["train", "--recipe", "list"], None),
    }


@pytest.mark.parametrize("stream", ["full", "closed"])
def test_an_unwritable_standard_output_exits_with_2_and_one_line(stream, model, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("good film\n")
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    reason = "No space left on device" if stream == "full" else os.strerror(errno.EBADF)
    for name, (call, written) in commands(model, tmp_path).items():
        monkeypatch.setattr(sys, "stdout", Full() if stream == "full" else None)
        assert main([str(part) for part in call]) == 2, name
        (error,) = capsys.readouterr().err.splitlines()
        assert f"Cannot write standard output: {reason}." in error
        assert (f"{written} is complete." in error) == (written is not None)
        assert written is None or written.is_dir()
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["config.json", "calibration.json", "README.md"])
def test_calibrate_changes_all_or_nothing(name, model, monkeypatch, capsys):
    """If one file cannot be written, no file changes."""
    usual = Path.open

    def opened(path, *arguments, **options):
        file = usual(path, *arguments, **options)
        if path.name.startswith(f".{name}."):
            file.flush = lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
        return file

    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    monkeypatch.setattr(Path, "open", opened)
    assert main(["calibrate", str(model), "--risk", "0.05", "--confidence", "0.9"]) == 2
    assert f"Cannot write {model / name}: No space left" in capsys.readouterr().err
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before


# -- signals --------------------------------------------------------------------------------------


def signal_during_output(number: int) -> None:
    """Send the process a signal while it writes; resets the handler, which nohup may have changed."""
    from offramp.report import answers

    signal.signal(number, signal.SIG_DFL)

    usual = answers._json_lines

    def lines(*arguments):
        os.kill(os.getpid(), number)
        return usual(*arguments)

    answers._json_lines = lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_files(number, tmp_path):
    adaptive("bert", tmp_path / "encoder", num_labels=2).save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("good film\n" * 10)
    (tmp_path / "out").mkdir()
    call = ["predict", str(tmp_path / "model"), str(tmp_path / "a.txt"), "-o", str(tmp_path / "out" / "a.jsonl")]
    (ended,) = programs.run((programs.offramp, call, signal_during_output, number))
    assert ended.code == 128 + number
    assert ended.stderr == "offramp: stopped.\n"
    assert list((tmp_path / "out").iterdir()) == []


# -- models that are trained further ------------------------------------------------------------------------------


@pytest.mark.parametrize(("pooling", "heads"), [("auto", "linear"), ("first", "pooler")])
def test_a_plain_model_gets_exits(pooling, heads, encoders, glue, tmp_path, capsys):
    from offramp.training.run import train

    options = {"calibration_split": 0.0, "pooling": pooling}
    train(settings(encoders["bert"], glue, tmp_path / "plain", recipe="plain", **options))
    plain = AdaptiveModel.from_pretrained(tmp_path / "plain")
    assert len(plain.config.exits) == 1
    train(settings(tmp_path / "plain", glue, tmp_path / "model", recipe="deebert", epochs=[0, 1], **options))
    model = AdaptiveModel.from_pretrained(tmp_path / "model")
    assert [spec["head"] for spec in model.config.exits] == [heads] * model.config.num_layers
    texts = ["good film", "bad plot", "a lovely thing"]
    for prediction, expected in zip(model.predict(texts), plain.predict(texts), strict=True):
        assert prediction.score == pytest.approx(expected.score, abs=1e-6)  # the last exit is unchanged
    assert model.exits.untrained_layers() == ()
    with pytest.raises(Exception, match="already has exits; remove `exits=`"):
        train(settings(tmp_path / "model", glue, tmp_path / "more", recipe="deebert", exits=[1, 2]))


def test_untrained_exits_give_a_warning(folders, tmp_path, capsys):
    model = AdaptiveModel.from_backbone(folders["bert"])
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("good film\n")
    call = ["predict", str(tmp_path / "model"), str(tmp_path / "a.txt")]
    for options, layers in (
        ([], None),
        (["--policy", "entropy:0.5"], "layers 1, 2, 3"),
        (["--policy", "layer:2"], "layer 2"),
        (["--max-layers", "1"], "layer 1"),
    ):
        assert main([*call, *options]) == 0
        error = capsys.readouterr().err
        assert error.count("\n") == (layers is not None)
        assert layers is None or f"the exits on {layers} are untrained, so their predictions are random" in error
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "model"),
                "--file",
                str(tmp_path / "a.txt"),
                "-o",
                str(tmp_path / "run"),
                "--no-live",
            ]
        )
        == 0
    )
    assert "untrained" in capsys.readouterr().err


def test_evaluating_on_training_rows_gives_a_warning(trained, reviews, tmp_path, capsys):
    file = reviews / "SST-2" / "train.tsv"
    call = ["evaluate", str(trained), "--file", str(file), "-o", str(tmp_path / "run"), "--no-live"]
    assert main([*call, "--policy", "entropy", "--thresholds", "0.5"]) == 0
    assert "720 of 1,200 rows were trained on; scores on them are optimistic" in capsys.readouterr().err
    data = json.loads((tmp_path / "run" / "results.json").read_text())["data"]
    assert data["name"].endswith("(720 of 1,200 rows were trained on)")
    assert "720 of 1,200 rows were trained on" in (tmp_path / "run" / "report.html").read_text()


def test_dev_rows_among_the_training_rows_give_a_warning(call, glue, tmp_path, capsys):
    file = glue / "SST-2" / "train.tsv"
    assert main([*call, str(tmp_path / "model"), "--dev-file", str(file)]) == 0
    assert "48 of 48 rows of dev are also training rows: its scores are optimistic." in capsys.readouterr().err
