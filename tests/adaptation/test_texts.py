"""How `adapt` splits texts: rows as they come, groups together, and other rows for a second test."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest

from offramp.adaptation.texts import TextSplits, UserTexts, split_texts
from offramp.calibration.ledger import LEDGER, TestRecord, read_tests
from offramp.calibration.risks import Guarantee
from offramp.data.hashes import hash_texts
from offramp.errors import BadInput
from tests.adaptation.test_adapt import EASY, PLAIN, adapts, classifier, random_texts

pytestmark = pytest.mark.usefixtures("one_thread")

NOTHING = np.empty(0, np.uint64)


def split(texts, groups=None, earlier=(), seen=NOTHING, **options) -> TextSplits:
    return split_texts(UserTexts(texts, groups), Guarantee(risk=0.1, **options), seen, earlier)


def names(count: int) -> list[str]:
    return [f"{chr(97 + number % 26)}{chr(97 + number // 26 % 26)}{chr(97 + number // 676)}" for number in range(count)]


def test_frequent_texts_are_in_every_part_but_learned_once():
    texts = ["hello"] * 1000 + names(1000)
    parts = split(texts)
    counts = Counter(parts.test)
    assert len(parts.test) == 600 and 0.4 < counts["hello"] / 600 < 0.6  # as often as in the traffic
    assert parts.training.count("hello") == 1 and "hello" in parts.selection
    once = split(texts, count="texts")
    assert len(once.test) == len(set(once.test)) and not set(once.test) & set(once.training)


def test_the_split_depends_on_the_rows_and_not_on_their_order():
    texts = ["hello"] * 300 + names(700)
    shuffled = list(np.random.default_rng(0).permutation(texts))
    assert sorted(split(texts).test) == sorted(split(shuffled).test)


def test_a_second_test_takes_other_rows(caplog):
    texts = names(1200)
    first = split(texts)
    records = [TestRecord.of(Guarantee(), False, first.keys)]
    second = split(texts, earlier=records)
    records.append(TestRecord.of(Guarantee(), True, second.keys))
    third = split(texts, earlier=records)
    records.append(TestRecord.of(Guarantee(), True, third.keys))
    tests = [set(first.test), set(second.test), set(third.test)]
    assert not tests[0] & tests[1] and not tests[1] & tests[2] and not tests[0] & tests[2]
    caplog.clear()
    split(texts, earlier=records)  # 360 of 1,200 texts each: a fourth test cannot be fresh
    assert "of the test rows were tested before; give more texts." in caplog.text
    grown = split(names(4000), earlier=records[:1])
    assert not set(grown.test) & tests[0]
    record = records[0]
    other = split(names(2400)[1200:], earlier=[record])
    assert other.test == split(names(2400)[1200:]).test  # a test of other texts changes nothing


def test_groups_stay_together():
    texts, groups = names(1000), [f"document {number // 8}" for number in range(1000)]
    parts = split(texts, groups)
    group_of = dict(zip(texts, groups, strict=True))
    sides = [{group_of[text] for text in side} for side in (parts.training, parts.selection, parts.test)]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert len(np.unique(parts.clusters)) == len(sides[2]) and len(parts.clusters) == len(parts.test)
    with pytest.raises(BadInput, match="10 groups are too few"):
        split_texts(UserTexts(texts, [str(n // 100) for n in range(1000)]), Guarantee(risk=0.1, group="g"), NOTHING)


def test_large_groups_leave_rows_for_every_part():
    texts = names(1000)
    groups = ["large" if number < 400 else f"small {number}" for number in range(1000)]
    for seed in range(10):
        parts = split(texts, [f"{seed} {group}" for group in groups])
        assert parts.training and parts.selection and parts.test
    with pytest.raises(BadInput, match=r"too few|too large"):
        split(texts, [str(number // 500) for number in range(1000)])


def test_texts_of_the_models_own_training_are_only_for_training():
    texts = names(1000)
    parts = split(texts, seen=hash_texts(texts[:200]))
    assert set(texts[:200]) <= set(parts.training)


def test_near_copies_are_reported_unless_groups_are_named(caplog):
    texts = [f"order {number} has been shipped to {name}" for number, name in enumerate(names(300) * 3)]
    split(texts)
    assert "near-copies of training texts, such as 'order " in caplog.text and "'. If texts come in" in caplog.text
    caplog.clear()
    split(texts, [str(number // 4) for number in range(len(texts))])
    assert not caplog.text


def test_a_refused_run_is_recorded_and_the_next_one_takes_other_texts(tmp_path, capsys, caplog):
    """The first run has too few groups for a limit per class, so its test fails."""
    original, file = classifier("bert", tmp_path / "original", 2), grouped_file(tmp_path / "texts.csv")
    groups = [*PLAIN, "--group-column", "customer"]
    out = adapts(capsys, original, file, *EASY, *groups, "-o", tmp_path / "fast", code=1)
    assert "270 tested texts are recorded in" in out and not (tmp_path / "fast").exists()
    (first,) = read_tests(tmp_path / f"fast.{LEDGER}")
    assert not first.passed and first.rows == 270
    out = adapts(capsys, original, file, *EASY, *groups, "--class-risk", "none", "-o", tmp_path / "fast")
    assert "on average over groups (customer), at most 20 % of predictions differ" in out and " rows in " in out
    assert "tested a guarantee before: other rows are taken." in caplog.text
    both = read_tests(tmp_path / "fast" / LEDGER)
    assert [record.passed for record in both] == [False, True] and np.isin(both[1].keys, first.keys).mean() < 0.1
    assert not (tmp_path / f"fast.{LEDGER}").exists()
    evidence = json.loads((tmp_path / "fast" / "calibration.json").read_text())
    assert "earlier test" not in evidence["origin"]


def grouped_file(file):
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["text", "customer"])
        table.writerows([text, number // 3] for number, text in enumerate(random_texts(900)))
    return file
