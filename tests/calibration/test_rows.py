"""Which rows test a guarantee: traffic or different texts, groups, and rows that were tested before."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
from tokenizers import normalizers

import offramp
from offramp import AdaptiveModel
from offramp.calibration.ledger import LEDGER, Ledger, TestRecord, describe_earlier_tests, read_tests
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.withdrawal import says_at_least
from offramp.cli.main import main
from offramp.data.hashes import hash_texts, normalizer, occurrences, row_keys
from offramp.data.near_copies import near_copies
from offramp.data.task import Rows
from offramp.errors import BadInput, BadValue
from offramp.training.holdout import TRAIN_NORMALIZED, hold_out, read_hashes
from tests.calls import fails
from tests.reviews import rows
from tests.simulated_traces import population, sample
from tests.tiny import tokenizer

EASY = ["--risk", "0.05", "--confidence", "0.9"]


@pytest.fixture
def model(trained, tmp_path):
    """A copy to write into."""
    copy = tmp_path / "model"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("checkpoints"))
    return copy


def calibrates(capsys, *arguments, code=0) -> str:
    assert main([str(argument) for argument in ("calibrate", *arguments)]) == code, capsys.readouterr()
    return capsys.readouterr().out


def evidence(model):
    return json.loads((model / "calibration.json").read_text())


def fresh_texts(count: int, seed: int = 77) -> list[str]:
    return [text for text, _ in rows(count, seed=seed)]


def write(file, texts):
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


# -- copies ----------------------------------------------------------------------------------------


def test_rows_count_as_they_come_and_texts_once_on_request(model, tmp_path, capsys):
    file = write(tmp_path / "traffic.txt", fresh_texts(300) + fresh_texts(1) * 200)
    assert "500 rows " in calibrates(capsys, model, *EASY, "--file", file)
    assert evidence(model)["guarantee"]["count"] == "rows" and evidence(model)["test_rows"] == 500
    assert "300 unique texts" in calibrates(capsys, model, *EASY, "--file", file, "--count", "texts")


def test_an_uncased_tokenizer_sees_copies_in_other_cases():
    uncased = tokenizer()
    uncased.backend_tokenizer.normalizer = normalizers.Lowercase()
    normalize = normalizer(uncased)
    plain, normalized = hash_texts(["A film", "a  film "]), hash_texts(["A film", "a  film "], normalize)
    assert plain[0] != plain[1] and normalized[0] == normalized[1]
    texts = ["A film", "a film", "a plot", "the end"] * 10
    for seed in range(5):
        train, held_out = hold_out(Rows(texts, [0] * 40), 0.5, seed, None, normalize)
        sides = [{texts[index].lower() for index in side} for side in (train, held_out)]
        assert not sides[0] & sides[1]


def test_copies_of_training_rows_with_other_spaces_are_refused(model, reviews, tmp_path, capsys):
    assert len(read_hashes(model)[TRAIN_NORMALIZED]) > 0
    lines = fresh_texts(400)
    seen = train_text(model, reviews)
    file = write(tmp_path / "texts.txt", [*lines, f"  {seen.replace(' ', '   ')}"])
    assert "1 of the 401 rows were used for training" in fails(capsys, "calibrate", model, *EASY, "--file", file)
    printed = calibrates(capsys, model, *EASY, "--file", file, "--count", "rows")  # a sample of traffic
    assert "that you declared a new sample; the texts of 1 of the 401 rows also occur" in printed


def train_text(model, reviews) -> str:
    hashes = set(read_hashes(model)["train"].tolist())
    texts = [line.split("\t")[0] for line in (reviews / "SST-2" / "train.tsv").read_text().splitlines()[1:]]
    return next(text for text in texts if int(hash_texts([text])[0]) in hashes and " " in text)


def test_held_out_rows_are_different_texts(model, capsys):
    assert "480 unique texts held out from training" in calibrates(capsys, model, *EASY)
    assert "remove --count" in fails(capsys, "calibrate", model, *EASY, "--count", "rows")


def test_occurrences_number_the_copies_of_a_text():
    assert occurrences(np.array([5, 7, 5, 5, 7], dtype=np.uint64)).tolist() == [0, 0, 1, 2, 1]
    assert occurrences(np.empty(0, np.uint64)).tolist() == []


def test_near_copies():
    others = ["Order 17 has been shipped.", "a short text", " ".join(f"word{chr(97 + i % 26)}" for i in range(60))]
    long = " ".join(["hello", *others[2].split(), "bye"])
    texts = ["order 9 has been SHIPPED", "order 9 has been returned", long, "another text"]
    assert near_copies(texts, others).tolist() == [True, False, True, False]


# -- groups ----------------------------------------------------------------------------------------


def grouped_file(file, texts, size):
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["text", "customer"])
        table.writerows([text, f"c{number // size}"] for number, text in enumerate(texts))
    return file


def test_groups_are_tested_by_their_means(model, tmp_path, capsys):
    file = grouped_file(tmp_path / "texts.csv", fresh_texts(600), 5)
    printed = calibrates(capsys, model, "--risk", "0.1", "--file", file, "--group-column", "customer")
    saved = evidence(model)
    assert (
        "on average over groups (customer), at most 10 % of predictions differ" in printed
        and "600 rows in 120 groups" in printed
    )
    assert (saved["guarantee"]["group"], saved["guarantee"]["test"], saved["test_groups"]) == (
        "customer",
        "betting",
        120,
    )
    few = grouped_file(tmp_path / "few.csv", fresh_texts(600), 100)
    assert "6 groups are too few" in calibrates(
        capsys, model, *EASY, "--file", few, "--group-column", "customer", code=1
    )
    assert "Unknown column 'costumer'" in fails(
        capsys, "calibrate", model, "--file", file, "--group-column", "costumer"
    )
    binomial = ["--test", "binomial", "--risk-type", "accuracy"]
    assert "independent rows" in fails(
        capsys, "calibrate", model, "--file", labelled(tmp_path), "--group-column", "customer", *binomial
    )


def labelled(tmp_path):
    file = tmp_path / "labelled.csv"
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["text", "label", "customer"])
        table.writerows([text, label, number // 5] for number, (text, label) in enumerate(rows(600, seed=77)))
    return file


def test_groups_in_python_and_in_labelled_tables(model, tmp_path):
    texts = fresh_texts(600)
    result = offramp.calibrate(model, texts, risk=0.1, groups=[number // 5 for number in range(600)])
    assert result.evidence["test_groups"] == 120
    table = labelled(tmp_path)
    result = offramp.calibrate(model, table, risk=0.2, risk_type="accuracy", group_column="customer", policy="auto")
    assert result.evidence["test_groups"] == 90 and result.evidence["search_rows"] == 150  # a quarter of the groups
    with pytest.raises(BadInput, match="600 texts and 3 groups"):
        offramp.calibrate(model, texts, groups=[1, 2, 3])
    with pytest.raises(BadValue, match="use `group_column=`"):
        offramp.calibrate(model, table, groups=[1] * 600)


def test_the_loss_of_a_group_is_its_mean():
    whole = population(0.3, 2000, seed=0, documents=200, shared=0.3)
    risk = Risk(Guarantee(risk=0.05, class_risk=0.1, group="document"), sample(whole, 500, np.random.default_rng(0)))
    losses = np.arange(500) % 10 == 0
    assert risk.units(losses * 1.0) == pytest.approx([0.1] * 50)
    counted = np.arange(500) < 25
    assert sorted(risk.units(losses * 1.0, counted)) == pytest.approx([0.1, 0.1, 0.2])
    assert risk.limits.limits[0].is_tested and len(risk.order) == 50


# -- rows that were tested before -------------------------------------------------------------------


def test_tests_are_recorded_and_repeated_ones_counted(model, tmp_path, capsys):
    file = write(tmp_path / "texts.txt", fresh_texts(400))
    assert "earlier test" not in calibrates(capsys, model, *EASY, "--file", file)
    assert "400 of the 400 rows were also used in 1 earlier test" in calibrates(capsys, model, *EASY, "--file", file)
    assert "400 of the 400 rows were also used in 2 earlier tests" in calibrates(capsys, model, *EASY, "--file", file)
    records = read_tests(model / LEDGER)
    assert [record.passed for record in records] == [True] * 3 and records[0].rows == 400
    ledger = tmp_path / "elsewhere.jsonl"
    assert "earlier" not in calibrates(capsys, model, *EASY, "--file", file, "--ledger", ledger)
    assert len(read_tests(ledger)) == 1 and len(read_tests(model / LEDGER)) == 3
    ledger.write_text("not a record\n")
    assert "is not a record of tests" in fails(capsys, "calibrate", model, *EASY, "--file", file, "--ledger", ledger)


def test_a_no_on_fresh_rows_withdraws_the_guarantee(model, tmp_path, capsys):
    calibrates(capsys, model, "--risk", "0.05")
    before = AdaptiveModel.from_pretrained(model).config
    assert before.calibrated
    file = write(tmp_path / "fresh.txt", fresh_texts(430))
    weaken(model)  # the exits are worse than when they were tested
    out = calibrates(capsys, model, "--risk", "0.05", "--file", file, code=1)
    after = AdaptiveModel.from_pretrained(model).config
    assert "guarantee is withdrawn" in out and after.calibrated is None and after.policy == before.policy
    assert "## Guarantee" not in (model / "README.md").read_text()
    assert [record.passed for record in read_tests(model / LEDGER)] == [True, False]


def weaken(model):
    """Let the stored guarantee claim what fresh rows do not confirm: the threshold is far too risky."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    for key in weights:
        if key.startswith("exits.") and key.endswith("weight") and not key.startswith("exits.4."):
            weights[key] = torch.randn_like(weights[key]) * 5
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config["calibrated"]["fingerprint"] = AdaptiveModel.from_pretrained(model).runner().fingerprint
    (model / "config.json").write_text(json.dumps(config))


