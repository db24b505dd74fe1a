"""The golden cases of the conformance script, and the script itself."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from conformance import run_case
from golden_training import REMAINDER
from tests import programs

TESTS = Path(__file__).parents[1]
CASES = {file.parent.name: file.parent for file in sorted((TESTS / "golden").glob("**/case.json"))}


def test_number_of_cases():
    assert len(CASES) == 35


@pytest.mark.parametrize("name", CASES)
def test_a_case_passes(name, capsys):
    passed, failed, unchecked = run_case(CASES[name])
    lines = capsys.readouterr().out.splitlines()
    assert failed == 0, "\n".join(line for line in lines if line.startswith("FAIL"))
    assert passed == sum(line.startswith(f"ok   {name}: ") for line in lines)
    assert passed > 0
    assert "no check for it" not in unchecked


def script(*arguments: str) -> None:
    """Run `python tests/conformance.py`."""
    sys.argv = ["conformance.py", *arguments]
    sys.path.insert(0, str(TESTS))
    runpy.run_path(str(TESTS / "conformance.py"), run_name="__main__")


def test_a_wrong_number_fails(tmp_path):
    case = Path(shutil.copytree(TESTS / "golden" / "pabee-bert", tmp_path / "pabee-bert"))
    expected = load_file(case / "expected.safetensors")
    expected["patience-2/exit_layer"][0] += 1
    expected["logits"][0, 0, 0] += 0.01
    save_file(expected, case / "expected.safetensors")
    (done,) = programs.run((script, str(tmp_path)))
    assert done.code == 1, done.stderr
    lines = done.stdout.splitlines()
    failed = sum(line.startswith("FAIL") for line in lines)
    assert failed == 3  # the logits, and the exit layers in batches of one and of all
    assert lines[-1] == f"{sum(line.startswith('ok') for line in lines)} passed, {failed} failed"


def test_a_remainder_of_batches_at_the_end_of_an_epoch_is_reported_as_a_difference(capsys, tmp_path):
    """With three batches per epoch and two per update, the originals do two updates in two epochs, offramp four."""
    unchecked = {}
    for name, changed in (("romebert-bert", "train/gr-early-ref-accum"), ("deebert-bert-2", "train/stage1")):
        case = Path(shutil.copytree(TESTS / "golden" / name, tmp_path / name))
        about = json.loads((case / "case.json").read_text())
        about["runs"] = {key: run for key, run in about["runs"].items() if key.startswith(("train/gr-e", "train/st"))}
        about["runs"][changed] |= {"batch_size": 6, "gradient_accumulation_steps": 2}
        (case / "case.json").write_text(json.dumps(about))
        expected = load_file(case / "expected.safetensors")
        selected = {key: value for key, value in expected.items() if key.startswith(tuple(about["runs"]))}
        if (angles := f"{changed}/angle") in selected:
            selected[angles] = selected[angles][:2].clone()
        save_file(selected, case / "expected.safetensors")
        _, failed, unchecked[name] = run_case(case)
        assert failed == 0
        assert list(unchecked[name]) == [REMAINDER]
    runs = {name: {array.split("/")[1] for array in reasons[REMAINDER]} for name, reasons in unchecked.items()}
    # stage 2 starts from stage 1; runs without a remainder are checked as usual
    assert runs == {"romebert-bert": {"gr-early-ref-accum"}, "deebert-bert-2": {"stage1", "stage2"}}
    assert "ok   romebert-bert: train/gr-early-ref/angle" in capsys.readouterr().out
