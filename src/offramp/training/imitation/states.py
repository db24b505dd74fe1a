"""What a frozen encoder makes of texts behind each layer with an exit: computed once, kept in half precision.

Heads are then trained from these in seconds. They lie in a file that is mapped into memory, so they are in memory where
they fit and on the disk where they do not.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.data.reading import Text
from offramp.encoders import EncoderState
from offramp.errors import BadInput
from offramp.files.writing import writing
from offramp.model.adaptive import AdaptiveModel

__all__ = ["States", "record_states"]

LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class States:
    """Hidden states of texts, tokens end to end, and what the full model answered."""

    values: NDArray[np.float16]  # (tokens, early exits, hidden size)
    lengths: NDArray[np.int64]  # (rows,)
    teacher: Tensor  # (rows, classes), the last exit's logits, or another model's
    rows: NDArray[np.int64]  # (rows,), which text each of them is

    def taught_by(self, teacher: Tensor) -> States:
        """The same with another model's logits."""
        return replace(self, teacher=teacher)

    def inside(self, rows: NDArray[np.int64]) -> list[EncoderState]:
        """Some rows as the heads of the early exits read them, shallow to deep."""
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        columns = np.arange(int(lengths.max()))
        real = torch.from_numpy(columns < lengths[:, None])
        places = starts[:, None] + np.minimum(columns, lengths[:, None] - 1)  # padding repeats the last token
        states = torch.from_numpy(self.values[places]).float()  # (rows, tokens, exits, hidden size)
        weights = (real / real.sum(1, keepdim=True)).unsqueeze(1)
        return [EncoderState(hidden, None, weights, None) for hidden in states.unbind(2)]


def record_states(model: AdaptiveModel, texts: Sequence[Text], folder: Path, progress: bool | None = None) -> States:
    """One pass of the encoder over the texts; the file stays in `folder`."""
    runner, points = model.runner(), model.exits.points
    file, lengths, teacher, rows = folder / "states", [], [], []
    with writing(file), file.open("wb") as out:
        for chunk in runner.chunks(texts, progress=progress):
            _check_room(folder, chunk, len(points) - 1, model.config.hidden_size)
            answers = []
            with runner.stepper.answering():
                for batch in chunk.batches():
                    values, real, logits = _behind(model, batch)
                    values[real].tofile(out)
                    lengths.append(real.sum(1))
                    answers.append(logits)
            teacher.append(torch.cat(answers))
            rows.append(chunk.order + chunk.first)  # they lie in the file as they were batched
            _check_finite(teacher[-1], chunk)
    each = np.concatenate(lengths)
    shape = (int(each.sum()), len(points) - 1, model.config.hidden_size)
    values = np.memmap(file, np.float16, "r", shape=shape)
    return States(values, each, torch.cat(teacher), np.concatenate(rows))


def _behind(model: AdaptiveModel, batch: Any) -> tuple[NDArray[np.float16], NDArray[np.bool_], Tensor]:
    """The states behind every early exit's layer, (rows, tokens, exits, hidden size), and the full model's logits."""
    stepper, family = model.stepper, model.config.family
    *early, last = stepper.exits
    state, kept = stepper.embed(batch), []
    for point in early:
        state = family.step(model.backbone, state, point.layer)
        kept.append(state.hidden.clamp(-LARGEST, LARGEST).half())
    real = state.real.cpu().numpy()
    _, output = stepper.advance(state, last)
    return torch.stack(kept, 2).cpu().numpy(), real, output.logits.float().cpu()


def _check_room(folder: Path, chunk: Any, exits: int, size: int) -> None:
    needed, free = int(chunk.rows.lengths.sum()) * exits * size * 2, shutil.disk_usage(folder).free
    if needed > free:
        raise BadInput(
            f"The encoder's states of the next {len(chunk.examples):,} texts take {needed / 1e9:.1f} GB, and {folder} "
            f"has {free / 1e9:.1f} GB left; take fewer texts or `exits=`."
        )


def _check_finite(logits: Tensor, chunk: Any) -> None:
    bad = ~torch.isfinite(logits).all(1)
    if bad.any():
        number = chunk.first + int(chunk.order[int(bad.nonzero()[0])]) + 1
        raise BadInput(f"The model answers text {number} with NaN or infinity; it is damaged, or its dtype too small.")
