"""Metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from offramp.serving.audit import confidence_interval
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
        gauges = {
            "queue_rows": "queued rows",
            "audited": "predictions that were audited against the full model",
            "audit_different": "audited predictions that differ from the full model's",
            "audit_rate_low": "lower end of the anytime-valid confidence interval of the rate that differs",
            "audit_rate_high": "upper end of the anytime-valid confidence interval of the rate that differs",
            "alarm_violated": "1 when the guarantee is violated",
            "alarm_drift": "1 when drift was detected",
        }
        limit_gauges = {
            "audited_by_limit": "audited predictions that a class or decision counts",
            "audit_changed_by_limit": "of them, predictions that changed",
            "alarm_violated_by_limit": "1 when the guarantee of a class or decision is violated",
        }
        self.limit_gauges = {
            name: Gauge(f"offramp_{name}", text, ["limit"], registry=self.registry)
            for name, text in limit_gauges.items()
        }
        self.gauges = {name: Gauge(f"offramp_{name}", text, registry=self.registry) for name, text in gauges.items()}

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
        self.gauges["queue_rows"].set(engine.depth)
        if engine.audit is not None:
            low, high = confidence_interval(engine.audit.audited, engine.audit.different)
            values = {
                "audited": engine.audit.audited,
                "audit_different": engine.audit.different,
                "audit_rate_low": low,
                "audit_rate_high": high,
                "alarm_violated": engine.audit.violated,
                "alarm_drift": engine.audit.drifted,
            }
            for name, value in values.items():
                self.gauges[name].set(float(value))
            for limit in engine.audit.limits:
                self.limit_gauges["audited_by_limit"].labels(limit.name).set(limit.audited)
                self.limit_gauges["audit_changed_by_limit"].labels(limit.name).set(limit.different)
                self.limit_gauges["alarm_violated_by_limit"].labels(limit.name).set(float(limit.violated))
        return generate_latest(self.registry)
