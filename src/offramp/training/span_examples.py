"""Questions as windows of tokens: with targets to learn from, or with marks to be scored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from offramp.answers.span_answers import answers_of, golds_of, located, texts_of
from offramp.answers.span_windows import WindowMaker
from offramp.data import Rows, Task
from offramp.data.metrics import score

__all__ = ["SpanExamples"]


class SpanExamples(Dataset[dict[str, Any]]):
    """A row per window.

    In training its labels are the first right answer's first and last token, both 0 where the window lacks a part of
    it. On dev they are the window's own number, so that answers find their questions in whatever order they come.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: Rows, max_length: int, training: bool):
        self.windows = WindowMaker(tokenizer, max_length).read(rows.texts)
        self.lengths = self.windows.ids.lengths
        self.labels = self._targets(rows) if training else np.arange(len(self.windows))
        self.training = training

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        windows = self.windows
        columns = {"input_ids": windows.ids, "token_type_ids": windows.types}
        if not self.training:
            columns["marks"] = windows.marks
        start = windows.ids.starts[index]
        some = slice(start, start + self.lengths[index])
        row: dict[str, Any] = {name: column.values[some] for name, column in columns.items() if column is not None}
        return row | {"labels": self.labels[index]}

    def _targets(self, rows: Rows) -> NDArray[np.int64]:
        windows, golds = self.windows, rows.labels or []
        targets = np.zeros((len(windows), 2), dtype=np.int64)
        for window, question in enumerate(windows.owner):
            if golds[question]:
                start = windows.ids.starts[window]
                some = slice(start, start + self.lengths[window])
                parts = (column.values[some] for column in (windows.marks, windows.begins, windows.ends))
                targets[window] = target(golds[question][0], *parts)
        return targets

    def scores(self, summaries: NDArray[Any], numbers: NDArray[Any], rows: Rows, task: Task) -> list[dict[str, float]]:
        """Every metric of every exit; `summaries` (windows, exits, columns) are of the windows of these numbers."""
        whole = np.empty_like(summaries)
        whole[numbers] = summaries
        whole = located(whole, self.windows)
        contexts, golds = [text[1] for text in rows.texts], golds_of(rows.labels or [])
        found, null = [], 0.0 if task.no_answer else None
        for place in range(whole.shape[1]):
            answers = texts_of(answers_of(whole[:, place], self.windows.owner, null), contexts)
            found.append(score(task.metrics, answers, golds))
        return found


def target(gold: Any, marks: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int]:
    """The first and the last token of an answer in a window that holds all of it; else 0 and 0."""
    there = np.flatnonzero(marks)
    if not len(there) or begins[there[0]] > gold.start or ends[there[-1]] < gold.end:
        return 0, 0
    inside = there[(ends[there] > gold.start) & (begins[there] < gold.end)]
    return (int(inside[0]), int(inside[-1])) if len(inside) else (0, 0)
