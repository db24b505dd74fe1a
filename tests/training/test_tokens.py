"""Taggers are trained on labelled entities, evaluated, calibrated and adapted without labels."""

from __future__ import annotations

import json
import random
import shutil

import pytest

import offramp
from offramp.errors import BadInput, BadValue
from tests.tiny import WORDS, piece_tokenizer, save_classifier, save_encoder


def tagged(count: int, seed: int) -> str:
    """Return random texts in CoNLL columns: "lovely" and a following "plot" are a PER, "film" is a LOC."""
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        words = generator.choices(WORDS, k=generator.randint(3, 9))
        previous = ["", *words]
        tags = [
            "B-PER"
            if word == "lovely"
            else "I-PER"
            if (before, word) == ("lovely", "plot")
            else "B-LOC"
            if word == "film"
            else "O"
            for before, word in zip(previous, words, strict=False)
        ]
        texts.append("".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)))
    return "\n".join(texts)


def plain_texts(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    texts = (" ".join(generator.choices(WORDS, k=generator.randint(3, 9))) for _ in range(2 * count))
    return list(dict.fromkeys(texts))[:count]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with data and a trained tagger."""
    root = tmp_path_factory.mktemp("tagger")
    (root / "train.txt").write_text(tagged(300, 1))
    (root / "dev.conll").write_text(tagged(80, 2))
    save_encoder("bert", root / "encoder")
    piece_tokenizer().save_pretrained(root / "encoder")
    result = offramp.train(
        root / "encoder",
        output=root / "model",
        train_file=str(root / "train.txt"),
        dev_file=str(root / "dev.conll"),
        recipe="deebert",
        epochs=2,
        convolution=4,
        learning_rate=1e-2,
        exits="auto",
    )
    assert result.metric == "entity_f1" and result.dev["dev"][-1]["entity_f1"] > 0.9
    return root


def test_evaluation_has_scores_per_exit_and_type(folder, tmp_path):
    result = offramp.evaluate(
        folder / "model", folder / "dev.conll", output=tmp_path / "run", policy="confidence:0.7", live=False
    )
    exits = json.loads((tmp_path / "run" / "results.json").read_text())["exits"]
    assert [entry["layer"] for entry in exits] == [0, 1, 2, 3, 4]
    assert exits[-1]["scores"]["entity_f1"] > 0.9 and "entity_f1" in str(result)
    types = json.loads((tmp_path / "run" / "results.json").read_text())["questions"]["full"]
    assert set(types) == {"f1 LOC", "f1 PER"}


def test_guarantees_about_texts_and_about_entities(folder, tmp_path):
    texts = plain_texts(400, 3)
    for risk_type, words in (("disagreement", "of texts have other entities"), ("lost", "entities are lost")):
        result = offramp.calibrate(folder / "model", texts=texts, risk=0.05, risk_type=risk_type, policy="confidence")
        assert result and words in result.guarantee
    full, fast = (list(offramp.load(folder / "model").predict(texts, policy=policy)) for policy in ("never", None))
    spans = [[{(e["entity_group"], e["start"], e["end"]) for e in a.entities} for a in side] for side in (full, fast)]
    shares = [len(a - b) / len(a) for a, b in zip(*spans, strict=True) if a]
    assert len(shares) > 100 and sum(shares) / len(shares) <= 0.05
    assert all(
        sum(bool({e for e in a - b if e[0] == kind}) for a, b in zip(*spans, strict=True))
        <= 0.1 * sum(any(e[0] == kind for e in a) for a in spans[0])
        for kind in ("PER", "LOC")
    )
    assert "for every type, at most 10 % of the texts with such entities lose one" in result.guarantee
    long = offramp.calibrate(folder / "model", texts=[*texts, " ".join(texts[:40])], risk=0.05, policy="confidence")
    assert "for every type" in long.guarantee
    with pytest.raises(BadValue, match="do not support token classification"):
        offramp.calibrate(folder / "model", texts=texts, keep=["PER"], recall=0.9)
    with pytest.raises(BadValue, match="token classification only"):
        offramp.calibrate(_classifier(tmp_path), texts=texts, risk_type="lost")
    with pytest.raises(BadValue, match="betting"):
        offramp.calibrate(folder / "model", texts=texts, risk_type="lost", test="binomial")


def test_exits_are_tuned_with_long_texts(folder, tmp_path):
    pytest.importorskip("onnxruntime")
    shutil.copytree(folder / "model", tmp_path / "model")
    short = plain_texts(900, 7)
    texts = [*short, *(" ".join(short[start : start + 8]) for start in range(0, 800, 8))]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts))
    result = offramp.tune(tmp_path / "model", file, risk=0.1, backend="onnx", threads=1)
    assert result and "for every type" in result.guarantee and result.layers[-1] == 4
    full, fast = (
        offramp.load(tmp_path / "model", backend="onnx").answer(texts, policy=policy).values
        for policy in ("never", None)
    )
    assert sum(a != b for a, b in zip(full, fast, strict=True)) <= 0.1 * len(texts)


def _classifier(tmp_path):
    folder = save_classifier("bert", tmp_path / "classifier")
    model = offramp.AdaptiveModel.from_backbone(folder, exits="auto")
    model.save_pretrained(tmp_path / "adaptive")
    return tmp_path / "adaptive"


def test_a_tagger_is_adapted_without_labels_and_predicts_to_files(folder, tmp_path, caplog):
    short, generator = plain_texts(700, 4), random.Random(5)
    texts = [*short, *(" ".join(generator.sample(short, 8)) for _ in range(80))]  # several windows
    result = offramp.adapt(
        folder / "model", texts, output=tmp_path / "fast", risk=0.05, epochs=3, variations=0, convolution=4
    )
    assert result and "other entities" in result.guarantee and "for every type" in result.guarantee
    lost = offramp.adapt(
        folder / "model", short, output=tmp_path / "lost", risk=0.05, risk_type="lost", epochs=1, variations=0
    )
    assert lost and "of model's entities are lost" in lost.guarantee
    expected = list(offramp.load(folder / "model").predict(texts[:5], policy="never"))
    for answer, other in zip(result.predict(texts[:5], policy="never"), expected, strict=True):
        assert answer.entities == other.entities
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        offramp.predict(tmp_path / "fast", texts[:5], output=tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert list(lines[0]) == ["entities", "score", "exit_layer"] and len(lines) == 5
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [json.loads(row["entities"]) for row in table] == [line["entities"] for line in lines]


def test_data_and_models_of_other_kinds_are_refused(folder, tmp_path):
    files = {"train_file": str(folder / "train.txt"), "dev_file": str(folder / "dev.conll")}
    with pytest.raises(BadInput, match="`problem='token'`"):
        offramp.train(folder / "encoder", output=tmp_path / "a", **files, problem="single-label")
    (tmp_path / "rows.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    table = {"train_file": str(tmp_path / "rows.tsv"), "dev_file": str(tmp_path / "rows.tsv")}
    with pytest.raises(BadInput, match="no labelled entities"):
        offramp.train(folder / "encoder", output=tmp_path / "a", **table, problem="token")
    with pytest.raises(BadInput, match="expected entities"):
        offramp.evaluate(folder / "model", tmp_path / "rows.tsv", output=tmp_path / "run")
    (tmp_path / "other.conll").write_text("lovely B-ORG\n\nfilm O\n")
    with pytest.raises(BadInput, match="type of entity 'ORG'"):
        offramp.evaluate(folder / "model", tmp_path / "other.conll", output=tmp_path / "run")
    with pytest.raises(BadInput, match="labelled entities"):
        offramp.evaluate(_classifier(tmp_path), folder / "dev.conll", output=tmp_path / "run")