def test_a_stricter_no_says_nothing_about_the_stored_guarantee(model, tmp_path, capsys):
    calibrates(capsys, model, "--risk", "0.05")
    file = write(tmp_path / "fresh.txt", fresh_texts(300))
    out = calibrates(capsys, model, "--risk", "0.001", "--file", file, code=1)
    assert "withdrawn" not in out and AdaptiveModel.from_pretrained(model).config.calibrated


def test_the_record_of_a_folder_that_does_not_exist_yet(tmp_path):
    keys = np.arange(5, dtype=np.uint64)
    ledger = Ledger.find(tmp_path / "fast", None)
    file = ledger.record(TestRecord.of(Guarantee(), False, keys))
    assert file == tmp_path / "fast.tests.jsonl" and ledger.records == []
    again = Ledger.find(tmp_path / "fast", None)
    assert len(again.records) == 1 and again.records[0].keys.tolist() == keys.tolist()
    (tmp_path / "new").mkdir()
    again.record(TestRecord.of(Guarantee(), True, keys[:2]), tmp_path / "new")
    assert [record.passed for record in read_tests(tmp_path / "new" / LEDGER)] == [False, True] and file.exists()
    again.clean_up()
    assert not file.exists()
    assert describe_earlier_tests(again.records, keys[3:]) == "2 of the 2 rows were also used in 1 earlier test"
    assert describe_earlier_tests(again.records, keys + np.uint64(9)) is None


