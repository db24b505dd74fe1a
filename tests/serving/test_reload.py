"""Reloading a model while it serves: no request is lost, and a broken model does not replace the current one."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from dataclasses import replace

import pytest

import offramp
from offramp.serving.auditor import AuditOptions
from offramp.serving.engine import Engine
from offramp.serving.requests import RequestOptions
from offramp.serving.served import ServedModel
from tests.guaranteed import LOOSE, save_guaranteed, texts
from tests.server import get, post, run_server
from tests.serving.conftest import TEXTS, waiting_stepper
from tests.tiny import adaptive


def policy(url: str) -> str:
    return json.loads(get(f"{url}/info")[1])["policy"]


def wait_for_policy(url: str, expected: str) -> None:
    for _ in range(600):
        if policy(url) == expected:
            return
        time.sleep(0.05)
    raise AssertionError(policy(url))


def test_sighup_reloads_the_model_without_losing_a_request(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    statuses, over = [], threading.Event()
    with run_server(model) as server:

        def send(number: int) -> None:
            while not over.is_set():
                statuses.append(post(server.url, {"inputs": [f"{text} {number}" for text in TEXTS]})[0])

        clients = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for client in clients:
            client.start()
        config = json.loads((model / "config.json").read_text())
        for threshold in (0.5, 0.7):
            config["policy"] = {"name": "entropy", "threshold": threshold}
            (model / "config.json").write_text(json.dumps(config))
            server.process.send_signal(signal.SIGHUP)
            wait_for_policy(server.url, f"entropy:{threshold}")
        (model / "config.json").write_text("{")  # a model that cannot be loaded
        server.process.send_signal(signal.SIGHUP)
        lines = [server.process.stderr.readline() for _ in range(3)]
        over.set()
        for client in clients:
            client.join(30)
        assert policy(server.url) == "entropy:0.7" and set(statuses) == {200}
        assert server.stop() == 128 + signal.SIGTERM
        log = "".join(lines) + server.process.stderr.read()
    assert log.count("Reloaded the model.") == 2 and "Reloading failed, the current model keeps serving" in log
    assert f"Requests: {len(statuses)} accepted, {len(statuses)} answered" in log


def test_a_model_of_another_kind_does_not_replace_the_current_one(folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    with run_server(model) as server:
        regression = adaptive("bert", tmp_path / "encoder", num_labels=1)
        shutil.rmtree(model)
        regression.save_pretrained(model)
        server.process.send_signal(signal.SIGHUP)
        assert "start another server" in server.process.stderr.readline()
        assert post(server.url, {"inputs": TEXTS[0]})[0] == 200


# -- in this process -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guaranteed(tmp_path_factory):
    """A model whose guarantee is violated."""
    return offramp.load(save_guaranteed(tmp_path_factory.mktemp("reload") / "model", LOOSE, risk=0.01, class_risk=0.1))


def waiting_engine(runner) -> tuple[Engine, threading.Event]:
    """An engine that has warmed up, and whose next batch waits for the event."""
    stepper = waiting_stepper(runner)
    stepper.go.set()
    engine = Engine(replace(runner, stepper=stepper), audit=AuditOptions(1.0, on_alarm="never"))
    engine.start()
    while not engine.ready:
        time.sleep(0.01)
    stepper.go.clear()
    return engine, stepper.go


def test_the_replaced_model_finishes_its_requests_and_their_audit_counts(guaranteed):
    old, go = waiting_engine(guaranteed)
    served = ServedModel(old, lambda: Engine(guaranteed, audit=AuditOptions(1.0, on_alarm="never")))
    future = old.submit(old.encode(texts(40), True), RequestOptions())
    reload = threading.Thread(target=served.reload)
    reload.start()
    while served.engine is old:
        time.sleep(0.01)
    new = served.engine
    assert new.auditor.counts.audit.audited == 0 and not new.auditor.exits_disabled
    go.set()
    assert len(future.result(60).answers) == 40
    reload.join(60)
    counts = new.auditor.counts
    assert 0 < counts.audit.audited == counts.sampled and counts.audit.alarm and new.auditor.exits_disabled
    assert served.requests["accepted"] == served.requests["answered"] == 1 and sum(new.layers.values()) == 0
    served.stop()


def test_stopping_does_not_wait_for_a_reload(guaranteed):
    go, loading = threading.Event(), threading.Event()

    def load_slowly() -> Engine:
        loading.set()
        assert go.wait(60)
        return Engine(guaranteed)

    served = ServedModel(Engine(guaranteed), load_slowly)
    served.start()
    results = []
    reload = threading.Thread(target=lambda: results.append(served.reload()))
    reload.start()
    assert loading.wait(60)
    current = served.engine
    served.stop()  # would not return while the reload has a lock
    go.set()
    reload.join(60)
    assert results == [False] and served.engine is current
