"""SQuAD's answers as EBERT's original finds, decides and writes them: those of transformers 3.3.1."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from offramp.data.questions import Question
from offramp.errors import BadValue
from offramp.files.writing import check_free, write_together
from offramp.originals.squad.features import Window, split_words

__all__ = [
    "Answers",
    "Candidate",
    "Rules",
    "answers_of",
    "basic_tokens",
    "candidates_of",
    "carried_back",
    "write_answers",
]

Floats = NDArray[np.float64]

NO_WINDOW = 1_000_000.0  # the null answer's score of a question whose context has no token
NOTHING = "empty"  # the text where nothing else was found
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
class Rules:
    """How logits become answers."""

    version_2: bool = False  # a question may have no answer
    null_score_diff_threshold: float = 0.0  # how much better than the best text no answer must be
    n_best_size: int = 20
    max_answer_length: int = 30  # in tokens
    do_lower_case: bool = True  # as the tokenizer does

    def __post_init__(self) -> None:
        """Refuse numbers that leave no answer."""
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise BadValue(f"{name} is {getattr(self, name)}; it must be at least 1.")


@dataclass(frozen=True)
class Candidate:
    """A text that may be the answer, and how likely it is among those found; no text: there is no answer."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self) -> float:
        """What candidates are ordered by."""
        return self.start_logit + self.end_logit

    def saved(self) -> dict[str, Any]:
        """As it stands in the file."""
        logits = {"start_logit": self.start_logit, "end_logit": self.end_logit}
        return {"text": self.text, "probability": self.probability} | logits


@dataclass
class Answers:
    """What the original's files hold, by the questions' ids."""

    predictions: dict[str, str] = field(default_factory=dict)
    nbest: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    null_odds: dict[str, float] | None = None  # how much better no answer scores than the best text; 2.0 only


class _Span(NamedTuple):
    """Tokens of a window; the null answer is of token 0."""

    window: int
    first: int
    last: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def answers_of(
    questions: Sequence[Question],
    windows: Sequence[Sequence[Window]],
    start_logits: NDArray[Any],
    end_logits: NDArray[Any],
    tokenizer: PreTrainedTokenizerBase,
    rules: Rules | None = None,
) -> Answers:
    """The answers to questions, from the windows of each and the logits of all windows, (windows, length)."""
    rules = rules or Rules()
    starts, ends = _checked(questions, windows, start_logits, end_logits)
    answers, place = Answers(null_odds={} if rules.version_2 else None), 0
    for question, own in zip(questions, windows, strict=True):
        rows = slice(place, place := place + len(own))
        found, null_score = candidates_of(question, own, starts[rows], ends[rows], tokenizer, rules)
        text = found[0].text
        if answers.null_odds is not None:
            best = next(one for one in found if one.text)
            odds = null_score - best.start_logit - best.end_logit
            answers.null_odds[question.id] = odds
            text = "" if odds > rules.null_score_diff_threshold else best.text
        answers.predictions[question.id] = text
        answers.nbest[question.id] = [one.saved() for one in found]
    return answers


def _checked(
    questions: Sequence[Question], windows: Sequence[Sequence[Window]], *logits: NDArray[Any]
) -> tuple[Floats, Floats]:
    if len(questions) != len(windows):
        raise BadValue(f"{len(questions):,} questions have windows of {len(windows):,}.")
    lengths = {len(window.input_ids) for own in windows for window in own}
    if len(lengths) > 1:
        raise BadValue(f"Windows differ in length: {min(lengths):,} and {max(lengths):,} tokens.")
    shape = sum(map(len, windows)), *lengths
    for kind, given in zip(("start", "end"), logits, strict=True):
        if given.shape != shape and shape[0]:
            raise BadValue(f"The {kind} logits' shape is {given.shape}; that of the windows is {shape}.")
        if not np.isfinite(given).all():
            raise BadValue(f"The {kind} logits are not all finite numbers.")
    starts, ends = (given.astype(np.float64) for given in logits)
    return starts, ends


def candidates_of(
    question: Question,
    windows: Sequence[Window],
    start_logits: Floats,
    end_logits: Floats,
    tokenizer: PreTrainedTokenizerBase,
    rules: Rules,
) -> tuple[list[Candidate], float]:
    """The best texts for one question, best first, and the null answer's score."""
    spans = [
        span
        for number, window in enumerate(windows)
        for span in _spans(number, window, start_logits[number], end_logits[number], rules)
    ]
    nulls = [
        _Span(number, 0, 0, float(start_logits[number][0]), float(end_logits[number][0]))
        for number in range(len(windows))
    ]
    null = min(nulls, key=lambda span: span.score, default=_Span(0, 0, 0, 0.0, 0.0))
    if rules.version_2:
        spans.append(null)
    spans.sort(key=lambda span: span.score, reverse=True)
    found = _texts(question, windows, spans, tokenizer, rules)
    if rules.version_2 and all(one.text for one in found):
        found.append(Candidate("", null.start_logit, null.end_logit))
    if not found or not (found[0].text or found[1:]):
        found.insert(0, Candidate(NOTHING, 0.0, 0.0))
    return _with_probabilities(found), null.score if nulls else NO_WINDOW


