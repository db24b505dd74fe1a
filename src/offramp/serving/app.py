"""The routes: existing clients' shapes around one engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response

import offramp
from offramp import policies
from offramp.core.chunks import Ragged, Text
from offramp.serving.engine import Engine
from offramp.serving.faults import Fault, Problem, add_errors
from offramp.serving.guard import Guard, ServerOptions
from offramp.serving.metrics import Metrics
from offramp.serving.rows import Asked, Replied
from offramp.serving.shapes import (
    Classify,
    Hub,
    Infer,
    Parameters,
    Predict,
    Question,
    Spoken,
    labelled,
    texts_of_hub,
    texts_of_infer,
    texts_of_predict,
)
from offramp.serving.telling import add_open_inference, add_telling, known

__all__ = ["ServerOptions", "make_app"]

T = TypeVar("T")

LONGEST = 100_000  # characters of a question and its context: all others wait while it is read
SHORT = 2000  # characters that are tokenised at once
GONE = 499  # what proxies note for a client that did not wait
EXITS, OUTSIDE = "x-offramp-exit-layers", "x-offramp-outside-promise"


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
    add_telling(app, engine, options.name, metrics)
    add_open_inference(app, engine, options.name)
    return app


class Routes:
    """What the routes have in common: texts in, a reply out, mistakes as errors."""

    def __init__(self, engine: Engine, options: ServerOptions, tokenising: ThreadPoolExecutor):
        self.engine, self.options, self.tokenising = engine, options, tokenising
        self.config = engine.runner.config

    async def ask(self, texts: Sequence[Text], wanted: Parameters, truncate: bool, call: Call) -> Replied:
        """Tokenise beside the loop, wait for the engine."""
        if self.config.answer_type.is_span:
            raise Problem(400, "validation", "This model answers questions: POST /answer.")
        if not texts:
            raise Problem(400, "empty", "There is no text.")
        if len(texts) > self.options.max_rows:
            raise Problem(413, "too_large", f"{len(texts)} texts at once; the most is {self.options.max_rows}.")
        asked = self._asked(wanted)
        cut = truncate if wanted.truncate is None else wanted.truncate
        with self.engine.place(len(texts)):
            tokens = await self._tokenised(texts, cut)
            submitted = self.engine.submit(*tokens, asked)
        reply = await call.waited(submitted)
        response = call.response
        response.headers[EXITS] = ",".join(map(str, reply.layers.tolist()))
        if reply.outside:
            response.headers[OUTSIDE] = "1"
        return reply

    async def _tokenised(self, texts: Sequence[Text], truncate: bool) -> tuple[Ragged, Ragged | None]:
        """Long texts beside the loop; for short ones waking a thread would take longer than the work itself."""
        work = partial(self.engine.tokenised, texts, truncate)
        if sum(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts) <= SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.tokenising, work)

    def _asked(self, wanted: Parameters) -> Asked:
        if wanted.policy is not None and not self.options.allow_override:
            raise Problem(400, "validation", "This server does not take a policy; it was started without the option.")
        policy = None if wanted.policy is None else self.config.choose(policies.parse(wanted.policy))
        deadline = None if wanted.deadline_ms is None else time.monotonic() + wanted.deadline_ms / 1000
        return Asked(policy, wanted.max_layers, deadline)


class Call:
    """A request's two ends, as the routes get them."""

    def __init__(self, request: Request, response: Response):
        self.request, self.response = request, response

    async def waited(self, asked: Future[T]) -> T:
        """The engine's answer; a client that hangs up takes its rows with it (the framework would answer on)."""
        future = asyncio.wrap_future(asked)
        gone = asyncio.ensure_future(self.request.receive())  # the body was read: what comes now is the end
        try:
            await asyncio.wait((future, gone), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise Problem(GONE, "gone", "The client hung up.")
            return future.result()
        finally:
            gone.cancel()
            future.cancel()  # nothing, once it is done


def _add_answers(app: FastAPI, routes: Routes) -> None:
    config = routes.config
    of_texts = not config.answer_type.is_span

    @app.post("/", summary="Hugging Face's text classification", include_in_schema=of_texts)
    async def hub(body: Hub, request: Request, response: Response) -> list[list[dict[str, Any]]]:
        wanted = body.parameters or Parameters()
        reply = await routes.ask(texts_of_hub(body), wanted, True, Call(request, response))
        told: list[list[dict[str, Any]]] = [
            [one.model_dump() for one in row[: wanted.top_k]] for row in labelled(reply, config)
        ]
        if wanted.details or body.details:
            for row, layer in zip(told, reply.layers.tolist(), strict=True):
                row[0] |= {"exit_layer": layer, "outside_promise": reply.outside}
        return told

    @app.post("/predict", summary="text-embeddings-inference's", include_in_schema=of_texts)
    async def predict(body: Predict, request: Request, response: Response) -> list[Spoken] | list[list[Spoken]]:
        texts, is_batch = texts_of_predict(body)
        wanted = Parameters(max_layers=body.max_layers, truncate=bool(body.truncate))
        reply = await routes.ask(texts, wanted, False, Call(request, response))
        told = labelled(reply, config, body.raw_scores)
        return told if is_batch else told[0]

    @app.post("/classify", summary="vLLM's", include_in_schema=of_texts)
    async def classify(body: Classify, request: Request, response: Response) -> dict[str, Any]:
        texts: list[Text] = [body.input] if isinstance(body.input, str) else list(body.input)
        reply = await routes.ask(texts, Parameters(truncate=body.truncate), True, Call(request, response))
        data = []
        for index, row in enumerate(labelled(reply, config)):
            probs = {one.label: one.score for one in row}
            each = [probs[label] for label in config.labels]
            data.append({"index": index, "label": row[0].label, "probs": each, "num_classes": len(each)})
        usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens, "completion_tokens": 0}
        made = {"id": f"classify-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
        return made | {"model": body.model or routes.options.name, "data": data, "usage": usage}

    @app.post(
        "/v2/models/{model}/infer", summary="Open Inference Protocol", include_in_schema=not config.answer_type.is_span
    )
    async def infer(model: str, body: Infer, request: Request, response: Response) -> dict[str, Any]:
        known(model, routes.options.name)
        wanted = body.parameters or Parameters()
        reply = await routes.ask(texts_of_infer(body), wanted, True, Call(request, response))
        rows = labelled(reply, config)
        outputs = [
            _tensor("label", "BYTES", [row[0].label for row in rows]),
            _tensor("score", "FP32", [row[0].score for row in rows]),
            _tensor("exit_layer", "INT64", reply.layers.tolist()),
        ]
        return {"model_name": model, "model_version": "1", "outputs": outputs} | ({"id": body.id} if body.id else {})

    @app.post("/answer", summary="the answer to a question in its context", include_in_schema=not of_texts)
    async def answer(body: Question, request: Request, response: Response) -> dict[str, Any]:
        if not config.answer_type.is_span:
            raise Problem(
                400, "validation", f"This model answers with {config.answer_type.title}, not with parts of texts."
            )
        if len(body.question) + len(body.context) > LONGEST:
            raise Problem(413, "too_large", f"The question and its context have more than {LONGEST:,} characters.")
        found = await Call(request, response).waited(routes.engine.question(body.question, body.context))
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
