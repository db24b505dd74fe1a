"""Read labelled entities: CoNLL columns, `tokens` with `ner_tags`, or texts with spans.

| data                    | a text                                                                              |
|-------------------------|-------------------------------------------------------------------------------------|
| CoNLL columns           | a line per word with its tag, and a blank line after the text                       |
| `tokens`, `ner_tags`    | two lists; tags are names, or numbers of a dataset's classes                        |
| `text`, `spans`         | a list of objects with type, start and end; presidio's `full_text` and `entity_type` |
"""

from __future__ import annotations

import itertools
import numbers
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offramp.data.entities import Entities, EntitySpan, as_bio, entities_of_tags, tags_for
from offramp.data.reading import Source, Text, check_utf8, read_column_names, read_records
from offramp.data.source import numbered_lines, open_source, source_parts
from offramp.errors import BadInput

__all__ = ["TaggedRows", "is_tagged", "looks_like_conll", "read_tagged", "tagged_columns", "tagged_from_rows"]

TAG_COLUMNS = ("ner_tags", "tags", "labels")
SPAN_COLUMNS = ("spans", "entities")
TEXT_COLUMNS = ("text", "full_text", "sentence")
KEYS: dict[str, tuple[str, ...]] = {"type": ("entity_type", "label", "type", "entity_group")}
KEYS |= {"start": ("start_position", "start"), "end": ("end_position", "end")}
TAG = re.compile(r"O|[BIESLU]-\S+")
DOCUMENT_START = "-DOCSTART-"
EXPECTED = "O, B-TYPE or I-TYPE"
SNIFFED_LINES = 1000
WORD_CHARACTER = re.compile(r"\w")


@dataclass(frozen=True)
class TaggedRows:
    """Texts with their entities."""

    texts: list[Text]
    labels: list[Any]
    lines: list[int]
    tags: tuple[str, ...]
    notes: tuple[str, ...]  # on repaired, extended and empty rows


