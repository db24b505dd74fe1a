"""The model, data and machine of a trace, and checks that a trace matches them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import offramp
from offramp.core.machine import cpu_name
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.errors import BadInput
from offramp.evaluation.traces.trace import Trace

__all__ = [
    "FULL_DEPTH",
    "DataFingerprint",
    "check_labels",
    "check_reference",
    "check_trace",
    "data_fingerprint",
    "describe",
]


FULL_DEPTH = "torch in float32, at full depth"  # what exports are compared with


class DataFingerprint:
    """Computes the fingerprint of texts and labels incrementally."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, texts: Iterable[Text]) -> None:
        """Add texts, in order."""
        for text in texts:
            self._hash.update(json.dumps(text).encode())

    def finish(self, labels: NDArray[Any] | None, names: Sequence[str] | None) -> str:
        """Return the fingerprint with the labels, independent of the order of the class names."""
        if labels is not None and np.asarray(labels).dtype == object:  # text answers
            self._hash.update(json.dumps([list(golds) for golds in labels]).encode())
        elif labels is not None:
            values = np.asarray(labels)
            if names is not None:
                order = np.argsort(names)
                values = values[:, order] if values.ndim == 2 else np.argsort(order)[values]
            self._hash.update(np.ascontiguousarray(values).tobytes())
        return self._hash.hexdigest()


def data_fingerprint(texts: Iterable[Text], labels: NDArray[Any] | None, names: Sequence[str] | None) -> str:
    """Return the fingerprint of texts and labels; `names` are the class names."""
    data = DataFingerprint()
    data.add(texts)
    return data.finish(labels, names)


def describe(runner: Runner) -> dict[str, Any]:
    """Return the model and machine for the header of a trace."""
    config = runner.config
    return {
        "offramp": offramp.__version__,
        "model": {
            "name": runner.name,
            "fingerprint": runner.fingerprint,
            "family": config.family.name,
            "depth": config.num_layers,
            "hidden_size": config.hidden_size,
            "layers": [point.layer for point in config.exit_points],
            "labels": list(config.labels),
            "problem": config.answer_type.name,
            "faithful": config.faithful,
            "max_length": runner.limit,
            "no_answer": config.no_answer,
            "options": config.answer_options,
        },
        "machine": {
            "backend": runner.backend,
            "dtype": runner.dtype,
            "device": runner.device.type,
            "threads": runner.stepper.threads,
            "cpu": cpu_name(),
        },
    }


def check_trace(trace: Trace, file: Path, runner: Runner, data_fingerprint: str) -> None:
    """Raise if the trace is of another model, other data or another backend."""
    expected, actual = describe(runner), trace.about
    for key in ("backend", "dtype"):
        if actual["machine"][key] != expected["machine"][key]:
            raise BadInput(f"{file} was recorded with {key} {actual['machine'][key]}, not {expected['machine'][key]}.")
    if actual["model"]["max_length"] != expected["model"]["max_length"]:
        lengths = f"{actual['model']['max_length']} tokens, not {expected['model']['max_length']}"
        raise BadInput(f"{file} was recorded with a maximum length of {lengths}; record it again.")
    if actual["model"]["fingerprint"] != expected["model"]["fingerprint"]:
        raise BadInput(f"{file} is a trace of another model ({actual['model']['name']}); record it again.")
    if actual["data"]["fingerprint"] != data_fingerprint:
        raise BadInput(f"{file} is a trace of other data ({actual['data']['name']}); record it again.")


def check_labels(trace: Trace, file: Path, labels: NDArray[Any] | None) -> None:
    """Raise if the labels in the trace are not those of the data."""
    if labels is not None and labels.dtype == object:  # a trace does not store text answers
        return
    recorded = trace.labels
    same = recorded is labels if recorded is None or labels is None else np.array_equal(recorded, labels)
    if not same:
        raise BadInput(f"{file} is damaged: its labels are not those of the data. Record it again.")


def check_reference(trace: Trace, file: Path, fingerprint: str | None) -> None:
    """Raise if the trace was recorded with another reference."""
    recorded = trace.about.get("reference")
    if fingerprint is None and (recorded is None or recorded["name"] == FULL_DEPTH):
        return
    if recorded is None or recorded["fingerprint"] != fingerprint:
        name = "the full model" if recorded is None else recorded["name"]
        raise BadInput(f"{file} was recorded with {name} as reference; record it again, or use the same `reference=`.")
