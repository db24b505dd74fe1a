"""What `adapt` prints: its steps, the maximum length once, progress in logs; and what it refuses."""

from __future__ import annotations

import logging
import os
import re

import pytest
import torch

from offramp.adaptation import reporting
from offramp.cli.main import main
from offramp.core import progress
from offramp.files.lock import locked
from tests.adaptation.test_adapt import EASY, ONE_EXIT, adapts, classifier, random_texts, write
from tests.calls import fails

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return classifier("bert", tmp_path_factory.mktemp("models") / "original", 2)


@pytest.fixture
def texts(tmp_path):
    return write(tmp_path / "texts.txt", [*random_texts(600), *(f"good film {'plot ' * n}" for n in range(60, 90))])


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_every_step_is_named_and_truncated_texts_are_reported_once(backend, original, texts, tmp_path, capsys):
    options = [*EASY, *ONE_EXIT, "--backend", backend, "--int8", "auto" if backend == "torch" else "none"]
    assert main([str(part) for part in ("adapt", original, texts, *options, "-o", tmp_path / "fast")]) == 0
    out, err = capsys.readouterr()
    total = 5 if backend == "onnx" else 4
    steps = re.findall(r"^Step (\d) of (\d): .*\.$", out, re.MULTILINE)
    assert steps == [(str(number), str(total)) for number in range(1, total + 1)]
    sentence = "The maximum length is 38 tokens (set it with --max-length if the model was trained with another). "
    assert out.count(sentence + "30 of 630 texts are longer than 38 tokens and are truncated.") == 1
    assert out.count("truncated") == 1 and "truncated" not in err
    lines = out.splitlines()
    printed = [line for line in lines if line]
    assert len(printed) == len(set(printed))
    summary = lines[next(index for index, line in enumerate(lines) if line.startswith("CPU time for ")) : -1]
    times = [float(line.split(" s  ")[0]) for line in summary[1:] if " s  " in line]
    if summary[-1].startswith("Ordinary int8 is faster here. It has "):  # tiny models gain nothing
        assert backend == "onnx" and summary.pop().endswith(" than the risk of 20 %, and has no guarantee.")
    assert len(summary) == (5 if backend == "onnx" else 3) and len(times) >= len(summary) - 2
    assert "original in PyTorch float32" in summary[1] and "fast in " in summary[-1 if backend == "torch" else 3]
    assert ("ordinary int8: original in ONNX Runtime int8-dynamic" in summary[2]) is (backend == "onnx")
    assert lines[-1].startswith(f"Wrote {tmp_path / 'fast'} with exits on layers")


def test_progress_is_logged_without_a_terminal(original, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(progress, "MIN_ELAPSED", 0.0)
    assert main([str(part) for part in ("adapt", original, texts, *EASY, *ONE_EXIT, "-o", tmp_path / "fast")]) == 0
    out, err = capsys.readouterr()
    for title in (
        "Running the encoder",
        "Training the exits",
        "Recording the outputs of all exits",
        "Measuring the speed",
    ):
        assert re.search(rf"^{title}: \d+ %, (about [\d.]+ (s|min|h) left|almost done)$", err, re.MULTILINE), title
    assert " %, a" not in out  # results only


def test_predictions_and_progress_do_not_mix(model, tmp_path, capsys, monkeypatch):
    texts = write(tmp_path / "t.txt", random_texts(700))
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(progress, "MIN_ELAPSED", 0.0)
    assert main(["predict", model, str(texts)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 700 and all(line.startswith("{") for line in out.splitlines())
    assert "Predicting: " in err


def test_silence_is_counted_over_passes(caplog, monkeypatch):
    """Many short passes log as often as one long pass."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    progress.last_output.seconds = 100.0
    with caplog.at_level(logging.INFO, logger=progress.LOGGER):
        for _ in range(10):
            with progress.Progress("Predicting", 2, "texts") as bar:
                now[0] += 4
                bar.update()
                bar.update()
    assert caplog.messages == ["Predicting: 50 %, about 4 s left"] * 2
    progress.last_output.seconds = 0.0


def test_a_resumed_pass_estimates_from_its_own_work():
    resumed = progress.Progress("Training", 10_000, "updates", initial=5_000)
    resumed.done += 10
    assert resumed._describe(20.0) == "50 %, about 2.8 h left"


# -- options --------------------------------------------------------------------------------------


def test_all_exits_may_be_named(original, texts, tmp_path, capsys):
    out = adapts(capsys, original, texts, *EASY, "--exits", "all", "--output", tmp_path / "fast")
    assert "train 3 early exits" in out
    more = write(tmp_path / "more.txt", random_texts(700, seed=8))
    command = ["adapt", tmp_path / "fast", more, *EASY, "--exits", "all", "--output", tmp_path / "again"]
    assert main([str(part) for part in command]) in (0, 1)  # the last exit alone, so there may be no guarantee
    assert "train 3 early exits" in capsys.readouterr().out


def test_the_device_is_checked_and_used_for_both_models(original, texts, tmp_path, capsys):
    out = ["--output", tmp_path / "fast"]
    error = fails(capsys, "adapt", original, texts, *out, "--device", "cuda")
    assert "Device 'cuda' is not available" in error and not (tmp_path / "fast").exists()
    error = fails(capsys, "adapt", original, texts, *out, "--device", "cuda", "--backend", "onnx")
    assert "Backend 'onnx' runs on the CPU. Remove --device." in error
    adapts(capsys, original, texts, *EASY, *ONE_EXIT, *out, "--device", "cpu")


def test_pytorch_is_measured_with_the_same_number_of_threads(original, texts, tmp_path, capsys, monkeypatch):
    used, measure = [], reporting.time_policies

    def recorded(*arguments):
        used.append(torch.get_num_threads())
        return measure(*arguments)

    monkeypatch.setattr(reporting, "time_policies", recorded)
    options = [*EASY, *ONE_EXIT, "--backend", "onnx", "--int8", "none", "--threads", "2", "--output", tmp_path / "fast"]
    assert "of the test texts, 2 threads, " in adapts(capsys, original, texts, *options)
    assert used == [2] and torch.get_num_threads() == 1  # as before


@pytest.mark.parametrize("threads", [0, 5000])
def test_impossible_thread_counts_are_named(threads, original, texts, tmp_path, capsys):
    error = fails(capsys, "adapt", original, texts, "--threads", threads, "--output", tmp_path / "fast")
    assert f"--threads must be between 1 and 4,096, got {threads:,}." in error


def test_a_second_run_for_the_same_output_is_refused(original, texts, tmp_path, capsys):
    output = tmp_path / "fast"
    with locked(output):
        for options in ([], ["--overwrite"], ["--resume"]):
            error = fails(capsys, "adapt", original, texts, *EASY, "--output", output, *options)
            assert f"Process {os.getpid()} is writing {output}; wait until it ends" in error
    adapts(capsys, original, texts, *EASY, *ONE_EXIT, "--output", output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast", "texts.txt"]
