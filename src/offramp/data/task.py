"""A task is data: its labels, its metrics, where its texts stand in its files and on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offramp.answers import REGRESSION, SINGLE_LABEL, AnswerType
from offramp.data.reading import Text

__all__ = ["Hub", "Layout", "Rows", "Task"]


@dataclass(frozen=True)
class Layout:
    """One split's file in the official folder; columns are counted from 0, from the end if negative."""

    file: str
    text: int
    pair: int | None = None
    label: int | None = None
    has_header: bool = True
    columns: int | None = None  # of the header, where another suite's file has the same name


@dataclass(frozen=True)
class Hub:
    """Where the task is on the Hub: the data set, its configuration, its columns and the names of its splits."""

    path: str
    config: str | None
    text: str
    pair: str | None = None
    label: str = "label"
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "dev": "validation", "test": "test"})


@dataclass(frozen=True)
class Task:
    """A name, labels (none: a regression), metrics (the first is the main one), and where to read it."""

    name: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] | None = ("0", "1")
    folder: str = ""
    splits: Mapping[str, Layout] = field(default_factory=dict)
    hub: Hub | None = None
    dev_splits: tuple[str, ...] = ("dev",)  # MNLI has two, kept apart
    test_splits: tuple[str, ...] = ("test",)
    inputs: tuple[str, ...] = ("sentence",)  # what its files call the text, or the text and its partner
    kind: AnswerType | None = None  # of its answers; None: classes, or a value where there are no labels
    no_answer: bool = False  # of questions: a context may have none

    @property
    def answer_type(self) -> AnswerType:
        """The kind of answer."""
        return self.kind or (REGRESSION if self.labels is None else SINGLE_LABEL)

    @property
    def num_labels(self) -> int:
        """How many outputs a model for it has."""
        return 1 if self.labels is None else len(self.labels)


@dataclass(frozen=True)
class Rows:
    """Texts with their labels; none in a test set.

    Labels are class numbers, lists of 0 and 1, or values; of questions, which are pairs with their contexts, the right
    answers.
    """

    texts: list[Text]
    labels: list[Any] | None
    skipped: tuple[str, ...] = ()  # what was left out, and where
    ids: list[str] | None = None  # of questions

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, places: Iterable[int]) -> Rows:
        """Some of them."""
        some = list(places)
        labels, ids = ([kept[i] for i in some] if kept is not None else None for kept in (self.labels, self.ids))
        return Rows([self.texts[i] for i in some], labels, self.skipped, ids)
