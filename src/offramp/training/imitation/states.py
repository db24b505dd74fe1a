"""Hidden states of a frozen encoder after each exit layer: computed once, stored in half precision.

Training heads on them takes seconds. They are stored in a memory-mapped file, so they need not fit into memory. On CPUs
with bfloat16 instructions the encoder runs in bfloat16, which takes half the time; only training reads its outputs.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.core.machine import half_precision
from offramp.core.stepper import ExitOutput
from offramp.data.reading import Text
from offramp.encoders import EncoderState
from offramp.errors import BadInput
from offramp.files.writing import writing
from offramp.model.adaptive import AdaptiveModel

__all__ = ["States", "bytes_per_token", "record_states"]

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

    def encoder_states(self, rows: NDArray[np.int64], device: torch.device | str = "cpu") -> list[EncoderState]:
        """Return the inputs of the early exits' heads for these rows, shallow to deep."""
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        columns = np.arange(int(lengths.max()))
        real = torch.from_numpy(columns < lengths[:, None])
        tokens = starts[:, None] + np.minimum(columns, lengths[:, None] - 1)  # padding repeats the last token
        states = torch.from_numpy(self.values[tokens]).to(device).float()  # (rows, tokens, exits, hidden size)
        weights = (real / real.sum(1, keepdim=True)).unsqueeze(1).to(device)
        return [EncoderState(hidden, None, weights, None) for hidden in states.unbind(2)]


def record_states(model: AdaptiveModel, texts: Sequence[Text], folder: Path, quiet: bool = False) -> States:
    """Run the encoder over the texts once and store the states in `folder`; `quiet`: do not report truncated texts."""
    model = _in_half_precision(model)
    runner, points = model.runner(), model.exits.points
    file, lengths, teacher, rows, summaries = folder / "states", [], [], [], []
    per_token = model.config.answer_type.per_token
    with writing(file), file.open("wb") as out:
        for chunk in runner.chunks(texts, quiet=quiet, title="Running the encoder"):
            _check_disk_space(folder, chunk, bytes_per_token(model))
            chunk_logits, chunk_outputs = [], []
            with runner.stepper.inference_mode():
                for batch in chunk.batches():
                    values, real, output = _layer_states(model, batch)
                    values[real].tofile(out)
                    lengths.append(real.sum(1))
                    logits = output.raw.float().cpu()
                    chunk_logits.append(logits[torch.from_numpy(real)] if per_token else logits)
                    chunk_outputs.append(output.logits.float().cpu())
            teacher.append(torch.cat(chunk_logits))
            rows.append(chunk.rows.group[chunk.order] + chunk.offset)  # rows are stored in the order of the batches
            summaries.append(torch.cat(chunk_outputs))
            _check_finite(summaries[-1], chunk)
    row_lengths = np.concatenate(lengths)
    shape = (int(row_lengths.sum()), len(points) - 1, model.config.hidden_size)
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


def _layer_states(model: AdaptiveModel, batch: Any) -> tuple[NDArray[np.float16], NDArray[np.bool_], ExitOutput]:
    """Return the early exits' states (rows, tokens, exits, hidden size), the token mask, and the last exit's output."""
    stepper, family = model.stepper, model.config.family
    *early, last = stepper.exits
    state, states = stepper.embed(batch), []
    for point in early:
        state = family.step(model.backbone, state, point.layer)
        states.append(state.hidden.clamp(-MAX_FLOAT16, MAX_FLOAT16).half())
    real = state.real.cpu().numpy()
    _, output = stepper.advance(state, last)
    return torch.stack(states, 2).cpu().numpy(), real, output


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
