"""Questions about contexts, and reading them from SQuAD's JSON files."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offramp.errors import BadInput

__all__ = ["Gold", "Question", "QuestionSet", "check_questions", "read_squad"]

GZIP_MAGIC = b"\x1f\x8b"
MAX_QUESTIONS_SHOWN = 3  # in a message about invalid questions


@dataclass(frozen=True)
class Gold:
    """A gold answer and its start in the context, in characters."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Index after its last character."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class Question:
    """A question, its context and its gold answers; empty if the context contains no answer."""

    id: str
    question: str
    context: str
    answers: tuple[Gold, ...] = ()
    impossible: bool = False


@dataclass
class QuestionSet:
    """The questions of a file, and notes on those that were left out."""

    questions: list[Question] = field(default_factory=list)
    skipped: tuple[str, ...] = ()
    labelled: bool = True  # whether the file contains gold answers


def read_squad(file: Path, training: bool = False) -> QuestionSet:
    """Read the questions of an official JSON file.

    For training, a question is left out if its answer is not in the context at the given position.
    """
    try:
        content = file.read_bytes()
        data = json.loads((gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content).decode("utf-8-sig"))
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise BadInput(f"{file} is a corrupt gzip file: {err}.") from err
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except UnicodeDecodeError as err:
        raise BadInput(f"{file} is not UTF-8: byte {err.start + 1:,} cannot be read.") from err
    except json.JSONDecodeError as err:
        raise BadInput(f"{file}, line {err.lineno}, column {err.colno}: invalid JSON ({err.msg}).") from err
    except RecursionError as err:
        raise BadInput(f"{file} is nested too deeply for a SQuAD file.") from err
    question_set = check_questions(_questions(file, data, training), str(file), training)
    question_set.labelled = any(question.answers or question.impossible for question in question_set.questions)
    return question_set


def check_questions(questions: Iterator[Question], name: str, training: bool) -> QuestionSet:
    """Check that ids are unique and, for training, that answers are where they should be."""
    question_set, misplaced, ids = QuestionSet(), [], set()
    for question in questions:
        if question.id in ids:
            raise BadInput(f"{name}: two questions have the id {question.id!r:.60}; ids must be unique.")
        ids.add(question.id)
        wrong = [gold for gold in question.answers if question.context[gold.start : gold.end] != gold.text]
        if wrong and training:
            misplaced.append(f"{question.id}: {wrong[0].text!r:.40}")
            continue
        question_set.questions.append(question)
    if not question_set.questions:
        raise BadInput(f"{name} contains no questions{' whose answer is in the context' if misplaced else ''}.")
    if misplaced:
        shown = ", ".join(misplaced[:MAX_QUESTIONS_SHOWN]) + (" …" if len(misplaced) > MAX_QUESTIONS_SHOWN else "")
        question_set.skipped = (
            f"{name}: skipped {len(misplaced):,} questions whose answer is not at the given position ({shown}).",
        )
    return question_set


def _questions(file: Path, data: Any, training: bool) -> Iterator[Question]:
    for article_number, article in enumerate(_list(data, "data", str(file)), 1):
        article_location = f"{file}, article {article_number}"
        for paragraph_number, paragraph in enumerate(_list(article, "paragraphs", article_location), 1):
            location = f"{article_location}, paragraph {paragraph_number}"
            context = _text(paragraph, "context", location)
            for number, entry in enumerate(_list(paragraph, "qas", location), 1):
                yield _question(entry, context, f"{location}, question {number}", training)


def _question(entry: Any, context: str, location: str, training: bool) -> Question:
    name = entry.get("id") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or not name:
        raise BadInput(f"{location}: missing `id`.")
    location = f"{location} ({name:.60})"
    question = _text(entry, "question", location)
    impossible = entry.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise BadInput(f"{location}: `is_impossible` must be true or false, got {impossible!r:.40}.")
    is_optional = (impossible or not training) and "answers" not in entry
    answers = [] if is_optional else _list(entry, "answers", location)
    golds = tuple(_gold(answer, location) for answer in answers)
    return Question(sys.intern(name), question, context, golds, impossible)


def _gold(entry: Any, location: str) -> Gold:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
        raise BadInput(f"{location}: an answer has no `text`.")
    start = entry.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise BadInput(
            f"{location}: `answer_start` of {entry['text']!r:.40} must be a non-negative integer, got {start!r:.40}."
        )
    return Gold(entry["text"], start)


def _list(entry: Any, name: str, location: str) -> list[Any]:
    value = entry.get(name) if isinstance(entry, Mapping) else None
    if not isinstance(value, list):
        raise BadInput(f"{location}: missing list `{name}`; is this a SQuAD JSON file?")
    return value


def _text(entry: Any, name: str, location: str) -> str:
    value = entry.get(name) if isinstance(entry, Mapping) else None
    if not isinstance(value, str):
        raise BadInput(f"{location}: missing `{name}`.")
    if not value.strip():
        raise BadInput(f"{location}: `{name}` is empty.")
    return value
