"""Odd label columns of many kinds, generated from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

NAMES = ["no", "perhaps", "yes"]
OTHER_NAMES = ["good", "bad", "so so"]


def _subset(chance: random.Random, max_size: int = 3) -> list[str]:
    return chance.sample(NAMES, chance.randint(0, max_size))


def _flags(chance: random.Random, width: int = 3) -> list[int]:
    return [chance.randint(0, 1) for _ in range(width)]


Draw = Callable[[random.Random, int], Any]  # a label for a row, by its number

KINDS: dict[str, Draw] = {
    "names": lambda chance, i: NAMES[i % 3],
    "other names": lambda chance, i: OTHER_NAMES[i % 3],
    "numbers": lambda chance, i: i % 3,
    "numbers with a point": lambda chance, i: [0.0, 1.0, 2.0][i % 3],
    "values": lambda chance, i: round(chance.uniform(-2, 7), 3),
    "values as text": lambda chance, i: f"{chance.uniform(-2, 7):.2f}",
    "values with a comma": lambda chance, i: f"{chance.uniform(-2, 7):.2f}".replace(".", ","),
    "one class": lambda chance, i: "yes",
    "a class per row": lambda chance, i: f"class {i}",
    "nothing": lambda chance, i: "",
    "None": lambda chance, i: None,
    "some missing": lambda chance, i: chance.choice([*NAMES, "", None]),
    "some NaN": lambda chance, i: chance.choice([0, 1, float("nan")]),
    "only NaN": lambda chance, i: float("nan"),
    "infinity": lambda chance, i: chance.choice([0.5, float("inf"), -float("inf")]),
    "words for nothing": lambda chance, i: chance.choice([*NAMES, "nan", "N/A", "null", "None", "#N/A", "-"]),
    "cases and spaces": lambda chance, i: chance.choice(["yes", "Yes ", " YES", "no", "NO", "Perhaps"]),
    "spellings of one": lambda chance, i: chance.choice(["1", "1.0", "01", "1e0", " 1", "0", "-0", "0.00", "+2", 2]),
    "yes and no": lambda chance, i: chance.choice([True, False, "true", "False", 1, 0]),
    "lists": lambda chance, i: _subset(chance),
    "lists as text": lambda chance, i: str(_subset(chance)),
    "lists as JSON": lambda chance, i: json.dumps(_subset(chance)),
    "joined": lambda chance, i: chance.choice([";", "|", ","]).join(_subset(chance)),
    "joined with holes": lambda chance, i: chance.choice(["no;;yes", ";", "yes;", ";no", "no; yes ;no", "no;yes"]),
    "ones and zeros": lambda chance, i: _flags(chance),
    "ones and zeros as text": lambda chance, i: str(_flags(chance)),
    "ones and zeros of many widths": lambda chance, i: _flags(chance, chance.randint(0, 5)),
    "ones and zeros beside names": lambda chance, i: chance.choice([_flags(chance), "yes", ["no"]]),
    "lists of lists": lambda chance, i: [[_subset(chance)], 3][: chance.randint(0, 2)],
    "lists of nothing": lambda chance, i: chance.choice([[], [None], [""], ["yes", None], "[]", "[None]"]),
    "lists of all kinds": lambda chance, i: chance.choice([[1, "a"], [0.5], [True], [1, 1], [float("nan")], [{}]]),
    "objects": lambda chance, i: {"name": NAMES[i % 3]},
    "every kind": lambda chance, i: chance.choice([1, "1", 1.0, True, None, [1], {"a": 1}, "", "yes", -1, 1e400]),
    "huge numbers": lambda chance, i: chance.choice([10**30, -(10**30), 10**400, 1e308, 3]),
    "odd digits": lambda chance, i: chance.choice(["²", "½", "١", "1_000", "0x10", "1e400", "٣٫٥", "Ⅳ", "1,000"]),
    "negative": lambda chance, i: chance.choice([-1, 0, 1]),
    "odd letters": lambda chance, i: chance.choice(["ß", "SS", "ss", "İ", "i", "K", "K", "é", "é", "💥"]),
    "with ends of lines": lambda chance, i: chance.choice(["a\nb", "a\r\nb", "\n", "a\u2028b", "a\tb", "a\x0bb"]),
    "with zeros": lambda chance, i: chance.choice(["\0", "a\0b", "yes"]),
    "half a pair": lambda chance, i: chance.choice(["\ud83d", "yes", "no\udc00"]),
    "marks": lambda chance, i: chance.choice(['"', "'", '"yes', "a,b", "[", "]", "[1", "{}", "=1+1", "<b>", "%s"]),
    "long": lambda chance, i: chance.choice(["yes", "x" * 200_000]),
    "deep": lambda chance, i: chance.choice(["yes", "[" * 5000 + "]" * 5000]),
    "the header again": lambda chance, i: chance.choice(["label", "text", "yes"]),
    "dates": lambda chance, i: f"2024-0{1 + i % 9}-11",
}
ROWS = (1, 2, 3, 5, 12, 60, 60, 60)


def column(chance: random.Random, rows: int) -> tuple[list[Any], str]:
    """Return labels of one kind, possibly with a few of another, and their description."""
    kind = chance.choice([*KINDS])
    labels = [KINDS[kind](chance, row) for row in range(rows)]
    if chance.random() < 0.25 and rows:
        other = chance.choice([*KINDS])
        for row in chance.sample(range(rows), min(rows, chance.choice([1, 1, 3]))):
            labels[row] = KINDS[other](chance, row)
        return labels, f"labels: {kind}, some {other}"
    return labels, f"labels: {kind}"


def usual(rows: int) -> list[Any]:
    """Return labels from the classes of the model that most cases use."""
    return [NAMES[row % 3] for row in range(rows)]
