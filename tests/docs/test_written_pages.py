"""Pages of measurements are what their scripts write from the records, so no figure is typed by hand."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.pages import DOCS

ROOT = DOCS.parent
RECORDS = {"write_results": "adapt"}  # records of long runs, without which a script writes nothing
SCRIPTS = sorted(
    file for file in (ROOT / "benchmarks").glob("write_*.py") if '__name__ == "__main__"' in file.read_text("utf-8")
)


def write(copy: Path) -> int:
    """Run the scripts in a copy of the repository."""
    os.environ["MPLBACKEND"] = "agg"
    sys.path.insert(0, str(copy / "benchmarks"))
    for script in SCRIPTS:
        sys.argv = [script.name]
        if (copy / "benchmarks" / "results" / RECORDS.get(script.stem, "")).is_dir():
            runpy.run_path(str(copy / "benchmarks" / script.name), run_name="__main__")
    return 0


def test_the_scripts_write_the_pages(tmp_path):
    assert len(SCRIPTS) == 11
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    pages = [file.relative_to(tmp_path) for file in sorted(tmp_path.glob("**/*.md"))]
    (done,) = programs.run((write, tmp_path))
    assert done.code == 0, done.stderr
    changed = [str(page) for page in pages if (tmp_path / page).read_bytes() != (ROOT / page).read_bytes()]
    assert not changed, f"run the scripts that write {changed}"


def test_every_script_has_its_records():
    missing = [name for name in RECORDS.values() if not (ROOT / "benchmarks" / "results" / name).is_dir()]
    if missing:
        pytest.skip(f"not measured: benchmarks/results/{', '.join(missing)}")
