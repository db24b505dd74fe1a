"""Record a trace: one full pass over a data set, written as it goes, so that memory stays bounded."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.batching import answering, check_budget, chunks
from offramp.errors import BadInput
from offramp.fingerprints import DataPrint, describe
from offramp.hashes import hashes_of
from offramp.loop import every_exit
from offramp.model import AdaptiveModel
from offramp.reading import Text
from offramp.stepper import Batch, ExitPoint, Rows, Said, Stepper
from offramp.trace import FORMAT, Trace, read_trace
from offramp.writing import check_free, writing

__all__ = ["record"]

CODES = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "<u8": "U64"}


def record(
    model: AdaptiveModel,
    texts: Iterable[Text],
    labels: NDArray[Any] | None,
    file: Path,
    data_name: str,
    *,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Trace:
    """Ask every exit about every text and keep the answers in `file`; texts may be a stream.

    `names` are the classes', in the labels' order.
    """
    check_free(file, overwrite)
    with writing(file), tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.absolute().parent) as folder:
        parts = Parts(Path(folder))
        seconds = _pass(model, texts, parts, progress)
        parts.add("seconds", seconds)
        if labels is not None:
            parts.add("labels", labels)
        about = describe(model) | {
            "data": {"name": data_name, "rows": parts.rows, "fingerprint": parts.seen.finish(labels, names)}
        }
        whole = Path(folder) / "whole"
        parts.join(whole, about)
        whole.replace(file)
    return read_trace(file)


def _pass(model: AdaptiveModel, texts: Iterable[Text], parts: Parts, progress: bool | None) -> NDArray[np.float64]:
    stepper = Timed(model.stepper, model.device)
    seen = 0
    for chunk in chunks(model, texts, check_budget(model, None), progress):
        with answering(model):
            said = [every_exit(stepper, batch) for batch in chunk.batches()]
        logits = _stacked([[one.logits for one in exits] for exits in said])[chunk.back]
        _check_finite(logits, seen, stepper.exits)
        parts.add("logits", logits)
        if said[0][0].uncertainty is not None:
            parts.add("uncertainty", _stacked([[one.uncertainty for one in exits] for exits in said])[chunk.back])
        parts.add("lengths", chunk.ids.lengths)
        parts.add("hashes", hashes_of(chunk.texts))
        parts.seen.add(chunk.texts)
        seen += len(chunk.texts)
    if not seen:
        raise BadInput("There is no text to record.")
    return np.array([stepper.seconds.get(point.number, 0.0) for point in stepper.exits])


def _stacked(batches: list[list[Any]]) -> NDArray[np.float32]:
    """(rows, exits, …) of all batches, one after the other."""
    return torch.cat([torch.stack(exits, 1) for exits in batches]).float().cpu().numpy()


def _check_finite(logits: NDArray[np.float32], seen: int, exits: tuple[ExitPoint, ...]) -> None:
    bad = np.argwhere(~np.isfinite(logits).all(-1))
    if len(bad):
        row, place = bad[0]
        raise BadInput(
            f"The exit on layer {exits[place].layer} answers text {seen + row + 1} with NaN or infinity; "
            "the model is damaged, or its dtype too small."
        )


@dataclass
class Timed:
    """A stepper that notes how long it takes from exit to exit."""

    stepper: Stepper[Any]
    device: torch.device
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The stepper's."""
        return self.stepper.exits

    def embed(self, batch: Batch) -> Any:
        """Start a batch; its time goes to the first exit."""
        return self._noted(1, lambda: self.stepper.embed(batch))

    def advance(self, state: Any, point: ExitPoint) -> tuple[Any, Said]:
        """Run the layers up to an exit and ask it."""
        return self._noted(point.number, lambda: self.stepper.advance(state, point))

    def keep(self, state: Any, rows: Rows) -> Any:
        """Go on with these rows."""
        return self.stepper.keep(state, rows)

    def _noted(self, number: int, work: Any) -> Any:
        start = time.perf_counter()
        done = work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[number] = self.seconds.get(number, 0.0) + time.perf_counter() - start
        return done


class Parts:
    """Arrays that grow on the disk, to be joined into one safetensors file."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.codes: dict[str, str] = {}
        self.seen = DataPrint()

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
