"""The interface of an answer type: single label, multi label, regression, span, ranking, token.

An answer type encodes examples into rows of tokens (`encoder`) and decodes the outputs of rows into predictions
(`decode`), fields of output files (`fields`) and responses of the server (`endpoints`). Policies, losses, metrics,
risks and reports use its methods and never check which type it is.

Exit decisions, losses and probabilities use torch tensors, `logits` is (rows, columns). Scoring uses numpy arrays:
`answers` are (rows,) classes or values, or (rows, labels) with 0 and 1.
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
from offramp.answers.texts import TextRowEncoder
from offramp.core.batch import EncodedRows
from offramp.errors import BadModel, BadValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["AnswerType", "Array", "Encoder", "RowPrediction"]

Array = NDArray[Any]
RowPrediction = tuple[str | list[str] | None, float, list[float]]  # label, score, probabilities (or the value)
Encoder = Callable[[Sequence[Any], int], EncodedRows]
"""Takes examples and the number of examples before them, returns their rows."""
Memory = Mapping[str, Tensor]

LOG_ODDS_EPS = 1e-6  # log-odds are clipped at a million to one
CLASSIFIER_CARD = ModelCard(
    "text-classification",
    "Text classification with early exits",
    """\
for answer in model.predict(["a text", "another text"]):
    print(answer.label, answer.score, answer.exit_layer)""",
    """\
from transformers import pipeline

