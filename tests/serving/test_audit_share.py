"""Audits under load: a share of the model's time, an unbiased sample, counts that add up, failing models and audits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scipy import stats

import offramp
from offramp.serving.app import make_app
from offramp.serving.audit import Audit
from offramp.serving.audit_queue import MAX_DRAWN, AuditQueue, PendingAudit, TimeShare
from offramp.serving.audit_state import AuditCounts
from offramp.serving.auditor import AuditOptions
from offramp.serving.engine import Engine
from offramp.serving.guard import ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.requests import QueuedRequest, RequestOptions
from offramp.serving.served import ServedModel
from tests.guaranteed import EXACT, LOOSE, save_guaranteed, texts
from tests.server import post_asgi
from tests.serving.conftest import waiting_stepper

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def loose(tmp_path_factory):
    """A model whose guarantee is violated."""
    root = tmp_path_factory.mktemp("share")
    return offramp.load(save_guaranteed(root / "model", LOOSE, risk=0.01, class_risk=0.1))


def started(runner, **options) -> Engine:
    engine = Engine(runner, queue_rows=100_000, batch_tokens=64, **options)
    engine.start()
    while not engine.ready:
        time.sleep(0.01)
    return engine


def started_to_saturate(runner, **options) -> Engine:
    """An engine that `saturate` can hold until all requests are queued."""
    stepper = waiting_stepper(runner)
    stepper.go.set()
    return started(replace(runner, stepper=stepper), **options)


def saturate(engine: Engine, requests: int = 1500) -> list[Any]:
    """Queue many requests at once; return what the auditor had counted when the last of them was answered."""
    rows = engine.encode(texts(8), True)
    seen: list[Any] = []
    engine.runner.stepper.go.clear()  # requests wait until all of them are queued
    futures = [engine.submit(rows, RequestOptions()) for _ in range(requests)]
    futures[-1].add_done_callback(lambda _: seen.append((engine.auditor.counts, engine.auditor.seconds)))
    engine.runner.stepper.go.set()
    for future in futures:
        future.result(120)
    return seen


def test_the_alarm_comes_while_requests_wait(loose):
    engine = started_to_saturate(loose, audit=AuditOptions(1.0, share=0.3))
    [(counts, _)] = saturate(engine)
    engine.stop()
    assert counts.audit.violated and counts.audit.audited > 0
    assert counts.skipped > 0 and counts.coverage < 0.5  # the sample is far larger than the share of the time


def test_without_a_share_audits_wait_for_an_idle_moment(loose):
    engine = started_to_saturate(loose, audit=AuditOptions(1.0, share=0.0))
    [(counts, seconds)] = saturate(engine, 300)
    assert counts.audit.audited == 0 and seconds == 0
    while len(engine.auditor.queue):  # now it is idle
        time.sleep(0.01)
    engine.stop()
    counts = engine.auditor.counts
    assert counts.audit.audited + counts.skipped == counts.sampled and counts.audit.audited >= MAX_DRAWN - 8


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.5])
def test_audits_take_their_share_of_the_time_and_no_more(fraction):
    share, generator = TimeShare(fraction), np.random.default_rng(0)
    batches = audits = longest = 0.0
    for _ in range(20_000):
        batch = generator.exponential(0.01)
        share.earn(batch)
        batches += batch
        if share.is_available:
            audit = generator.exponential(0.05)
            share.spend(audit)
            audits, longest = audits + audit, max(longest, audit)
    assert abs(audits - fraction * (audits + batches)) <= longest  # one audit more or less


def test_time_is_not_saved_up_while_nothing_is_pending():
    share = TimeShare(0.05)
    for _ in range(100_000):
        share.earn(0.01)
    share.spend(0.1)  # a tenth of a second pays for all of it
    assert not share.is_available


def test_time_without_a_share_is_never_available():
    share = TimeShare(0.0)
    share.earn(1000.0)
    assert not share.is_available


# -- the sample ------------------------------------------------------------------------------------


def request_of(runner, examples: list[str]) -> QueuedRequest:
    from concurrent.futures import Future

    return QueuedRequest(runner.encoder()(examples, 0), RequestOptions(), Future(), None, np.zeros(len(examples), bool))


def test_when_places_are_few_every_example_of_a_request_has_the_same_chance(loose):
    """Otherwise the first texts of sorted requests would be audited more often."""
    drawn = np.zeros(100, int)
    for _ in range(400):
        request = request_of(loose, texts(100))
        queue = AuditQueue(1.0)
        queue.draw(request)
        assert request.drawn.sum() == MAX_DRAWN and queue.skipped == queue.sampled == 100 - MAX_DRAWN
        drawn += request.drawn
    assert stats.chisquare(drawn).pvalue > 1e-4


def test_skipping_does_not_depend_on_text_length_or_exit(loose):
    """Short and long texts arrive while the queue is full most of the time: both are audited equally often."""
    short, long = request_of(loose, ["dull"]).rows, request_of(loose, ["film " * 30]).rows
    queue, generator, audited = AuditQueue(0.5), np.random.default_rng(1), []
    for _ in range(20_000):
        rows = short if generator.random() < 0.5 else long
        request = replace(request_of(loose, []), rows=rows, drawn=np.zeros(1, bool))
        queue.draw(request)
        if request.drawn[0]:
            queue.add(request, 0, PendingAudit(rows, None, rows is long))
        if generator.random() < 0.02:  # audits are slower than arrivals
            audited += [audit.rows is short for audit in queue.take(64)]
    assert queue.skipped > 5000 and len(audited) > 500
    assert stats.binomtest(sum(audited), len(audited), 0.5).pvalue > 1e-4


def test_a_step_of_the_audit_is_one_batch_of_the_oldest_examples(loose):
    queue = AuditQueue(1.0)
    request = request_of(loose, ["dull", "film " * 30, "bad", "good", "a", "the"])
    queue.draw(request)
    for example in range(6):
        queue.add(request, example, PendingAudit(request.rows.take([example]), None, False))
    steps = [[len(audit.rows.ids.values) for audit in queue.take(64)] for _ in range(3)]
    assert steps == [[3, 32], [3, 3, 3, 3], []]


# -- metrics ---------------------------------------------------------------------------------------


def metrics_of(engine: Engine) -> dict[str, tuple[str, float]]:
    families = text_string_to_metric_families(Metrics().render(engine).decode())
    return {sample.name: (family.type, sample.value) for family in families for sample in family.samples}


def test_counts_are_counters_and_add_up(loose):
    engine = started_to_saturate(loose, audit=AuditOptions(0.5))
    saturate(engine, 300)
    while not engine.auditor.audit.violated:  # the pending audits run now
        time.sleep(0.01)
    engine.stop()
    metrics = metrics_of(engine)
    sampled, audited, skipped, failed, different = (
        metrics[f"offramp_{name}_total"]
        for name in ("audit_sampled", "audited", "audit_skipped", "audit_failed", "audit_different")
    )
    pending = metrics["offramp_audit_pending"]
    assert {kind for kind, _ in (sampled, audited, skipped, failed, different)} == {"counter"}
    assert sampled[1] == audited[1] + skipped[1] + failed[1] + pending[1] > 1000 and skipped[1] > 0 < different[1]
    assert metrics["offramp_audit_coverage"] == ("gauge", pytest.approx(audited[1] / sampled[1]))
    assert metrics["offramp_audit_seconds_total"][1] > 0
    assert {"offramp_audited_by_limit_total", "offramp_audit_changed_by_limit_total"} <= set(metrics)
    assert metrics["offramp_alarm_violated"] == ("gauge", 1.0)


def test_totals_continue_from_a_state_and_counters_start_at_zero(loose):
    engine = Engine(loose, audit=AuditOptions(1.0))
    kept = engine.auditor.audit
    for _ in range(10):
        kept = kept.after(False, [False, None, None])
    engine.auditor.resume(AuditCounts(kept, sampled=15, skipped=5))
    assert metrics_of(engine)["offramp_audited_total"] == ("counter", 0.0)
    engine.start()
    while not engine.ready:
        time.sleep(0.01)
    engine.submit(engine.encode(texts(8), True), RequestOptions()).result(60)
    while engine.auditor.counts.audit.audited < 18:
        time.sleep(0.01)
    engine.stop()
    metrics, counts = metrics_of(engine), engine.auditor.counts
    assert metrics["offramp_audited_total"][1] == metrics["offramp_audit_sampled_total"][1] == 8
    assert metrics["offramp_audit_skipped_total"][1] == 0 and metrics["offramp_audit_coverage"][1] == 1
    assert (counts.audit.audited, counts.sampled, counts.skipped) == (18, 23, 5)


def test_a_server_without_a_guarantee_has_no_metrics_of_an_audit(loose):
    metrics = metrics_of(Engine(loose, policy="entropy:0.5"))
    assert "offramp_queue_rows" in metrics and not any("audit" in name or "alarm" in name for name in metrics)


# -- alarms and failures ---------------------------------------------------------------------------


def test_full_depth_replies_after_an_alarm_are_inside_the_guarantee(loose):
    engine = started(loose, audit=AuditOptions(1.0, on_alarm="never"))
    rows = engine.encode(texts(8), True)
    while not engine.auditor.audit.alarm:
        engine.submit(rows, RequestOptions()).result(60)
    while (counts := engine.auditor.counts).sampled > counts.audit.audited + counts.skipped + counts.failed:
        time.sleep(0.01)  # also while the last batch is audited, which has left the queue
    result = engine.submit(rows, RequestOptions()).result(60)
    assert set(result.answers.layer) == {4} and not result.outside
    for options in (RequestOptions(max_layers=2), RequestOptions(deadline=0.0)):
        assert engine.submit(rows, options).result(60).outside
    engine.stop()
    assert engine.auditor.counts == counts  # nothing is left to audit


@dataclass
class Unreliable:
    """A backend that fails when it is told to: at every exit, or at the last one only."""

    backend: Any
    fails_at: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def advance(self, state: Any, point: Any) -> Any:
        if point.layer in self.fails_at:
            raise RuntimeError("out of luck")
        return self.backend.advance(state, point)


def test_a_failing_batch_fails_its_requests_only_and_a_failing_audit_fails_none(loose):
    backend = Unreliable(loose.stepper)
    engine = started(replace(loose, stepper=backend), audit=AuditOptions(1.0))
    rows = engine.encode(texts(5), True)
    backend.fails_at = (4,)  # all rows exit at layer 1, so only the audit runs this one
    engine.submit(rows, RequestOptions()).result(60)
    while engine.auditor.failed < 5:
        time.sleep(0.01)
    backend.fails_at = (1,)
    assert isinstance(engine.submit(rows, RequestOptions()).exception(60), RuntimeError)
    backend.fails_at = ()
    engine.submit(rows, RequestOptions()).result(60)
    while engine.auditor.counts.audit.audited < 5:
        time.sleep(0.01)
    engine.stop()
    counts = engine.auditor.counts
    assert (counts.sampled, counts.failed, counts.skipped) == (10, 5, 0)
    assert (engine.accepted, engine.answered, engine.disconnected, engine.failed) == (3, 2, 0, 1)


def test_requests_that_are_still_queued_when_time_is_up_have_failed(loose):
    engine = started(loose)
    futures = [engine.submit(engine.encode(texts(8), True), RequestOptions()) for _ in range(500)]
    engine.stop(wait=0)
    outcomes = [type(future.exception(60)).__name__ for future in futures]
    assert set(outcomes) == {"NoneType", "Unavailable"}
    assert engine.accepted == engine.answered + engine.failed == 500


def test_early_and_deep_rows_are_audited_in_the_order_in_which_they_exited(tmp_path):
    """Otherwise the early ones, which alone can differ, come in blocks, and the drift test sees drift."""
    runner = offramp.load(save_guaranteed(tmp_path / "model", "entropy:0.3", risk=0.4))
    engine, pending = started(runner, audit=AuditOptions(1.0, share=0.0)), []
    future = engine.submit(engine.encode(texts(40), True), RequestOptions())
    future.add_done_callback(lambda _: pending.extend(engine.auditor.queue._pending))
    layers = future.result(60).answers.layer
    while len(engine.auditor.queue):
        time.sleep(0.01)
    engine.stop()
    assert len(pending) == 40 and len({*layers.tolist()}) > 1 and len({audit.is_full for audit in pending}) == 2
    full = runner.answer([audit.rows.examples[0] for audit in pending], policy="never").values
    expected = Audit.of(0.4, [])
    for audit, value in zip(pending, full, strict=True):
        expected = expected.after(audit.early.values[0] != value)
    assert engine.auditor.audit == expected and 0 < expected.different < 40  # the drift statistic depends on the order


def test_a_model_that_keeps_its_guarantee_raises_no_alarm_under_load(tmp_path):
    engine = started_to_saturate(offramp.load(save_guaranteed(tmp_path / "model", EXACT)), audit=AuditOptions(1.0))
    [(counts, _)] = saturate(engine, 300)
    engine.stop()
    assert not counts.audit.alarm and counts.audit.different == 0


def test_a_failing_model_is_an_error_of_the_server_without_the_text(loose):
    """Status 424, over HTTP in this process, because a real server's model does not fail."""
    backend = Unreliable(loose.stepper)
    engine, metrics = Engine(replace(loose, stepper=backend)), Metrics()
    app, replies = make_app(ServedModel(engine), ServerOptions(), metrics), []

    async def call() -> None:
        async with app.router.lifespan_context(app):
            while not engine.ready:
                await asyncio.sleep(0.01)
            for layers in ((), (1,), ()):
                backend.fails_at = layers
                replies.append(await post_asgi(app, {"inputs": ["a secret text"]}))

    asyncio.run(call())
    assert [status for status, _ in replies] == [200, 424, 200]
    assert "luck" not in replies[1][1] and 'status="424"' in metrics.render(engine).decode()
