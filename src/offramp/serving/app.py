"""The routes: those of the model's answer type around one engine, and what the server reports of itself."""

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
from offramp.serving.faults import Fault, Problem, add_errors
from offramp.serving.guard import Guard, ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.requests import RequestOptions
from offramp.serving.requests import Response as Answered
from offramp.serving.status import add_open_inference, add_status, check_model

__all__ = ["ServerOptions", "make_app"]

T = TypeVar("T")

SHORT = 2000  # characters that are tokenised at once
GONE = 499  # what proxies note for a client that did not wait
EXITS, OUTSIDE = "x-offramp-exit-layers", "x-offramp-outside-guarantee"


def make_app(engine: Engine, options: ServerOptions, metrics: Metrics) -> FastAPI:
    """The application around an engine; it starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, engine.stop)

    faults: dict[int | str, dict[str, Any]] = {
        status: {"model": Fault} for status in (400, 401, 404, 408, 413, 422, 424, 429, 503)
    }
    app = FastAPI(title="offramp", version=offramp.__version__, lifespan=lifespan, responses=faults)
    routes = Routes(engine, options, ThreadPoolExecutor(2, "tokenise"))
    add_errors(app)
    app.add_middleware(Guard, options=options, metrics=metrics, engine=engine)
    _add_answers(app, routes)
    add_status(app, engine, options.name, metrics)
    add_open_inference(app, engine, options.name)
    return app


class Routes:
    """What the routes have in common: examples in, answers out, mistakes as errors."""

    def __init__(self, engine: Engine, options: ServerOptions, tokenising: ThreadPoolExecutor):
        self.engine, self.options, self.tokenising = engine, options, tokenising
        self.config = engine.runner.config

    async def ask(self, examples: Sequence[Any], given: Mapping[str, Any], call: Call) -> Answered:
        """Tokenise beside the loop, wait for the engine."""
        if not examples:
            raise Problem(400, "empty", "There is no text.")
        if len(examples) > self.options.max_rows:
            raise Problem(413, "too_large", f"{len(examples)} texts at once; the most is {self.options.max_rows}.")
        asked = self._asked(given)
        with self.engine.place(len(examples)):
            rows = await self._encoded(examples, bool(given.get("truncate", True)))
            submitted = self.engine.submit(rows, asked)
        answered = await call.waited(submitted)
        call.response.headers[EXITS] = ",".join(map(str, answered.answers.layer.tolist()))
        if answered.outside:
            call.response.headers[OUTSIDE] = "1"
        return answered

    async def _encoded(self, examples: Sequence[Any], truncate: bool) -> EncodedRows:
        """Long texts beside the loop; for short ones waking a thread would take longer than the work itself."""
        work = partial(self.engine.encoded, examples, truncate)
        if sum(len(one) if isinstance(one, str) else sum(map(len, one)) for one in examples) <= SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.tokenising, work)

    def _asked(self, given: Mapping[str, Any]) -> RequestOptions:
        written, milliseconds = given.get("policy"), given.get("deadline_ms")
        if written is not None and not self.options.allow_override:
            raise Problem(400, "validation", "This server does not take a policy; it was started without the option.")
        policy = None if written is None else self.config.choose(policies.parse(written))
        deadline = None if milliseconds is None else time.monotonic() + milliseconds / 1000
        return RequestOptions(policy, given.get("max_layers"), deadline)


class Call:
    """A request's two ends, as the routes get them."""

    def __init__(self, request: HttpRequest, response: Response):
        self.request, self.response = request, response

    async def waited(self, asked: Future[T]) -> T:
        """The engine's answer; a client that disconnects releases its rows (the framework would answer on)."""
        future = asyncio.wrap_future(asked)
        gone = asyncio.ensure_future(self.request.receive())  # the body was read: what comes now is the end
        try:
            await asyncio.wait((future, gone), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise Problem(GONE, "gone", "The client disconnected.")
            return future.result()
        finally:
            gone.cancel()
            future.cancel()  # nothing, once it is done


def _add_answers(app: FastAPI, routes: Routes) -> None:
    """The routes of the model's answer type; those of the others say which these are."""
    own = routes.config.answer_type.endpoints()
    for endpoint in own:
        app.post(endpoint.path, summary=endpoint.summary)(_handler(endpoint, routes))
    paths = {endpoint.path for endpoint in own}
    here = f"This model does {routes.config.answer_type.title}: POST {', '.join(path for path in sorted(paths))}."
    others = {one.path for kind in ANSWER_TYPES.values() for one in kind.endpoints()} - paths
    for path in sorted(others):
        app.post(path, include_in_schema=False)(_elsewhere(here))


def _handler(endpoint: Endpoint, routes: Routes) -> Callable[..., Any]:
    """What answers a route."""

    async def handle(body: Any, request: HttpRequest, response: Response) -> Any:
        name = request.path_params.get("model")
        if name is not None:
            check_model(name, routes.options.name)
        call = Call(request, response)
        answered = await routes.ask(endpoint.examples(body), endpoint.parameters(body), call)
        about = {"outside": answered.outside, "tokens": answered.tokens, "model": name or routes.options.name}
        return endpoint.reply(answered.answers, body, about)

    handle.__annotations__ = {
        "body": endpoint.request,
        "request": HttpRequest,
        "response": Response,
        "return": endpoint.response,
    }
    handle.__name__ = endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "") or "root"
    return handle


def _elsewhere(message: str) -> Callable[..., Any]:
    async def refuse() -> None:
        raise Problem(400, "validation", message)

    return refuse
