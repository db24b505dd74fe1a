"""Run exported graphs with OpenVINO on the CPU."""

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
    """A compiled model, optimised for latency; `threads` defaults to torch's."""

    def __init__(self, source: Path | bytes, threads: int | None = None, precision: str = "f32"):
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": precision,  # the default is bfloat16 if the CPU supports it
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
            raise BadModel(f"{name} cannot be loaded by openvino {runtime_version()}: {reason:.200}") from err
        self.source, self.threads, self.precision = source, threads, precision
        self.inputs = frozenset(port.get_any_name() for port in self.compiled.inputs)
        self.outputs = {port.get_any_name(): index for index, port in enumerate(self.compiled.outputs)}
        self.requests = threading.local()  # requests hold inputs and outputs, so each thread needs its own

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source and the options; the model is compiled again when it is loaded."""
        return OpenvinoGraph, (self.source, self.threads, self.precision)

    def __call__(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph; the returned arrays are copies."""
        if not hasattr(self.requests, "request"):
            self.requests.request = self.compiled.create_infer_request()
        results = self.requests.request.infer(dict(feed), share_inputs=False, share_outputs=False)
        return {name: results[index] for name, index in self.outputs.items()}


def open_graph(source: Path | bytes, threads: int | None = None, precision: str = "f32") -> OpenvinoGraph:
    """Load a graph."""
    return OpenvinoGraph(source, threads, precision)


def runtime_version() -> str:
    """Return the installed version of openvino."""
    import openvino

    return str(openvino.__version__).split("-")[0]