def test_a_record_inside_the_output_is_not_lost(tmp_path):
    (tmp_path / "fast").mkdir()
    inside = tmp_path / "fast" / LEDGER
    Ledger.find(tmp_path / "fast", str(inside)).record(TestRecord.of(Guarantee(), True, np.arange(3, dtype=np.uint64)))
    (tmp_path / "new").mkdir()
    Ledger.find(tmp_path / "fast", str(inside)).record(
        TestRecord.of(Guarantee(), True, np.arange(3, dtype=np.uint64)), tmp_path / "new"
    )
    assert len(read_tests(tmp_path / "new" / LEDGER)) == 2  # the new folder replaces the old one


def test_copies_of_a_text_are_different_rows():
    keys = row_keys(np.array([5, 7, 5], dtype=np.uint64))
    assert len(np.unique(keys)) == 3 and keys[:2].tolist() == [5, 7]


def test_what_a_guarantee_says():
    def saved(**options):
        return {"guarantee": asdict(Guarantee(**options))}

    strict = {"risk": 0.02, "class_risk": 0.1, "keep": ("a",), "recall": 0.95}
    assert says_at_least(saved(**strict), Guarantee(**strict))
    assert says_at_least(saved(**strict), Guarantee(risk=0.05, class_risk=0.2))
    for other in (
        {"risk": 0.01},
        {"confidence": 0.95},
        {"class_risk": 0.05},
        {"keep": ("b",), "recall": 0.9},
        {"keep": ("a",), "recall": 0.99},
        {"keep": ("a",), "precision": 0.9},
        {"reference": "another model"},
        {"risk_type": "accuracy"},
        {"average": True},
    ):
        assert not says_at_least(saved(**strict), Guarantee(**{"risk": 0.02, **other})), other
    assert not says_at_least(None, Guarantee()) and not says_at_least({"guarantee": None}, Guarantee())


def test_rows_that_earlier_training_saw_are_not_held_out_in_another_case():
    uncased = tokenizer()
    uncased.backend_tokenizer.normalizer = normalizers.Lowercase()
    texts = [text for number in range(50) for text in (f"Film {number}", f"film {number}")]
    seen = hash_texts(texts[1:51:2])  # 25 of the lower-case ones
    _, held_out = hold_out(Rows(texts, [0] * 100), 0.5, 0, seen, normalizer(uncased))
    assert not {texts[index].lower() for index in held_out} & set(texts[1:51:2])
