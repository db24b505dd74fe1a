"""Short questions and contexts from the words of the tiny tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.tiny import WORDS


def contexts_and_questions(count: int, seed: int = 0, longest: int = 60) -> list[tuple[str, str, str, int]]:
    """Return (question, context, answer, start) tuples; some contexts are longer than a window."""
    random_ = random.Random(seed)
    questions = []
    for _ in range(count):
        words = random_.choices(WORDS, k=random_.randint(4, longest))
        first = random_.randrange(len(words))
        answer = words[first : first + random_.randint(1, 3)]
        start = len(" ".join(words[:first])) + (1 if first else 0)
        questions.append((f"was {answer[0]} {random_.choice(WORDS)}", " ".join(words), " ".join(answer), start))
    return questions


def write_squad(file: Path, count: int, seed: int = 0, unanswerable: int = 0) -> Path:
    """Write an official file with two questions per paragraph; the first `unanswerable` questions have no answer."""
    rows = contexts_and_questions(count, seed)
    paragraphs = []
    for number, (question, context, answer, start) in enumerate(rows):
        gold = {"text": answer, "answer_start": start}
        qas = [{"id": f"q{number}", "question": question, "answers": [gold], "is_impossible": False}]
        if number < unanswerable:
            qas = [{"id": f"q{number}", "question": question, "answers": [], "is_impossible": True}]
        qas.append({"id": f"r{number}", "question": f"the {question}", "answers": [gold, gold]})
        paragraphs.append({"context": context, "qas": qas})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return file
