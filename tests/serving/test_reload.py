"""Reloading a model while it serves: no request is lost, and a broken model does not replace the current one."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time

from tests.server import get, post, run_server
from tests.serving.conftest import TEXTS
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
        time.sleep(1)
        over.set()
        for client in clients:
            client.join(30)
        assert policy(server.url) == "entropy:0.7" and set(statuses) == {200}
        assert server.stop() == 128 + signal.SIGTERM
        log = server.process.stderr.read()
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
