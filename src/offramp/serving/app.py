"""The routes: existing clients' shapes around one engine."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import offramp
from offramp import policies
from offramp.batching import Text
from offramp.errors import OfframpError
from offramp.serving.audit import interval
from offramp.serving.engine import Asked, Engine, Full, Replied, Stopped, TooLong
from offramp.serving.metrics import Metrics
from offramp.serving.shapes import (
    Classify,
    Hub,
    Infer,
    Infos,
    Parameters,
    Predict,
    Question,
    Spoken,
    labelled,
    texts_of_hub,
    texts_of_infer,
    texts_of_predict,
)

__all__ = ["ServerOptions", "make_app"]

logger = logging.getLogger("offramp")

SLOWEST = 30.0  # seconds that a client may take between two parts of its body
STALE = 30.0  # seconds without a heartbeat, beyond which the model's thread counts as dead
OPEN = ("/health", "/metrics", "/v2/health/live")
EXITS, OUTSIDE = "x-offramp-exit-layers", "x-offramp-outside-promise"


@dataclass(frozen=True)
class ServerOptions:
    """What the server allows."""

    name: str = "model"
    max_rows: int = 512  # texts of a request
    max_bytes: int = 2_000_000  # of a body
    api_key: str | None = None
    guard_all: bool = False  # /health and /metrics ask for the key, too
    allow_override: bool = False  # a request may name a policy


class Problem(Exception):
    """A reply that is an error."""

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


class Fault(BaseModel):
    """How every error looks."""

    error: str
    error_type: str


def make_app(engine: Engine, options: ServerOptions, metrics: Metrics) -> FastAPI:
    """The application around an engine; it starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, engine.stop)

    faults: dict[int | str, dict[str, Any]] = {
        status: {"model": Fault} for status in (400, 401, 413, 422, 424, 429, 503)
    }
    app = FastAPI(title="offramp", version=offramp.__version__, lifespan=lifespan, responses=faults)
    routes = Routes(engine, options, ThreadPoolExecutor(2, "tokenise"))
    _add_errors(app)
    app.add_middleware(Guard, options=options, metrics=metrics)
    _add_answers(app, routes)
    _add_telling(app, routes, metrics)
    return app


class Routes:
    """What the routes have in common: texts in, a reply out, mistakes as errors."""

    def __init__(self, engine: Engine, options: ServerOptions, tokenising: ThreadPoolExecutor):
        self.engine, self.options, self.tokenising = engine, options, tokenising
        self.config = engine.runner.config

    async def ask(self, texts: Sequence[Text], wanted: Parameters, truncate: bool, response: Response) -> Replied:
        """Tokenise beside the loop, wait for the engine; a client that hangs up takes its rows with it."""
        if self.config.problem.is_span:
            raise Problem(400, "validation", "This model answers questions: POST /answer.")
        if not texts:
            raise Problem(400, "empty", "There is no text.")
        if len(texts) > self.options.max_rows:
            raise Problem(413, "too_large", f"{len(texts)} texts at once; the most is {self.options.max_rows}.")
        asked = self._asked(wanted)
        loop = asyncio.get_running_loop()
        cut = truncate if wanted.truncate is None else wanted.truncate
        ids, types = await loop.run_in_executor(self.tokenising, partial(self.engine.tokenised, texts, cut))
        future = asyncio.wrap_future(self.engine.submit(ids, types, asked))
        reply = await future
        response.headers[EXITS] = ",".join(map(str, reply.layers.tolist()))
        if reply.outside:
            response.headers[OUTSIDE] = "1"
        return reply

    def _asked(self, wanted: Parameters) -> Asked:
        if wanted.policy is not None and not self.options.allow_override:
            raise Problem(400, "validation", "This server does not take a policy; it was started without the option.")
        policy = None if wanted.policy is None else self.config.choose(policies.parse(wanted.policy))
        deadline = None if wanted.deadline_ms is None else time.monotonic() + wanted.deadline_ms / 1000
        return Asked(policy, wanted.max_layers, deadline)


