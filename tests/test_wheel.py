"""The wheel: metadata, contents, and that it runs from where it is installed. `make test-wheel` checks every extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import offramp
from offramp.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
        assert f"{name.split('/')[0]}/licenses/LICENSE" in archive.namelist()
    assert metadata["Name"] == "offramp" and metadata["Version"] == offramp.__version__
    assert metadata["License-Expression"] == "Apache-2.0" and metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(EXTRAS) <= set(metadata.get_all("Provides-Extra"))
    assert not [line for line in metadata.get_all("Classifier") if line.startswith("License")]  # as PEP 639 asks
    assert len(metadata.get_all("Project-URL")) == len(PROJECT["urls"])
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_contents(wheel):
    """All of the package, and nothing else."""
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in (source / "offramp").rglob("*") if file.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {file for file in files if "__pycache__" not in file}
    assert {"offramp/py.typed", "offramp/report/page.html", "offramp/serving/page.html"} <= packed


def test_the_installed_wheel_runs(wheel, tmp_path):
    target = tmp_path / "site"
    install = ["pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet", "--target", target, wheel]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(target)}
    for command in ([target / "bin" / "offramp", "--help"], [sys.executable, "-m", "offramp", "--version"]):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
        assert done.stdout.startswith(("usage: offramp", f"offramp {offramp.__version__}"))
    where = [sys.executable, "-c", "import offramp; print(offramp.__file__)"]
    done = subprocess.run(where, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(target)
