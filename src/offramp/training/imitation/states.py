"""Hidden states of a frozen encoder after each exit layer: computed once, stored in half precision.

Training heads on them takes seconds. They are stored in a memory-mapped file, so they need not fit into memory. Only
training reads them, so the encoder may run in int8, or in bfloat16 on CPUs with instructions for it.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.machine import half_precision
from offramp.core.runner import Runner
from offramp.core.stepper import ExitOutput
from offramp.data.reading import Text
from offramp.encoders import EncoderState
from offramp.errors import BadInput
from offramp.files.writing import writing
from offramp.model.adaptive import AdaptiveModel

__all__ = ["EncoderStepper", "States", "bytes_per_token", "record_states"]

MAX_FLOAT16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class States:
    """Hidden states of texts, with all tokens concatenated, and the teacher's logits."""

    values: NDArray[np.float16]  # (tokens, early exits, hidden size)
    lengths: NDArray[np.int64]  # (rows,)
    teacher: Tensor  # (rows, classes), logits of the last exit or of another model; per-token: (tokens, labels)
    rows: NDArray[np.int64]  # (rows,), index of each row's example
    summaries: Tensor | None = None  # (rows, columns), the last exit's outputs of per-token answer types

    @property
    def outputs(self) -> Tensor:
        """The outputs of the last exit, (rows, columns)."""
        return self.teacher if self.summaries is None else self.summaries

    @property
    def mean_length(self) -> float:
        """The mean number of tokens."""
        return float(self.lengths.mean())

    def with_teacher(self, logits: Tensor) -> States:
        """Return the same states with another model's logits."""
        return replace(self, teacher=logits)

    def teacher_of(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the teacher's logits of these rows, or of all their tokens."""
        if self.summaries is None:
            return self.teacher[rows]
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        tokens = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
        return self.teacher[torch.from_numpy(tokens)]

    def encoder_states(
        self, rows: NDArray[np.int64], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> list[EncoderState]:
        """Return the inputs of the early exits' heads for these rows, shallow to deep."""
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        columns = np.arange(int(lengths.max()))
        real = torch.from_numpy(columns < lengths[:, None])
        tokens = starts[:, None] + np.minimum(columns, lengths[:, None] - 1)  # padding repeats the last token
        states = torch.from_numpy(self.values[tokens]).to(device, dtype)  # (rows, tokens, exits, hidden size)
        weights = (real / real.sum(1, keepdim=True)).unsqueeze(1).to(device, dtype)
        return [EncoderState(hidden, None, weights, None) for hidden in states.unbind(2)]


class EncoderStepper(Protocol):
    """A stepper that returns hidden states."""

    def hidden_states(self, batch: Batch) -> tuple[list[Tensor], Tensor, ExitOutput]:
        """Return the states at the early exits, the token mask (rows, tokens), and the last exit's output."""
        ...


def record_states(
    model: AdaptiveModel, texts: Sequence[Text], folder: Path, quiet: bool = False, exported: Runner | None = None
) -> States:
    """Run the encoder over the texts once and store the states in `folder`.

    `exported` is an export of the model with all its exits, which runs instead of torch; `quiet`: do not report
    truncated texts.
    """
    runner = _in_half_precision(model).runner() if exported is None else exported
    stepper: EncoderStepper = runner.stepper  # type: ignore[assignment]  # not every backend is one
    file, lengths, teacher, rows, summaries = folder / "states", [], [], [], []
    per_token = model.config.answer_type.per_token
    with writing(file), file.open("wb") as out:
        for chunk in runner.chunks(texts, quiet=quiet, title="Running the encoder"):
            _check_disk_space(folder, chunk, bytes_per_token(model))
            chunk_logits, chunk_outputs = [], []
            with runner.stepper.inference_mode():
                for batch in chunk.batches():
                    hidden, real, output = stepper.hidden_states(batch)
                    real = real.cpu()
                    tokens = [state.cpu()[real].clamp(-MAX_FLOAT16, MAX_FLOAT16).half() for state in hidden]
                    torch.stack(tokens, 1).numpy().tofile(out)
                    lengths.append(real.sum(1).numpy())
                    logits = output.raw.float().cpu()
                    chunk_logits.append(logits[real] if per_token else logits)
                    chunk_outputs.append(output.logits.float().cpu())
            teacher.append(torch.cat(chunk_logits))
            rows.append(chunk.rows.group[chunk.order] + chunk.offset)  # rows are stored in the order of the batches
            summaries.append(torch.cat(chunk_outputs))
            _check_finite(summaries[-1], chunk)
    row_lengths = np.concatenate(lengths)
    shape = (int(row_lengths.sum()), len(model.exits.points) - 1, model.config.hidden_size)
    values = np.memmap(file, np.float16, "r", shape=shape)
    outputs = torch.cat(summaries) if per_token else None
    return States(values, row_lengths, torch.cat(teacher), np.concatenate(rows), outputs)


def bytes_per_token(model: AdaptiveModel) -> int:
    """Return the size of the states of one token."""
    return (len(model.exits.points) - 1) * model.config.hidden_size * np.dtype(np.float16).itemsize


def _in_half_precision(model: AdaptiveModel) -> AdaptiveModel:
    """Return a copy of the model in bfloat16 if this CPU has instructions for it, else the model itself."""
    if model.device.type != "cpu" or not half_precision()["bfloat16"]:
        return model
    tokenizer, name = model.tokenizer, model.name_or_path
    half: AdaptiveModel = copy.deepcopy(model).to(torch.bfloat16)
    half.tokenizer, half.name_or_path = tokenizer, name
    return half


def _check_disk_space(folder: Path, chunk: Any, bytes_per_token: int) -> None:
    needed, free = int(chunk.rows.lengths.sum()) * bytes_per_token, shutil.disk_usage(folder).free
    if needed > free:
        raise BadInput(
            f"The encoder states of the next {len(chunk.examples):,} texts need {needed / 1e9:.1f} GB, but {folder} "
            f"has only {free / 1e9:.1f} GB free; use fewer texts, or fewer layers with `exits=`."
        )


def _check_finite(logits: Tensor, chunk: Any) -> None:
    bad = ~torch.isfinite(logits).all(1)
    if bad.any():
        number = chunk.offset + int(chunk.order[int(bad.nonzero()[0])]) + 1
        raise BadInput(
            f"The model's output for text {number} is NaN or infinite: the model is damaged, or its dtype too small."
        )
