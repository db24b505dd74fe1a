"""A kind of answer and a backend that are not in the package: predict, evaluate, calibrate and serve take them."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import offramp
from offramp.cli.main import main
from offramp.data.metrics import METRICS
from tests.outside import AnyOf, register_backend, register_kind
from tests.tiny import WORDS, adaptive

SERVER = """
import sys
sys.path.insert(0, {root!r})
from tests.outside import register_backend, register_kind
register_kind(), register_backend()
import offramp
offramp.serve({folder!r}, port=0, backend={backend!r}, threads=1, announce=lambda line: print(line, flush=True))
"""


@pytest.fixture(scope="module")
def registered():
    kind, backend = register_kind(), register_backend()
    yield kind, backend
    offramp.ANSWER_TYPES._entries.pop(kind.name)
    offramp.RUNTIMES._entries.pop(backend.name)
    METRICS._entries.pop(kind.metric)


def sentences(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return list(dict.fromkeys(" ".join(random.choice(WORDS, int(random.integers(2, 9)))) for _ in range(count)))


@contextmanager
def served(folder, backend: str):
    from pathlib import Path

    root = str(Path(__file__).parents[2])
    code = SERVER.format(root=root, folder=str(folder), backend=backend)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split(" on ")[1].split(",")[0]
        for _ in range(200):
            try:
                if urllib.request.urlopen(f"{url}/ready", timeout=5).status == 200:
                    break
            except OSError:
                pass
        yield url
    finally:
        process.kill()
        process.wait()


def post(url: str, body: object) -> tuple[int, object]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as err:
        return err.code, json.loads(err.read())


def test_a_kind_of_answer_is_one_class_its_line_and_its_metric(registered, tmp_path, capsys):
    kind, _ = registered
    model = adaptive("bert", tmp_path / "encoder", labels=["no", "yes"], problem_type=kind.name, policy="entropy:0.5")
    with torch.no_grad():  # so that both answers are given
        model.exits.head(4).classifier.bias[1] += 2.2
    model.config.inputs = ["first", "second"]
    model.save_pretrained(tmp_path / "model")
    first, second = sentences(700, 1), sentences(700, 2)
    pairs = list(zip(first, second, strict=False))[:600]
    answers = list(offramp.load(tmp_path / "model").predict(pairs, policy="never"))
    alone = [next(iter(offramp.load(tmp_path / "model").predict([pair], policy="never"))) for pair in pairs[:5]]
    assert [one.label for one in answers[:5]] == [one.label for one in alone] and {one.label for one in answers} == {
        "no",
        "yes",
    }

    golds = [one.label for one in answers]
    result = offramp.evaluate(tmp_path / "model", pairs[:80], golds[:80], output=tmp_path / "run", live=False)
    assert result.results.exits[-1].scores["any_acc"] == 1.0 and "any_acc" in str(result)
    assert result.results.data.rows == 160 and result.results.data.texts == 80
    assert (tmp_path / "run" / "report.html").is_file()

    calibrated = offramp.calibrate(tmp_path / "model", pairs[80:], risk=0.3, confidence=0.9, policy="entropy")
    assert calibrated and "520 examples" in calibrated.guarantee
    expected = list(offramp.load(tmp_path / "model").predict(pairs[:3]))
    assert main(["predict", str(tmp_path / "model"), str(_written(tmp_path, pairs[:3]))]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == [one.label for one in expected]
    with served(tmp_path / "model", "torch") as url:
        for pair, one in zip(pairs[:3], expected, strict=True):
            status, told = post(f"{url}/any", {"texts": pair})
            assert status == 200 and told == one.to_dict()
        status, told = post(url, {"inputs": "a text"})
        assert status == 400 and "POST /any" in told["error"]


def _written(folder, pairs):
    file = folder / "pairs.tsv"
    file.write_text("first\tsecond\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    return file


def test_a_backend_is_one_class_and_its_line(registered, tmp_path):
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
    with served(tmp_path / "model", "mirror") as url:
        status, told = post(url, {"inputs": texts[:2]})
        assert status == 200 and len(told) == 2


def _lines(folder, texts):
    file = folder / "texts.txt"
    file.write_text("\n".join(texts) + "\n")
    return file


def test_the_toy_is_what_it_says():
    assert issubclass(AnyOf, offramp.AnswerType)
