"""Run exported graphs with ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from offramp.errors import BadModel

__all__ = ["OnnxGraph", "open_graph", "runtime_version"]


class OnnxGraph:
    """An ONNX Runtime session; its threads do not spin while they wait. `threads` defaults to torch's."""

    def __init__(self, source: Path | bytes, threads: int | None = None):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = source if isinstance(source, bytes) else str(source)
        try:
            self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as err:  # onnxruntime's exceptions have no common base class
            reason = str(err).splitlines()[0]
            name = "The graph" if isinstance(source, bytes) else source
            raise BadModel(f"{name} cannot be loaded by onnxruntime {runtime_version()}: {reason:.200}") from err
        self.source, self.threads = source, threads
        self.inputs = frozenset(node.name for node in self.session.get_inputs())
        self.outputs = [node.name for node in self.session.get_outputs()]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source and the options; the session is created again when it is loaded."""
        return OnnxGraph, (self.source, self.threads)

    def __call__(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph."""
        return dict(zip(self.outputs, self.session.run(self.outputs, dict(feed)), strict=True))


def open_graph(source: Path | bytes, threads: int | None = None) -> OnnxGraph:
    """Load a graph."""
    return OnnxGraph(source, threads)


def runtime_version() -> str:
    """Return the installed version of onnxruntime."""
    import onnxruntime

    return str(onnxruntime.__version__)
