"""The golden cases, through the same script that a user runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    import shutil

    from safetensors.torch import load_file, save_file

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