classify = pipeline("text-classification", "path/to/this/model", trust_remote_code=True)
print(classify("a text"))""",
)


class AnswerType(ABC):
    """An answer type; it has no state, so there is a single instance of each subclass."""

    name: ClassVar[str]  # Hugging Face's `problem_type`
    cli_name: ClassVar[str]  # name on the command line
    metric: ClassVar[str]  # main metric for the user's own data
    metrics: ClassVar[tuple[str, ...]]  # all metrics for the user's own data

    # capabilities
    has_labels: ClassVar[bool] = True  # its outputs are named classes
    has_probabilities: ClassVar[bool] = True  # confidence is defined
    is_single_class: ClassVar[bool] = False  # each prediction is one class, so exits can vote
    has_scores: ClassVar[bool] = True  # `all_scores` can be written
    needs_tolerance: ClassVar[bool] = False  # predictions agree within a tolerance
    per_token: ClassVar[bool] = False  # heads have outputs for every token
    multiple_rows: ClassVar[bool] = False  # an example may have several rows, which exit independently
    has_windows: ClassVar[bool] = False  # a text that is too long has several rows, any other text has one
    has_items: ClassVar[bool] = False  # a prediction is a set of items, such as entities, which may be lost
    has_partial_changes: ClassVar[bool] = False  # a prediction may change in part, so `changes` has fractions
    compares_rows: ClassVar[bool] = False  # the rows of an example are compared by a score (`choice`)
    unit: ClassVar[str] = "row"  # noun for an example
    units: ClassVar[str] = ""  # its plural (default: with an s)
    input_name: ClassVar[str] = "text"  # noun for an example in the data of a user
    input_names: ClassVar[str] = "texts"
    row_name: ClassVar[str] = "text"  # noun for a row that the model runs
    agreement_name: ClassVar[str] = "same predictions"
    change_name: ClassVar[str] = "changed predictions"
    outcome_noun: ClassVar[str] = "class"  # noun for a column of `outcomes`
    outcome_nouns: ClassVar[str] = "classes"
    outcome_note: ClassVar[str] = "Of the tested texts that the full model assigns to a class, how many keep it:"
    outcome_change: ClassVar[str] = "{rate} of the predictions of {outcomes} change"  # in the sentence of a guarantee

    # defaults and formats
    architecture: ClassVar[str] = "ForSequenceClassification"  # suffix of the transformers class name
    head_module: ClassVar[str] = "classifier"  # name of a per-token head in that class
    fixed_labels: ClassVar[tuple[str, ...] | None] = None  # names of the outputs, if fixed
    inputs: ClassVar[tuple[str, ...] | None] = None  # columns of the examples, if fixed
    reads_words: ClassVar[bool] = False  # an example may be a list of words instead of a text
    default_max_length: ClassVar[int | None] = None  # in tokens; None: the published length of the recipe
    truncation_note: ClassVar[str] = "longer texts are truncated"
    submission_formats: ClassVar[tuple[str, ...]] = ("glue", "elue")  # benchmarks whose files it can write
    fields: ClassVar[Mapping[str, str]] = {"label": "string", "score": "float", "exit_layer": "int"}  # of output files
    card: ClassVar[ModelCard] = CLASSIFIER_CARD

    @property
    def title(self) -> str:
        """Name for messages."""
        return self.name.replace("_", " ")

    @property
    def may_have_several_rows(self) -> bool:
        """Whether some examples have several rows, from which their predictions are decoded."""
        return self.multiple_rows or self.has_windows

    def check_config(self, labels: int, ramp: str | None) -> None:  # noqa: B027 -- optional
        """Raise if a config is not valid for this answer type."""

    def check_options(self, options: Any, labels: int) -> Mapping[str, Any] | None:
        """Return the `answer_options` of a config with their defaults; raise if they are not valid."""
        if options:
            raise BadModel(f"`answer_options` must be null for {self.title}, got {options!r:.60}.")
        return None

    def check_single_graph(self, options: Mapping[str, Any] | None) -> None:
        """Raise if the exit decisions of a model with these options cannot be part of an ONNX graph."""
        if not self.is_single_class:
            raise BadValue("`one_file=` supports single-label and token classification only.")

    def options_of_checkpoint(self, name: str, config: Any) -> Mapping[str, Any] | None:
        """Return the `answer_options` that a fine-tuned checkpoint implies; `config` is its config."""
        return None

    def order_outputs(self, name: str, labels: Sequence[str]) -> list[str]:
        """Return the labels of a fine-tuned checkpoint in the order that this answer type needs."""
        return list(labels)

    @property
    def plural(self) -> str:
        """Noun for several examples."""
        return self.units or f"{self.unit}s"

    @classmethod
    def describe_truncated(cls, truncated: int, total: int, limit: int) -> str:
        """Return a sentence with the number of examples that are longer than the maximum length in tokens."""
        verb, names = "are" if truncated > 1 else "is", cls.input_names
        return f"{truncated:,} of {total:,} {names} {verb} longer than {limit:,} tokens and {verb} truncated."

    def num_columns(self, classes: int) -> int:
        """Return the number of outputs of an exit per row."""
        return classes

    def num_alternatives(self, classes: int) -> int:
        """Return the number of alternatives in a probability distribution."""
        return max(2, classes)

    # -- encoding: from examples to rows -----------------------------------------------------------

    def encoder(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None) -> Encoder:
        """Return the encoder into rows of at most `limit` tokens; `pairs`: whether examples are pairs of texts."""
        return TextRowEncoder(tokenizer, limit, pairs)

    def encoder_with_options(
        self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None, options: Mapping[str, Any] | None
    ) -> Encoder:
        """Return the encoder of a model with these `answer_options`."""
        return self.encoder(tokenizer, limit, pairs)

    def training_examples(self, examples: Sequence[Any], rows: int, seed: int) -> list[Any]:
        """Return the examples to train exits on; if one is many rows, with about `rows` rows together."""
        return list(examples)

    def encode(self, examples: Sequence[Any], tokenizer: PreTrainedTokenizerBase, limit: int) -> EncodedRows:
        """Encode examples into rows."""
        return self.encoder(tokenizer, limit)(examples, 0)

    def min_row_length(self, special_tokens: int) -> int:
        """Return the minimum number of tokens of a row, including its special tokens."""
        return special_tokens + 1

    def warmup_example(self, pairs: bool | None) -> Any:
        """Return an example for warm-up."""
        return ("a text", "another text") if pairs else "a text to warm up with"

    def identify(self, example: Any) -> Any:
        """Return what makes an example the same as another: the example, or a text of it."""
        return example

    def shared_texts(self, examples: Sequence[Any]) -> list[str]:
        """Return texts that several examples may share, such as contexts: they link held-out and training rows."""
        return []

    def targets(self, rows: EncodedRows, labels: Sequence[Any]) -> Array:
        """Return the training target of each row from the labels of the examples."""
        return np.asarray(labels)[rows.group]

    # -- decoding: from outputs to predictions -----------------------------------------------------

    def summarize_logits(
        self, logits: Tensor, real: Callable[[], Tensor], marks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs of rows, (rows, columns), and the logits of all tokens for per-token heads (else None).

        `logits` is the output of the head; `real()` is the mask of real tokens, (rows, tokens).
        """
        return logits, None

    def locate(self, logits: Array, rows: EncodedRows) -> Array:
        """Convert token positions in outputs to character positions, so that the rows are no longer needed."""
        return logits

    def decode(
        self, outputs: RowOutputs, group: Array | None, examples: Sequence[Any] | None, decoding: Decoding
    ) -> Answers:
        """Return predictions from the located outputs of rows; `group` is the example index of each row."""
        return TextAnswers(outputs.layer, outputs.logits, outputs.exit, self, decoding.labels)

    def model_outputs(self, tokens: Tensor | None, length: int) -> dict[str, Tensor]:
        """Return the fields of a model's output besides its logits, with the names of transformers."""
        return {}

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the server routes of this answer type."""
        from offramp.answers.text_routes import ROUTES

        return ROUTES

    # -- predictions -------------------------------------------------------------------------------

    @abstractmethod
    def answers(self, logits: Array) -> Array:
        """Return the predictions for logits; the last axis is columns."""

    @abstractmethod
    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return which predictions differ, (rows,)."""

    def changes(self, answers: Array, others: Array, tolerance: float | None = None) -> Array:
        """Return how much of each prediction differs, from 0 to 1, (rows,)."""
        return self.differ(answers, others, tolerance).astype(np.int64)

    def lost(self, answers: Array, others: Array) -> NDArray[np.float64]:
        """Return the fraction of the other predictions' items that are missing, (rows,); NaN without items."""
        raise NotImplementedError(f"{self.title} has no items")

    @abstractmethod
    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return the error of each prediction, from 0 to 1, (rows,)."""

    @abstractmethod
    def distance(self, answers: Array, labels: Array) -> Array:
        """Return the distance to the label, for ranking exits; leading axes are kept."""

    @abstractmethod
    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Yield the label, the score and the probabilities of each row."""

    @abstractmethod
    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Format one prediction as text."""

    def format_label(self, label: Any, labels: Sequence[str]) -> str:
        """Format a gold label as text."""
        return self.format(label, labels)

    def outcomes(self, answers: Array, labels: Sequence[str], bands: Sequence[float]) -> NDArray[np.bool_] | None:
        """Return the classes of predictions as columns of yes and no, (rows, outcomes); None without classes.

        A guarantee per class limits, for each column, how many rows change from yes to no.
        """
        return None

    def kept_outcomes(
        self, answers: Array, expected: Array, labels: Sequence[str], bands: Sequence[float]
    ) -> NDArray[np.bool_] | None:
        """Return the classes that the predictions have kept, of those of the expected ones, (rows, outcomes)."""
        return self.outcomes(answers, labels, bands)

    def outcome_names(self, labels: Sequence[str], bands: Sequence[float]) -> list[str]:
        """Return the names of the columns of `outcomes`."""
        return []

    def scores(self, logits: Array) -> Array:
        """Return probabilities per label, (rows, labels), or values, (rows, 1)."""
        raise BadValue(f"{self.title.capitalize()} has no score per text.")

    def same_choices(self, choices: Array, others: Array) -> NDArray[np.bool_]:
        """Return which rows have the same `choice` in two runtimes, (rows,); both arrays are (rows, n)."""
        return np.asarray((choices == others).reshape(len(others), -1).all(1))

    def is_constant(self, answers: Array) -> bool:
        """Whether all predictions are the same."""
        return len(np.unique(answers, axis=0)) == 1

    def check_labels(self, labels: Sequence[Any]) -> None:  # noqa: B027 -- optional
        """Raise if a model cannot be trained on these labels."""

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Return the labels of a dataset as an array for metrics."""
        return np.asarray(labels, dtype=np.int64)

    def label_order(self, name: str, other_labels: Sequence[str], labels: Sequence[str]) -> list[int]:
        """Return the index of each label among the labels of the other model `name`."""
        available, required = ([label.casefold() for label in names] for names in (other_labels, labels))
        if sorted(available) != sorted(required):
            raise BadModel(f"{name} predicts {', '.join(other_labels)}, but this model predicts {', '.join(labels)}.")
        return [available.index(label) for label in required]

    def check_scores(self, all_scores: bool) -> None:
        """Raise if `all_scores` is set and there are no scores per label."""
        if all_scores and not self.has_scores:
            raise BadValue(f"`all_scores=` does not support {self.title}, which has no label probabilities; remove it.")

    def describe_labels(self, labels: Sequence[str]) -> str:
        """Describe the labels for a model card."""
        return ", ".join(labels)

    def describe_risk(self, risk_type: str, tolerance: float | None) -> str:
        """Return what follows "at most 1 %" in the sentence of a guarantee about `disagreement` or `accuracy`."""
        if risk_type == "accuracy":
            return "accuracy is lost compared with the full model"
        return "of predictions differ from the full model's"

    def describe_top_risk(self, risk_type: str, top_k: int) -> str:
        """Return the same for a ranking, whose first `top_k` documents are compared."""
        raise NotImplementedError(f"{self.title} has no top documents")

    def official_scores(
        self, answers: Mapping[str, Array], ids: Sequence[str] | None, labels: Sequence[Any] | None
    ) -> dict[str, dict[str, float]] | None:
        """Return the official benchmark scores of several lists of predictions, by name; None if there are none."""
        return None

    def tuned_scores(
        self, outputs: RowOutputs, group: Array, examples: Sequence[Any], labels: Array
    ) -> dict[str, float]:
        """Return the best `Decoding` setting on these rows and its score; empty if there is nothing to tune."""
        return {}

    # -- exit decisions ----------------------------------------------------------------------------

    @abstractmethod
    def choice(self, logits: Tensor) -> Tensor:
        """Return what patience compares between exits, (rows, n)."""

    def agree(self, choice: Tensor, previous: Tensor, tolerance: float | None) -> Tensor:
        """Return whether two exits made the same choice, (rows,)."""
        return (choice == previous).all(-1)

    @abstractmethod
    def entropy(self, logits: Tensor) -> Tensor:
        """Return the entropy in nats, (rows,); finite and non-negative for all finite logits."""

    @abstractmethod
    def confidence(self, logits: Tensor) -> Tensor:
        """Return the probability of the prediction, (rows,)."""

    @abstractmethod
    def margin(self, logits: Tensor) -> Tensor:
        """Return the difference to the probability of the runner-up, (rows,)."""

    def log_odds(self, logits: Tensor, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Return the input of a risk model at an exit, (rows,), and the memory for the next exit."""
        return torch.logit(self.confidence(logits), eps=LOG_ODDS_EPS), {}

    def certainty(self, logits: Array, exits: Array) -> NDArray[np.float64]:
        """Return the certainty of rows at their exits, (rows,), for ranking; `logits` is (rows, exits, columns)."""
        exit_logits = logits[np.arange(len(logits)), exits - 1].astype(np.float64)
        return np.asarray(self.confidence(torch.from_numpy(exit_logits)).numpy(), dtype=np.float64)

    # -- training ----------------------------------------------------------------------------------

    def to_class_rows(self, logits: Tensor) -> Tensor:
        """Return logits as rows with one class per column; the start and end of a span are two such rows."""
        return logits

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the loss of one exit, a scalar.

        `weights` has one weight per class (multi-label: the positive weight per label); `smoothing` is label smoothing.
        """

    @abstractmethod
    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return T² · KL(softmax(teacher / T) ‖ softmax(logits / T)), a scalar.

        The mean over rows and classes, as in RomeBERT (arXiv:2101.09755), or over rows if `per_row`.
        """

    def imitation_loss(self, logits: Tensor, teacher: Tensor, group: Tensor) -> Tensor:
        """Return the loss of an exit that imitates the full model, a scalar; `group` is the example of each row."""
        return self.distillation_loss(logits, teacher, 1.0, per_row=True)

    @abstractmethod
    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the error of an exit, from 0 to 1, that BERxiT's LTE learns to predict; leading axes are kept."""
