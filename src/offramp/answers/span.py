"""Extractive question answering: the start and end of the answer in a context, or no answer.

A question and its context are split into windows (`span_windows.py`), the token logits of a window are summarized at
every exit (`span_summary.py`), and the answer is the best span over all windows (`span_answers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from offramp.answers.answer import Answers, Decoding, Endpoint, ModelCard, RowOutputs
from offramp.answers.answer_type import AnswerType, Array, Encoder, RowPrediction
from offramp.answers.overlap import token_f1
from offramp.answers.single_label import divergence
from offramp.answers.span_answers import SpanAnswers, answer_texts, best_spans, to_char_positions, tune_no_answer
from offramp.answers.span_scores import squad_scores
from offramp.answers.span_summary import (
    CHOICE,
    CONFIDENCE,
    ENTROPY,
    MARGIN,
    MASKED_LOGIT,
    POSITIONS,
    WIDTH,
    default_marks,
    summarize_tokens,
)
from offramp.answers.span_windows import QuestionEncoder
from offramp.core.batch import EncodedRows
from offramp.data.questions import Question
from offramp.errors import BadModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Span"]


class Span(AnswerType):
    """The prediction is the best span of the context; losses use the start and end logits of all tokens."""

    name: ClassVar[str] = "question_answering"
    cli_name: ClassVar[str] = "span"
    metric: ClassVar[str] = "span_f1"
    metrics: ClassVar[tuple[str, ...]] = ("span_f1", "exact_match")
    has_labels: ClassVar[bool] = False
    has_scores: ClassVar[bool] = False
    per_token: ClassVar[bool] = True
    multiple_rows: ClassVar[bool] = True
    unit: ClassVar[str] = "question"
    architecture: ClassVar[str] = "ForQuestionAnswering"
    head_module: ClassVar[str] = "qa_outputs"
    fixed_labels: ClassVar[tuple[str, ...] | None] = ("start", "end")
    inputs: ClassVar[tuple[str, ...] | None] = ("question", "context")
    default_max_length: ClassVar[int | None] = 384
    truncation_note: ClassVar[str] = "longer contexts are read in windows"
    submission_formats: ClassVar[tuple[str, ...]] = ("squad",)
    fields: ClassVar[Mapping[str, str]] = {
        "answer": "string",
        "score": "float",
        "start": "int",
        "end": "int",
        "exit_layer": "int",
    }
    card: ClassVar[ModelCard] = ModelCard(
        "question-answering",
        "Question answering with early exits",
        """\
for answer in model.predict([("a question", "its context")]):
    print(answer.text, answer.score, answer.exit_layer)""",
        """\
from transformers import AutoModelForQuestionAnswering

