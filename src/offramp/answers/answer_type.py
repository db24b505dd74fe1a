"""What a kind of answer knows about itself, at both ends; a new one is a file here and a line in the table.

At one end examples become rows of tokens (`encoder`), at the other rows' outputs become answers (`decode`), lines of
files (`fields`), and replies of a server (`endpoints`). Policies, losses, scores, risks and reports ask it in between.

Decisions, losses and probabilities are torch, row by row: `logits` is (rows, columns). What is scored afterwards is
numpy: `answers` are (rows,) classes or values, or (rows, labels) 0 and 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.answers.answer import Answers, Decoding, Endpoint, ModelCard, RowOutputs, TextAnswers
from offramp.answers.texts import TextEncoder
from offramp.core.batch import EncodedRows
from offramp.errors import BadModel, BadValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["AnswerType", "Array", "Encoder", "Written"]

Array = NDArray[Any]
Written = tuple[str | list[str] | None, float, list[float]]  # label, score, every label's probability (or the value)
Encoder = Callable[[Sequence[Any], int], EncodedRows]
"""Examples and how many came before them in, their rows out."""
Memory = Mapping[str, Tensor]

LIKELIEST = 1e-6  # odds beyond a million to one are all alike
CLASSIFIER = ModelCard(
    "text-classification",
    "An adaptive text classifier",
    """\