@dataclass
class _Reader:
    """The rows that were read, with notes on repairs."""

    source: Source
    names: Sequence[str] | None = None  # of a dataset's classes
    texts: list[Text] = field(default_factory=list)
    spans: list[list[EntitySpan]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    tags: dict[str, None] = field(default_factory=dict)  # that occur, in order
    repaired: int = 0
    adjusted: int = 0
    empty: int = 0
    converted: int = 0

    def add_words(self, line: int, words: Sequence[str], tags: Sequence[str]) -> None:
        """Add a text of tagged words."""
        if not words:
            self.empty += 1
            return
        bio = as_bio(tags)
        self.converted += bio != list(tags)
        spans, repaired = entities_of_tags(words, bio)
        self.repaired += repaired
        self.tags.update(dict.fromkeys(bio))
        self._add(line, tuple(words), spans)

    def add_text(self, line: int, text: str, spans: Iterable[EntitySpan]) -> None:
        """Add a text with spans, which are extended to whole words."""
        pairs = [(self._whole_words(line, text, span), span) for span in spans]
        pairs.sort(key=lambda pair: pair[0][1:])
        for ((_, _, end), first), ((_, start, _), second) in itertools.pairwise(pairs):
            if start < end:
                names = " and ".join(f"{kind} ({begin} to {stop})" for kind, begin, stop in (first, second))
                raise self.source.error_at(line, f"the entities {names} have a word in common; remove one.")
        self._add(line, text, [words for words, _ in pairs])

    def rows(self) -> TaggedRows:
        """Return all rows."""
        name = self.source.name
        if not self.texts:
            raise BadInput(f"{name} contains no texts.")
        has_prefixes = any(tag.startswith(("B-", "I-")) for tag in self.tags)
        kinds = {kind for spans in self.spans for kind, _, _ in spans}
        tags = tuple(sorted(self.tags)) if self.tags and not has_prefixes else tags_for(kinds)
        notes = [
            f"{name}: {count:,} {what}"
            for count, what in (
                (self.repaired, "I tags that continue no entity of their type start one."),
                (
                    self.adjusted,
                    "entities that begin or end inside of a word, or at a space, are moved to words.",
                ),
                (self.converted, "texts have tags of the BIOES or BILOU scheme, which are read as B and I."),
                (self.empty, "empty rows are skipped."),
            )
            if count
        ]
        labels = [Entities(spans, tags) for spans in self.spans]
        return TaggedRows(self.texts, labels, self.lines, tags, tuple(notes))

    def _add(self, line: int, text: Text, spans: Iterable[EntitySpan]) -> None:
        for part in (text,) if isinstance(text, str) else text:
            check_utf8(self.source, line, part)
        self.texts.append(text)
        self.spans.append(list(spans))
        self.lines.append(line)

    def _whole_words(self, line: int, text: str, span: EntitySpan) -> EntitySpan:
        kind, start, end = span
        covered = text[start:end]
        if not covered.strip():
            raise self.source.error_at(line, f"the entity {kind} from {start} to {end} covers no word.")
        start, end = start + len(covered) - len(covered.lstrip()), end - len(covered) + len(covered.rstrip())
        while start > 0 and WORD_CHARACTER.match(text[start - 1]) and WORD_CHARACTER.match(text[start]):
            start -= 1
        while end < len(text) and WORD_CHARACTER.match(text[end - 1]) and WORD_CHARACTER.match(text[end]):
            end += 1
        self.adjusted += (kind, start, end) != span
        return kind, start, end


def tagged_columns(columns: Collection[str] | None) -> tuple[str, str] | None:
    """Return the columns of the texts and of their entities; None if a table has none."""
    names = columns or ()
    labels = next((name for name in TAG_COLUMNS if name in names), None)
    if "tokens" in names and labels is not None:
        return "tokens", labels
    text = next((name for name in TEXT_COLUMNS if name in names), None)
    spans = next((name for name in SPAN_COLUMNS if name in names), None)
    return None if text is None or spans is None else (text, spans)


def is_tagged(source: Source) -> bool:
    """Whether a file has labelled entities."""
    if source.format in ("text", "conll"):
        return source.format == "conll" or looks_like_conll(source)
    return source.format not in ("tsv", "csv") and tagged_columns(read_column_names(source)) is not None


def looks_like_conll(source: Source) -> bool:
    """Whether every line of the beginning of a plain text has a column with tags."""
    with open_source(source_parts(source)[0]) as file:
        lines = [line for number, line in numbered_lines(source, file) if number <= SNIFFED_LINES]
    rows = [_split(line) for line in lines if line.strip()]
    return bool(rows) and _tag_column(rows) is not None


def read_tagged(source: Source) -> TaggedRows:
    """Read a file with labelled entities."""
    reader = _Reader(source)
    for part in source_parts(source):
        if source.format in ("text", "conll"):
            _read_conll(reader, part)
        else:
            for line, row in read_records(part):
                _add_record(reader, line, row)
    return reader.rows()


def tagged_from_rows(rows: Iterable[Mapping[str, Any]], name: str, label_names: Sequence[str] | None) -> TaggedRows:
    """Return rows in memory, as dicts by column, with labelled entities."""
    reader = _Reader(Source(name, "memory"), label_names)
    for line, row in enumerate(rows, 1):
        _add_record(reader, line, row)
    return reader.rows()


# -- CoNLL columns -----------------------------------------------------------------------------------


def _split(line: str) -> list[str]:
    stripped = line.rstrip("\r\n")
    return stripped.split("\t") if "\t" in stripped else stripped.split()


def _tag_column(rows: Sequence[Sequence[str]]) -> int | None:
    """Return the last column with a tag in every row."""
    rows = [row for row in rows if row and row[0] != DOCUMENT_START]
    count = min(map(len, rows), default=0)
    columns = (column for column in range(count - 1, 0, -1) if all(TAG.fullmatch(row[column]) for row in rows))
    return next(columns, None)


def _read_conll(reader: _Reader, source: Source) -> None:
    with open_source(source) as file:
        lines = list(numbered_lines(source, file))
    column = _tag_column([_split(line) for _, line in lines[:SNIFFED_LINES] if line.strip()])
    if column is None:
        raise _no_tags(source, lines)
    words: list[str] = []
    tags: list[str] = []
    first = 1
    for number, line in [*lines, (len(lines) + 1, "")]:
        cells = _split(line)
        if not line.strip() or cells[0] == DOCUMENT_START:
            if words:
                reader.add_words(first, words, tags)
            words, tags, first = [], [], number + 1
            continue
        if len(cells) <= column:
            raise source.error_at(number, f"{len(cells)} columns, expected a word and its tag in column {column + 1}.")
        if not cells[0].strip():
            raise source.error_at(number, "the word is empty; remove the line.")
        if not TAG.fullmatch(cells[column]):
            raise source.error_at(number, f"the tag is {cells[column]!r:.40}, expected {EXPECTED}.")
        words.append(cells[0])
        tags.append(cells[column])


def _no_tags(source: Source, lines: Sequence[tuple[int, str]]) -> BadInput:
    """Return the error for a file in which no column is a tag in every line."""
    rows = [(number, _split(line)) for number, line in lines if line.strip()]
    for number, cells in (row for row in rows if row[1][0] != DOCUMENT_START):
        if not any(TAG.fullmatch(cell) for cell in cells[1:]):
            return source.error_at(number, f"{' '.join(cells)!r:.60} has no tag after the word, expected {EXPECTED}.")
    if any(cells[0] != DOCUMENT_START for _, cells in rows):
        return BadInput(f"{source.name}: the tags ({EXPECTED}) are not in the same column of every line.")
    return BadInput(f"{source.name} contains no texts.")


# -- rows with lists ---------------------------------------------------------------------------------


def _add_record(reader: _Reader, line: int, row: Mapping[str, Any]) -> None:
    source, columns = reader.source, tagged_columns(row)
    if columns is None:
        raise source.error_at(line, "expected `tokens` with `ner_tags`, or `text` with `spans`.")
    text, labels = (row[name] for name in columns)
    if columns[0] == "tokens":
        words, tags = (_as_list(source, line, name, value) for name, value in zip(columns, (text, labels), strict=True))
        reader.add_words(line, *_words_and_tags(reader, line, words, tags))
        return
    if not isinstance(text, str):
        raise source.error_at(line, f"field {columns[0]!r} is {text!r:.40}, expected a string.")
    if not text.strip():
        reader.empty += 1
        return
    reader.add_text(line, text, list(_spans(source, line, text, labels)))


def _as_list(source: Source, line: int, name: str, value: Any) -> list[Any]:
    if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
        raise source.error_at(line, f"field {name!r} is {value!r:.40}, expected a list.")
    return list(value)


def _words_and_tags(reader: _Reader, line: int, words: list[Any], tags: list[Any]) -> tuple[list[str], list[str]]:
    source = reader.source
    if len(words) != len(tags):
        raise source.error_at(line, f"{len(words)} tokens, but {len(tags)} tags.")
    if invalid := [index for index, word in enumerate(words, 1) if not isinstance(word, str) or not word.strip()]:
        raise source.error_at(line, f"token {invalid[0]} is {words[invalid[0] - 1]!r:.40}, expected a word.")
    names = []
    for tag in tags:
        if isinstance(tag, str) and tag.strip():
            names.append(tag)
        elif isinstance(tag, str | bool) or not isinstance(tag, numbers.Integral):
            raise source.error_at(line, f"a tag is {tag!r:.20}, expected a name such as B-PER.")
        elif reader.names is None:
            raise source.error_at(line, f"the tag {tag!r:.20} is a number without a name; use names such as B-PER.")
        elif not 0 <= int(tag) < len(reader.names):
            raise source.error_at(line, f"the tag {tag} is not one of the {len(reader.names)} classes.")
        else:
            names.append(reader.names[int(tag)])
    return words, names


def _spans(source: Source, line: int, text: str, spans: Any) -> Iterator[EntitySpan]:
    for span in _as_list(source, line, "spans", () if spans is None else spans):
        if not isinstance(span, Mapping):
            raise source.error_at(line, f"an entity is {span!r:.40}, expected an object with type, start and end.")
        values = {part: next((span[key] for key in keys if key in span), None) for part, keys in KEYS.items()}
        kind, start, end = values["type"], values["start"], values["end"]
        if not isinstance(kind, str) or not isinstance(start, int) or not isinstance(end, int):
            raise source.error_at(line, f"an entity is {dict(span)!r:.60}, expected its type, start and end.")
        if not 0 <= start < end <= len(text):
            raise source.error_at(line, f"the entity {kind} from {start} to {end} is not in the text.")
        yield kind, start, end
