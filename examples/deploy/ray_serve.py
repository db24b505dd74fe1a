"""offramp in Ray Serve: MODEL=/srv/my-model serve run ray_serve:app (requires pip install 'ray[serve]')."""

import os
from typing import Any

from ray import serve
from starlette.requests import Request

import offramp


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
class Classifier:
    """A replica of the model."""

    def __init__(self) -> None:
        self.runner = offramp.load(os.environ["MODEL"], threads=1)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0)
    async def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        """Predict all waiting texts in one batch."""
        return [answer.to_dict() for answer in self.runner.predict(texts, progress=False)]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Handle a request such as `{"inputs": "a lovely film"}`."""
        return await self.predict((await request.json())["inputs"])


app = Classifier.bind()
