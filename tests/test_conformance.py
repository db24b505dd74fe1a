"""The golden cases, through the same script that a user runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

TESTS = Path(__file__).parent


def test_every_case_passes_and_all_were_found():
    done = subprocess.run(
        [sys.executable, TESTS / "conformance.py", TESTS / "golden"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if line.startswith("FAIL"))
    lines = done.stdout.splitlines()
    checked = {line.split(":")[0].removeprefix("ok  ").strip() for line in lines if line.startswith("ok")}
    assert len(checked) == 29  # every case of the systems that are here so far
    assert lines[-1] == f"{sum(line.startswith('ok') for line in lines)} passed, 0 failed"


def test_a_wrong_number_fails(tmp_path):
    case = Path(shutil.copytree(TESTS / "golden" / "pabee-bert", tmp_path / "pabee-bert"))
    expected = load_file(case / "expected.safetensors")
    expected["patience-2/exit_layer"][0] += 1
    expected["logits"][0, 0, 0] += 0.01
    save_file(expected, case / "expected.safetensors")
    done = subprocess.run(
        [sys.executable, TESTS / "conformance.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 3  # the logits, and the exit layers in batches of one and of all


@pytest.fixture
def one_thread():
    """As the script has it: with tiny models threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_batches_left_at_an_epochs_end_are_a_difference_that_is_told(monkeypatch, capsys, tmp_path):
    """Three batches an epoch, two to an update: where the originals have two updates in two epochs, we have four."""
    monkeypatch.syspath_prepend(TESTS)
    from conformance import run_case
    from golden_training import REMAINDER

    left = {}
    for name, changed in (("romebert-bert", "train/gr-early-ref-accum"), ("deebert-bert-2", "train/stage1")):
        case = Path(shutil.copytree(TESTS / "golden" / name, tmp_path / name))
        about = json.loads((case / "case.json").read_text())
        about["runs"] = {key: run for key, run in about["runs"].items() if key.startswith(("train/gr-e", "train/st"))}
        about["runs"][changed] |= {"batch_size": 6, "gradient_accumulation_steps": 2}
        (case / "case.json").write_text(json.dumps(about))
        expected = load_file(case / "expected.safetensors")
        kept = {key: value for key, value in expected.items() if key.startswith(tuple(about["runs"]))}
        if (angles := f"{changed}/angle") in kept:
            kept[angles] = kept[angles][:2].clone()
        save_file(kept, case / "expected.safetensors")
        _, failed, left[name] = run_case(case)
        assert failed == 0
        assert list(left[name]) == [REMAINDER]
    runs = {name: {array.split("/")[1] for array in why[REMAINDER]} for name, why in left.items()}
    # stage 2 starts where stage 1 ended; runs without a remainder are checked as ever
    assert runs == {"romebert-bert": {"gr-early-ref-accum"}, "deebert-bert-2": {"stage1", "stage2"}}
    assert "ok   romebert-bert: train/gr-early-ref/angle" in capsys.readouterr().out
