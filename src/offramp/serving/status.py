"""What the server says of itself: the live page, model and guarantee, health, metrics."""

from __future__ import annotations

import time
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict

import offramp
from offramp.serving.audit import interval
from offramp.serving.engine import Engine
from offramp.serving.faults import Problem
from offramp.serving.metrics import Metrics

__all__ = ["add_open_inference", "add_status", "check_model"]


class Infos(BaseModel):
    """What `/info` reports."""

    model_config = ConfigDict(extra="allow")

    model: str
    version: str


STALE = 30.0  # seconds without a heartbeat, beyond which the model's thread counts as dead


def alive(engine: Engine) -> bool:
    """Whether the model's thread beats; asked without waiting for it."""
    return time.monotonic() - engine.beat < STALE


def takes_requests(engine: Engine) -> bool:
    """Warmed up, and not on its way out."""
    return engine.ready and not engine.draining and alive(engine)


def add_status(app: FastAPI, engine: Engine, name: str, metrics: Metrics) -> None:
    """The routes that people and monitors ask."""

    @app.get("/", summary="a live page", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("offramp.serving").joinpath("page.html").read_text("utf-8"))

    @app.get("/info", summary="model, policy, guarantee, audit")
    async def info() -> Infos:
        return Infos(**to_dict(engine, name))

    @app.get("/health", summary="whether the process and its model's thread live", response_class=PlainTextResponse)
    async def health() -> Response:
        fine = alive(engine)
        return PlainTextResponse("ok" if fine else "the model's thread is silent", 200 if fine else 503)

    @app.get("/ready", summary="whether it takes requests", response_class=PlainTextResponse)
    async def ready() -> Response:
        fine = takes_requests(engine)
        return PlainTextResponse("ready" if fine else "not ready", 200 if fine else 503)

    @app.get("/metrics", summary="for Prometheus", response_class=PlainTextResponse)
    async def numbers() -> Response:
        return Response(metrics.written(engine), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_open_inference(app: FastAPI, engine: Engine, name: str) -> None:
    """The Open Inference Protocol's questions."""

    @app.get("/v2", summary="Open Inference Protocol")
    async def server() -> dict[str, Any]:
        return {"name": "offramp", "version": offramp.__version__, "extensions": []}

    @app.get("/v2/health/live")
    async def live(response: Response) -> dict[str, bool]:
        return _stated(response, "live", alive(engine))

    @app.get("/v2/health/ready")
    async def is_ready(response: Response) -> dict[str, bool]:
        return _stated(response, "ready", takes_requests(engine))

    @app.get("/v2/models/{model}", summary="Open Inference Protocol")
    async def about(model: str) -> dict[str, Any]:
        check_model(model, name)
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        kinds = {"string": "BYTES", "strings": "BYTES", "float": "FP32", "int": "INT64"}
        fields = engine.runner.config.answer_type.fields
        outputs = [{"name": field, "datatype": kinds[kind], "shape": [-1]} for field, kind in fields.items()]
        return {"name": model, "versions": ["1"], "platform": "offramp", "inputs": inputs, "outputs": outputs}

    @app.get("/v2/models/{model}/ready")
    async def model_ready(model: str, response: Response) -> dict[str, Any]:
        check_model(model, name)
        return {"name": model, **_stated(response, "ready", takes_requests(engine))}


def _stated(response: Response, name: str, fine: bool) -> dict[str, bool]:
    """In the body, and in the status, which is what probes read."""
    response.status_code = 200 if fine else 503
    return {name: fine}


def check_model(model: str, name: str) -> None:
    """Refuse requests for a model that is not here."""
    if model != name:
        raise Problem(404, "unknown_model", f"There is no model {model!r:.60} here; it is {name!r}.")


def to_dict(engine: Engine, name: str) -> dict[str, Any]:
    """Everything about the model and what became of its guarantee."""
    runner, audit = engine.runner, engine.audit
    watched = None
    if audit is not None:
        low, high = interval(audit.audited, audit.different)
        watched = {
            "share": engine.share,
            "promised": audit.risk,
            "audited": audit.audited,
            "skipped": engine.skipped,
            "different": audit.different,
            "rate": audit.rate,
            "interval": [low, high],
            "broken": audit.broken,
            "drifts": audit.drifted,
        }
    layers = dict(engine.layers)  # the model's thread counts on
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
        "guarantee": calibrated.get("sentence"),
        "audit": watched,
        "waiting": engine.depth,
        "answered": sum(layers.values()),
        "by_layer": {str(layer): layers[layer] for layer in sorted(layers)},
        "seconds": _quantiles(list(engine.recent)),
    }


def _quantiles(seconds: list[float]) -> dict[str, float] | None:
    """Of the last thousand requests, in the engine."""
    if not seconds:
        return None
    found = np.quantile(seconds, [0.5, 0.95, 0.99])
    return dict(zip(("p50", "p95", "p99"), (round(float(one), 6) for one in found), strict=True))
