"""A graph in ONNX Runtime, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from offramp.errors import BadModel

__all__ = ["OnnxGraph", "open_graph", "runtime_version"]


class OnnxGraph:
    """A session with as many threads as torch has, or as asked for; none of them spins while it waits."""

    def __init__(self, source: Path | bytes, threads: int | None = None):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        given = source if isinstance(source, bytes) else str(source)
        try:
            self.session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as err:  # its own classes, one per kind of fault, have no common name but this
            reason = str(err).splitlines()[0]
            name = "The graph" if isinstance(source, bytes) else source
            raise BadModel(f"{name}: onnxruntime {runtime_version()} cannot load it ({reason:.200}).") from err
        self.inputs = frozenset(one.name for one in self.session.get_inputs())
        self.outputs = [one.name for one in self.session.get_outputs()]

    def __call__(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it."""
        return dict(zip(self.outputs, self.session.run(self.outputs, dict(feed)), strict=True))


def open_graph(source: Path | bytes, threads: int | None = None) -> OnnxGraph:
    """A graph, ready to run."""
    return OnnxGraph(source, threads)


def runtime_version() -> str:
    """Of the library that is installed."""
    import onnxruntime

    return str(onnxruntime.__version__)
