"""The entries of a benchmark if an example may be several rows: a call predicts examples (queries, or long texts)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answers, RowOutputs, concatenate
from offramp.core.runner import Runner
from offramp.data.reading import Text
from offramp.evaluation.benchmark.entry import Entry
from offramp.policies import Policy

__all__ = ["ExampleOutput", "answer_in_calls", "fewer_documents", "full_model_in_calls"]

PLAIN_BATCH = 32  # documents, as in sentence-transformers
FEWER = (1.0, 1.5, 2.0)  # fractions of documents that rivals rerank, relative to the layers with early exits

CallModel = Callable[[Sequence[Any]], Answers]


@dataclass(frozen=True)
class ExampleOutput:
    """Predictions for all examples, the layers at which their rows exited, and the seconds of every call."""

    answers: NDArray[Any]
    layers: NDArray[np.int64]
    seconds: list[float]


def answer_in_calls(
    runner: Runner, policy: str | Policy, fraction: float, texts: Sequence[Text], size: int
) -> ExampleOutput:
    """Predict `size` examples per call; of rankings only the first `fraction` of the documents of each query.

    Texts are sorted by length, so that a call has texts of similar length.
    """
    order = np.arange(len(texts))
    if size > 1 and not runner.config.answer_type.compares_rows:
        order = np.argsort([sum(map(len, text)) for text in texts], kind="stable")
    examples = [_shortened(texts[index], fraction) for index in order.tolist()]
    output = _time_calls(lambda part: runner.answer(part, policy=policy, quiet=True), examples, size)
    return replace(output, answers=output.answers[np.argsort(order)])


def full_model_in_calls(runner: Runner, fraction: float, texts: Sequence[Text], size: int) -> ExampleOutput:
    """Predict with the full model as other libraries do: examples in order, rows in batches of up to 32."""
    answer_type = runner.config.answer_type

    def predict(examples: Sequence[Any]) -> Answers:
        (chunk,) = runner.chunks(examples, progress=False, quiet=True, chunk=len(examples))
        columns = answer_type.num_columns(runner.config.num_labels)
        logits = np.empty((len(chunk.rows), columns), np.float32)
        with runner.stepper.inference_mode():
            for rows, batch in chunk.batches_of(PLAIN_BATCH):
                raw, real = runner.stepper.full_model(batch).float(), batch.as_inputs()["attention_mask"]
                logits[rows] = answer_type.summarize_logits(raw, real.bool, batch.marks)[0].numpy()
        deepest = np.full(len(logits), runner.config.num_layers)
        return runner.decode(RowOutputs(logits, deepest, deepest), chunk.rows)

    return _time_calls(predict, [_shortened(text, fraction) for text in texts], size)


def _time_calls(predict: CallModel, examples: Sequence[Any], size: int) -> ExampleOutput:
    parts, seconds = list[Answers](), []
    for first in range(0, len(examples), size):
        start = perf_counter()
        parts.append(predict(examples[first : first + size]))
        seconds.append(perf_counter() - start)
    answers = concatenate(parts)
    return ExampleOutput(answers.values, answers.row_layers, seconds)


def _shortened(example: Any, fraction: float) -> Any:
    return example if fraction == 1 else example[: 1 + max(1, round(fraction * (len(example) - 1)))]


def fewer_documents(entries: Sequence[Entry], fraction: float) -> list[Entry]:
    """Return the int8 models at full depth on the first documents only: at about the cost of the early exits, and more.

    `fraction` is that of the layers that run with early exits.
    """
    rivals = []
    for entry in (entry for entry in entries if entry.dtype.startswith("int8") and entry.layers is None):
        for factor in FEWER:
            share = min(1.0, factor * fraction)
            name = f"{entry.name}, first {100 * share:.0f} % of the documents"
            rivals += [replace(entry, name=name, documents=share)] if share < 1 else []
    return rivals
