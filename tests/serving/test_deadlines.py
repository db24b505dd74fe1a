"""Deadlines: a late row exits at the first exit, and changes nothing for other rows and their audit."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

import offramp
from offramp.serving.auditor import AuditOptions
from offramp.serving.engine import Engine
from offramp.serving.requests import QueuedRequest, RequestOptions, queue_items, select_batch
from tests.guaranteed import EXACT, save_guaranteed, texts

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """All rows run through all layers, so that every early exit is one that a deadline forced."""
    return offramp.load(save_guaranteed(tmp_path_factory.mktemp("deadlines") / "model", EXACT))


@pytest.fixture
def engine(runner):
    engine = Engine(runner, batch_tokens=64, queue_rows=10_000, audit=AuditOptions(1.0))
    yield engine
    engine.stop()


def start(engine: Engine) -> None:
    engine.start()
    while not engine.ready:
        time.sleep(0.01)


def hold(engine: Engine) -> threading.Event:
    """Have the model's thread wait inside a batch until the event is set, so that requests queue up behind it."""
    go = threading.Event()
    engine.submit(engine.encode(["good"], True), RequestOptions()).add_done_callback(lambda _: go.wait(30))
    return go


def test_late_and_other_rows_in_a_full_queue(engine):
    start(engine)
    go = hold(engine)
    requests = []
    for number in range(300):
        # half of them without a deadline; the others are late at once, later, or never
        wait = [None, 0.0, None, 0.05, None, 3600.0][number % 6]
        options = RequestOptions(deadline=None if wait is None else time.monotonic() + wait)
        requests.append((wait, engine.submit(engine.encode(texts(number % 4 + 1), True), options)))
    go.set()
    results = [(wait, future.result(60)) for wait, future in requests]
    for wait, result in results:
        layers = result.answers.layer
        if wait in (None, 3600.0):
            assert not result.outside and set(layers) == {4}
        elif wait == 0.0:
            assert result.outside and set(layers) == {1}
        else:
            assert result.outside == (1 in layers) and set(layers) <= {1, 4}
    assert sum(result.outside for _, result in results) >= 50


def test_once_a_row_of_a_request_is_late_all_later_ones_are(runner):
    """The deadline passes between two batches of the same request."""
    rows = runner.encoder()(texts(40), 0)
    now = time.monotonic()
    request = QueuedRequest(rows, RequestOptions(deadline=now), None, None, np.zeros(40, bool))
    window, fates = list(queue_items(request, grouped=False)), []
    for second in itertools.count():
        batch = select_batch(window, 64, now - 2 + second)
        fates.append((batch.is_late, len(batch.items)))
        selected = set(map(id, batch.items))
        window = [item for item in window if id(item) not in selected]
        if not window:
            break
    late = [is_late for is_late, _ in fates]
    assert late == sorted(late) and set(late) == {False, True} and sum(size for _, size in fates) == 40


def test_every_row_of_a_batch_has_passed_its_own_deadline_or_none_has(runner):
    now = 100.0
    deadlines = [None, 99.0, 101.0, None, 100.0, 99.9]
    requests = [
        QueuedRequest(runner.encoder()(texts(3), 0), RequestOptions(deadline=deadline), None, None, np.zeros(3, bool))
        for deadline in deadlines * 5
    ]
    window = [item for request in requests for item in queue_items(request, grouped=False)]
    sizes = []
    while window:
        batch = select_batch(window, 256, now)
        passed = {item.request.options.deadline in (99.0, 99.9) for item in batch.items}
        assert passed == {batch.is_late}
        selected = set(map(id, batch.items))
        window = [item for item in window if id(item) not in selected]
        sizes.append(len(batch.items))
    assert sum(sizes) == 90 and max(sizes) > 3


def test_late_rows_are_not_audited_and_others_keep_their_draw(engine):
    start(engine)
    go = hold(engine)
    on_time = [engine.submit(engine.encode(texts(2), True), RequestOptions()) for _ in range(10)]
    late = [engine.submit(engine.encode(texts(2), True), RequestOptions(deadline=0.0)) for _ in range(10)]
    go.set()
    assert all(future.result(60).outside for future in late)
    assert not any(future.result(60).outside for future in on_time)
    while engine.auditor.counts.audit.audited < 21:
        time.sleep(0.01)
    counts = engine.auditor.counts
    assert (counts.sampled, counts.skipped, counts.audit.audited, counts.audit.different) == (21, 0, 21, 0)


def test_a_disconnected_client_gives_its_draws_back(engine):
    start(engine)
    go = hold(engine)
    for _ in range(5):
        assert engine.submit(engine.encode(texts(60), True), RequestOptions()).cancel()
    waiting = engine.submit(engine.encode(texts(20), True), RequestOptions())
    go.set()
    waiting.result(60)
    engine.stop()
    assert engine.auditor.counts.skipped == 0 and engine.auditor.counts.sampled == 21
    assert (engine.accepted, engine.answered, engine.disconnected, engine.failed) == (7, 2, 5, 0)
