"""Token classification over HTTP, as Hugging Face's client sends it."""

from __future__ import annotations

import pytest
from huggingface_hub import InferenceClient, constants

from tests.answers.test_tokens import TEXTS, tagger
from tests.server import post, run_server


def test_the_client_of_hugging_face_receives_entities(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the server is local
    model = tagger(tmp_path / "plain")
    model.save_pretrained(tmp_path / "model")
    expected = [answer.entities for answer in model.predict(TEXTS)]
    with run_server(tmp_path / "model") as server:
        client = InferenceClient(server.url)
        for text, entities in zip(TEXTS, expected, strict=True):
            received = client.token_classification(text) if text else []
            assert [(e.entity_group, e.start, e.end, e.word) for e in received] == [
                (e["entity_group"], e["start"], e["end"], e["word"]) for e in entities
            ]
            assert [e.score for e in received] == pytest.approx([e["score"] for e in entities], abs=1e-5)
        first = client.token_classification(TEXTS[0], aggregation_strategy="first", ignore_labels=["PER"])
        assert {e.entity_group for e in first} == {"LOC"}
        status, _, answers = post(server.url + "/", {"inputs": TEXTS, "parameters": {"details": True}})
        assert status == 200 and [len(row) for row in answers] == list(map(len, expected))
        assert answers[0][0]["exit_layer"] == 4
        for body in (
            {"inputs": TEXTS[0], "parameters": {"aggregation_strategy": "max"}},
            {"inputs": 3},
            {"inputs": []},
        ):
            status, _, answer = post(server.url + "/", body)
            assert 400 <= status < 500 and "error" in str(answer)
