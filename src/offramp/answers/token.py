"""Token classification: names, personal data or other tags, decoded into entities with character offsets.

A text is encoded into rows whose tokens are marked by word (`token_rows.py`), the logits of its tokens are summarized
at every exit (`token_summary.py`), and words with the same type are joined into entities (`token_entities.py`) exactly
as transformers' `TokenClassificationPipeline` does. A text exits as a whole, when its least certain word is certain
enough (SENTEE, Li et al., ACL 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer import Answers, Decoding, Endpoint, ModelCard, RowOutputs
from offramp.answers.answer_type import LOG_ODDS_EPS, AnswerType, Array, Encoder, RowPrediction
from offramp.answers.single_label import divergence
from offramp.answers.token_entities import add_characters, find_entities, lost_fraction, objects, type_of, types_of
from offramp.answers.token_rows import AGGREGATIONS, TokenEncoder, text_of
from offramp.answers.token_scores import scores_by_type
from offramp.answers.token_summary import (
    CONFIDENCE,
    ENTROPY,
    JOINT,
    LABELS,
    MARGIN,
    WIDTH,
    default_marks,
    summarize_tokens,
)
from offramp.core.batch import EncodedRows
from offramp.data.entities import OUTSIDE, Entities
from offramp.errors import BadInput, BadModel, BadValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenClassification"]

DEFAULTS: Mapping[str, Any] = {"aggregation": "first"}
IGNORED = -100  # target of tokens without a label
MIN_LOGIT = -5e3  # logits of padding are below


class TokenClassification(AnswerType):
    """The prediction is the set of entities of a text; losses use the logits of the first token of each word."""

    name: ClassVar[str] = "token_classification"
    cli_name: ClassVar[str] = "token"
    metric: ClassVar[str] = "entity_f1"
    metrics: ClassVar[tuple[str, ...]] = ("entity_f1", "entity_precision", "entity_recall")
    has_scores: ClassVar[bool] = False
    per_token: ClassVar[bool] = True
    has_windows: ClassVar[bool] = True
    has_items: ClassVar[bool] = True
    reads_words: ClassVar[bool] = True
    unit: ClassVar[str] = "text"
    outcome_noun: ClassVar[str] = "type"
    outcome_nouns: ClassVar[str] = "types"
    outcome_note: ClassVar[str] = "Of the tested texts with entities of a type, how many lose none of them:"
    outcome_change: ClassVar[str] = "for {outcomes}, {rate} of the texts with such entities lose one of them"
    architecture: ClassVar[str] = "ForTokenClassification"
    default_max_length: ClassVar[int | None] = 128
    truncation_note: ClassVar[str] = "longer texts are read in windows"
    submission_formats: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, str]] = {"entities": "json", "score": "float", "exit_layer": "int"}
    card: ClassVar[ModelCard] = ModelCard(
        "token-classification",
        "Token classification with early exits",
        """\
for answer in model.predict(["a text", "another text"]):
    print(answer.entities, answer.exit_layer)""",
        """\
from transformers import pipeline

