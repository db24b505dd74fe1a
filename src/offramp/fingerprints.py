"""Which model, which data, which machine: so that a trace is never read as another's."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import offramp
from offramp.batching import Tokens
from offramp.errors import BadInput
from offramp.model import AdaptiveModel
from offramp.reading import Text
from offramp.trace import Trace

__all__ = ["DataPrint", "check_trace", "cpu_name", "describe", "of_data", "of_model"]

# what the exits' answers do not depend on
NOT_THE_MODEL = ("policy", "notes", "calibrated", "transformers_version", "_name_or_path", "dtype", "architectures")


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
        if labels is not None:
            values = np.asarray(labels)
            if names is not None:
                order = np.argsort(names)
                values = values[:, order] if values.ndim == 2 else np.argsort(order)[values]
            self.hashed.update(np.ascontiguousarray(values).tobytes())
        return self.hashed.hexdigest()


def of_data(texts: Iterable[Text], labels: NDArray[Any] | None, names: Sequence[str] | None) -> str:
    """The same for the same texts and labels in the same order; `names` are the classes'."""
    found = DataPrint()
    found.add(texts)
    return found.finish(labels, names)


def of_model(model: AdaptiveModel) -> str:
    """Of everything that the exits' answers depend on: weights, shape, labels, tokenizer; not of the policy."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in NOT_THE_MODEL}
    written = json.dumps([config, _tokenizer(model)], sort_keys=True, default=str)
    found = hashlib.blake2b(written.encode(), digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tokenizer(model: AdaptiveModel) -> list[Any]:
    """What turns a text into tokens, without the padding and truncation of the last call."""
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    told = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    for passing in ("padding", "truncation"):
        told.pop(passing, None)
    return [told, Tokens(model).limit]


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


def check_trace(trace: Trace, file: Path, model: AdaptiveModel, data_fingerprint: str) -> None:
    """Refuse a trace of another model, other data or another backend."""
    now = describe(model)
    if trace.about["model"]["fingerprint"] != now["model"]["fingerprint"]:
        raise BadInput(f"{file} is a trace of another model ({trace.about['model']['name']}); record it again.")
    for key in ("backend", "dtype"):
        if trace.about["machine"][key] != now["machine"][key]:
            raise BadInput(f"{file} was recorded with {key} {trace.about['machine'][key]}, not {now['machine'][key]}.")
    if trace.about["data"]["fingerprint"] != data_fingerprint:
        raise BadInput(f"{file} is a trace of other data ({trace.about['data']['name']}); record it again.")
