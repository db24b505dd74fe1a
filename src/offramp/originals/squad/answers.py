"""SQuAD answers as in EBERT's original implementation, which is that of transformers 3.3.1."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from offramp.data.questions import Question
from offramp.errors import BadValue
from offramp.files.writing import check_output_path, replace_files
from offramp.originals.squad.features import Window, split_words

__all__ = [
    "Candidate",
    "SquadOptions",
    "SquadPredictions",
    "basic_tokens",
    "best_candidates",
    "decode_answers",
    "restore_text",
    "write_predictions",
]

Floats = NDArray[np.float64]

NO_WINDOW = 1_000_000.0  # the null answer's score if the context has no tokens
EMPTY_ANSWER = "empty"  # the text if there is no candidate
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@dataclass(frozen=True)
class SquadOptions:
    """How logits become answers."""

    version_2: bool = False  # a question may have no answer
    null_score_diff_threshold: float = 0.0  # minimum margin of the null answer over the best text
    n_best_size: int = 20
    max_answer_length: int = 30  # in tokens
    do_lower_case: bool = True  # as the tokenizer does

    def __post_init__(self) -> None:
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise BadValue(f"`{name}` must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Candidate:
    """A possible answer and its probability among all candidates; an empty text is the null answer."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of the n-best file."""
        logits = {"start_logit": self.start_logit, "end_logit": self.end_logit}
        return {"text": self.text, "probability": self.probability} | logits


@dataclass
class SquadPredictions:
    """The content of the original's files, by question id."""

    predictions: dict[str, str] = field(default_factory=dict)
    nbest: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    null_odds: dict[str, float] | None = None  # null answer's score minus the best text's; 2.0 only


class _Span(NamedTuple):
    """A token span in a window; the null answer is token 0."""

    window: int
    first: int
    last: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def decode_answers(
    questions: Sequence[Question],
    windows: Sequence[Sequence[Window]],
    start_logits: NDArray[Any],
    end_logits: NDArray[Any],
    tokenizer: PreTrainedTokenizerBase,
    options: SquadOptions | None = None,
) -> SquadPredictions:
    """Return the answers to questions, from their windows and the logits of all windows, (windows, length)."""
    options = options or SquadOptions()
    starts, ends = _check_logits(questions, windows, start_logits, end_logits)
    predictions, position = SquadPredictions(null_odds={} if options.version_2 else None), 0
    for question, question_windows in zip(questions, windows, strict=True):
        rows = slice(position, position := position + len(question_windows))
        candidates, null_score = best_candidates(
            question, question_windows, starts[rows], ends[rows], tokenizer, options
        )
        text = candidates[0].text
        if predictions.null_odds is not None:
            best = next(candidate for candidate in candidates if candidate.text)
            odds = null_score - best.start_logit - best.end_logit
            predictions.null_odds[question.id] = odds
            text = "" if odds > options.null_score_diff_threshold else best.text
        predictions.predictions[question.id] = text
        predictions.nbest[question.id] = [candidate.to_dict() for candidate in candidates]
    return predictions


def _check_logits(
    questions: Sequence[Question], windows: Sequence[Sequence[Window]], *logits: NDArray[Any]
) -> tuple[Floats, Floats]:
    if len(questions) != len(windows):
        raise BadValue(f"Got {len(questions):,} questions, but windows for {len(windows):,}.")
    lengths = {len(window.input_ids) for question_windows in windows for window in question_windows}
    if len(lengths) > 1:
        raise BadValue(f"All windows must have the same length, got {min(lengths):,} and {max(lengths):,} tokens.")
    shape = sum(map(len, windows)), *lengths
    for name, values in zip(("start", "end"), logits, strict=True):
        if values.shape != shape and shape[0]:
            raise BadValue(f"The {name} logits must have the windows' shape {shape}, got {values.shape}.")
        if not np.isfinite(values).all():
            raise BadValue(f"The {name} logits must all be finite.")
    starts, ends = (values.astype(np.float64) for values in logits)
    return starts, ends


def best_candidates(
    question: Question,
    windows: Sequence[Window],
    start_logits: Floats,
    end_logits: Floats,
    tokenizer: PreTrainedTokenizerBase,
    options: SquadOptions,
) -> tuple[list[Candidate], float]:
    """Return the best texts for a question, best first, and the null answer's score."""
    spans = [
        span
        for number, window in enumerate(windows)
        for span in _spans(number, window, start_logits[number], end_logits[number], options)
    ]
    nulls = [
        _Span(number, 0, 0, float(start_logits[number][0]), float(end_logits[number][0]))
        for number in range(len(windows))
    ]
    null = min(nulls, key=lambda span: span.score, default=_Span(0, 0, 0, 0.0, 0.0))
    if options.version_2:
        spans.append(null)
    spans.sort(key=lambda span: span.score, reverse=True)
    candidates = _texts(question, windows, spans, tokenizer, options)
    if options.version_2 and all(candidate.text for candidate in candidates):
        candidates.append(Candidate("", null.start_logit, null.end_logit))
    if not candidates or not (candidates[0].text or candidates[1:]):
        candidates.insert(0, Candidate(EMPTY_ANSWER, 0.0, 0.0))
    return _with_probabilities(candidates), null.score if nulls else NO_WINDOW