model = AutoModelForQuestionAnswering.from_pretrained("path/to/this/model", trust_remote_code=True)""",
    )

    def check_config(self, labels: int, ramp: str | None) -> None:
        """Raise unless there are two outputs per token and no ramp."""
        if labels != 2:
            raise BadModel(f"Question answering needs two outputs, start and end; `id2label` has {labels}.")
        if ramp:
            raise BadModel("`ramp` is only for converted classifiers; question answering does not support it.")

    def num_columns(self, classes: int) -> int:
        """Return the number of columns of the summary."""
        return WIDTH

    def num_alternatives(self, classes: int) -> int:
        """Return the number of positions in a long window."""
        return POSITIONS

    # -- encoding: from questions and contexts to windows --------------------------------------------

    def encoder(self, tokenizer: PreTrainedTokenizerBase, limit: int, pairs: bool | None = None) -> Encoder:
        """Return the encoder into windows of the context."""
        return QuestionEncoder(tokenizer, limit)

    def min_row_length(self, special_tokens: int) -> int:
        """Return the length of a window with one token of the question and one of the context."""
        return special_tokens + 2

    def warmup_example(self, pairs: bool | None) -> Any:
        """Return a question and a context."""
        return "a question", "a context"

    def shared_texts(self, examples: Sequence[Any]) -> list[str]:
        """Return the contexts: several questions may share one."""
        return [context for _, context in examples]

    def targets(self, rows: EncodedRows, labels: Sequence[Any]) -> Array:
        """Return the first and last token of the first gold answer, both 0 if it is not completely in the window."""
        assert rows.marks is not None and rows.begins is not None and rows.ends is not None
        targets = np.zeros((len(rows), 2), dtype=np.int64)
        for row, question in enumerate(rows.group):
            if labels[question]:
                columns = (column.row(row) for column in (rows.marks, rows.begins, rows.ends))
                targets[row] = _token_span(labels[question][0], *columns)
        return targets

    # -- decoding: from windows to answers -----------------------------------------------------------

    def summarize_logits(
        self, logits: Tensor, real: Callable[[], Tensor], marks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the summary of the token logits, and these logits with padding masked."""
        mask = real()
        tokens = logits.masked_fill(~mask[..., None], MASKED_LOGIT)
        return summarize_tokens(tokens, default_marks(mask) if marks is None else marks), tokens

    def locate(self, logits: Array, rows: EncodedRows) -> Array:
        """Convert the position of the best span to characters of the context."""
        return to_char_positions(logits, rows)

    def decode(
        self, outputs: RowOutputs, group: Array | None, examples: Sequence[Any] | None, decoding: Decoding
    ) -> Answers:
        """Return the best span over the windows of each question."""
        assert group is not None and examples is not None, "answers need the windows and contexts of the questions"
        spans = best_spans(outputs.logits, group, decoding.no_answer)
        deepest = np.maximum.reduceat(outputs.layer, np.flatnonzero(np.diff(group, prepend=-1)))
        texts = answer_texts(spans, [example[1] for example in examples])
        return SpanAnswers(deepest, texts, spans.score, spans.begin, spans.end)

    def model_outputs(self, tokens: Tensor | None, length: int) -> dict[str, Tensor]:
        """Return start and end logits, padded to the length of the batch."""
        if tokens is None:
            return {}
        padded = functional.pad(tokens, (0, 0, 0, length - tokens.shape[1]), value=MASKED_LOGIT)
        return {"start_logits": padded[..., 0], "end_logits": padded[..., 1]}

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the route `/answer`."""
        from offramp.answers.question_routes import ROUTES

        return ROUTES

    # -- predictions ---------------------------------------------------------------------------------

    def answers(self, logits: Array) -> Array:
        """Return the best start and end of each window, (…, 2); `decode` combines windows."""
        return np.asarray(logits[..., CHOICE], dtype=np.int64)

    def differ(self, answers: Array, others: Array, tolerance: float | None = None) -> NDArray[np.bool_]:
        """Return where the texts differ."""
        return np.asarray(answers != others, dtype=bool)

    def error(self, answers: Array, labels: Array, tolerance: float | None = None) -> Array:
        """Return 1 − F1."""
        return np.array([1 - token_f1(text, golds) for text, golds in zip(answers, labels, strict=True)])

    def distance(self, answers: Array, labels: Array) -> Array:
        """Return 1 − F1 for the answers of each exit, (exits, rows)."""
        return np.stack([self.error(exit_answers, labels) for exit_answers in answers])

    def iter_predictions(self, logits: Tensor, labels: Sequence[str]) -> Iterator[RowPrediction]:
        """Raise: a single window has no prediction."""
        raise AssertionError("an answer is combined from all windows of a question")

    def format(self, answer: Any, labels: Sequence[str]) -> str:
        """Return the text."""
        return str(answer) or "(no answer)"

    def format_label(self, label: Any, labels: Sequence[str]) -> str:
        """Return the first gold answer."""
        first = (label or ("",))[0]
        return self.format(getattr(first, "text", first), labels)

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Return the texts of the gold answers of each question, in an array of tuples."""
        array = np.empty(len(labels), dtype=object)
        array[:] = [tuple(gold.text for gold in golds) for golds in labels]
        return array

    def describe_risk(self, risk_type: str, tolerance: float | None) -> str:
        """Return the same; accuracy is the F1 score."""
        if risk_type == "accuracy":
            return "F1 is lost compared with the full model"
        return "of answers differ from the full model's"

    def official_scores(
        self, answers: Mapping[str, Array], ids: Sequence[str] | None, labels: Sequence[Any] | None
    ) -> dict[str, dict[str, float]] | None:
        """Return SQuAD's official scores, in percent."""
        if labels is None or ids is None:
            return None
        questions = [Question(id_, "", "", golds, impossible=not golds) for id_, golds in zip(ids, labels, strict=True)]
        return {name: squad_scores(questions, dict(zip(ids, texts, strict=True))) for name, texts in answers.items()}

    def tuned_scores(
        self, outputs: RowOutputs, group: Array, examples: Sequence[Any], labels: Array
    ) -> dict[str, float]:
        """Return the best `no_answer` on these rows and its F1."""
        return tune_no_answer(outputs.logits, group, [example[1] for example in examples], labels)

    # -- exit decisions ------------------------------------------------------------------------------

    def choice(self, logits: Tensor) -> Tensor:
        """Return start and end, (rows, 2)."""
        return logits[:, CHOICE]

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the mean entropy of start and end."""
        return logits[:, ENTROPY]

    def confidence(self, logits: Tensor) -> Tensor:
        """Return the probability of the start times that of the end."""
        return logits[:, CONFIDENCE]

    def margin(self, logits: Tensor) -> Tensor:
        """Return the difference between the most probable span and the runner-up."""
        return logits[:, MARGIN]

    # -- training: two classifications over the tokens ---------------------------------------------

    def to_class_rows(self, logits: Tensor) -> Tensor:
        """Return the start and end of each row as two rows with one class per token, (2 rows, tokens)."""
        return logits.transpose(1, 2).flatten(0, 1)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy of start and end; logits (rows, tokens, 2), labels (rows, 2).

        Targets after the last token are ignored, as in transformers.
        """
        tokens = logits.shape[1]
        start_loss, end_loss = (
            functional.cross_entropy(
                logits[..., side], labels[:, side].clamp(0, tokens), ignore_index=tokens, label_smoothing=smoothing
            )
            for side in (0, 1)
        )
        return (start_loss + end_loss) / 2

    def distillation_loss(self, logits: Tensor, teacher: Tensor, temperature: float, per_row: bool) -> Tensor:
        """Return the divergence of start and end; always per row, because padding is not a class."""
        return divergence(self.to_class_rows(logits), self.to_class_rows(teacher), temperature, per_row=True)

    def error_target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 where start or end is wrong; (…, rows) from (…, rows, tokens, 2)."""
        return (logits.argmax(-2) != labels).any(-1).to(logits.dtype)


def _token_span(gold: Any, marks: Array, begins: Array, ends: Array) -> tuple[int, int]:
    """Return the first and last token of an answer that is completely in the window; else (0, 0)."""
    context = np.flatnonzero(marks)
    if not len(context) or begins[context[0]] > gold.start or ends[context[-1]] < gold.end:
        return 0, 0
    inside = context[(ends[context] > gold.start) & (begins[context] < gold.end)]
    return (int(inside[0]), int(inside[-1])) if len(inside) else (0, 0)
