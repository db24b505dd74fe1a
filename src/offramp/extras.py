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


def require(extra: str, feature: str, *more: str | None) -> None:
    """Raise `MissingExtra` if a library of an extra is not installed; `feature` is what needs it.

    `more` are further extras, so that one message names all that are missing; None is ignored.
    """
    missing = {
        name: [module for module in EXTRAS[name] if not _is_installed(module)]
        for name in (extra, *more)
        if name is not None
    }
    extras = [name for name, modules in missing.items() if modules]
    if extras:
        modules = ", ".join(dict.fromkeys(module for name in extras for module in missing[name]))
        raise MissingExtra(f"{feature} needs {modules}: {install_command(','.join(extras))}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that would contain it
        return False


def install_command(extras: str) -> str:
    """Return the pip command that installs extras, from the clone if this is one."""
    clone = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    return f"pip install '{'.' if clone else 'offramp'}[{extras}]'"