def _spans(
    number: int, window: Window, start_logits: Floats, end_logits: Floats, options: SquadOptions
) -> Iterator[_Span]:
    """Yield the possible answer spans of a window, by the rank of their starts, then of their ends."""
    starts = [token for token in _top(start_logits, options.n_best_size) if window.max_context[token]]
    ends = [token for token in _top(end_logits, options.n_best_size) if window.words[token] >= 0]
    for first in starts:
        for last in ends:
            if 0 <= last - first < options.max_answer_length:
                yield _Span(number, first, last, float(start_logits[first]), float(end_logits[last]))


def _top(logits: Floats, count: int) -> list[int]:
    indices: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return indices


def _texts(
    question: Question,
    windows: Sequence[Window],
    spans: Iterable[_Span],
    tokenizer: PreTrainedTokenizerBase,
    options: SquadOptions,
) -> list[Candidate]:
    """Return the spans' texts without duplicates, best first."""
    words, by_text = split_words(question.context), dict[str, Candidate]()
    for span in takewhile(lambda _: len(by_text) < options.n_best_size, spans):
        text = _text(windows[span.window], span, words, tokenizer, options.do_lower_case) if span.first else ""
        by_text.setdefault(text, Candidate(text, span.start_logit, span.end_logit))
    return list(by_text.values())


def _text(window: Window, span: _Span, words: list[str], tokenizer: PreTrainedTokenizerBase, lower: bool) -> str:
    tokens = tokenizer.convert_ids_to_tokens(window.input_ids[span.first : span.last + 1].tolist())
    predicted = " ".join(" ".join(tokens).replace(" ##", "").split())
    original = " ".join(words[window.words[span.first] : window.words[span.last] + 1])
    return restore_text(predicted, original, lower)


def _with_probabilities(candidates: list[Candidate]) -> list[Candidate]:
    highest = max(candidate.score for candidate in candidates)
    weights = [math.exp(candidate.score - highest) for candidate in candidates]
    total = sum(weights)
    return [
        replace(candidate, probability=weight / total) for candidate, weight in zip(candidates, weights, strict=True)
    ]


def restore_text(predicted: str, original: str, lower: bool) -> str:
    """Return the part of the original words that the predicted tokens match; all of them if they do not align."""
    normalized = " ".join(token for word in original.split(" ") for token in basic_tokens(word, lower))
    start = normalized.find(predicted)
    offsets = [offset for offset, char in enumerate(original) if char != " "]
    if not predicted or start < 0 or len(offsets) != len(normalized) - normalized.count(" "):
        return original
    end = start + len(predicted) - 1
    first, last = (offsets[position - normalized.count(" ", 0, position)] for position in (start, end))
    return original[first : last + 1]


@lru_cache(maxsize=1 << 16)
def basic_tokens(text: str, lower: bool) -> tuple[str, ...]:
    """Return BERT's tokens before WordPiece: words and punctuation; `lower`: in lower case, without accents."""
    tokens: list[str] = []
    for word in "".join(map(_clean_char, text)).split():
        if lower:
            parts = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in parts if unicodedata.category(char) != "Mn")
        tokens += "".join(f" {char} " if _is_punctuation(char) else char for char in word).split()
    return tuple(tokens)


def _clean_char(char: str) -> str:
    """Remove control characters, and put spaces around ideographs."""
    category, code = unicodedata.category(char), ord(char)
    if category == "Zs" or char in "\t\n\r":
        return " "
    if category.startswith("C") or char == "\ufffd":
        return ""
    return f" {char} " if any(low <= code <= high for low, high in IDEOGRAPHS) else char


def _is_punctuation(char: str) -> bool:
    """Return whether a character is Unicode punctuation or an ASCII symbol such as `$` or `^`."""
    return ("!" <= char <= "~" and not char.isalnum()) or unicodedata.category(char).startswith("P")


def write_predictions(
    folder: Path, predictions: SquadPredictions, prefix: str = "", *, overwrite: bool = False
) -> list[Path]:
    """Write `predictions_PREFIX.json`, `nbest_predictions_PREFIX.json`, and `null_odds_PREFIX.json` for 2.0."""
    contents: dict[str, Any] = {"predictions": predictions.predictions, "nbest_predictions": predictions.nbest}
    if predictions.null_odds is not None:
        contents["null_odds"] = predictions.null_odds
    files = {
        folder / f"{name}_{prefix}.json": json.dumps(content, indent=4) + "\n" for name, content in contents.items()
    }
    for file in files:
        check_output_path(file, overwrite)
    replace_files(files)
    return list(files)
