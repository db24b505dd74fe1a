"""A span of a context: where the answer starts and where it ends, or that the context has none.

A question and its context are read in windows (`span_windows.py`), every exit says of each what `span_summary.py`
makes of its tokens, and a question's answer is the best of its windows' (`span_answers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer import Answers, Decoding, Endpoint, ModelCard, RowOutputs
from offramp.answers.answer_type import AnswerType, Array, Encoder, Written
from offramp.answers.overlap import f1
from offramp.answers.single_label import divergence
from offramp.answers.span_answers import SpanAnswers, best_no_answer, best_spans, located, texts_of
from offramp.answers.span_scores import squad_scores
from offramp.answers.span_summary import (
    CHOICE,
    CONFIDENCE,
    ENTROPY,
    LOW,
    MARGIN,
    POSITIONS,
    WIDTH,
    anywhere,
    summary,
)
from offramp.answers.span_windows import QuestionEncoder
from offramp.core.batch import EncodedRows
from offramp.data.questions import Question
from offramp.errors import BadModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Span"]


class Span(AnswerType):
    """The answer is the best span; losses take every token's two logits."""

    name: ClassVar[str] = "question_answering"
    short: ClassVar[str] = "span"
    metric: ClassVar[str] = "span_f1"
    metrics: ClassVar[tuple[str, ...]] = ("span_f1", "exact_match")
    has_labels: ClassVar[bool] = False
    has_scores: ClassVar[bool] = False
    per_token: ClassVar[bool] = True
    several_rows: ClassVar[bool] = True
    unit: ClassVar[str] = "question"
    architecture: ClassVar[str] = "ForQuestionAnswering"
    head_module: ClassVar[str] = "qa_outputs"
    fixed_labels: ClassVar[tuple[str, ...] | None] = ("start", "end")
    inputs: ClassVar[tuple[str, ...] | None] = ("question", "context")
    usual_length: ClassVar[int | None] = 384
    too_long: ClassVar[str] = "longer contexts are read in windows"
    submissions: ClassVar[tuple[str, ...]] = ("squad",)
    fields: ClassVar[Mapping[str, str]] = {
        "answer": "string",
        "score": "float",
        "start": "int",
        "end": "int",
        "exit_layer": "int",
    }
    card: ClassVar[ModelCard] = ModelCard(
        "question-answering",
        "An adaptive model that answers questions",
        'answer = model.answer("a question", "its context")\nprint(answer.text, answer.score, answer.exit_layer)',
        "`AutoModelForQuestionAnswering` loads it too,",
    )

    def check_config(self, labels: int, ramp: str | None) -> None:
        """Two outputs per token, and no ramp."""
        if labels != 2:
            raise BadModel(f"A span has two outputs per token, start and end; `id2label` names {labels}.")
        if ramp:
            raise BadModel("`ramp` is of a converted classifier; a model of spans has none.")

    def columns(self, classes: int) -> int:
        """Of the summary."""
        return WIDTH

    def alternatives(self, classes: int) -> int:
        """Positions of the longest usual window."""
        return POSITIONS

    # -- one end: a question and its context become windows ------------------------------------------

    def encoder(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None) -> Encoder:
        """Windows of the contexts."""
        return QuestionEncoder(tokenizer, limit)

    def shortest_row(self, special_tokens: int) -> int:
        """A token of the question and one of the context."""
        return special_tokens + 2

    def example_for(self, pairs: bool | None) -> Any:
        """A question."""
        return "a question", "a context"

    def shared_texts(self, examples: Sequence[Any]) -> list[str]:
        """A context that was trained on is known with other questions, too."""
        return [context for _, context in examples]

    def targets(self, rows: EncodedRows, labels: Sequence[Any]) -> Array:
        """The first right answer's first and last token, both 0 where the window lacks a part of it."""
        assert rows.marks is not None and rows.begins is not None and rows.ends is not None
        targets = np.zeros((len(rows), 2), dtype=np.int64)
        for row, question in enumerate(rows.group):
            if labels[question]:
                parts = (column.row(row) for column in (rows.marks, rows.begins, rows.ends))
                targets[row] = _target(labels[question][0], *parts)
        return targets

    # -- the other end: texts, made of windows -------------------------------------------------------

    def read(self, logits: Tensor, real: Callable[[], Tensor], marks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A summary of the tokens' logits, padding hidden."""
        where = real()
        tokens = logits.masked_fill(~where[..., None], LOW)
        return summary(tokens, anywhere(where) if marks is None else marks), tokens

    def locate(self, logits: Array, rows: EncodedRows) -> Array:
        """The best span's place in characters of its context."""
        return located(logits, rows)

    def decode(self, outputs: RowOutputs, group: Array | None, examples: Sequence[Any] | None, by: Decoding) -> Answers:
        """The best span of each question's windows."""
        assert group is not None and examples is not None, "questions are answered from their windows and contexts"
        found = best_spans(outputs.logits, group, by.no_answer)
        deepest = np.maximum.reduceat(outputs.layer, np.flatnonzero(np.diff(group, prepend=-1)))
        texts = texts_of(found, [example[1] for example in examples])
        return SpanAnswers(deepest, texts, found.score, found.begin, found.end)

    def model_outputs(self, tokens: Tensor | None, length: int) -> dict[str, Tensor]:
        """Logits of start and end, as long as the batch came."""
        if tokens is None:
            return {}
        padded = functional.pad(tokens, (0, 0, 0, length - tokens.shape[1]), value=LOW)
        return {"start_logits": padded[..., 0], "end_logits": padded[..., 1]}

    def endpoints(self) -> Sequence[Endpoint]:
        """`/answer`."""
        from offramp.answers.question_routes import ROUTES

        return ROUTES

    # -- the answer ----------------------------------------------------------------------------------

    def answers(self, logits: Array) -> Array:
        """The best spans of windows, (…, 2): start and end; questions' answers are made elsewhere."""
        return np.asarray(logits[..., CHOICE], dtype=np.int64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Another text."""
        return np.asarray(answers != others, dtype=bool)

    def wrong(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """What F1 lacks to 1."""
        return np.array([1 - f1(text, golds) for text, golds in zip(answers, labels, strict=True)])

    def distance(self, answers: Array, labels: Array) -> Array:
        """What F1 lacks to 1, of each exit's answers, (exits, rows)."""
        return np.stack([self.wrong(each, labels) for each in answers])

    def write(self, logits: Tensor, labels: Sequence[str]) -> Iterator[Written]:
        """Not of a window alone."""
        raise AssertionError("a question's answer is made of its windows")

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """The text."""
        return str(answer) or "(no answer)"

    def format_label(self, label: Any, labels: Sequence[str]) -> str:
        """The first right answer."""
        first = (label or ("",))[0]
        return self.format(getattr(first, "text", first), labels)

    def label_array(self, labels: Sequence[Any]) -> Array:
        """The right answers of each question as texts, in an array of tuples."""
        made = np.empty(len(labels), dtype=object)
        made[:] = [tuple(gold.text for gold in golds) for golds in labels]
        return made

    def describe_risk(self, of: str, tolerance: float | None) -> str:
        """Texts, and F1."""
        return "of F1 lost" if of == "accuracy" else "answers of another text than the full model's"

    def official_scores(
        self, answers: Mapping[str, Array], ids: Sequence[str] | None, labels: Sequence[Any] | None
    ) -> dict[str, dict[str, float]] | None:
        """SQuAD's own scores, in percent."""
        if labels is None or ids is None:
            return None
        asked = [Question(name, "", "", golds, impossible=not golds) for name, golds in zip(ids, labels, strict=True)]
        return {name: squad_scores(asked, dict(zip(ids, texts, strict=True))) for name, texts in answers.items()}

    def tuned_scores(
        self, outputs: RowOutputs, group: Array, examples: Sequence[Any], labels: Array
    ) -> dict[str, float]:
        """The best `no_answer` on these rows, and F1 then."""
        return best_no_answer(outputs.logits, group, [example[1] for example in examples], labels)

    # -- exiting -------------------------------------------------------------------------------------

    def choice(self, logits: Tensor) -> Tensor:
        """Start and end, (rows, 2)."""
        return logits[:, CHOICE]

    def entropy(self, logits: Tensor) -> Tensor:
        """The mean of start's and end's."""
        return logits[:, ENTROPY]

    def confidence(self, logits: Tensor) -> Tensor:
        """Start's probability times end's."""
        return logits[:, CONFIDENCE]

    def margin(self, logits: Tensor) -> Tensor:
        """The likeliest span's lead over the next."""
        return logits[:, MARGIN]

    # -- training: two classifications over the tokens ---------------------------------------------

    def apart(self, logits: Tensor) -> Tensor:
        """Each row's start and end as two rows with a class per token, (2 rows, tokens)."""
        return logits.transpose(1, 2).flatten(0, 1)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """The mean of start's and end's cross-entropy, (rows, tokens, 2) and (rows, 2).

        A target behind the last token does not count, as the library's own models have it.
        """
        tokens = logits.shape[1]
        each = [
            functional.cross_entropy(
                logits[..., side], labels[:, side].clamp(0, tokens), ignore_index=tokens, label_smoothing=smoothing
            )
            for side in (0, 1)
        ]
        return (each[0] + each[1]) / 2

    def imitation(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """The divergence of start and end; always per row, since padding is no class."""
        return divergence(self.apart(logits), self.apart(teacher), temperature, per_row=True)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """1 where start or end is wrong; (…, rows) of (…, rows, tokens, 2)."""
        return (logits.argmax(-2) != labels).any(-1).to(logits.dtype)


def _target(gold: Any, marks: Array, begins: Array, ends: Array) -> tuple[int, int]:
    """The first and the last token of an answer in a window that holds all of it; else 0 and 0."""
    there = np.flatnonzero(marks)
    if not len(there) or begins[there[0]] > gold.start or ends[there[-1]] < gold.end:
        return 0, 0
    inside = there[(ends[there] > gold.start) & (begins[there] < gold.end)]
    return (int(inside[0]), int(inside[-1])) if len(inside) else (0, 0)
