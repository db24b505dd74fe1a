"""Which model, which data, which machine: so that a trace is never read as another's."""

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
    "DataPrint",
    "check_labels",
    "check_reference",
    "check_trace",
    "describe",
    "of_data",
]


FULL_DEPTH = "torch in float32, at full depth"  # what exports are compared with


class DataPrint:
    """The fingerprint of rows that come in parts: their texts to the letter, their labels by name."""

    def __init__(self) -> None:
        self.hashed = hashlib.blake2b(digest_size=16)

    def add(self, texts: Iterable[Text]) -> None:
        """More texts, in order."""
        for text in texts:
            self.hashed.update(json.dumps(text).encode())

    def finish(self, labels: NDArray[Any] | None, names: Sequence[str] | None) -> str:
        """With the labels; models that number their classes differently see the same data."""
        if labels is not None and np.asarray(labels).dtype == object:  # right answers as texts
            self.hashed.update(json.dumps([list(golds) for golds in labels]).encode())
        elif labels is not None:
            values = np.asarray(labels)
            if names is not None:
                order = np.argsort(names)
                values = values[:, order] if values.ndim == 2 else np.argsort(order)[values]
            self.hashed.update(np.ascontiguousarray(values).tobytes())
        return self.hashed.hexdigest()


def of_data(texts: Iterable[Text], labels: NDArray[Any] | None, names: Sequence[str] | None) -> str:
    """The same for the same texts and labels in the same order; `names` are the classes'."""
    data = DataPrint()
    data.add(texts)
    return data.finish(labels, names)


def describe(runner: Runner) -> dict[str, Any]:
    """The model and the machine, as a trace's header tells them."""
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
    """Refuse a trace of another model, other data or another backend."""
    now, there = describe(runner), trace.about
    for key in ("backend", "dtype"):
        if there["machine"][key] != now["machine"][key]:
            raise BadInput(f"{file} was recorded with {key} {there['machine'][key]}, not {now['machine'][key]}.")
    if there["model"]["max_length"] != now["model"]["max_length"]:
        lengths = f"{there['model']['max_length']} tokens, not {now['model']['max_length']}"
        raise BadInput(f"{file} was recorded with texts of at most {lengths}; record it again.")
    if there["model"]["fingerprint"] != now["model"]["fingerprint"]:
        raise BadInput(f"{file} is a trace of another model ({there['model']['name']}); record it again.")
    if there["data"]["fingerprint"] != data_fingerprint:
        raise BadInput(f"{file} is a trace of other data ({there['data']['name']}); record it again.")


def check_labels(trace: Trace, file: Path, labels: NDArray[Any] | None) -> None:
    """Refuse a trace whose labels are not those of the rows that it says it is of."""
    if labels is not None and labels.dtype == object:  # texts are in the data alone
        return
    there = trace.labels
    same = there is labels if there is None or labels is None else np.array_equal(there, labels)
    if not same:
        raise BadInput(f"{file} is damaged: its labels are not those of the data. Record it again.")


def check_reference(trace: Trace, file: Path, fingerprint: str | None) -> None:
    """Refuse a trace whose answers were compared with another model's than now."""
    there = trace.about.get("reference")
    if fingerprint is None and (there is None or there["name"] == FULL_DEPTH):
        return  # an export's own, which torch gives
    if there is None or there["fingerprint"] != fingerprint:
        whose = "the full model" if there is None else there["name"]
        raise BadInput(f"{file} was recorded to be compared with {whose}; record it again, or compare with that.")
