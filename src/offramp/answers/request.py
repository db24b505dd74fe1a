"""What the requests of all answer types have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from offramp.errors import BadInput

__all__ = ["Body", "Count", "Layers", "Parameters", "TooLarge", "Words"]

Words = Annotated[StrictStr, Field(max_length=10_000_000)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Layers = Annotated[int, Field(ge=0, le=100_000)]  # 0: an exit on the embeddings


class TooLarge(BadInput):
    """A request that is larger than the server takes."""


class Body(BaseModel):
    """A request; unknown fields are ignored, as the other servers do."""

    model_config = ConfigDict(extra="ignore")


class Parameters(Body):
    """What a request may ask for."""

    top_k: Count | None = None
    truncate: StrictBool | None = None
    max_layers: Layers | None = None
    policy: Annotated[StrictStr, Field(max_length=10_000)] | None = None
    deadline_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    details: StrictBool = False
