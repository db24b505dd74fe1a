"""Which model, which data, which machine: so that a trace is never read as another's."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import offramp
from offramp.errors import BadInput
from offramp.hashes import hashes_of
from offramp.model import AdaptiveModel
from offramp.reading import Text
from offramp.trace import Trace

__all__ = ["check_trace", "cpu_name", "describe", "of_data", "of_model", "with_labels"]

# what the exits' answers do not depend on
NOT_THE_MODEL = ("policy", "notes", "calibrated", "transformers_version", "_name_or_path", "dtype", "architectures")


def of_data(texts: Sequence[Text], labels: NDArray[Any] | None) -> str:
    """The same for the same texts and labels in the same order."""
    return with_labels(hashlib.blake2b(hashes_of(texts).tobytes(), digest_size=16), labels)


def with_labels(texts: hashlib.blake2b, labels: NDArray[Any] | None) -> str:
    """The fingerprint of data whose texts' hashes are hashed already."""
    final = texts.copy()
    if labels is not None:
        final.update(np.ascontiguousarray(labels).tobytes())
    return final.hexdigest()


def of_model(model: AdaptiveModel) -> str:
    """Of everything that the exits' answers depend on: weights, shape, labels; not of the policy."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in NOT_THE_MODEL}
    found = hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def describe(model: AdaptiveModel) -> dict[str, Any]:
    """The model and the machine, as a trace's header tells them."""
    config = model.config
    return {
        "offramp": offramp.__version__,
        "model": {
            "name": str(model.name_or_path),
            "fingerprint": of_model(model),
            "family": config.family.name,
            "depth": config.num_layers,
            "layers": [point.layer for point in model.stepper.exits],
            "labels": list(config.labels),
            "problem": config.problem.value,
            "faithful": config.faithful,
            "parameters": sum(value.numel() for value in model.parameters()),
        },
        "machine": {
            "backend": "torch",
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "threads": torch.get_num_threads(),
            "cpu": cpu_name(),
        },
    }


def cpu_name() -> str:
    """The processor, as the system calls it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def check_trace(
    trace: Trace, file: Path, model: AdaptiveModel, texts: Sequence[Text], labels: NDArray[Any] | None
) -> None:
    """Refuse a trace of another model, other data or another backend."""
    now = describe(model)
    if trace.about["model"]["fingerprint"] != now["model"]["fingerprint"]:
        raise BadInput(f"{file} is a trace of another model ({trace.about['model']['name']}); record it again.")
    for key in ("backend", "dtype"):
        if trace.about["machine"][key] != now["machine"][key]:
            raise BadInput(f"{file} was recorded with {key} {trace.about['machine'][key]}, not {now['machine'][key]}.")
    if trace.about["data"]["fingerprint"] != of_data(texts, labels):
        raise BadInput(f"{file} is a trace of other data ({trace.about['data']['name']}); record it again.")
