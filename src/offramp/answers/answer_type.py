"""What a kind of answer has to know about itself; policies, scores, risks, losses and reports ask it.

Decisions, losses and probabilities are torch, row by row: `logits` is (rows, classes). What is judged afterwards is
numpy: `answers` are (rows,) classes or values, or (rows, labels) 0 and 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["AnswerType", "Written"]

Array = NDArray[Any]
Written = tuple[str | list[str] | None, float, list[float]]  # label, score, every label's probability (or the value)


class AnswerType(ABC):
    """One kind of answer; it has no state, so there is one object of each kind."""

    name: ClassVar[str]  # as Hugging Face's `problem_type` has it
    short: ClassVar[str]  # as the command line has it
    metric: ClassVar[str]  # the main one of own data
    metrics: ClassVar[tuple[str, ...]]  # told beside it
    is_regression: ClassVar[bool] = False  # its answer is a number: two agree within a tolerance
    is_one_class: ClassVar[bool] = False  # its answer is one class, which exits can vote for
    is_span: ClassVar[bool] = False  # its answer is a part of a text, which is read in windows

    @property
    def title(self) -> str:
        """In words."""
        return self.name.replace("_", " ")

    def columns(self, classes: int) -> int:
        """How many numbers an exit gives per row."""
        return classes

    def alternatives(self, classes: int) -> int:
        """How many answers a probability is spread over."""
        return max(2, classes)

    # -- the answer ------------------------------------------------------------------------------

    @abstractmethod
    def answers(self, logits: Array) -> Array:
        """The answers to logits whose last axis is classes."""

    @abstractmethod
    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Which rows have another answer, (rows,)."""

    @abstractmethod
    def wrong(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """How wrong each answer is, from 0 to 1, (rows,)."""

    @abstractmethod
    def distance(self, answers: Array, labels: Array) -> Array:
        """How far from the label, so that exits can be ranked; leading axes stay."""

    @abstractmethod
    def write(self, logits: Tensor, labels: Sequence[str]) -> Iterator[Written]:
        """Each row's answer as users see it."""

    @abstractmethod
    def say(self, answer: Any, labels: Sequence[str]) -> str:
        """One answer in words."""

    # -- leaving ---------------------------------------------------------------------------------

    @abstractmethod
    def choice(self, logits: Tensor) -> Tensor:
        """What patience compares from exit to exit, (rows, n)."""

    def agree(self, choice: Tensor, before: Tensor, tolerance: float | None) -> Tensor:
        """Whether two exits chose the same, (rows,)."""
        return (choice == before).all(-1)

    @abstractmethod
    def entropy(self, logits: Tensor) -> Tensor:
        """In nats, (rows,): finite and not negative for any finite logits."""

    @abstractmethod
    def confidence(self, logits: Tensor) -> Tensor:
        """How probable the answer is, (rows,)."""

    @abstractmethod
    def margin(self, logits: Tensor) -> Tensor:
        """How far ahead of the next answer it is, (rows,)."""

    # -- training --------------------------------------------------------------------------------

    def apart(self, logits: Tensor) -> Tensor:
        """Logits as rows with a class per column; a span's start and end are two such rows."""
        return logits

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """One exit's loss, a scalar.

        `weights` is one per class (multi-label: how much a label's yes counts); `smoothing` is for classes.
        """

    @abstractmethod
    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """What another's logits ask of these, a scalar: T² · KL(softmax(teacher / T) ‖ softmax(logits / T)).

        The mean over rows and classes, as RomeBERT (arXiv:2101.09755) takes it, or of a KL `per_row`.
        """

    @abstractmethod
    def mistaken(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How wrong an exit is, from 0 to 1: what BERxiT's LTE learns to foresee; leading axes stay."""
