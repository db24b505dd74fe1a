"""Ranking: the candidate documents of a query in order, as cross-encoders rerank them.

A query and its documents are encoded into one row per document (`ranking_rows.py`). Every exit estimates the full
model's score of a row; a group policy compares the rows of a query. The answer is the order of the documents
(`ranking_answers.py`), and two answers are compared by their first `top_k` documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer import Answers, Decoding, Endpoint, ModelCard, RowOutputs
from offramp.answers.answer_type import AnswerType, Array, Encoder, RowPrediction
from offramp.answers.ranking_answers import missing_fraction, relevance, sort_documents
from offramp.answers.ranking_folder import order_outputs, read_activation
from offramp.answers.ranking_rows import QUERY, RankingEncoder
from offramp.answers.ranking_scores import ndcg
from offramp.data.rankings import RANKING_INPUTS
from offramp.errors import BadModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Ranking"]

TOP_K = 10
ACTIVATIONS = ("sigmoid", "identity", "softmax")
DEFAULTS: Mapping[str, Any] = {"activation": "sigmoid", "template": None, "top_k": TOP_K}
LISTWISE_WEIGHT = 0.5  # of the order of a query's documents in the loss of imitating exits, next to their scores


class Ranking(AnswerType):
    """The prediction is the order of a query's documents; a row is a pair of the query and a document."""

    name: ClassVar[str] = "ranking"
    cli_name: ClassVar[str] = "ranking"
    metric: ClassVar[str] = "ndcg_at_10"
    metrics: ClassVar[tuple[str, ...]] = ("ndcg_at_10", "mrr_at_10")
    has_labels: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = False
    has_scores: ClassVar[bool] = False
    has_partial_changes: ClassVar[bool] = True
    multiple_rows: ClassVar[bool] = True
    compares_rows: ClassVar[bool] = True
    unit: ClassVar[str] = "query"
    units: ClassVar[str] = "queries"
    input_name: ClassVar[str] = "query"
    input_names: ClassVar[str] = "queries"
    row_name: ClassVar[str] = "document"
    agreement_name: ClassVar[str] = "of the full model's top documents"
    change_name: ClassVar[str] = "missing top documents"
    inputs: ClassVar[tuple[str, ...] | None] = RANKING_INPUTS
    truncation_note: ClassVar[str] = "longer pairs are truncated"
    submission_formats: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, str]] = {
        "ranking": "ints",
        "scores": "floats",
        "num_full": "int",
        "exit_layer": "int",
    }
    card: ClassVar[ModelCard] = ModelCard(
        "text-ranking",
        "Reranking with early exits",
        """\
for result in model.rank("a query", ["a document", "another document"], top_k=10):
    print(result["corpus_id"], result["score"])""",
        """\
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained("path/to/this/model", trust_remote_code=True)""",
    )

    def check_config(self, labels: int, ramp: str | None) -> None:
        """Raise unless there are one or two outputs."""
        if labels not in (1, 2):
            raise BadModel(f"A ranking needs one output, or two of which the last means relevant; got {labels}.")

    def check_options(self, options: Any, labels: int) -> Mapping[str, Any] | None:
        """Return the options with their defaults: activation, template, top_k."""
        options = {} if options is None else options
        if not isinstance(options, Mapping) or not set(options) <= set(DEFAULTS):
            raise BadModel(f"`answer_options` may have {', '.join(DEFAULTS)}; got {options!r:.80}.")
        values = {**DEFAULTS, **({"activation": "softmax"} if labels == 2 else {}), **options}
        if values["activation"] not in ACTIVATIONS or (values["activation"] == "softmax") is not (labels == 2):
            allowed = "softmax" if labels == 2 else "sigmoid or identity"
            raise BadModel(f"`answer_options.activation` must be {allowed}, got {values['activation']!r:.60}.")
        top_k, template = values["top_k"], values["template"]
        if not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= 100_000:
            raise BadModel(f"`answer_options.top_k` must be a positive integer, got {top_k!r:.60}.")
        if template is not None and (
            not isinstance(template, str) or template.count(QUERY) != 1 or "{document}" not in template
        ):
            raise BadModel(
                f"`answer_options.template` must contain {{query}} once and {{document}}, got {template!r:.80}."
            )
        return values

    def options_of_checkpoint(self, name: str, config: Any) -> Mapping[str, Any] | None:
        """Return the activation function that the folder of a cross-encoder names."""
        return {"activation": read_activation(name, config, config.num_labels)}

    def order_outputs(self, name: str, labels: Sequence[str]) -> list[str]:
        """Return the labels with the one that means relevant last."""
        return order_outputs(name, labels)

    @classmethod
    def describe_truncated(cls, truncated: int, total: int, limit: int) -> str:
        """Return a sentence with the number of queries with a pair that is longer than the maximum length."""
        verb = "have" if truncated > 1 else "has"
        return f"{truncated:,} of {total:,} queries {verb} documents that are truncated, to {limit:,} tokens per pair."

    # -- encoding: from queries and documents to pairs -----------------------------------------------

    def encoder(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None) -> Encoder:
        """Return the encoder into one row per document, as a pair of texts."""
        return RankingEncoder(tokenizer, limit)

    def encoder_with_options(
        self,
        tokenizer: PreTrainedTokenizerBase,
        limit: int,
        pairs: bool | None,
        options: Mapping[str, Any] | None,
    ) -> Encoder:
        """Return the same with the model's template."""
        return RankingEncoder(tokenizer, limit, (options or DEFAULTS)["template"])

    def min_row_length(self, special_tokens: int) -> int:
        """Return the length of a row with one token of the query and one of the document."""
        return special_tokens + 2

    def warmup_example(self, pairs: bool | None) -> Any:
        """Return a query with two documents."""
        return "a query", "a document", "another document"

    def identify(self, example: Any) -> Any:
        """Return the query: it is the unit of splits, tests and audits."""
        return example[0]

    def training_examples(self, examples: Sequence[Any], rows: int, seed: int) -> list[Any]:
        """Return the rankings with fewer documents, so that they have about this many rows together.

        The first documents, which the retriever ranked highest, are the most likely ones to be near the top. They are
        half of those that stay; the others are a random sample.
        """
        limit = max(8, rows // max(1, len(examples)))
        random, shortened = np.random.default_rng(seed), []
        for example in examples:
            documents = len(example) - 1
            first = np.arange(min(limit // 2, documents))
            others = random.permutation(np.arange(len(first), documents))[: limit - len(first)]
            chosen = [*first.tolist(), *sorted(others.tolist())]
            shortened.append((example[0], *(example[1 + index] for index in chosen)))
        return shortened

    # -- decoding: from pairs to rankings --------------------------------------------------------------

    def decode(
        self, outputs: RowOutputs, group: Array | None, examples: Sequence[Any] | None, decoding: Decoding
    ) -> Answers:
        """Return the documents of each query in order."""
        assert group is not None, "a ranking needs the rows of its query"
        options = decoding.options or DEFAULTS
        return sort_documents(outputs, group, options["activation"], options["top_k"], decoding.depth)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the routes `/rerank`, `/v1/rerank`, `/v2/rerank` and `/score`."""
        from offramp.answers.ranking_routes import ROUTES

        return ROUTES

    # -- predictions -----------------------------------------------------------------------------------

    def answers(self, logits: Array) -> Array:
        """Return the score of each row; `decode` puts the rows of a query in order."""
        return np.asarray(relevance(logits), dtype=np.float64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return the queries whose top documents are not the same set."""
        return missing_fraction(answers, others) > 0

    def changes(self, answers: Array, others: Array, tolerance: float | None = None) -> Array:
        """Return the fraction of the other ranking's top documents that are missing."""
        return missing_fraction(answers, others)

    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return 1 − nDCG of the first 10 documents."""
        return 1 - ndcg(answers, labels)

    def distance(self, answers: Array, labels: Array) -> Array:
        """Return 1 − nDCG for the answers of each exit, (exits, queries)."""
        return np.stack([self.error(exit_answers, labels) for exit_answers in answers])

    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Raise: a single document has no prediction."""
        raise AssertionError("a ranking is made of all documents of a query")

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Return the indices of the first documents."""
        values = np.asarray(answer)
        if values.ndim == 0:
            return f"{float(values):.3f}"
        top = [str(index) for index in values[1 : 1 + values[0]].tolist() if index >= 0]
        return " ".join(top[:TOP_K]) + (" …" if len(top) > TOP_K else "")

    def format_label(self, label: Any, labels: Sequence[str]) -> str:
        """Return the indices of the relevant documents."""
        return " ".join(str(index) for index, grade in enumerate(label) if grade > 0) or "(none)"

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Return the grades of the documents of each query, in an array of tuples."""
        array = np.empty(len(labels), dtype=object)
        array[:] = [tuple(map(float, grades)) for grades in labels]
        return array

    def same_choices(self, choices: Array, others: Array) -> NDArray[np.bool_]:
        """Return where the difference of scores is at most a tenth of their range."""
        return np.asarray(np.abs(choices - others).reshape(len(others), -1).max(1) <= np.ptp(others) / 10)

    def is_constant(self, answers: Array) -> bool:
        """Whether all scores are the same."""
        return bool(np.ptp(answers) == 0)

    def label_order(self, name: str, other_labels: Sequence[str], labels: Sequence[str]) -> list[int]:
        """Return the outputs in their order, the relevant one last."""
        return list(range(len(labels)))

    def describe_labels(self, labels: Sequence[str]) -> str:
        """Return a description: there are no labels."""
        return "a score per document"

    def describe_risk(self, risk_type: str, tolerance: float | None) -> str:
        """Return the same for the top 10 documents."""
        return self.describe_top_risk(risk_type, TOP_K)

    def describe_top_risk(self, risk_type: str, top_k: int) -> str:
        """Return the same for the top documents."""
        if risk_type == "accuracy":
            return "nDCG@10 is lost compared with the full model"
        top = "top document" if top_k == 1 else f"top {top_k}"
        if risk_type == "changed" or top_k == 1:
            return f"of queries have another {top} than with the full model"
        return f"of the full model's {top} documents are missing, on average over queries"

    # -- exit decisions --------------------------------------------------------------------------------

    def choice(self, logits: Tensor) -> Tensor:
        """Return the score, (rows, 1)."""
        return torch.as_tensor(relevance(logits)).unsqueeze(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Raise: a score has no entropy."""
        raise NotImplementedError("a ranking has no probabilities; policies check that")

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the sigmoid of the score."""
        return torch.sigmoid(relevance(logits))

    def margin(self, logits: Tensor) -> Tensor:
        """Raise: there is no runner-up."""
        raise NotImplementedError("a ranking has no probabilities; policies check that")

    # -- training: scores of the full model ------------------------------------------------------------

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the binary cross-entropy; labels from 0 to 1."""
        target = labels.to(logits.dtype).view(-1)
        return functional.binary_cross_entropy_with_logits(relevance(logits), target)

    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return the mean squared difference of the scores."""
        return functional.mse_loss(relevance(logits), relevance(teacher))

    def imitation_loss(self, logits: Tensor, teacher: Tensor, group: Tensor) -> Tensor:
        """Return the squared difference of the scores, plus the divergence of their softmax over each query."""
        scores, target = relevance(logits), relevance(teacher)
        return functional.mse_loss(scores, target) + LISTWISE_WEIGHT * listwise(scores, target, group)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return |tanh(score − label)|."""
        return (relevance(logits) - labels.to(logits.dtype).view(-1)).tanh().abs()


def listwise(scores: Tensor, target: Tensor, group: Tensor) -> Tensor:
    """Return KL(softmax(target) ‖ softmax(scores)) over the documents of each query, the mean over queries."""
    _, group = torch.unique(group, return_inverse=True)
    queries = int(group.max()) + 1
    log_scores, log_target = (_log_softmax(values, group, queries) for values in (scores, target))
    return (log_target.exp() * (log_target - log_scores)).sum() / queries


def _log_softmax(values: Tensor, group: Tensor, queries: int) -> Tensor:
    maxima = values.detach().new_full((queries,), -torch.inf).scatter_reduce(0, group, values.detach(), "amax")
    shifted = values - maxima[group]
    totals = shifted.new_zeros(queries).index_add(0, group, shifted.exp())
    return shifted - totals.log()[group]
