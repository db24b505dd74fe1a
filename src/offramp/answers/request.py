"""Request types shared by all answer types."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from offramp.errors import BadInput

__all__ = ["Count", "Layers", "Parameters", "RequestBody", "RequestText", "TooLarge"]

RequestText = Annotated[StrictStr, Field(max_length=10_000_000)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Layers = Annotated[int, Field(ge=0, le=100_000)]  # 0: an exit on the embeddings


class TooLarge(BadInput):
    """The request exceeds the size limit of the server."""


class RequestBody(BaseModel):
    """A request body; unknown fields are ignored, as in other servers."""

    model_config = ConfigDict(extra="ignore")


class Parameters(RequestBody):
    """Options of a request."""

    top_k: Count | None = None
    truncate: StrictBool | None = None
    max_layers: Layers | None = None
    policy: Annotated[StrictStr, Field(max_length=10_000)] | None = None
    deadline_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    details: StrictBool = False
