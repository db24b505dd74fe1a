"""offramp in Ray Serve: MODEL=/srv/my-model serve run ray_serve:app (needs pip install 'ray[serve]').

curl localhost:8000 -H 'content-type: application/json' -d '{"inputs": ["a lovely film", "a dull one"]}'

Ray Serve listens on 127.0.0.1 and checks no API key. If other machines may reach it, put a gateway in front of it that
does, and that limits the size of requests. `benchmarks/ray_serve.py` runs this file under load.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from ray import serve

import offramp

MAX_TEXTS = 64  # per request
Text = Annotated[str, Field(max_length=100_000)]

api = FastAPI()


class Body(BaseModel):
    """The body of a request."""

    inputs: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


@api.exception_handler(RequestValidationError)
async def invalid(_: Request, err: RequestValidationError) -> JSONResponse:
    """Describe an invalid body, without repeating its texts."""
    first = err.errors()[0]
    return JSONResponse({"error": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"}, 400)


@serve.deployment(
    num_replicas=2,
    ray_actor_options={"num_cpus": 1},
    max_ongoing_requests=64,  # more than fit into a batch, so that the next one fills while the model runs
    max_queued_requests=256,  # further requests get 503
)
@serve.ingress(api)
class Classifier:
    """A replica of the model."""

    def __init__(self) -> None:
        self.runner = offramp.load(os.environ["MODEL"], threads=1)
        self.thread = ThreadPoolExecutor(1, "model")  # the event loop stays free for requests and health checks

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0)
    async def predict(self, requests: list[list[str]]) -> list[list[dict[str, Any]]]:
        """Predict the texts of all waiting requests in one batch."""
        texts = [text for request in requests for text in request]
        answers = iter(await asyncio.get_running_loop().run_in_executor(self.thread, self.run, texts))
        return [[next(answers) for _ in request] for request in requests]

    def run(self, texts: list[str]) -> list[dict[str, Any]]:
        """Run the model."""
        return [answer.to_dict() for answer in self.runner.predict(texts, progress=False)]

    @api.post("/")
    async def classify(self, body: Body) -> list[dict[str, Any]]:
        """Return a prediction per text."""
        return await self.predict([body.inputs] if isinstance(body.inputs, str) else body.inputs)

    @api.get("/health")
    async def health(self) -> str:
        """Answer while the model runs."""
        return "ok"


app = Classifier.bind()