def _spans(number: int, window: Window, start_logits: Floats, end_logits: Floats, rules: Rules) -> Iterator[_Span]:
    """The spans of a window that may be answers, by the rank of their starts, then of their ends."""
    starts = [place for place in _best(start_logits, rules.n_best_size) if window.max_context[place]]
    ends = [place for place in _best(end_logits, rules.n_best_size) if window.words[place] >= 0]
    for first in starts:
        for last in ends:
            if 0 <= last - first < rules.max_answer_length:
                yield _Span(number, first, last, float(start_logits[first]), float(end_logits[last]))


def _best(logits: Floats, count: int) -> list[int]:
    places: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return places


def _texts(
    question: Question,
    windows: Sequence[Window],
    spans: Iterable[_Span],
    tokenizer: PreTrainedTokenizerBase,
    rules: Rules,
) -> list[Candidate]:
    """The spans' texts, each once, from the best on."""
    words, found = split_words(question.context), dict[str, Candidate]()
    for span in takewhile(lambda _: len(found) < rules.n_best_size, spans):
        text = _text(windows[span.window], span, words, tokenizer, rules.do_lower_case) if span.first else ""
        found.setdefault(text, Candidate(text, span.start_logit, span.end_logit))
    return list(found.values())


def _text(window: Window, span: _Span, words: list[str], tokenizer: PreTrainedTokenizerBase, lower: bool) -> str:
    tokens = tokenizer.convert_ids_to_tokens(window.input_ids[span.first : span.last + 1].tolist())
    predicted = " ".join(" ".join(tokens).replace(" ##", "").split())
    original = " ".join(words[window.words[span.first] : window.words[span.last] + 1])
    return carried_back(predicted, original, lower)


def _with_probabilities(found: list[Candidate]) -> list[Candidate]:
    highest = max(one.score for one in found)
    weights = [math.exp(one.score - highest) for one in found]
    total = sum(weights)
    return [
        Candidate(one.text, one.start_logit, one.end_logit, weight / total)
        for one, weight in zip(found, weights, strict=True)
    ]


def carried_back(predicted: str, original: str, lower: bool) -> str:
    """The part of the original words that a text of tokens stands for; all of them where that cannot be told."""
    plain = " ".join(token for word in original.split(" ") for token in basic_tokens(word, lower))
    at = plain.find(predicted)
    places = [place for place, char in enumerate(original) if char != " "]
    if not predicted or at < 0 or len(places) != len(plain) - plain.count(" "):
        return original
    end = at + len(predicted) - 1
    first, last = (places[place - plain.count(" ", 0, place)] for place in (at, end))
    return original[first : last + 1]


@lru_cache(maxsize=1 << 16)
def basic_tokens(text: str, lower: bool) -> tuple[str, ...]:
    """BERT's tokens before WordPiece: words and single punctuation marks, in lower case without accents if asked."""
    tokens: list[str] = []
    for word in "".join(map(_cleaned, text)).split():
        if lower:
            parts = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in parts if unicodedata.category(char) != "Mn")
        tokens += "".join(f" {char} " if _is_punctuation(char) else char for char in word).split()
    return tuple(tokens)


def _cleaned(char: str) -> str:
    """A character as it is kept: not if it is a control, with spaces around if it is an ideograph."""
    kind, code = unicodedata.category(char), ord(char)
    if kind == "Zs" or char in "\t\n\r":
        return " "
    if kind.startswith("C") or char == "\ufffd":
        return ""
    return f" {char} " if any(low <= code <= high for low, high in IDEOGRAPHS) else char


def _is_punctuation(char: str) -> bool:
    """Unicode's, and every ASCII mark such as `$` or `^`."""
    return ("!" <= char <= "~" and not char.isalnum()) or unicodedata.category(char).startswith("P")


def write_answers(folder: Path, answers: Answers, prefix: str = "", *, overwrite: bool = False) -> list[Path]:
    """`predictions_PREFIX.json`, `nbest_predictions_PREFIX.json`, and `null_odds_PREFIX.json` for 2.0."""
    contents: dict[str, Any] = {"predictions": answers.predictions, "nbest_predictions": answers.nbest}
    if answers.null_odds is not None:
        contents["null_odds"] = answers.null_odds
    files = {folder / f"{name}_{prefix}.json": json.dumps(saved, indent=4) + "\n" for name, saved in contents.items()}
    for file in files:
        check_free(file, overwrite)
    write_together(files)
    return list(files)
