"""Optional dependencies: which libraries each extra installs, and how to install it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from offramp.errors import OfframpError

__all__ = ["EXTRAS", "MissingExtra", "install_command", "require"]

EXTRAS = {  # the extras of pyproject.toml and the modules that they install
    "train": ("accelerate", "datasets", "matplotlib", "yaml", "scipy"),
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "onnxruntime", "openvino"),
    "serve": ("fastapi", "uvicorn", "httptools", "prometheus_client", "scipy"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "ray": ("ray", "pyarrow"),
    "sentencepiece": ("sentencepiece", "google.protobuf"),
}


class MissingExtra(OfframpError, ImportError):
    """An optional dependency that is not installed."""


def require(extra: str, feature: str) -> None:
    """Raise `MissingExtra` if a library of an extra is not installed; `feature` is what needs it."""
    missing = [name for name in EXTRAS[extra] if not _is_installed(name)]
    if missing:
        raise MissingExtra(f"{feature} needs {', '.join(missing)}: {install_command(extra)}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that would contain it
        return False


def install_command(extra: str) -> str:
    """Return the pip command that installs an extra, from the clone if this is one."""
    clone = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    return f"pip install '{'.' if clone else 'offramp'}[{extra}]'"
