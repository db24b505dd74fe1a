"""The status routes: live page, model and guarantee, health, metrics, Open Inference Protocol."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict

import offramp
from offramp.serving.audit import confidence_interval
from offramp.serving.auditor import Auditor
from offramp.serving.engine import Engine
from offramp.serving.errors import HttpError
from offramp.serving.metrics import Metrics
from offramp.serving.served import ServedModel

__all__ = ["add_open_inference_routes", "add_status_routes", "check_model"]


class ServerInfo(BaseModel):
    """The response of `/info`."""

    model_config = ConfigDict(extra="allow")

    model: str
    version: str


HEARTBEAT_TIMEOUT = 30.0  # seconds without a heartbeat after which the model's thread counts as dead


def is_alive(engine: Engine) -> bool:
    """Return whether the model's thread is alive; does not block."""
    return time.monotonic() - engine.heartbeat < HEARTBEAT_TIMEOUT


def is_ready(engine: Engine) -> bool:
    """Return whether the engine has warmed up and is not shutting down."""
    return engine.ready and not engine.draining and is_alive(engine)


def add_status_routes(app: FastAPI, served: ServedModel, name: str, metrics: Metrics) -> None:
    """Add the routes for people and monitoring."""
    started = int(time.time())

    @app.get("/", summary="live status page", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("offramp.serving").joinpath("page.html").read_text("utf-8"))

    @app.get("/info", summary="model, policy, guarantee, audit")
    async def info() -> ServerInfo:
        return ServerInfo(**to_dict(served.engine, name))

    @app.get("/health", summary="liveness: the model's thread is running", response_class=PlainTextResponse)
    async def health() -> Response:
        ok = is_alive(served.engine)
        return PlainTextResponse("ok" if ok else "the model's thread does not respond", 200 if ok else 503)

    app.head("/health", include_in_schema=False)(health)

    @app.get("/ready", summary="readiness: the server accepts requests", response_class=PlainTextResponse)
    async def ready() -> Response:
        ok = is_ready(served.engine)
        return PlainTextResponse("ready" if ok else "not ready", 200 if ok else 503)

    app.head("/ready", include_in_schema=False)(ready)

    @app.get("/v1/models", summary="the model, in the format of OpenAI and vLLM")
    async def models() -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": started, "owned_by": "offramp"}
        return {"object": "list", "data": [model | {"max_model_len": served.engine.runner.limit}]}

    @app.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        return Response(metrics.render(served.engine), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_open_inference_routes(app: FastAPI, served: ServedModel, name: str) -> None:
    """Add the metadata and health routes of the Open Inference Protocol."""

    @app.get("/v2", summary="Open Inference Protocol")
    async def server() -> dict[str, Any]:
        return {"name": "offramp", "version": offramp.__version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live")
    async def live(response: Response) -> dict[str, bool]:
        return _with_status(response, "live", is_alive(served.engine))

    @app.get("/v2/health/ready")
    async def server_ready(response: Response) -> dict[str, bool]:
        return _with_status(response, "ready", is_ready(served.engine))

    @app.get("/v2/models/{model}", summary="Open Inference Protocol")
    @app.get("/v2/models/{model}/versions/{version}", include_in_schema=False)
    async def model_metadata(model: str, version: str = "1") -> dict[str, Any]:
        check_model(model, name, version)
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        datatypes = {"string": "BYTES", "strings": "BYTES", "json": "BYTES", "float": "FP32", "int": "INT64"}
        fields = served.engine.runner.config.answer_type.fields
        outputs = [{"name": field, "datatype": datatypes[dtype], "shape": [-1]} for field, dtype in fields.items()]
        return {"name": model, "versions": ["1"], "platform": "offramp", "inputs": inputs, "outputs": outputs}

    @app.get("/v2/models/{model}/ready")
    @app.get("/v2/models/{model}/versions/{version}/ready", include_in_schema=False)
    async def model_ready(model: str, response: Response, version: str = "1") -> dict[str, Any]:
        check_model(model, name, version)
        return {"name": model, **_with_status(response, "ready", is_ready(served.engine))}


def _with_status(response: Response, name: str, ok: bool) -> dict[str, bool]:
    """Return the body and set the matching status code, which is what probes read."""
    response.status_code = 200 if ok else 503
    return {name: ok}


def check_model(model: str, name: str, version: str = "1") -> None:
    """Raise a 404 error unless `model` and `version` are served here."""
    if version != "1":
        raise HttpError(404, "unknown_model", f"Unknown version {version!r:.60}; the only version is '1'.")
    if model != name:
        raise HttpError(404, "unknown_model", f"Unknown model {model!r:.60}. This server serves {name!r}.")


def to_dict(engine: Engine, name: str) -> dict[str, Any]:
    """Return the content of `/info`: model, policy, guarantee, audit, counts."""
    runner = engine.runner
    layers = dict(engine.layers)  # a copy: the model's thread keeps counting
    calibrated = (runner.config.calibrated or {}) if engine.policy == runner.config.exit_policy else {}
    return {
        "model": name,
        "version": offramp.__version__,
        "backend": runner.backend,
        "dtype": runner.dtype,
        "threads": runner.stepper.threads,
        "max_length": runner.limit,
        "problem": runner.config.answer_type.name,
        "labels": list(runner.config.labels),
        "layers": runner.config.num_layers,
        "exits": [point.layer for point in runner.stepper.exits],
        "policy": str(engine.policy),
        "policy_description": engine.policy.describe(),
        "guarantee": calibrated.get("sentence"),
        "audit": None if engine.auditor is None else audit_info(engine.auditor),
        "waiting": engine.depth,
        "answered": sum(layers.values()),
        "by_layer": {str(layer): layers[layer] for layer in sorted(layers)},
        "seconds": _quantiles(list(engine.recent)),
    }


def audit_info(auditor: Auditor) -> dict[str, Any]:
    """Return the audit in `/info`; its counts include those of the state file."""
    counts = auditor.counts
    audit = counts.audit
    return {
        "fraction": auditor.options.fraction,
        "share": auditor.options.share,
        "guaranteed_risk": audit.risk,
        "sampled": counts.sampled,
        "audited": audit.audited,
        "pending": len(auditor.queue),
        "skipped": counts.skipped,
        "failed": counts.failed,
        "coverage": counts.coverage,
        "different": audit.different,
        "rate": audit.rate,
        "interval": list(confidence_interval(audit.audited, audit.different)),
        "violated": audit.violated,
        "drifting": audit.drifted,
        "limits": [asdict(limit) for limit in audit.limits],
    }


def _quantiles(seconds: list[float]) -> dict[str, float] | None:
    """Return the latency quantiles of the last thousand requests."""
    if not seconds:
        return None
    quantiles = np.quantile(seconds, [0.5, 0.95, 0.99])
    return dict(zip(("p50", "p95", "p99"), (round(float(value), 6) for value in quantiles), strict=True))
