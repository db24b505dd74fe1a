"""A graph in OpenVINO, on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from offramp.errors import BadModel

__all__ = ["OpenvinoGraph", "open_graph", "runtime_version"]


class OpenvinoGraph:
    """A compiled model with one request: latency, one stream, and float32 where it is not int8."""

    def __init__(self, source: Path | bytes, threads: int | None = None, precision: str = "f32"):
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": precision,  # its own choice is bfloat16 where the CPU has that
            "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        try:
            model = core.read_model(source if isinstance(source, bytes) else str(source))
            self.compiled = core.compile_model(model, "CPU", options)
        except RuntimeError as err:
            reason = str(err).strip().splitlines()[-1]
            name = "The graph" if isinstance(source, bytes) else source
            raise BadModel(f"{name}: openvino {runtime_version()} cannot load it ({reason:.200}).") from err
        self.inputs = frozenset(port.get_any_name() for port in self.compiled.inputs)
        self.outputs = {port.get_any_name(): place for place, port in enumerate(self.compiled.outputs)}
        self.requests = threading.local()  # a request holds its inputs and outputs: each thread has its own

    def __call__(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it; what comes back is the caller's."""
        if not hasattr(self.requests, "own"):
            self.requests.own = self.compiled.create_infer_request()
        found = self.requests.own.infer(dict(feed), share_inputs=False, share_outputs=False)
        return {name: found[place] for name, place in self.outputs.items()}


def open_graph(source: Path | bytes, threads: int | None = None, precision: str = "f32") -> OpenvinoGraph:
    """A graph, ready to run."""
    return OpenvinoGraph(source, threads, precision)


def runtime_version() -> str:
    """Of the library that is installed."""
    import openvino

    return str(openvino.__version__).split("-")[0]
