"""Record a trace: one full pass over a data set, written as it goes, so that memory stays bounded."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.core.loop import every_exit
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint
from offramp.data.hashes import hashes_of
from offramp.errors import BadInput
from offramp.evaluation.traces.about import DataPrint, describe
from offramp.evaluation.traces.operations import count_operations, count_parameters, saved_by_width
from offramp.evaluation.traces.reading import FORMAT, read_trace
from offramp.evaluation.traces.trace import Trace
from offramp.files.writing import check_free, writing

__all__ = ["Reference", "record"]

CODES = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "<u8": "U64"}


@dataclass(frozen=True)
class Reference:
    """Another model's answers to the same rows, which disagreement is to be measured against."""

    answers: NDArray[Any]  # as the answer type's are: (examples,) or (examples, labels)
    name: str
    fingerprint: str


def record(
    runner: Runner,
    texts: Iterable[Any],
    labels: NDArray[Any] | None,
    file: Path,
    data_name: str,
    *,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Trace:
    """Ask every exit about every text and keep the answers in `file`; texts may be a stream.

    `names` are the classes', in the labels' order.
    """
    check_free(file, overwrite)
    file = file.resolve()  # behind a link, its target
    with writing(file), tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.absolute().parent) as folder:
        parts = Parts(Path(folder))
        data = _pass(runner, texts, parts, progress)
        if labels is not None and labels.dtype != object:  # texts stay where they are
            parts.add("labels", labels)
        about = describe(runner)
        about["model"]["parameters"] = count_parameters(runner.config)
        about["data"] = {
            "name": data_name,
            "rows": parts.rows,
            "texts": parts.texts,
            "fingerprint": data.finish(labels, names),
        }
        if reference is not None:
            if reference.answers.dtype != object:
                parts.add("reference", reference.answers)
            about["reference"] = {"name": reference.name, "fingerprint": reference.fingerprint}
        whole = Path(folder) / "whole"
        parts.join(whole, about)
        whole.replace(file)
    return read_trace(file)


def _pass(runner: Runner, texts: Iterable[Any], parts: Parts, progress: bool | None) -> DataPrint:
    """One chunk after the other; returns the fingerprint of what was read."""
    stepper, operations, data = runner.stepper, count_operations(runner.config), DataPrint()
    answer_type = runner.config.answer_type
    runner.warn_of_untrained(stepper.exits)
    seen = 0
    for chunk in runner.chunks(texts, progress=progress):
        with stepper.answering():
            batches = [every_exit(stepper, batch) for batch in chunk.batches()]
        logits = _stacked([[output.logits for output in every] for every in batches])[chunk.back]
        logits = answer_type.locate(logits, chunk.rows)
        if answer_type.several_rows:
            parts.add("group", chunk.rows.group + seen)
        _check_finite(logits, seen + chunk.rows.group, stepper.exits)
        parts.add("logits", logits)
        if batches[0][0].uncertainty is not None:
            parts.add(
                "uncertainty", _stacked([[output.uncertainty for output in every] for every in batches])[chunk.back]
            )
        lengths = chunk.rows.lengths
        spent, heads = operations.at(lengths)
        if batches[0][-1].kept is not None:
            each = [every[-1].kept for every in batches]
            kept = torch.cat([one for one in each if one is not None]).float().cpu().numpy()[chunk.back]
            parts.add("kept", kept)
            spent -= saved_by_width(runner.config, lengths, kept)
        parts.add("spent", spent)
        parts.add("heads", heads)
        parts.add("lengths", lengths)
        parts.add("hashes", hashes_of(chunk.examples)[chunk.rows.group])
        data.add(chunk.examples)
        seen += len(chunk.examples)
        parts.texts = seen
    if not seen:
        raise BadInput("There is no text to record.")
    return data


def _stacked(batches: list[list[Any]]) -> NDArray[np.float32]:
    """(rows, exits, …) of all batches, one after the other."""
    return torch.cat([torch.stack(exits, 1) for exits in batches]).float().cpu().numpy()


def _check_finite(logits: NDArray[np.float32], examples: NDArray[Any], exits: tuple[ExitPoint, ...]) -> None:
    bad = np.argwhere(~np.isfinite(logits).all(-1))
    if len(bad):
        row, place = bad[0]
        raise BadInput(
            f"The exit on layer {exits[place].layer} answers text {int(examples[row]) + 1} with NaN or infinity; "
            "the model is damaged, or its dtype too small."
        )


class Parts:
    """Arrays that grow on the disk, to be joined into one safetensors file."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.texts = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.codes: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """How many rows there are so far."""
        return self.shapes["logits"][0]

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Append rows to an array."""
        array = np.ascontiguousarray(array)
        rows = self.shapes.get(name, (0,))[0] + len(array)
        self.shapes[name] = (rows, *array.shape[1:])
        self.codes[name] = CODES[array.dtype.newbyteorder("<").str]
        with (self.folder / name).open("ab") as file:
            array.tofile(file)

    def join(self, file: Path, about: dict[str, Any]) -> None:
        """Header, then the arrays end to end; the wide ones first, so that all of them are aligned."""
        names = sorted(self.shapes, key=lambda name: (self.codes[name] == "F32", name))
        header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "about": json.dumps(about)}}
        start = 0
        for name in names:
            stop = start + (self.folder / name).stat().st_size
            header[name] = {"dtype": self.codes[name], "shape": self.shapes[name], "data_offsets": [start, stop]}
            start = stop
        written = json.dumps(header).encode()
        written += b" " * (-len(written) % 8)
        with file.open("wb") as out:
            out.write(len(written).to_bytes(8, "little") + written)
            for name in names:
                with (self.folder / name).open("rb") as part:
                    shutil.copyfileobj(part, out)
