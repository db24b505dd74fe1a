"""Questions about contexts, and SQuAD's JSON that they are read from."""

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

__all__ = ["Gold", "Question", "Reading", "checked", "read_squad"]

GZIP = b"\x1f\x8b"
NAMED = 3  # faulty questions that are named one by one


@dataclass(frozen=True)
class Gold:
    """A right answer, and where it begins in the context, in characters."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Behind its last character."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class Question:
    """A question, the context that it is asked about, and its right answers; none: it has no answer there."""

    id: str
    question: str
    context: str
    answers: tuple[Gold, ...] = ()
    impossible: bool = False


@dataclass
class Reading:
    """What a file gave: questions, and notes on those that were left out."""

    questions: list[Question] = field(default_factory=list)
    skipped: tuple[str, ...] = ()
    labelled: bool = True  # whether right answers stand there at all


def read_squad(file: Path, training: bool = False) -> Reading:
    """The questions of an official JSON file.

    An answer that does not stand in its context where it says is no target: in training such a question is left out,
    counted and named.
    """
    try:
        packed = file.read_bytes()
        saved = json.loads((gzip.decompress(packed) if packed.startswith(GZIP) else packed).decode("utf-8-sig"))
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise BadInput(f"{file} is packed, and damaged: {err}.") from err
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except UnicodeDecodeError as err:
        raise BadInput(f"{file} is not UTF-8: byte {err.start + 1:,} cannot be read.") from err
    except json.JSONDecodeError as err:
        raise BadInput(f"{file}, line {err.lineno}, column {err.colno}: no JSON ({err.msg}).") from err
    except RecursionError as err:
        raise BadInput(f"{file} is JSON inside JSON without end; SQuAD's has six levels.") from err
    reading = checked(_questions(file, saved, training), str(file), training)
    reading.labelled = any(one.answers or one.impossible for one in reading.questions)
    return reading


def checked(found: Iterator[Question], name: str, training: bool) -> Reading:
    """Questions whose answers stand where they should; ids are said once."""
    reading, bad, seen = Reading(), [], set()
    for one in found:
        if one.id in seen:
            raise BadInput(f"{name}: two questions have the id {one.id!r:.60}; ids are unique.")
        seen.add(one.id)
        misplaced = [gold for gold in one.answers if one.context[gold.start : gold.end] != gold.text]
        if misplaced and training:
            bad.append(f"{one.id}: {misplaced[0].text!r:.40}")
            continue
        reading.questions.append(one)
    if not reading.questions:
        raise BadInput(f"{name} has no question{' whose answer stands in its context' if bad else ''}.")
    if bad:
        shown = ", ".join(bad[:NAMED]) + (" …" if len(bad) > NAMED else "")
        reading.skipped = (f"{name}: {len(bad):,} answers do not stand in their contexts and were left out ({shown}).",)
    return reading


def _questions(file: Path, saved: Any, training: bool) -> Iterator[Question]:
    for number, article in enumerate(_list(saved, "data", str(file)), 1):
        for place, paragraph in enumerate(_list(article, "paragraphs", f"{file}, article {number}"), 1):
            where = f"{file}, article {number}, paragraph {place}"
            context = _text(paragraph, "context", where)
            for count, entry in enumerate(_list(paragraph, "qas", where), 1):
                yield _question(entry, context, f"{where}, question {count}", training)


def _question(entry: Any, context: str, where: str, training: bool) -> Question:
    name = entry.get("id") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or not name:
        raise BadInput(f"{where}: it has no `id`.")
    where = f"{where} ({name:.60})"
    question = _text(entry, "question", where)
    impossible = entry.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise BadInput(f"{where}: `is_impossible` is {impossible!r:.40}; it is true or false.")
    may_lack = (impossible or not training) and "answers" not in entry
    answers = [] if may_lack else _list(entry, "answers", where)
    return Question(sys.intern(name), question, context, tuple(_gold(one, where) for one in answers), impossible)


def _gold(entry: Any, where: str) -> Gold:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
        raise BadInput(f"{where}: an answer has no `text`.")
    start = entry.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise BadInput(f"{where}: `answer_start` of {entry['text']!r:.40} is {start!r:.40}; it is a number from 0.")
    return Gold(entry["text"], start)


def _list(entry: Any, name: str, where: str) -> list[Any]:
    found = entry.get(name) if isinstance(entry, Mapping) else None
    if not isinstance(found, list):
        raise BadInput(f"{where}: it has no list `{name}`; is this SQuAD's JSON?")
    return found


def _text(entry: Any, name: str, where: str) -> str:
    found = entry.get(name) if isinstance(entry, Mapping) else None
    if not isinstance(found, str):
        raise BadInput(f"{where}: it has no `{name}`.")
    if not found.strip():
        raise BadInput(f"{where}: its `{name}` is empty.")
    return found
