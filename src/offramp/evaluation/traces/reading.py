"""Open a trace; whatever is wrong with the file is said here, once, before anybody computes with it."""

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
FLOATS = ("logits", "spent", "heads", "uncertainty", "kept")
BLOCK = 1 << 16  # rows that are looked at together
NEEDED = ("logits", "spent", "heads", "lengths", "hashes")
# what readers rely on: where it stands in the header, and of which type it is
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
    """Open a trace; its arrays stay on the disk until they are read."""
    if not file.is_file():
        raise BadInput(f"No file {file}.")
    try:
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata() or {}
            names = set(opened.keys())
    except (SafetensorError, OSError) as err:
        raise BadInput(f"{file} cannot be read as a trace: {str(err).splitlines()[0]}.") from err
    if metadata.get("format") != FORMAT or not set(NEEDED) <= names:
        raise BadInput(f"{file} is not a trace of offramp's (or of another version); record it again.")
    try:
        about = json.loads(metadata.get("about", ""))
    except (ValueError, RecursionError) as err:
        raise _broken(file, f"its header is no JSON ({err})") from err
    _check_header(file, about)
    with file.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(size))
    if "question" in names:  # as it was called before
        header["group"] = header.pop("question")
        names = names - {"question"} | {"group"}
    for name in sorted(names):
        if name not in PER_ROW or header[name]["dtype"] not in DTYPES:
            raise _broken(file, f"it holds an array {name} of {header[name]['dtype']}")
    arrays: dict[str, Any] = {name: _mapped(file, 8 + size, header[name]) for name in names}
    _check_arrays(file, about, arrays)
    return Trace(about, **arrays)


def _check_header(file: Path, about: Any) -> None:
    for (part, name), kind in HEADER.items():
        section = about.get(part) if isinstance(about, dict) else None
        value = section.get(name) if isinstance(section, dict) else None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _broken(file, f"{part}.{name} in its header is {value!r:.40}")
    if not isinstance(about.get("offramp"), str):
        raise _broken(file, f"offramp in its header is {about.get('offramp')!r:.40}")
    layers, depth = about["model"]["layers"], about["model"]["depth"]
    whole = all(type(layer) is int and 0 <= layer <= depth for layer in layers)
    if not layers or not whole or layers != sorted(layers) or layers[-1] != depth:
        raise _broken(file, f"model.layers in its header are {layers!r:.60} of {depth}")
    if about["model"]["problem"] not in ANSWER_TYPES:
        raise _broken(file, f"model.problem in its header is {about['model']['problem']!r:.40}")


def _check_arrays(file: Path, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    model, logits = about["model"], arrays["logits"]
    rows, exits, classes = len(logits), len(model["layers"]), len(model["labels"])
    columns = ANSWER_TYPES[model["problem"]].columns(classes)
    shapes: dict[str, tuple[int, ...]] = {"logits": (rows, exits, columns)}
    shapes |= dict.fromkeys(("spent", "heads", "uncertainty"), (rows, exits))
    shapes |= dict.fromkeys(("lengths", "hashes", "group"), (rows,)) | {"kept": (rows, model["depth"], 2)}
    examples = about["data"].get("texts", rows) if "group" in arrays else rows
    for name, array in arrays.items():
        fits = array.ndim <= 3 and array.shape == shapes.get(name, array.shape)
        if name in ("labels", "reference"):
            fits = array.shape in ((examples,), (examples, classes))
        if not fits or rows == 0 or rows != about["data"]["rows"]:
            raise _broken(file, f"its {name} are {array.shape}, for {about['data']['rows']} rows and {exits} exits")

    for name in FLOATS:
        if name in arrays and not _is_finite(arrays[name]):
            raise _broken(file, f"its {name} hold NaN, infinity, or no numbers with a point")
    whole = [name for name in ("lengths", "hashes", "group") if name in arrays]
    if any(arrays[name].dtype.kind not in "iu" for name in whole):
        raise _broken(file, "its lengths, hashes or groups are no whole numbers")
    _check_groups(file, about, arrays)


def _check_groups(file: Path, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Rows come in the order of their examples, each of which has some."""
    if ANSWER_TYPES[about["model"]["problem"]].several_rows is not ("group" in arrays):
        raise _broken(file, "its examples are of several rows, and its answers are not, or the other way round")
    if "group" in arrays:
        least = about["model"].get("no_answer", "missing")
        if least is not None and (not isinstance(least, int | float) or isinstance(least, bool)):
            raise _broken(file, f"model.no_answer in its header is {least!r:.40}")
        steps = np.diff(np.asarray(arrays["group"]), prepend=-1, append=about["data"].get("texts", -1))
        if steps.min() < 0 or steps.max() > 1:
            raise _broken(file, "its examples are not in order")


def _is_finite(array: Array) -> bool:
    blocks = (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))
    return array.dtype.kind == "f" and all(bool(np.isfinite(block).all()) for block in blocks)


def _broken(file: Path, fault: str) -> BadInput:
    return BadInput(f"{file} is damaged: {fault}. Record it again.")


def _mapped(file: Path, start: int, entry: dict[str, Any]) -> Array:
    offset = start + entry["data_offsets"][0]
    return np.memmap(file, DTYPES[entry["dtype"]], "r", offset, tuple(entry["shape"]))
