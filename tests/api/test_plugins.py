"""Plug-ins: an answer type and a backend from outside the package work with predict, evaluate, calibrate, serve."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import torch

import offramp
from offramp.cli.main import main
from offramp.data.metrics import METRICS
from offramp.serving.app import make_app
from offramp.serving.engine import Engine
from offramp.serving.guard import ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.served import ServedModel
from tests.server import post_asgi
from tests.tiny import WORDS, adaptive
from tests.toy_plugins import AnyOf, register_answer_type, register_backend


@pytest.fixture(scope="module")
def registered():
    answer_type, backend = register_answer_type(), register_backend()
    yield answer_type, backend
    offramp.ANSWER_TYPES._entries.pop(answer_type.name)
    offramp.RUNTIMES._entries.pop(backend.name)
    METRICS._entries.pop(answer_type.metric)


def sentences(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return list(dict.fromkeys(" ".join(random.choice(WORDS, int(random.integers(2, 9)))) for _ in range(count)))


def replies_of(runner: offramp.Runner, calls: list[tuple[str, object]]) -> list[tuple[int, Any]]:
    """Return the replies of the server's application to requests, in this process."""

    async def send_all() -> list[tuple[int, Any]]:
        engine = Engine(runner)
        app = make_app(ServedModel(engine), ServerOptions(), Metrics())
        async with app.router.lifespan_context(app):
            while not engine.ready:
                await asyncio.sleep(0.01)
            replies = [await post_asgi(app, body, path=path) for path, body in calls]
            return [(status, json.loads(text)) for status, text in replies]

    return asyncio.run(send_all())


def test_an_answer_type_needs_one_class_its_registration_and_its_metric(registered, tmp_path, capsys):
    answer_type, _ = registered
    model = adaptive(
        "bert", tmp_path / "encoder", labels=["no", "yes"], problem_type=answer_type.name, policy="entropy:0.5"
    )
    with torch.no_grad():  # so that both labels are predicted
        model.exits.head(4).classifier.bias[1] += 2.2
    model.config.inputs = ["first", "second"]
    model.save_pretrained(tmp_path / "model")
    first, second = sentences(700, 1), sentences(700, 2)
    pairs = list(zip(first, second, strict=False))[:600]
    predictions = list(offramp.load(tmp_path / "model").predict(pairs, policy="never"))
    alone = [next(iter(offramp.load(tmp_path / "model").predict([pair], policy="never"))) for pair in pairs[:5]]
    assert [prediction.label for prediction in predictions[:5]] == [prediction.label for prediction in alone]
    assert {prediction.label for prediction in predictions} == {"no", "yes"}

    labels = [prediction.label for prediction in predictions]
    result = offramp.evaluate(tmp_path / "model", pairs[:80], labels[:80], output=tmp_path / "run", live=False)
    assert result.results.exits[-1].scores["any_acc"] == 1.0 and "any_acc" in str(result)
    assert result.results.data.rows == 160 and result.results.data.texts == 80
    assert (tmp_path / "run" / "report.html").is_file()

    calibrated = offramp.calibrate(tmp_path / "model", pairs[80:], risk=0.3, confidence=0.9, policy="entropy")
    assert calibrated and "520 examples" in calibrated.guarantee
    expected = list(offramp.load(tmp_path / "model").predict(pairs[:3]))
    assert main(["predict", str(tmp_path / "model"), str(_written(tmp_path, pairs[:3]))]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == [prediction.label for prediction in expected]
    calls = [*(("/any", {"texts": pair}) for pair in pairs[:3]), ("/", {"inputs": "a text"})]
    *replies, rejected = replies_of(offramp.load(tmp_path / "model"), calls)
    assert replies == [(200, pytest.approx(prediction.to_dict(), abs=2e-6)) for prediction in expected]
    assert rejected[0] == 400 and "POST /any" in rejected[1]["error"]


def _written(folder, pairs):
    file = folder / "pairs.tsv"
    file.write_text("first\tsecond\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    return file


def test_a_backend_needs_one_class_and_its_registration(registered, tmp_path):
    _, backend = registered
    adaptive("bert", tmp_path / "encoder", labels=["a", "b"], policy="entropy:0.4").save_pretrained(tmp_path / "model")
    texts = sentences(700, 3)
    expected = offramp.load(tmp_path / "model").answer(texts[:50])
    runner = offramp.load(tmp_path / "model", backend.name)
    assert runner.backend == "mirror" and (runner.answer(texts[:50]).layer == expected.layer).all()
    result = offramp.evaluate(tmp_path / "model", texts[:50], output=tmp_path / "run", backend="mirror", live=False)
    assert result.results.machine.backend == "mirror"
    calibrated = offramp.calibrate(tmp_path / "model", texts[50:], risk=0.3, confidence=0.9, backend="mirror")
    assert calibrated and offramp.load(tmp_path / "model", "mirror").config.calibrated["backend"] == "mirror"
    assert main(["predict", str(tmp_path / "model"), "--backend", "mirror", str(_lines(tmp_path, texts[:2]))]) == 0
    (reply,) = replies_of(offramp.load(tmp_path / "model", "mirror"), [("/", {"inputs": texts[:2]})])
    assert reply[0] == 200 and len(reply[1]) == 2


def _lines(folder, texts):
    file = folder / "texts.txt"
    file.write_text("\n".join(texts) + "\n")
    return file


def test_the_plug_in_is_an_answer_type():
    assert issubclass(AnyOf, offramp.AnswerType)
