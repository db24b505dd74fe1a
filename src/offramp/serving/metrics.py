"""Metrics for Prometheus.

Counters count since the start of the process, as Prometheus expects. Intervals and alarms include the state file.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offramp.serving.audit import confidence_interval
from offramp.serving.auditor import Auditor
from offramp.serving.engine import Engine

__all__ = ["Metrics"]

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The metrics of the engine and the routes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows = Counter(
            "offramp_rows", "predicted rows: texts, or windows for question answering", registry=self.registry
        )
        self.layers = Counter(
            "offramp_rows_by_layer", "predicted rows by exit layer", ["layer"], registry=self.registry
        )
        self.responses = Counter(
            "offramp_requests", "requests by route and status", ["route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "offramp_request_seconds", "seconds per request in the engine", buckets=BUCKETS, registry=self.registry
        )
        self.batch_seconds = Histogram(
            "offramp_batch_seconds", "seconds per batch", buckets=BUCKETS, registry=self.registry
        )

    def watch(self, name: str, value: float) -> None:
        """Record a value that the engine reports."""
        if name == "rows":
            self.rows.inc(value)
        elif name == "exit_layer":
            self.layers.labels(str(int(value))).inc()
        elif name == "request_seconds":
            self.request_seconds.observe(value)
        elif name == "batch_seconds":
            self.batch_seconds.observe(value)

    def render(self, engine: Engine) -> bytes:
        """Return all metrics in Prometheus's text format."""
        registry = CollectorRegistry()
        registry.register(EngineCollector(engine))
        return generate_latest(self.registry) + generate_latest(registry)


class EngineCollector(Collector):
    """The metrics that are read from the engine when they are requested."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the queue and of the audit."""
        yield GaugeMetricFamily("offramp_queue_rows", "queued rows", self.engine.depth)
        if self.engine.auditor is not None:
            yield from _audit_counters(self.engine.auditor)
            yield from _audit_gauges(self.engine.auditor)


def _audit_counters(auditor: Auditor) -> Iterator[Metric]:
    counts = auditor.counts.since(auditor.before)
    values = {
        "audit_sampled": ("predictions that were sampled for the audit", counts.sampled),
        "audited": ("predictions that were audited against the full model", counts.audit.audited),
        "audit_different": ("audited predictions that differ from the full model's", counts.audit.different),
        "audit_skipped": ("sampled predictions that were not audited because too many waited", counts.skipped),
        "audit_failed": ("sampled predictions that were not audited because of an error", counts.failed),
        "audit_seconds": ("seconds that the model spent on audits", auditor.seconds),
    }
    for name, (text, value) in values.items():
        yield CounterMetricFamily(f"offramp_{name}", text, value)
    audited = CounterMetricFamily(
        "offramp_audited_by_limit", "audited predictions that a class or decision counts", labels=["limit"]
    )
    changed = CounterMetricFamily(
        "offramp_audit_changed_by_limit", "of them, predictions that changed", labels=["limit"]
    )
    for limit in counts.audit.limits:
        audited.add_metric([limit.name], limit.audited)
        changed.add_metric([limit.name], limit.different)
    yield from (audited, changed)


def _audit_gauges(auditor: Auditor) -> Iterator[Metric]:
    counts = auditor.counts
    audit, coverage = counts.audit, counts.since(auditor.before).coverage
    low, high = confidence_interval(audit.audited, audit.different)
    interval = "end of the anytime-valid confidence interval of the rate that differs"
    values = {
        "audit_pending": ("sampled predictions that wait for their audit", len(auditor.queue)),
        "audit_coverage": ("fraction of the sampled predictions that were audited", coverage),
        "audit_rate_low": (f"lower {interval}", low),
        "audit_rate_high": (f"upper {interval}", high),
        "alarm_violated": ("1 when the guarantee is violated", float(audit.violated)),
        "alarm_drift": ("1 when drift was detected", float(audit.drifted)),
    }
    for name, (text, value) in values.items():
        yield GaugeMetricFamily(f"offramp_{name}", text, value)
    alarms = GaugeMetricFamily(
        "offramp_alarm_violated_by_limit", "1 when the guarantee of a class or decision is violated", labels=["limit"]
    )
    for limit in audit.limits:
        alarms.add_metric([limit.name], float(limit.violated))
    yield alarms
