"""Labelled entities of texts, and the examples of token classification: texts, or lists of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "OUTSIDE",
    "Entities",
    "EntitySpan",
    "as_bio",
    "entities_of_tags",
    "join_words",
    "split_tag",
    "tags_for",
    "word_spans",
]

OUTSIDE = "O"  # the tag of words outside of entities
SCHEMES = {"B-": "B-", "I-": "I-", "S-": "B-", "U-": "B-", "E-": "I-", "L-": "I-"}  # prefixes, and those of BIO

EntitySpan = tuple[str, int, int]
"""The type of an entity, its first character and its end."""


class Entities(tuple[EntitySpan, ...]):
    """The entities of a text in order, with all tags of the data; equal if the entities are equal."""

    tags: tuple[str, ...]

    def __new__(cls, spans: Iterable[EntitySpan], tags: Sequence[str] = ()) -> Entities:
        """Return the entities, sorted by position."""
        entities = super().__new__(cls, sorted(spans, key=lambda span: (span[1], span[2], span[0])))
        entities.tags = tuple(tags)
        return entities

    def __reduce__(self) -> tuple[type, tuple[tuple[EntitySpan, ...], tuple[str, ...]]]:
        """Return how to pickle the entities."""
        return Entities, (tuple(self), self.tags)

    def with_tags(self, tags: Sequence[str]) -> Entities:
        """Return the same entities with the tags in another order."""
        return Entities(self, tags)


def split_tag(tag: str) -> tuple[bool, str]:
    """Return whether a tag starts an entity, and the type: `B-PER` and `I-PER` are PER, other tags are types."""
    return tag.startswith("B-"), tag[2:] if tag.startswith(("B-", "I-")) else tag


def as_bio(tags: Sequence[str]) -> list[str]:
    """Return the tags of a text in the BIO scheme, if they are in that of BIOES or BILOU.

    Examples:
        >>> as_bio(["B-PER", "E-PER", "O", "U-LOC"])
        ['B-PER', 'I-PER', 'O', 'B-LOC']
    """
    if not all(tag == OUTSIDE or tag[:2] in SCHEMES for tag in tags):  # tags without prefixes are types
        return list(tags)
    return [tag if tag == OUTSIDE else SCHEMES[tag[:2]] + tag[2:] for tag in tags]


def join_words(words: Sequence[str]) -> str:
    """Return the text of words, to which offsets refer."""
    return " ".join(words)


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first character and the end of each word in `join_words`."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return spans


def entities_of_tags(words: Sequence[str], tags: Sequence[str]) -> tuple[list[EntitySpan], int]:
    """Return the entities of tagged words, and the number of repaired tags.

    An I tag that does not continue an entity of its type starts one, as in seqeval's default mode.
    """
    entities: list[EntitySpan] = []
    repaired, previous = 0, OUTSIDE
    has_prefixes = any(tag.startswith(("B-", "I-")) for tag in tags)
    for (start, end), tag in zip(word_spans(words), tags, strict=True):
        is_begin, kind = split_tag(tag)
        if tag != OUTSIDE:
            continues = not is_begin and previous == kind
            repaired += has_prefixes and not is_begin and not continues
            entities.append((kind, entities.pop()[1] if continues else start, end))
        previous = kind
    return entities, repaired


def tags_for(types: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of these types: O, then B and I of each."""
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(types) for prefix in "BI"))
