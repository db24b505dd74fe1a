"""Tasks as data: labels, metrics, and where the texts are in the official files and on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offramp.answers import REGRESSION, SINGLE_LABEL, AnswerType
from offramp.data.reading import Text

__all__ = ["HubDataset", "Layout", "Rows", "Task"]


@dataclass(frozen=True)
class Layout:
    """A split's file in the official folder; columns are indices from 0, negative ones from the end."""

    file: str
    text: int
    pair: int | None = None
    label: int | None = None
    has_header: bool = True
    columns: int | None = None  # expected number, to detect another suite's file of the same name


@dataclass(frozen=True)
class HubDataset:
    """The task's dataset on the Hub: path, configuration, columns and split names."""

    path: str
    config: str | None
    text: str
    pair: str | None = None
    label: str = "label"
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "dev": "validation", "test": "test"})


@dataclass(frozen=True)
class Task:
    """A task: its name, labels (None for regression), metrics (the main one first), and where to read it."""

    name: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] | None = ("0", "1")
    folder: str = ""
    splits: Mapping[str, Layout] = field(default_factory=dict)
    hub: HubDataset | None = None
    dev_splits: tuple[str, ...] = ("dev",)  # MNLI has two
    test_splits: tuple[str, ...] = ("test",)
    inputs: tuple[str, ...] = ("sentence",)  # column names of the text, or of the two texts of a pair
    explicit_answer_type: AnswerType | None = None  # None: single label, or regression without labels
    no_answer: bool = False  # for questions: the context may not contain an answer

    @property
    def answer_type(self) -> AnswerType:
        """The answer type."""
        return self.explicit_answer_type or (REGRESSION if self.labels is None else SINGLE_LABEL)

    @property
    def num_labels(self) -> int:
        """Number of outputs of a model for this task."""
        return 1 if self.labels is None else len(self.labels)


@dataclass(frozen=True)
class Rows:
    """Texts with their labels; test sets have no labels.

    Labels are class indices, lists of 0 and 1, or values. Questions are (question, context) pairs, and their labels
    are the gold answers.
    """

    texts: list[Text]
    labels: list[Any] | None
    skipped: tuple[str, ...] = ()  # notes on rows that were left out
    ids: list[str] | None = None  # of questions
    groups: list[Any] | None = None  # the group (document, customer, …) of each row

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> Rows:
        """Return the rows at these indices."""
        indices = list(indices)
        labels, ids, groups = (
            None if column is None else [column[i] for i in indices] for column in (self.labels, self.ids, self.groups)
        )
        return Rows([self.texts[i] for i in indices], labels, self.skipped, ids, groups)