for answer in model.predict(["a text", "another text"]):
    print(answer.label, answer.score, answer.exit_layer)""",
    '`AutoModelForSequenceClassification` and `pipeline("text-classification")` load it too,',
)


class AnswerType(ABC):
    """One kind of answer; it has no state, so there is one object of each kind."""

    name: ClassVar[str]  # as Hugging Face's `problem_type` has it
    short: ClassVar[str]  # as the command line has it
    metric: ClassVar[str]  # the main one of your own data
    metrics: ClassVar[tuple[str, ...]]  # reported beside it

    # what it can do
    has_labels: ClassVar[bool] = True  # its outputs are named classes
    has_probabilities: ClassVar[bool] = True  # so certainty has a meaning
    is_one_class: ClassVar[bool] = False  # exits can vote for it
    has_scores: ClassVar[bool] = True  # every output's score can be written beside an answer
    needs_tolerance: ClassVar[bool] = False  # two answers agree within a tolerance
    per_token: ClassVar[bool] = False  # a head answers at every token
    several_rows: ClassVar[bool] = False  # an example may be several rows, which exit each for itself
    unit: ClassVar[str] = "row"  # what an example is called

    # where it is met
    architecture: ClassVar[str] = "ForSequenceClassification"  # the end of the name of transformers' class
    head_module: ClassVar[str] = "classifier"  # what a per-token head is called in that class
    fixed_labels: ClassVar[tuple[str, ...] | None] = None  # what its outputs are always called
    inputs: ClassVar[tuple[str, ...] | None] = None  # the columns of its examples, where they are always these
    usual_length: ClassVar[int | None] = None  # tokens that its rows are cut to; None: as a recipe's authors did
    too_long: ClassVar[str] = "the rest is cut"  # what becomes of longer examples
    submissions: ClassVar[tuple[str, ...]] = ("glue", "elue")  # benchmarks whose files it can write
    fields: ClassVar[Mapping[str, str]] = {"label": "string", "score": "float", "exit_layer": "int"}  # of a file's line
    card: ClassVar[ModelCard] = CLASSIFIER

    @property
    def title(self) -> str:
        """In words."""
        return self.name.replace("_", " ")

    def check_config(self, labels: int, ramp: str | None) -> None:  # noqa: B027 -- most have nothing to refuse
        """Refuse a config that cannot be of this kind."""

    def columns(self, classes: int) -> int:
        """How many numbers an exit gives per row."""
        return classes

    def alternatives(self, classes: int) -> int:
        """How many answers a probability is spread over."""
        return max(2, classes)

    # -- one end: examples become rows -------------------------------------------------------------

    def encoder(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None) -> Encoder:
        """What makes rows of at most `limit` tokens of examples; `pairs`: whether these are pairs of texts."""
        return TextEncoder(tokenizer, limit, pairs)

    def encode(self, examples: Sequence[Any], tokenizer: PreTrainedTokenizerBase, limit: int) -> EncodedRows:
        """Examples as rows."""
        return self.encoder(tokenizer, limit)(examples, 0)

    def shortest_row(self, special_tokens: int) -> int:
        """The least number of tokens that a row needs, of which so many are special."""
        return special_tokens + 1

    def example_for(self, pairs: bool | None) -> Any:
        """Something to warm up with."""
        return ("a text", "another text") if pairs else "a text to warm up with"

    def shared_texts(self, examples: Sequence[Any]) -> list[str]:
        """Parts of examples that others may share, so that who was trained on one knows something of the other."""
        return []

    def targets(self, rows: EncodedRows, labels: Sequence[Any]) -> Array:
        """What each row is trained on, from the examples' labels."""
        return np.asarray(labels)[rows.group]

    # -- the other end: outputs become answers -----------------------------------------------------

    def read(self, logits: Tensor, real: Callable[[], Tensor], marks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What an exit says of rows, (rows, columns), and every token's logits where it answers at tokens.

        `logits` is what the head gives; `real()` is where tokens are real, (rows, tokens).
        """
        return logits, None

    def locate(self, logits: Array, rows: EncodedRows) -> Array:
        """Outputs whose places in tokens have become places in the text, so that the rows are not needed any more."""
        return logits

    def decode(self, outputs: RowOutputs, group: Array | None, examples: Sequence[Any] | None, by: Decoding) -> Answers:
        """Examples' answers, made of their rows' located outputs; `group` says which rows belong together."""
        return TextAnswers(outputs.layer, outputs.logits, outputs.exit, self, by.labels)

    def model_outputs(self, tokens: Tensor | None, length: int) -> dict[str, Tensor]:
        """What a model's output holds beside its logits, as transformers' own classes name it."""
        return {}

    def endpoints(self) -> Sequence[Endpoint]:
        """The server's routes for this kind of answer."""
        from offramp.answers.text_routes import ROUTES

        return ROUTES

    # -- the answer --------------------------------------------------------------------------------

    @abstractmethod
    def answers(self, logits: Array) -> Array:
        """The answers to logits whose last axis is columns."""

    @abstractmethod
    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Which answers differ, (rows,)."""

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
    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """One answer in words."""

    def format_label(self, label: Any, labels: Sequence[str]) -> str:
        """A right answer in words."""
        return self.format(label, labels)

    def same(self, choices: Array, others: Array) -> NDArray[np.bool_]:
        """Which rows chose as another runtime's did, (rows,); both are (rows, n), made by `choice`."""
        return np.asarray((choices == others).reshape(len(others), -1).all(1))

    def is_constant(self, answers: Array) -> bool:
        """Whether all answers are the same, so that there is nothing to learn."""
        return len(np.unique(answers, axis=0)) == 1

    def check_labels(self, labels: Sequence[Any]) -> None:  # noqa: B027 -- most have nothing to refuse
        """Refuse training rows that there is nothing to learn from."""

    def label_array(self, labels: Sequence[Any]) -> Array:
        """The labels of a data set, as metrics take them."""
        return np.asarray(labels, dtype=np.int64)

    def label_order(self, name: str, theirs: Sequence[str], ours: Sequence[str]) -> list[int]:
        """Where each of our labels stands among another model's."""
        names, needed = ([label.casefold() for label in labels] for labels in (theirs, ours))
        if sorted(names) != sorted(needed):
            raise BadModel(f"{name} answers with {', '.join(theirs)}, and this model with {', '.join(ours)}.")
        return [names.index(label) for label in needed]

    def check_scores(self, all_scores: bool) -> None:
        """Refuse to write scores that an answer does not have."""
        if all_scores and not self.has_scores:
            raise BadValue(f"{self.title.capitalize()} has no labels with probabilities; leave `all_scores=` out.")

    def describe_labels(self, labels: Sequence[str]) -> str:
        """What a card says about its labels."""
        return ", ".join(labels)

    def describe_risk(self, of: str, tolerance: float | None) -> str:
        """What a guarantee about `disagreement` or `accuracy` bounds, in words."""
        if of == "accuracy":
            return "accuracy lost against the full model"
        return "answers that differ from the full model's"

    def official_scores(
        self, answers: Mapping[str, Array], ids: Sequence[str] | None, labels: Sequence[Any] | None
    ) -> dict[str, dict[str, float]] | None:
        """A benchmark's own scores of several lists of answers, by name; None where it has none of its own."""
        return None

    def tuned_scores(
        self, outputs: RowOutputs, group: Array, examples: Sequence[Any], labels: Array
    ) -> dict[str, float]:
        """What the best setting of `Decoding` would give on these rows; nothing where there is nothing to set."""
        return {}

    # -- exiting -----------------------------------------------------------------------------------

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

    def log_odds(self, logits: Tensor, memory: Memory | None) -> tuple[Tensor, Memory]:
        """What a risk model reads at an exit, (rows,), and what it remembers for the next exit."""
        return torch.logit(self.confidence(logits), eps=LIKELIEST), {}

    def certainty(self, logits: Array, exits: Array) -> NDArray[np.float64]:
        """How certain rows were where they exited, (rows,); `logits` are (rows, exits, columns)."""
        last = logits[np.arange(len(logits)), exits - 1].astype(np.float64)
        return np.asarray(self.confidence(torch.from_numpy(last)).numpy(), dtype=np.float64)

    # -- training ----------------------------------------------------------------------------------

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
    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How wrong an exit is, from 0 to 1: what BERxiT's LTE learns to foresee; leading axes stay."""
