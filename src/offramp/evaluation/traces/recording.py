"""Record a trace: one pass over a data set, written chunk by chunk, so that memory stays bounded."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.core.chunks import Chunk
from offramp.core.loop import run_all_exits
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint
from offramp.data.hashes import hash_texts
from offramp.errors import BadInput
from offramp.evaluation.traces.about import DataFingerprint, describe
from offramp.evaluation.traces.operations import count_operations, count_parameters, saved_by_width
from offramp.evaluation.traces.reading import FORMAT, read_trace
from offramp.evaluation.traces.trace import Trace
from offramp.files.writing import check_output_path, writing

__all__ = ["Reference", "record"]

CODES = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "<u8": "U64"}


@dataclass(frozen=True)
class Reference:
    """The predictions of another model for the same rows, to compare with."""

    answers: NDArray[Any]  # (examples,) or (examples, labels)
    name: str
    fingerprint: str
    logits: NDArray[np.float32] | None = None  # (examples, classes), if known and an example is one row


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
    quiet: bool = False,
    title: str = "Recording the outputs of all exits",
) -> Trace:
    """Run every exit on every text and save the outputs to `file`.

    Args:
        runner: the loaded model.
        texts: the texts, which may be a stream.
        labels: the labels, if any.
        file: the trace file to write.
        data_name: the name of the data.
        names: the class names, in the order of the labels.
        reference: predictions of another model to compare with.
        overwrite: replace the file if it exists.
        progress: whether to show progress; None to show it if it takes long.
        quiet: do not report truncated texts.
        title: name of the pass in its progress.
    """
    check_output_path(file, overwrite)
    file = file.resolve()  # writes to the target of a symbolic link
    with writing(file), tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.absolute().parent) as folder:
        parts = Parts(Path(folder))
        fingerprint = _record_chunks(runner, runner.chunks(texts, progress=progress, quiet=quiet, title=title), parts)
        if labels is not None and labels.dtype != object:  # text answers stay in the data
            parts.add("labels", labels)
        about = describe(runner)
        about["model"]["parameters"] = count_parameters(runner.config)
        about["data"] = {
            "name": data_name,
            "rows": parts.rows,
            "texts": parts.texts,
            "fingerprint": fingerprint.finish(labels, names),
        }
        if reference is not None:
            if reference.answers.dtype != object:
                parts.add("reference", reference.answers)
            if reference.logits is not None:
                parts.add("reference_logits", reference.logits.astype(np.float32))
            about["reference"] = {"name": reference.name, "fingerprint": reference.fingerprint}
        complete = Path(folder) / "complete"
        parts.join(complete, about)
        complete.replace(file)
    return read_trace(file)


def _record_chunks(runner: Runner, chunks: Iterator[Chunk], parts: Parts) -> DataFingerprint:
    """Record all chunks; return the fingerprint of the texts."""
    stepper, operations, fingerprint = runner.stepper, count_operations(runner.config), DataFingerprint()
    answer_type = runner.config.answer_type
    runner.warn_untrained(stepper.exits)
    seen = 0
    for chunk in chunks:
        with stepper.inference_mode():
            batches = [run_all_exits(stepper, batch) for batch in chunk.batches()]
        logits = _stack([[output.logits for output in outputs] for outputs in batches])[chunk.inverse_order]
        logits = answer_type.locate(logits, chunk.rows)
        if answer_type.may_have_several_rows:
            parts.add("group", chunk.rows.group + seen)
        _check_finite(logits, seen + chunk.rows.group, stepper.exits)
        parts.add("logits", logits)
        if batches[0][0].uncertainty is not None:
            parts.add(
                "uncertainty",
                _stack([[output.uncertainty for output in outputs] for outputs in batches])[chunk.inverse_order],
            )
        lengths = chunk.rows.lengths
        spent, heads = operations.at(lengths)
        if batches[0][-1].kept is not None:
            kept_parts = [outputs[-1].kept for outputs in batches]
            kept = (
                torch.cat([part for part in kept_parts if part is not None]).float().cpu().numpy()[chunk.inverse_order]
            )
            parts.add("kept", kept)
            spent -= saved_by_width(runner.config, lengths, kept)
        parts.add("spent", spent)
        parts.add("heads", heads)
        parts.add("lengths", lengths)
        parts.add("hashes", hash_texts(chunk.examples)[chunk.rows.group])
        fingerprint.add(chunk.examples)
        seen += len(chunk.examples)
        parts.texts = seen
    if not seen:
        raise BadInput("No texts to record.")
    return fingerprint


def _stack(batches: list[list[Any]]) -> NDArray[np.float32]:
    """Return the outputs of all batches, (rows, exits, …)."""
    return torch.cat([torch.stack(exits, 1) for exits in batches]).float().cpu().numpy()


def _check_finite(logits: NDArray[np.float32], examples: NDArray[Any], exits: tuple[ExitPoint, ...]) -> None:
    bad = np.argwhere(~np.isfinite(logits).all(-1))
    if len(bad):
        row, exit_index = bad[0]
        raise BadInput(
            f"The exit on layer {exits[exit_index].layer} returns NaN or infinity for text {int(examples[row]) + 1}; "
            "the weights are damaged, or the dtype has too little range."
        )


class Parts:
    """Arrays that grow on disk and are joined into one safetensors file at the end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.texts = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.codes: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """Number of rows so far."""
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
        """Write the header and all arrays, 8-byte types first, so that all arrays are aligned."""
        names = sorted(self.shapes, key=lambda name: (self.codes[name] == "F32", name))
        header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "about": json.dumps(about)}}
        start = 0
        for name in names:
            stop = start + (self.folder / name).stat().st_size
            header[name] = {"dtype": self.codes[name], "shape": self.shapes[name], "data_offsets": [start, stop]}
            start = stop
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        with file.open("wb") as out:
            out.write(len(encoded).to_bytes(8, "little") + encoded)
            for name in names:
                with (self.folder / name).open("rb") as part:
                    shutil.copyfileobj(part, out)
