"""Numbers for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from offramp.serving.audit import interval
from offramp.serving.engine import Engine

__all__ = ["Metrics"]

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """What the engine and the routes count."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows = Counter(
            "offramp_rows", "rows that were answered: texts, or windows of questions", registry=self.registry
        )
        self.layers = Counter(
            "offramp_rows_by_layer", "rows by the layer that they exited at", ["layer"], registry=self.registry
        )
        self.replies = Counter(
            "offramp_requests", "requests by route and status", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram("offramp_request_seconds", "in the engine", buckets=SECONDS, registry=self.registry)
        self.batch = Histogram("offramp_batch_seconds", "of a batch", buckets=SECONDS, registry=self.registry)
        gauges = {
            "queue_rows": "rows that wait",
            "audited": "answers that were looked at again, at full depth",
            "audit_different": "of these, how many differ",
            "audit_rate_low": "the rate's interval, valid at all times",
            "audit_rate_high": "the rate's interval, valid at all times",
            "alarm_broken": "1 when the guarantee is broken",
            "alarm_drift": "1 when it drifts",
        }
        self.gauges = {name: Gauge(f"offramp_{name}", about, registry=self.registry) for name, about in gauges.items()}

    def watch(self, name: str, value: float) -> None:
        """What the engine tells."""
        if name == "rows":
            self.rows.inc(value)
        elif name == "exit_layer":
            self.layers.labels(str(int(value))).inc()
        elif name == "request_seconds":
            self.seconds.observe(value)
        elif name == "batch_seconds":
            self.batch.observe(value)

    def written(self, engine: Engine) -> bytes:
        """As Prometheus reads them."""
        self.gauges["queue_rows"].set(engine.depth)
        if engine.audit is not None:
            low, high = interval(engine.audit.audited, engine.audit.different)
            told = {
                "audited": engine.audit.audited,
                "audit_different": engine.audit.different,
                "audit_rate_low": low,
                "audit_rate_high": high,
                "alarm_broken": engine.audit.broken,
                "alarm_drift": engine.audit.drifted,
            }
            for name, value in told.items():
                self.gauges[name].set(float(value))
        return generate_latest(self.registry)
