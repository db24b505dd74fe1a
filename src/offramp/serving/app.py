"""The FastAPI application: the prediction routes of the model's answer type, and the status routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from pydantic_core import to_json
from starlette.middleware.cors import CORSMiddleware

import offramp
from offramp import policies
from offramp.answers import ANSWER_TYPES
from offramp.answers.answer import Endpoint
from offramp.answers.request import BinaryReply
from offramp.core.batch import EncodedRows
from offramp.serving.body import BINARY_HEADER, BodyReader, parse_body
from offramp.serving.engine import Engine
from offramp.serving.errors import ErrorBody, HttpError, add_error_handlers
from offramp.serving.guard import Guard, ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.openapi import ERROR_STATUSES, add_docs
from offramp.serving.requests import RequestOptions, RequestResult, Unavailable
from offramp.serving.served import ServedModel
from offramp.serving.status import add_open_inference_routes, add_status_routes, check_model

__all__ = ["ServerOptions", "make_app"]

T = TypeVar("T")

INLINE_BYTES = 4000  # bodies up to this size are parsed and tokenized on the event loop, where no thread must wake up
INLINE_SCORES = 1000  # responses up to this number of scores are formatted there
MAX_HEADER_ROWS = 1000  # larger responses have no header with exit layers
CLIENT_CLOSED_REQUEST = 499  # as nginx logs a client that disconnected
EXIT_LAYERS_HEADER, OUTSIDE_HEADER = "x-offramp-exit-layers", "x-offramp-outside-guarantee"


def make_app(served: ServedModel, options: ServerOptions, metrics: Metrics) -> FastAPI:
    """Return the application; the model starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        served.start()
        if options.tracer is not None:
            options.tracer.start_export()
        yield
        await asyncio.get_running_loop().run_in_executor(None, served.stop)
        if options.tracer is not None:
            await asyncio.get_running_loop().run_in_executor(None, options.tracer.stop_export)

    error_responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in ERROR_STATUSES}
    app = FastAPI(
        title="offramp",
        version=offramp.__version__,
        lifespan=lifespan,
        responses=error_responses,
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
    )
    routes = Routes(served, options, ThreadPoolExecutor(2, "tokenize"))
    add_error_handlers(app)
    app.add_middleware(Guard, options=options, metrics=metrics, served=served)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", BINARY_HEADER, "x-request-id", "traceparent"],
            expose_headers=[EXIT_LAYERS_HEADER, OUTSIDE_HEADER, BINARY_HEADER, "x-request-id", "retry-after"],
        )
    _add_prediction_routes(app, routes)
    add_status_routes(app, served, options.name, metrics)
    add_open_inference_routes(app, served, options.name)
    add_docs(app, routes.answer_type.endpoints(), options.name)
    return app


