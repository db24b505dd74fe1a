"""Labelled entities: CoNLL columns, tagged tokens, and texts with spans."""

from __future__ import annotations

import json

import pytest

from offramp.data.table import Columns, read_table, table_from_memory
from offramp.errors import BadInput

CONLL = """-DOCSTART- -X- -X- O

Ann NNP B-NP B-PER
Lee NNP I-NP I-PER
sang VBD B-VP O

Oslo NNP B-NP I-LOC
Oslo NNP B-NP B-LOC
won VBD B-VP I-ORG
"""
PEOPLE = (("PER", 0, 7),)


def table(tmp_path, name, content):
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_table(str(file), Columns())


@pytest.mark.parametrize("name", ["train.txt", "train.conll"])
def test_conll_columns_are_read_and_repaired_tags_counted(tmp_path, name):
    read = table(tmp_path, name, CONLL)
    assert read.texts == [("Ann", "Lee", "sang"), ("Oslo", "Oslo", "won")]
    assert read.labels == [PEOPLE, (("LOC", 0, 4), ("LOC", 5, 9), ("ORG", 10, 13))]
    assert read.label_names == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert len(read.skipped) == 1 and "2 I tags" in read.skipped[0]


def test_the_tag_is_the_last_column_that_has_one_in_every_line(tmp_path):
    read = table(tmp_path, "train.txt", "Ann B-PER 0\nsang O 0\n\nOslo B-LOC 0\n")
    assert read.labels == [(("PER", 0, 3),), (("LOC", 0, 4),)]


def test_tokens_with_tags_and_texts_with_spans(tmp_path):
    tokens = {"tokens": ["Ann", "Lee", "sang"], "ner_tags": ["B-PER", "I-PER", "O"]}
    read = table(
        tmp_path,
        "train.jsonl",
        "\n".join(json.dumps(row) for row in [tokens, {**tokens, "tokens": [], "ner_tags": []}]),
    )
    assert read.labels == [PEOPLE] and "1 empty rows are skipped" in read.skipped[0]
    presidio = [
        {"full_text": "Ann Lee sang", "spans": [{"entity_type": "PER", "start_position": 0, "end_position": 7}]}
    ]
    assert table(tmp_path, "train.json", presidio).labels == [PEOPLE]
    inside = [{"text": "Ann Lee sang", "entities": [{"label": "PER", "start": 1, "end": 6}]}]
    read = table(tmp_path, "more.json", inside)
    assert read.labels == [PEOPLE] and "1 entities" in read.skipped[0]


def test_datasets_with_class_numbers(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = ["O", "B-PER", "I-PER"]
    features = {"tokens": datasets.Sequence(datasets.Value("string"))}
    features["ner_tags"] = datasets.Sequence(datasets.ClassLabel(names=names))
    rows = {"tokens": [["Ann", "Lee", "sang"]], "ner_tags": [[1, 2, 0]]}
    data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    assert table_from_memory(data, "rows", Columns()).labels == [PEOPLE]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "Ann B-PER\nLee\n", "line 2: 'Lee' has no tag after the word"),
        ("a.conll", "Ann B-PER x\nLee y I-PER\n", "not in the same column"),
        ("a.conll", "\n\n", "contains no texts"),
        ("a.conll", "Ann\tO\n\tO\n", "line 2: the word is empty"),
        ("a.conll", "Ann O\n" * 1200 + "Lee X-PER\n", "line 1201: the tag is 'X-PER'"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": null}', "'ner_tags' is None, expected a list"),
        ("a.jsonl", '{"tokens": "a b", "ner_tags": ["O", "O"]}', "'tokens' is 'a b', expected a list"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": [null]}', "a tag is None, expected a name"),
        ("a.jsonl", '{"text": "Ann Lee", "spans": [{"label": "PER", "start": 3, "end": 4}]}', "covers no word"),
        ("a.jsonl", '{"text": "Ann", "spans": {"label": "PER", "start": 0, "end": 3}}', "expected a list"),
        ("a.jsonl", '{"tokens": ["a", " "], "ner_tags": ["O", "O"]}', "token 2 is ' '"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": ["O", "O"]}', "1 tokens, but 2 tags"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": [3]}', "a number without a name"),
        ("a.jsonl", '{"text": "Ann", "spans": [{"label": "PER", "start": 0, "end": 9}]}', "not in the text"),
        ("a.jsonl", '{"text": "Ann", "spans": [{"label": "PER"}]}', "its type, start and end"),
        ("a.jsonl", '{"text": "", "spans": []}', "no texts"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    with pytest.raises(BadInput, match=message):
        table(tmp_path, name, content)


def test_overlapping_entities_are_named(tmp_path):
    spans = [{"label": "PER", "start": 0, "end": 7}, {"label": "LOC", "start": 4, "end": 7}]
    message = r"line 1: the entities PER \(0 to 7\) and LOC \(4 to 7\) have a word in common"
    with pytest.raises(BadInput, match=message):
        table(tmp_path, "a.json", [{"text": "Ann Lee", "spans": spans}])


def test_other_schemes_are_read_as_bio_and_spans_without_spaces(tmp_path):
    read = table(tmp_path, "a.conll", "Ann B-PER\nLee E-PER\nsang O\nOslo U-LOC\n")
    assert read.labels == [(("PER", 0, 7), ("LOC", 13, 17))] and "BIOES or BILOU" in read.skipped[0]
    assert read.label_names == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    types = {"tokens": ["a@b.c", "x"], "ner_tags": ["E-MAIL", "CITY"]}  # without prefixes
    assert table(tmp_path, "a.json", [types]).labels == [(("E-MAIL", 0, 5), ("CITY", 6, 7))]
    spans = [{"label": "PER", "start": 0, "end": 4}]
    read = table(tmp_path, "b.json", [{"text": "Ann sang", "spans": spans}])
    assert read.labels == [(("PER", 0, 3),)] and "1 entities" in read.skipped[0]
