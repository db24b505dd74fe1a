"""Open a trace and validate its header and arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from offramp.answers import ANSWER_TYPES
from offramp.errors import BadInput
from offramp.evaluation.traces.trace import PER_ROW, Trace

__all__ = ["FORMAT", "read_trace"]

FORMAT = "offramp trace 2"
DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U64": np.uint64}
FLOATS = ("logits", "spent", "heads", "uncertainty", "kept", "reference_logits")
BLOCK = 1 << 16  # rows checked at a time
REQUIRED = ("logits", "spent", "heads", "lengths", "hashes")
# required header entries and their types
HEADER: dict[tuple[str, str], type | tuple[type, ...]] = {
    ("model", "name"): str,
    ("model", "fingerprint"): str,
    ("model", "depth"): int,
    ("model", "layers"): list,
    ("model", "labels"): list,
    ("model", "problem"): str,
    ("model", "faithful"): bool,
    ("model", "max_length"): int,
    ("model", "parameters"): int,
    ("machine", "backend"): str,
    ("machine", "dtype"): str,
    ("data", "name"): str,
    ("data", "fingerprint"): str,
    ("data", "rows"): int,
}

Array = NDArray[Any]


def read_trace(file: Path) -> Trace:
    """Open a trace; its arrays are memory-mapped."""
    if not file.is_file():
        raise BadInput(f"No file {file}.")
    try:
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata() or {}
            names = set(opened.keys())
    except (SafetensorError, OSError) as err:
        raise BadInput(f"{file} is not a valid trace: {str(err).splitlines()[0]}.") from err
    if metadata.get("format") != FORMAT or not set(REQUIRED) <= names:
        raise BadInput(f"{file} is not an offramp trace, or of another version; record it again.")
    try:
        about = json.loads(metadata.get("about", ""))
    except (ValueError, RecursionError) as err:
        raise _damaged(file, f"the header is not valid JSON ({err})") from err
    _check_header(file, about)
    with file.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(size))
    if "question" in names:  # the former name
        header["group"] = header.pop("question")
        names = names - {"question"} | {"group"}
    for name in sorted(names):
        if name not in PER_ROW or header[name]["dtype"] not in DTYPES:
            raise _damaged(file, f"unexpected array {name} of type {header[name]['dtype']}")
    arrays: dict[str, Any] = {name: _mapped(file, 8 + size, header[name]) for name in names}
    _check_arrays(file, about, arrays)
    has_windows = ANSWER_TYPES[about["model"]["problem"]].has_windows
    if has_windows and len(arrays["group"]) == about["data"].get("texts"):  # no text is longer than a window
        del arrays["group"]
    return Trace(about, **arrays)


def _check_header(file: Path, about: Any) -> None:
    for (part, name), expected in HEADER.items():
        section = about.get(part) if isinstance(about, dict) else None
        value = section.get(name) if isinstance(section, dict) else None
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise _damaged(file, f"{part}.{name} in the header is {value!r:.40}")
    if not isinstance(about.get("offramp"), str):
        raise _damaged(file, f"offramp in the header is {about.get('offramp')!r:.40}")
    layers, depth = about["model"]["layers"], about["model"]["depth"]
    valid = all(type(layer) is int and 0 <= layer <= depth for layer in layers)
    if not layers or not valid or layers != sorted(layers) or layers[-1] != depth:
        raise _damaged(file, f"model.layers in the header is {layers!r:.60}, with depth {depth}")
    if about["model"]["problem"] not in ANSWER_TYPES:
        raise _damaged(file, f"model.problem in the header is {about['model']['problem']!r:.40}")


def _check_arrays(file: Path, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    model, logits = about["model"], arrays["logits"]
    rows, exits, classes = len(logits), len(model["layers"]), len(model["labels"])
    columns = ANSWER_TYPES[model["problem"]].num_columns(classes)
    shapes: dict[str, tuple[int, ...]] = {"logits": (rows, exits, columns), "reference_logits": (rows, columns)}
    shapes |= dict.fromkeys(("spent", "heads", "uncertainty"), (rows, exits))
    shapes |= dict.fromkeys(("lengths", "hashes", "group"), (rows,)) | {"kept": (rows, model["depth"], 2)}
    examples = about["data"].get("texts", rows) if "group" in arrays else rows
    for name, array in arrays.items():
        fits = array.ndim <= 3 and array.shape == shapes.get(name, array.shape)
        if name in ("labels", "reference"):
            fits = array.shape in ((examples,), (examples, classes))
            fits = fits or (name == "reference" and "group" in arrays and array.ndim == 2 and len(array) == examples)
        if not fits or rows == 0 or rows != about["data"]["rows"]:
            raise _damaged(file, f"{name} has shape {array.shape}, for {about['data']['rows']} rows and {exits} exits")

    for name in FLOATS:
        if name in arrays and not _is_finite(arrays[name]):
            raise _damaged(file, f"{name} has NaN, infinite or non-float values")
    integers = [name for name in ("lengths", "hashes", "group") if name in arrays]
    if any(arrays[name].dtype.kind not in "iu" for name in integers):
        raise _damaged(file, "lengths, hashes or group are not integers")
    _check_groups(file, about, arrays)


def _check_groups(file: Path, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Raise unless rows are in the order of their examples, and every example has rows."""
    answer_type = ANSWER_TYPES[about["model"]["problem"]]
    if answer_type.may_have_several_rows is not ("group" in arrays):
        raise _damaged(file, "the array group does not match the problem type")
    if "group" in arrays:
        no_answer = about["model"].get("no_answer", "missing")
        if no_answer is not None and (not isinstance(no_answer, int | float) or isinstance(no_answer, bool)):
            raise _damaged(file, f"model.no_answer in the header is {no_answer!r:.40}")
        steps = np.diff(np.asarray(arrays["group"]), prepend=-1, append=about["data"].get("texts", -1))
        if steps.min() < 0 or steps.max() > 1:
            raise _damaged(file, "the examples are not in order")


def _is_finite(array: Array) -> bool:
    blocks = (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))
    return array.dtype.kind == "f" and all(bool(np.isfinite(block).all()) for block in blocks)


def _damaged(file: Path, problem: str) -> BadInput:
    return BadInput(f"{file} is damaged: {problem}. Record it again.")


def _mapped(file: Path, start: int, entry: dict[str, Any]) -> Array:
    offset = start + entry["data_offsets"][0]
    return np.memmap(file, DTYPES[entry["dtype"]], "r", offset, tuple(entry["shape"]))
