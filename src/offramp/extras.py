"""Optional libraries: what each part of the package needs, and how to install it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from offramp.errors import OfframpError

__all__ = ["EXTRAS", "MissingExtra", "install", "require"]

EXTRAS = {  # as pyproject.toml names them, with the modules that they bring
    "train": ("accelerate", "datasets", "matplotlib", "yaml", "scipy"),
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "onnxruntime", "openvino"),
    "serve": ("fastapi", "uvicorn", "httptools", "prometheus_client", "scipy"),
    "ray": ("ray", "pyarrow"),
}


class MissingExtra(OfframpError, ImportError):
    """A part of the package whose libraries are not installed."""


def require(extra: str, what: str) -> None:
    """Refuse to go on without an extra's libraries, before any of them is imported."""
    missing = [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"{what} needs {', '.join(missing)}: {install(extra)}")


def install(extra: str) -> str:
    """The command that installs an extra; in a clone of the repository the clone's own."""
    clone = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    return f"pip install '{'.' if clone else 'offramp'}[{extra}]'"