class Routes:
    """What all prediction routes share: parse the body, encode the examples, run them, format the response."""

    def __init__(self, served: ServedModel, options: ServerOptions, pool: ThreadPoolExecutor):
        self.served, self.options, self.pool = served, options, pool
        self.reader = BodyReader(options.limits)
        self.answer_type = served.engine.runner.config.answer_type

    async def handle(self, endpoint: Endpoint, request: HttpRequest) -> Response:
        """Return the response to a request."""
        async with self.reader.body(request) as content:
            is_short = len(content) <= INLINE_BYTES
            parse = partial(self._parse, content, endpoint, request)
            body, examples, parameters = await self._run(parse, is_short)
        result = await self._predict(examples, parameters, Call(request), is_short)
        request.state.record.add_result(result.answers.layer.tolist(), result.outside)
        about = {"outside": result.outside, "tokens": result.tokens, "model": self.options.name}
        has_few_scores = len(examples) * len(self.served.engine.runner.config.labels) <= INLINE_SCORES
        return await self._run(
            lambda: _to_response(endpoint.reply(result.answers, body, about), result), has_few_scores
        )

    def _parse(
        self, content: bytearray, endpoint: Endpoint, request: HttpRequest
    ) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """Return the body, its examples and its parameters."""
        body = parse_body(content, request.headers.get(BINARY_HEADER), endpoint.request, self.options.limits)
        self._check_names(request.path_params, getattr(body, "model", None))
        return body, endpoint.examples(body), endpoint.parameters(body)

    async def _predict(
        self, examples: Sequence[Any], parameters: Mapping[str, Any], call: Call, is_short: bool
    ) -> RequestResult:
        """Tokenize the examples, submit them to the engine and wait for the result."""
        if not examples:
            raise HttpError(400, "empty", "The request contains no text.")
        if len(examples) > self.options.limits.texts:
            message = f"The request has {len(examples)} texts; the maximum is {self.options.limits.texts}."
            raise HttpError(413, "too_large", message)
        truncate = bool(parameters.get("truncate", True))
        while True:
            engine = self.served.engine
            options = self._request_options(parameters, engine)
            try:
                with engine.reserve(len(examples)):
                    rows: EncodedRows = await self._run(partial(engine.encode, examples, truncate), is_short)
                    future = engine.submit(rows, options)
            except Unavailable:
                if engine is self.served.engine:
                    raise
            else:  # otherwise the model was replaced in the meantime
                return await call.wait_for(future)

    async def _run(self, function: Callable[[], T], inline: bool) -> T:
        """Call a function on the event loop, or in a thread if it may take long."""
        return function() if inline else await asyncio.get_running_loop().run_in_executor(self.pool, function)

    def _check_names(self, path: Mapping[str, str], body_model: str | None) -> None:
        """Raise a 404 error if the request names another model or version."""
        for name in (path.get("model"), body_model):
            if name is not None:
                check_model(name, self.options.name, path.get("version", "1"))

    def _request_options(self, parameters: Mapping[str, Any], engine: Engine) -> RequestOptions:
        policy_text, milliseconds = parameters.get("policy"), parameters.get("deadline_ms")
        if policy_text is not None and not self.options.allow_override:
            message = "This server does not accept `policy` in requests; start it with --allow-override."
            raise HttpError(400, "validation", message)
        policy = None if policy_text is None else engine.runner.config.resolve_policy(policies.parse(policy_text))
        active = engine.policy if policy is None else policy
        if (kept := active.keeping(parameters.get("top_k"))) is not active:  # more documents than the policy's k
            policy = kept
        deadline = None if milliseconds is None else time.monotonic() + milliseconds / 1000
        return RequestOptions(policy, parameters.get("max_layers"), deadline)


class Call:
    """An HTTP request that waits for the engine."""

    def __init__(self, request: HttpRequest):
        self.request = request

    async def wait_for(self, result: Future[T]) -> T:
        """Wait for the engine's result; if the client disconnects, cancel its rows (FastAPI would keep running)."""
        future = asyncio.wrap_future(result)
        disconnect = asyncio.ensure_future(self.request.receive())  # the body was read: only a disconnect can follow
        try:
            await asyncio.wait((future, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise HttpError(CLIENT_CLOSED_REQUEST, "gone", "The client disconnected.")
            return future.result()
        finally:
            disconnect.cancel()
            future.cancel()  # no effect once it is done


def _to_response(reply: Any, result: RequestResult) -> Response:
    """Return the HTTP response of a reply: JSON, or JSON followed by binary tensors."""
    headers = {}
    if len(result.answers) <= MAX_HEADER_ROWS:
        headers[EXIT_LAYERS_HEADER] = ",".join(map(str, result.answers.layer.tolist()))
    if result.outside:
        headers[OUTSIDE_HEADER] = "1"
    if isinstance(reply, BinaryReply):
        content = to_json(reply.content)
        headers[BINARY_HEADER] = str(len(content))
        return Response(content + reply.tail, headers=headers, media_type="application/octet-stream")
    return Response(to_json(reply, inf_nan_mode="null"), headers=headers, media_type="application/json")


def _add_prediction_routes(app: FastAPI, routes: Routes) -> None:
    """Add the routes of the model's answer type; routes of other answer types return an error that lists them."""
    endpoints = routes.answer_type.endpoints()
    for endpoint in endpoints:
        app.post(endpoint.path, summary=endpoint.summary)(_handler(endpoint, routes))
    paths = {endpoint.path for endpoint in endpoints}
    message = f"This model does {routes.answer_type.title}; use POST {', '.join(sorted(paths))}."
    other_paths = {endpoint.path for answer_type in ANSWER_TYPES.values() for endpoint in answer_type.endpoints()}
    for path in sorted(other_paths - paths):
        app.post(path, include_in_schema=False)(_reject(message))


def _handler(endpoint: Endpoint, routes: Routes) -> Callable[..., Any]:
    """Return the function that handles an endpoint's requests; it reads the body itself, within its limits."""

    async def handle(request: HttpRequest) -> Response:
        return await routes.handle(endpoint, request)

    handle.__annotations__ = {"request": HttpRequest, "return": Response}
    handle.__name__ = endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "") or "root"
    return handle


def _reject(message: str) -> Callable[..., Any]:
    async def reject() -> None:
        raise HttpError(400, "validation", message)

    return reject
