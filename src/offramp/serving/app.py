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

import offramp
from offramp import policies
from offramp.answers import ANSWER_TYPES
from offramp.answers.answer import Endpoint
from offramp.core.batch import EncodedRows
from offramp.serving.engine import Engine
from offramp.serving.errors import ErrorBody, HttpError, add_error_handlers
from offramp.serving.guard import Guard, ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.requests import RequestOptions, RequestResult
from offramp.serving.status import add_open_inference_routes, add_status_routes, check_model

__all__ = ["ServerOptions", "make_app"]

T = TypeVar("T")

INLINE_CHARACTERS = 2000  # requests up to this size are tokenized on the event loop
CLIENT_CLOSED_REQUEST = 499  # as nginx logs a client that disconnected
EXIT_LAYERS_HEADER, OUTSIDE_HEADER = "x-offramp-exit-layers", "x-offramp-outside-guarantee"


def make_app(engine: Engine, options: ServerOptions, metrics: Metrics) -> FastAPI:
    """Return the application; the engine starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, engine.stop)

    error_responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody} for status in (400, 401, 404, 408, 413, 422, 424, 429, 503)
    }
    app = FastAPI(title="offramp", version=offramp.__version__, lifespan=lifespan, responses=error_responses)
    routes = Routes(engine, options, ThreadPoolExecutor(2, "tokenize"))
    add_error_handlers(app)
    app.add_middleware(Guard, options=options, metrics=metrics, engine=engine)
    _add_prediction_routes(app, routes)
    add_status_routes(app, engine, options.name, metrics)
    add_open_inference_routes(app, engine, options.name)
    return app


class Routes:
    """What all prediction routes share: encode the examples, run them, set the response headers."""

    def __init__(self, engine: Engine, options: ServerOptions, tokenizer_pool: ThreadPoolExecutor):
        self.engine, self.options, self.tokenizer_pool = engine, options, tokenizer_pool
        self.config = engine.runner.config

    async def predict(self, examples: Sequence[Any], parameters: Mapping[str, Any], call: Call) -> RequestResult:
        """Tokenize the examples, submit them to the engine and wait for the result."""
        if not examples:
            raise HttpError(400, "empty", "The request contains no text.")
        if len(examples) > self.options.max_rows:
            message = f"The request has {len(examples)} texts; the maximum is {self.options.max_rows}."
            raise HttpError(413, "too_large", message)
        options = self._request_options(parameters)
        with self.engine.reserve(len(examples)):
            rows = await self._encode(examples, bool(parameters.get("truncate", True)))
            future = self.engine.submit(rows, options)
        result = await call.wait_for(future)
        call.response.headers[EXIT_LAYERS_HEADER] = ",".join(map(str, result.answers.layer.tolist()))
        if result.outside:
            call.response.headers[OUTSIDE_HEADER] = "1"
        return result

    async def _encode(self, examples: Sequence[Any], truncate: bool) -> EncodedRows:
        """Tokenize in a thread; short requests on the event loop, where waking a thread would take longer."""
        encode = partial(self.engine.encode, examples, truncate)
        characters = sum(len(example) if isinstance(example, str) else sum(map(len, example)) for example in examples)
        if characters <= INLINE_CHARACTERS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self.tokenizer_pool, encode)

    def _request_options(self, parameters: Mapping[str, Any]) -> RequestOptions:
        policy_text, milliseconds = parameters.get("policy"), parameters.get("deadline_ms")
        if policy_text is not None and not self.options.allow_override:
            message = "This server does not accept `policy` in requests; start it with --allow-override."
            raise HttpError(400, "validation", message)
        policy = None if policy_text is None else self.config.resolve_policy(policies.parse(policy_text))
        deadline = None if milliseconds is None else time.monotonic() + milliseconds / 1000
        return RequestOptions(policy, parameters.get("max_layers"), deadline)


class Call:
    """An HTTP request together with its response."""

    def __init__(self, request: HttpRequest, response: Response):
        self.request, self.response = request, response

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


def _add_prediction_routes(app: FastAPI, routes: Routes) -> None:
    """Add the routes of the model's answer type; routes of other answer types return an error that lists them."""
    endpoints = routes.config.answer_type.endpoints()
    for endpoint in endpoints:
        app.post(endpoint.path, summary=endpoint.summary)(_handler(endpoint, routes))
    paths = {endpoint.path for endpoint in endpoints}
    message = f"This model does {routes.config.answer_type.title}; use POST {', '.join(sorted(paths))}."
    other_paths = {endpoint.path for answer_type in ANSWER_TYPES.values() for endpoint in answer_type.endpoints()}
    for path in sorted(other_paths - paths):
        app.post(path, include_in_schema=False)(_reject(message))


def _handler(endpoint: Endpoint, routes: Routes) -> Callable[..., Any]:
    """Return the function that handles an endpoint's requests."""

    async def handle(body: Any, request: HttpRequest, response: Response) -> Any:
        name = request.path_params.get("model")
        if name is not None:
            check_model(name, routes.options.name)
        call = Call(request, response)
        result = await routes.predict(endpoint.examples(body), endpoint.parameters(body), call)
        about = {"outside": result.outside, "tokens": result.tokens, "model": name or routes.options.name}
        return endpoint.reply(result.answers, body, about)

    handle.__annotations__ = {
        "body": endpoint.request,
        "request": HttpRequest,
        "response": Response,
        "return": endpoint.response,
    }
    handle.__name__ = endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "") or "root"
    return handle


def _reject(message: str) -> Callable[..., Any]:
    async def reject() -> None:
        raise HttpError(400, "validation", message)

    return reject