tag = pipeline("token-classification", "path/to/this/model", trust_remote_code=True, aggregation_strategy="first")
print(tag("a text"))""",
    )

    def check_config(self, labels: int, ramp: str | None) -> None:
        """Raise unless there are at least two labels and no ramp."""
        if labels < 2:
            raise BadModel(f"Token classification needs at least two labels; `id2label` has {labels}.")
        if ramp:
            raise BadModel("`ramp` is only for converted classifiers; token classification does not support it.")

    def check_options(self, options: Any, labels: int) -> Mapping[str, Any] | None:
        """Return the options with their defaults: aggregation."""
        options = {} if options is None else options
        if not isinstance(options, Mapping) or not set(options) <= set(DEFAULTS):
            raise BadModel(f"`answer_options` may have {', '.join(DEFAULTS)}; got {options!r:.80}.")
        values = {**DEFAULTS, **options}
        if values["aggregation"] not in AGGREGATIONS:
            raise BadModel(
                f"`answer_options.aggregation` must be one of {', '.join(AGGREGATIONS)}, got "
                f"{values['aggregation']!r:.60}."
            )
        return values

    def check_single_graph(self, options: Mapping[str, Any] | None) -> None:
        """Raise if the tokens of a word are joined, which a graph cannot do."""
        aggregation = (options or DEFAULTS)["aggregation"]
        if aggregation in ("average", "max"):
            raise BadValue(
                f"`one_file=` supports the aggregation strategies first, simple and none, not {aggregation}."
            )

    def num_columns(self, classes: int) -> int:
        """Return the number of columns of the summary."""
        return WIDTH

    # -- encoding: from texts to marked tokens ---------------------------------------------------------

    def encoder(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None) -> Encoder:
        """Return the encoder into windows whose tokens are marked by word."""
        return TokenEncoder(tokenizer, limit)

    def encoder_with_options(
        self,
        tokenizer: PreTrainedTokenizerBase,
        limit: int,
        pairs: bool | None,
        options: Mapping[str, Any] | None,
    ) -> Encoder:
        """Return the same for the model's aggregation strategy."""
        return TokenEncoder(tokenizer, limit, (options or DEFAULTS)["aggregation"])

    def identify(self, example: Any) -> Any:
        """Return the text."""
        return text_of(example)

    def targets(self, rows: EncodedRows, labels: Sequence[Any]) -> Array:
        """Return the label of the first token of each word, (rows, tokens); −100 for other tokens."""
        assert rows.marks is not None and rows.begins is not None and rows.ends is not None
        targets = np.full((len(rows), int(rows.lengths.max(initial=1))), IGNORED, dtype=np.int64)
        for row, example in enumerate(rows.group):
            begins, ends = rows.begins.row(row), rows.ends.row(row)
            marks = np.abs(rows.marks.row(row).astype(np.int64))
            words = np.flatnonzero(marks == np.arange(1, len(marks) + 1))
            targets[row, words] = _labels_of_words(begins[words], ends[words], labels[example])
        return targets

    # -- decoding: from windows to entities ------------------------------------------------------------

    def summarize_logits(
        self, logits: Tensor, real: Callable[[], Tensor], marks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the summary of the token logits, and these logits."""
        return summarize_tokens(logits, default_marks(real()) if marks is None else marks), logits

    def locate(self, logits: Array, rows: EncodedRows) -> Array:
        """Add the characters of the words."""
        return add_characters(logits, rows)

    def decode(
        self, outputs: RowOutputs, group: Array | None, examples: Sequence[Any] | None, decoding: Decoding
    ) -> Answers:
        """Return the entities of each text."""
        return find_entities(outputs, group, examples, decoding.labels, decoding.options or DEFAULTS)

    def model_outputs(self, tokens: Tensor | None, length: int) -> dict[str, Tensor]:
        """Return the logits of all tokens, padded to the length of the batch, in place of the summary."""
        if tokens is None:
            return {}
        return {"logits": functional.pad(tokens, (0, 0, 0, length - tokens.shape[1]))}

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the route `/` of Hugging Face's token classification."""
        from offramp.answers.token_routes import ROUTES

        return ROUTES

    # -- predictions -----------------------------------------------------------------------------------

    def answers(self, logits: Array) -> Array:
        """Return the label of each word at its position, (…, positions); `decode` joins them into entities."""
        return np.asarray(logits[..., LABELS], dtype=np.int64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return the texts with other entities; for labels of words, with another label."""
        different = np.asarray(answers != others, dtype=bool)
        return np.asarray(different.any(-1)) if different.ndim > 1 else different

    def lost(self, answers: Array, others: Array) -> NDArray[np.float64]:
        """Return the fraction of the others' entities that are missing; NaN for texts without entities."""
        return lost_fraction(answers, others)

    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return 1 where an entity is missing, wrong or too many."""
        return self.differ(answers, labels).astype(np.int64)

    def distance(self, answers: Array, labels: Array) -> Array:
        """Return the same for the answers of each exit, (exits, texts)."""
        return np.stack([self.differ(exit_answers, labels) for exit_answers in answers]).astype(np.float64)

    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Raise: a text has entities, not a label."""
        raise AssertionError("entities are decoded from all windows of a text")

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Return the entities as type and characters; for labels of words, the first label."""
        if isinstance(answer, np.ndarray):
            used = answer[answer >= 0]
            return labels[int(used[0])] if len(used) else "(no words)"
        return ", ".join(f"{kind} {start}-{end}" for kind, start, end in answer) or "(no entities)"

    def outcome_names(self, labels: Sequence[str], bands: Sequence[float]) -> list[str]:
        """Return the types of entities."""
        return list(dict.fromkeys(type_of(label) for label in labels if label != OUTSIDE))

    def outcomes(self, answers: Array, labels: Sequence[str], bands: Sequence[float]) -> NDArray[np.bool_] | None:
        """Return a column per type: whether a text has such an entity."""
        return types_of(answers, self.outcome_names(labels, bands))

    def kept_outcomes(
        self, answers: Array, expected: Array, labels: Sequence[str], bands: Sequence[float]
    ) -> NDArray[np.bool_] | None:
        """Return whether a text has all expected entities of each type."""
        lost = [set(entities).difference(found) for found, entities in zip(answers, expected, strict=True)]
        return ~types_of(lost, self.outcome_names(labels, bands))

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Return the entities of each text, in an array of tuples."""
        return objects([tuple(entities) for entities in labels])

    def is_constant(self, answers: Array) -> bool:
        """Whether all words have the same label."""
        return len(np.unique(answers[answers >= 0])) < 2

    def check_labels(self, labels: Sequence[Any]) -> None:
        """Raise if no text has an entity."""
        if not any(labels):
            raise BadInput("No training text has an entity; training needs labelled entities.")

    def describe_risk(self, risk_type: str, tolerance: float | None) -> str:
        """Return the same for entities."""
        return {
            "accuracy": "of texts lose their correct entities compared with the full model",
            "lost": "of the full model's entities are lost, on average over texts with entities",
        }.get(risk_type, "of texts have other entities than with the full model")

    def official_scores(
        self, answers: Mapping[str, Array], ids: Sequence[str] | None, labels: Sequence[Any] | None
    ) -> dict[str, dict[str, float]] | None:
        """Return the F1 of each type, in percent."""
        if labels is None:
            return None
        return {
            name: {f"f1 {kind}": 100 * scores["f1"] for kind, scores in scores_by_type(values, labels).items()}
            for name, values in answers.items()
        }

    # -- exit decisions --------------------------------------------------------------------------------

    def choice(self, logits: Tensor) -> Tensor:
        """Return the labels of the words, (rows, positions)."""
        return logits[:, LABELS]

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the largest entropy of a word."""
        return logits[:, ENTROPY]

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the probability of the least certain word."""
        return logits[:, CONFIDENCE]

    def margin(self, logits: Tensor) -> Tensor:
        """Return the smallest margin of a word over the runner-up."""
        return logits[:, MARGIN]

    def log_odds(self, logits: Tensor, memory: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the log-odds of all labels being right, if the words were independent."""
        return torch.logit(logits[:, JOINT].exp(), eps=LOG_ODDS_EPS), {}

    # -- training: one classification per word ---------------------------------------------------------

    def to_class_rows(self, logits: Tensor) -> Tensor:
        """Return the tokens as rows, (rows × tokens, labels)."""
        return logits.flatten(0, -2)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy over words; logits (rows, tokens, labels), labels (rows, tokens)."""
        used = min(logits.shape[1], labels.shape[1])
        targets = labels[:, :used].flatten().long()
        if not bool((targets != IGNORED).any()):
            return logits.sum() * 0.0
        flat = logits[:, :used].flatten(0, 1).float()
        return functional.cross_entropy(flat, targets, weight=weights, ignore_index=IGNORED, label_smoothing=smoothing)

    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return the divergence from the teacher, the mean over tokens; padding is left out."""
        rows, target = self.to_class_rows(logits), self.to_class_rows(teacher)
        real = target.amax(-1) > MIN_LOGIT
        return divergence(rows[real], target[real], temperature, per_row)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 where the label of a word is wrong; (…, rows) from (…, rows, tokens, labels)."""
        used = min(logits.shape[-2], labels.shape[-1])
        targets = labels[..., :used]
        wrong = (logits[..., :used, :].argmax(-1) != targets) & (targets != IGNORED)
        return wrong.any(-1).to(logits.dtype)


def _labels_of_words(begins: Array, ends: Array, entities: Entities) -> Array:
    """Return the label of each word: of the entity that it overlaps with."""
    index = {tag: number for number, tag in enumerate(entities.tags)}
    labels = np.full(len(begins), index.get("O", IGNORED), dtype=np.int64)
    for kind, start, end in entities:
        inside = np.flatnonzero((begins < end) & (ends > start))
        tags = [next((tag for tag in (f"{prefix}-{kind}", kind) if tag in index), None) for prefix in "BI"]
        first, other = (index[tag if tag is not None else f"I-{kind}"] for tag in tags)
        labels[inside] = other
        labels[inside[:1]] = first if not len(inside) or begins[inside[0]] <= start else other
    return labels
