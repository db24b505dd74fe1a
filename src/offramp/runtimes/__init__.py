"""The backends that run a model. To add one, write a stepper and register a `Runtime` here."""

from __future__ import annotations

from offramp.registry import Registry
from offramp.runtimes.runtime import LoadOptions, Runtime

__all__ = ["RUNTIMES", "LoadOptions", "Runtime", "graph_runtimes"]

RUNTIMES: Registry[Runtime] = Registry(
    "backend",
    [
        Runtime("torch", "PyTorch"),
        Runtime(
            "onnx",
            "ONNX Runtime",
            "onnx",
            "onnxruntime",
            "offramp.runtimes.onnx",
            ("static", "mixed", "token", "dynamic"),
        ),
        Runtime(
            "openvino", "OpenVINO", "openvino", "openvino", "offramp.runtimes.openvino", ("static",), has_bfloat16=True
        ),
    ],
)


def graph_runtimes() -> list[Runtime]:
    """Return the backends that run exported graphs."""
    return [runtime for runtime in RUNTIMES.values() if runtime.runs_graphs]