def _add_answers(app: FastAPI, routes: Routes) -> None:
    config = routes.config

    @app.post("/", summary="Hugging Face's text classification")
    async def hub(body: Hub, response: Response) -> list[list[dict[str, Any]]]:
        wanted = body.parameters or Parameters()
        reply = await routes.ask(texts_of_hub(body), wanted, True, response)
        told: list[list[dict[str, Any]]] = [
            [one.model_dump() for one in row[: wanted.top_k]] for row in labelled(reply, config)
        ]
        if wanted.details or body.details:
            for row, layer in zip(told, reply.layers.tolist(), strict=True):
                row[0] |= {"exit_layer": layer, "outside_promise": reply.outside}
        return told

    @app.post("/predict", summary="text-embeddings-inference's")
    async def predict(body: Predict, response: Response) -> list[Spoken] | list[list[Spoken]]:
        texts, is_batch = texts_of_predict(body)
        wanted = Parameters(max_layers=body.max_layers, truncate=bool(body.truncate))
        reply = await routes.ask(texts, wanted, False, response)
        told = labelled(reply, config, body.raw_scores)
        return told if is_batch else told[0]

    @app.post("/classify", summary="vLLM's")
    async def classify(body: Classify, response: Response) -> dict[str, Any]:
        texts: list[Text] = [body.input] if isinstance(body.input, str) else list(body.input)
        reply = await routes.ask(texts, Parameters(truncate=body.truncate), True, response)
        data = []
        for index, row in enumerate(labelled(reply, config)):
            probs = {one.label: one.score for one in row}
            each = [probs[label] for label in config.labels]
            data.append({"index": index, "label": row[0].label, "probs": each, "num_classes": len(each)})
        usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens, "completion_tokens": 0}
        made = {"id": f"classify-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
        return made | {"model": body.model or routes.options.name, "data": data, "usage": usage}

    @app.post("/v2/models/{model}/infer", summary="Open Inference Protocol")
    async def infer(model: str, body: Infer, response: Response) -> dict[str, Any]:
        _known(model, routes)
        reply = await routes.ask(texts_of_infer(body), Parameters.model_validate(body.parameters or {}), True, response)
        rows = labelled(reply, config)
        outputs = [
            _tensor("label", "BYTES", [row[0].label for row in rows]),
            _tensor("score", "FP32", [row[0].score for row in rows]),
            _tensor("exit_layer", "INT64", reply.layers.tolist()),
        ]
        return {"model_name": model, "model_version": "1", "outputs": outputs} | ({"id": body.id} if body.id else {})

    @app.post("/answer", summary="the answer to a question in its context")
    async def answer(body: Question, response: Response) -> dict[str, Any]:
        if not config.problem.is_span:
            raise Problem(
                400, "validation", f"This model answers with {config.problem.title}, not with parts of texts."
            )
        found = await asyncio.wrap_future(routes.engine.question(body.question, body.context))
        response.headers[EXITS] = str(found.exit_layer)
        return {
            "answer": found.text,
            "score": found.score,
            "start": found.start,
            "end": found.end,
            "exit_layer": found.exit_layer,
        }


def _tensor(name: str, kind: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": [len(data)], "data": data}


def _known(model: str, routes: Routes) -> None:
    if model != routes.options.name:
        raise Problem(404, "unknown_model", f"There is no model {model!r:.60} here; it is {routes.options.name!r}.")


def _add_telling(app: FastAPI, routes: Routes, metrics: Metrics) -> None:
    engine, options = routes.engine, routes.options

    def alive() -> bool:
        return time.monotonic() - engine.beat < STALE

    def told() -> dict[str, Any]:
        runner, audit = engine.runner, engine.audit
        watched = None
        if audit is not None:
            low, high = interval(audit.audited, audit.different)
            watched = {
                "share": engine.share,
                "promised": audit.risk,
                "audited": audit.audited,
                "different": audit.different,
                "rate": audit.rate,
                "interval": [low, high],
                "broken": audit.broken,
                "drifts": audit.drifted,
            }
        calibrated = (runner.config.calibrated or {}) if engine.policy == runner.config.exit_policy else {}
        return {
            "model": options.name,
            "version": offramp.__version__,
            "backend": runner.backend,
            "dtype": runner.dtype,
            "threads": runner.stepper.threads,
            "max_length": runner.limit,
            "problem": runner.config.problem.name,
            "labels": list(runner.config.labels),
            "layers": runner.config.num_layers,
            "exits": [point.layer for point in runner.stepper.exits],
            "policy": str(engine.policy),
            "promise": calibrated.get("sentence"),
            "audit": watched,
            "waiting": engine.depth,
            "answered": sum(engine.layers.values()),
            "by_layer": {str(layer): engine.layers[layer] for layer in sorted(engine.layers)},
            "seconds": _quantiles(list(engine.recent)),
        }

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("offramp.serving").joinpath("page.html").read_text("utf-8"))

    @app.get("/info", summary="model, policy, promise, audit")
    async def info() -> Infos:
        return Infos(**told())

    @app.get("/health", summary="whether the process and its model's thread live")
    async def health() -> Response:
        return PlainTextResponse("ok" if alive() else "the model's thread is silent", 200 if alive() else 503)

    @app.get("/ready", summary="whether it takes requests")
    async def ready() -> Response:
        fine = engine.ready and not engine.draining and alive()
        return PlainTextResponse("ready" if fine else "not ready", 200 if fine else 503)

    @app.get("/metrics", summary="for Prometheus")
    async def numbers() -> Response:
        return Response(metrics.written(engine), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v2", summary="Open Inference Protocol")
    async def server() -> dict[str, Any]:
        return {"name": "offramp", "version": offramp.__version__, "extensions": []}

    @app.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        return {"live": alive()}

    @app.get("/v2/health/ready")
    async def is_ready() -> dict[str, bool]:
        return {"ready": engine.ready and not engine.draining}

    @app.get("/v2/models/{model}", summary="Open Inference Protocol")
    async def about(model: str) -> dict[str, Any]:
        _known(model, routes)
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        kinds = {"label": "BYTES", "score": "FP32", "exit_layer": "INT64"}
        outputs = [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in kinds.items()]
        return {"name": model, "versions": ["1"], "platform": "offramp", "inputs": inputs, "outputs": outputs}

    @app.get("/v2/models/{model}/ready")
    async def model_ready(model: str) -> dict[str, Any]:
        _known(model, routes)
        return {"name": model, "ready": engine.ready and not engine.draining}


def _quantiles(seconds: list[float]) -> dict[str, float] | None:
    """Of the last thousand requests, in the engine."""
    if not seconds:
        return None
    found = np.quantile(seconds, [0.5, 0.95, 0.99])
    return dict(zip(("p50", "p95", "p99"), (round(float(one), 6) for one in found), strict=True))


def _add_errors(app: FastAPI) -> None:
    def fault(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": message, "error_type": kind}, status, headers)

    @app.exception_handler(Problem)
    async def ours(_: Request, err: Problem) -> JSONResponse:
        return fault(err.status, err.kind, str(err), err.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, err: RequestValidationError) -> JSONResponse:
        first = err.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return fault(400, "validation", f"{where}: {first['msg']}"[:300])

    @app.exception_handler(HTTPException)
    async def plain(_: Request, err: HTTPException) -> JSONResponse:
        kind = {413: "too_large", 400: "validation"}.get(err.status_code, "http")
        return fault(err.status_code, kind, str(err.detail), dict(err.headers or {}))

    @app.exception_handler(Full)
    async def full(_: Request, err: Full) -> JSONResponse:
        return fault(429, "overloaded", str(err), {"retry-after": str(int(err.seconds) + 1)})

    @app.exception_handler(Stopped)
    async def stopped(_: Request, err: Stopped) -> JSONResponse:
        return fault(503, "unavailable", str(err), {"retry-after": "1"})

    @app.exception_handler(TooLong)
    async def too_long(_: Request, err: TooLong) -> JSONResponse:
        return fault(422, "too_long", str(err))

    @app.exception_handler(OfframpError)
    async def mistaken(_: Request, err: OfframpError) -> JSONResponse:
        return fault(400, "validation", str(err))

    @app.exception_handler(TimeoutError)
    async def slow(_: Request, err: TimeoutError) -> JSONResponse:
        return fault(408, "slow", "The body did not come in time.")

    @app.exception_handler(Exception)
    async def broken(_: Request, err: Exception) -> JSONResponse:
        logger.error("A request failed: %s", type(err).__name__)
        return fault(424, "backend", "The model could not answer; the server's log tells more.")


class Guard:
    """Key and size of every request, before anything is parsed; what became of it, counted and logged without texts."""

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: Metrics):
        self.app, self.options, self.metrics = app, options, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, seen = [0], [0]

        async def limited() -> Message:
            message = await asyncio.wait_for(receive(), SLOWEST)
            seen[0] += len(message.get("body", b""))
            if seen[0] > self.options.max_bytes:
                raise HTTPException(413, f"The body has more than {self.options.max_bytes:,} bytes.")
            return message

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        refused = self._refused(Headers(scope=scope), scope["path"])
        inner = self.app if refused is None else refused
        await inner(scope, limited, noted)
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.replies.labels(route, str(status[0])).inc()
        if scope["path"] not in OPEN:
            logger.info("%s", json.dumps({"route": route, "status": status[0]}))

    def _refused(self, headers: Headers, path: str) -> Response | None:
        options = self.options
        if options.api_key is not None and (options.guard_all or path not in OPEN):
            given = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode(), options.api_key.encode()):
                return JSONResponse({"error": "A key is needed, or another one.", "error_type": "unauthorized"}, 401)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > options.max_bytes:
            message = f"The body has {length[:20]} bytes; the most is {options.max_bytes:,}."
            return JSONResponse({"error": message, "error_type": "too_large"}, 413)
        return None
