"""The entities of texts, from the labels of their words, as in transformers' `TokenClassificationPipeline`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answer, Answers, RowOutputs
from offramp.answers.token_rows import text_of
from offramp.answers.token_summary import BEGINS, CONFIDENCE, ENDS, LABELS, POSITIONS, SCORES
from offramp.core.batch import EncodedRows
from offramp.data.entities import OUTSIDE, split_tag

__all__ = [
    "TokenAnswer",
    "TokenAnswers",
    "add_characters",
    "find_entities",
    "lost_fraction",
    "objects",
    "type_of",
    "types_of",
]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TokenAnswer(Answer):
    """The entities of a text; `score` is the probability of its least certain word."""

    entities: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as a dict with the answer type's `fields`."""
        entities = [{**entity, "score": round(entity["score"], 6)} for entity in self.entities]
        return {"entities": entities, "score": round(self.score, 6), "exit_layer": self.exit_layer}


@dataclass(frozen=True)
class TokenAnswers(Answers):
    """The entities of texts; `spans` has tuples of (type, start, end)."""

    spans: Array  # (texts,), of tuples
    scores: Array  # (texts,), of tuples with the score of each entity
    tokens: Array  # (texts,), of tuples with the position of each entity's first token; used without aggregation
    lowest: NDArray[np.float64]  # (texts,), probability of the least certain word
    texts: Array  # (texts,), or of None if the texts are not known
    aggregation: str  # the strategy

    @property
    def key(self) -> str:
        """The name of an entity's type in `entities`, as in transformers' pipeline."""
        return "entity" if self.aggregation == "none" else "entity_group"

    def __iter__(self) -> Iterator[Answer]:
        rows = zip(self.spans, self.scores, self.tokens, self.lowest.tolist(), self.texts, self.layer, strict=True)
        for spans, scores, tokens, lowest, text, layer in rows:
            entities = []
            for (kind, start, end), score, token in zip(spans, scores, tokens, strict=True):
                entity: dict[str, Any] = {self.key: kind, "score": score}
                if self.key == "entity":
                    entity["index"] = token
                entities.append(entity | {"word": text[start:end], "start": start, "end": end})
            names = list(dict.fromkeys(kind for kind, _, _ in spans))
            yield TokenAnswer(names, lowest, int(layer), [lowest], ("score",), entities)

    @property
    def values(self) -> Array:
        """The entities of each text, as tuples of (type, start, end)."""
        return self.spans

    @property
    def score(self) -> NDArray[np.float64]:
        """Probability of the least certain word of each text."""
        return self.lowest

    def excerpt(self, index: int, example: Any, max_length: int) -> str | list[str]:
        """Return the beginning of the text."""
        return text_of(example)[:max_length]


def objects(values: Sequence[Any]) -> Array:
    """Return a one-dimensional array of objects, such as tuples."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def add_characters(summaries: Array, rows: EncodedRows) -> Array:
    """Return summaries with the characters of the words; (rows, exits, …) or (rows, …)."""
    assert rows.begins is not None and rows.ends is not None
    count = len(rows)
    located = np.array(summaries, dtype=np.float32)
    for columns, offsets in ((BEGINS, rows.begins), (ENDS, rows.ends)):
        table = np.zeros((count, POSITIONS), np.float32)
        real = np.arange(POSITIONS) < offsets.lengths[:, None]
        table[real] = offsets.values
        located[..., columns] = table if summaries.ndim == 2 else table[:, None]
    return located


def find_entities(
    outputs: RowOutputs,
    group: Array | None,
    examples: Sequence[Any] | None,
    labels: Sequence[str],
    options: Mapping[str, Any],
) -> TokenAnswers:
    """Return the entities of each example; the rows of an example are its windows."""
    logits = outputs.logits
    group = np.arange(len(logits)) if group is None else np.asarray(group)
    count = len(examples) if examples is not None else int(group.max(initial=-1)) + 1
    rows, positions = np.nonzero(logits[:, LABELS] >= 0)
    label, score, begin, end = (logits[:, part][rows, positions] for part in (LABELS, SCORES, BEGINS, ENDS))
    label, begin, end, example = (part.astype(np.int64) for part in (label, begin, end, group[rows]))
    single = options["aggregation"] == "none"
    starts = np.arange(len(label)) if single else _starts(label, example, labels)
    stops = np.append(starts[1:], len(label)) if len(starts) else starts
    means = np.add.reduceat(score.astype(np.float64), starts) / (stops - starts) if len(starts) else score
    names = list(labels) if single else [type_of(label) for label in labels]
    is_entity = np.array([name != OUTSIDE for name in names], dtype=bool)[label[starts]]
    spans: list[tuple[Any, ...]] = [()] * count
    scores, tokens = list(spans), list(spans)
    kept = starts[is_entity]
    columns = (example[kept], label[kept], begin[kept], end[stops[is_entity] - 1], means[is_entity], positions[kept])
    for index, kind, first, last, mean, token in zip(*(column.tolist() for column in columns), strict=True):
        spans[index] += ((names[kind], first, last),)
        scores[index] += (mean,)
        tokens[index] += (token,)
    bounds = np.flatnonzero(np.diff(group, prepend=-1))
    return TokenAnswers(
        np.maximum.reduceat(outputs.layer, bounds) if count else outputs.layer,
        objects(spans),
        objects(scores),
        objects(tokens),
        np.minimum.reduceat(logits[:, CONFIDENCE].astype(np.float64), bounds) if count else np.empty(0),
        objects([None] * count if examples is None else [text_of(example) for example in examples]),
        options["aggregation"],
    )


def _starts(label: Array, example: Array, labels: Sequence[str]) -> Array:
    """Return the words that start a group: another type than the word before, or a B tag."""
    if not len(label):
        return np.empty(0, np.int64)
    tags = [split_tag(name) for name in labels]
    kinds = {kind: index for index, kind in enumerate(dict.fromkeys(kind for _, kind in tags))}
    kind = np.array([kinds[name] for _, name in tags])[label]
    is_begin = np.array([begins for begins, _ in tags])[label]
    changes = is_begin[1:] | (kind[1:] != kind[:-1]) | (example[1:] != example[:-1])
    return np.concatenate([[0], 1 + np.flatnonzero(changes)])


def lost_fraction(answers: Array, others: Array) -> NDArray[np.float64]:
    """Return the fraction of the other answers' entities that are missing, per text; NaN without entities."""
    return np.array(
        [
            len(set(expected).difference(predicted)) / len(set(expected)) if expected else np.nan
            for predicted, expected in zip(answers, others, strict=True)
        ],
        dtype=np.float64,
    )


def types_of(answers: Iterable[Iterable[tuple[Any, ...]]], names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which types the entities of each text have, (texts, types)."""
    columns = {name: index for index, name in enumerate(names)}
    rows = [[columns[type_of(label)] for label, *_ in entities] for entities in answers]
    found = np.zeros((len(rows), len(columns)), dtype=bool)
    for row, indices in zip(found, rows, strict=True):
        row[indices] = True
    return found


def type_of(label: str) -> str:
    """Return the type of an entity from its tag, or from the type itself, as transformers' pipeline does."""
    return label.split("-", 1)[-1]
