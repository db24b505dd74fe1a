"""Baselines of other libraries: each runs the full model, or says in one line why not."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from offramp import AdaptiveModel
from offramp.evaluation.benchmark.baselines import BASELINES, build_baselines
from offramp.evaluation.benchmark.engines import ENGINES, Engine
from offramp.evaluation.benchmark.entries import open_entry
from offramp.evaluation.benchmark.entry import Entry
from offramp.evaluation.benchmark.measuring import QualityScorer, measure_entries
from offramp.exports.options import Texts
from tests.tiny import WORDS, adaptive, amplify_weights, save_encoder

TEXTS = [" ".join(WORDS[start : start + length]) for start in range(8) for length in (1, 4, 7)]
COMPILED = ("compile", "torchao")  # compiling takes too long for a test


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tiny models of two families; sizes are those of real attention heads."""
    folders = {}
    for family in ("bert", "mpnet"):
        place = tmp_path_factory.mktemp(family)
        sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 2}
        model = AdaptiveModel.from_backbone(save_encoder(family, place / "encoder", **sizes), num_labels=3)
        amplify_weights(model.exits, 1, scale=20.0)
        model.save_pretrained(place / "model")
        folders[family] = place / "model"
    return folders


def build(name: str, folder, place) -> tuple[AdaptiveModel, list[Entry]]:
    engine = ENGINES[name]
    if missing := engine.missing():
        pytest.skip(f"{', '.join(missing)} not installed")
    model = AdaptiveModel.from_pretrained(folder).eval()
    return model, build_baselines(model, Texts(), place, [name], 1)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in COMPILED])
def test_an_engine_returns_the_logits_of_the_full_model(name, family, folders, tmp_path, caplog):
    caplog.set_level(logging.INFO, "offramp")
    model, entries = build(name, folders[family], tmp_path)
    if family == "mpnet" and name in ("ctranslate2", "llama.cpp"):
        assert not entries and "mpnet" in caplog.text and len(caplog.records) == 1
        return
    assert entries
    expected = model.runner().answer(TEXTS, policy="never").logits
    for entry in entries:
        predict = open_entry(entry, str(folders[family]), 1)
        for size in (1, 8):
            output = predict(TEXTS, size)
            assert np.abs(output.logits - expected).max() < 0.1 * np.abs(expected).max()
            assert set(output.layers) == {2} and len(output.seconds) == len(TEXTS) // size


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_engines_have_an_entry_where_there_is_a_compiler(name, folders, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "offramp")
    assert len(build(name, folders["bert"], tmp_path)[1]) == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not build(name, folders["bert"], tmp_path)[1]
    assert "Skipping" in caplog.text and "C++ compiler" in caplog.text


def test_an_engine_that_is_not_installed_is_named_with_its_packages(folders, tmp_path, caplog):
    caplog.set_level(logging.INFO, "offramp")
    engine = Engine("fast", "FastBert", "no.such.module", {"no_such_module": "fast-bert", "os": "os"})
    assert engine.build(None, Texts(), tmp_path) == []
    assert caplog.messages == ["Skipping FastBert: fast-bert is not installed (pip install fast-bert)."]
    assert set(ENGINES) < set(BASELINES)


def test_the_embeddings_alone_are_a_static_baseline(tmp_path):
    model = adaptive("bert", tmp_path / "encoder", exits=[0, 2, 4], num_labels=3)
    model.save_pretrained(tmp_path / "model")
    entries = build_baselines(model, Texts(), tmp_path, ["onnx"], 2)
    static = {entry.name: entry for entry in entries if entry.layers is not None}
    assert list(static) == ["ONNX Runtime int8-token, first 2 layers", "ONNX Runtime int8-token, embeddings only"]
    for entry in static.values():
        output = open_entry(entry, str(tmp_path / "model"), 1)(TEXTS, 8)
        expected = model.runner().answer(TEXTS, policy="never", max_layers=entry.layers).logits
        assert set(output.layers) == {entry.layers}
        assert np.abs(output.logits - expected).max() < 0.1 * np.abs(expected).max()


def test_an_engine_that_fails_is_left_out_and_the_others_are_measured(folders, caplog):
    caplog.set_level(logging.INFO, "offramp")
    model = AdaptiveModel.from_pretrained(folders["bert"]).eval()
    logits = model.runner().answer(TEXTS, policy="never").logits
    quality = QualityScorer(model.config.answer_type, logits.argmax(-1))
    entries = [Entry("plain", "plain"), Entry("broken", "full", "ctranslate2", "int8", "no such folder")]
    results = measure_entries(entries, str(folders["bert"]), TEXTS, TEXTS, (8,), 1, 1, quality)
    assert [result.name for result in results] == ["plain"] and results[0].agreement == 1
    assert [message.startswith("Skipping broken: ") for message in caplog.messages] == [True]
    with pytest.raises(Exception, match="no such file"):
        measure_entries(
            [Entry("broken", "full", "onnx", "float32", "no such file")],
            str(folders["bert"]), TEXTS, TEXTS, (8,), 1, 1, quality,
        )  # fmt: skip
