"""Request types shared by all answer types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from offramp.errors import BadInput

__all__ = ["BinaryReply", "Count", "Layers", "NonEmpty", "Parameters", "RequestBody", "RequestText", "TooLarge"]

Item = TypeVar("Item")

RequestText = Annotated[StrictStr, Field(max_length=10_000_000)]
NonEmpty = Annotated[list[Item], Field(min_length=1, fail_fast=True)]  # one invalid item is enough to reject a request
Count = Annotated[int, Field(ge=1, le=100_000)]
Layers = Annotated[int, Field(ge=0, le=100_000)]  # 0: an exit on the embeddings


class TooLarge(BadInput):
    """The request exceeds the size limit of the server."""


class RequestBody(BaseModel):
    """A request body; unknown fields are ignored, as in other servers."""

    model_config = ConfigDict(extra="ignore")

    def attach(self, tail: bytes) -> None:
        """Take the binary tensors that follow the JSON part of the body."""
        raise BadInput("This route does not accept binary tensors; send JSON.")


class Parameters(RequestBody):
    """Options of a request."""

    top_k: Count | None = None
    truncate: StrictBool | None = None
    max_layers: Layers | None = None
    policy: Annotated[StrictStr, Field(max_length=10_000)] | None = None
    deadline_ms: Annotated[float, Field(gt=0, le=1e9)] | None = None
    details: StrictBool = False

    def options(self) -> dict[str, Any]:
        """Return the options that the engine takes, if they are set."""
        return self.model_dump(include={"truncate", "max_layers", "policy", "deadline_ms"}, exclude_none=True)


@dataclass(frozen=True)
class BinaryReply:
    """A response whose JSON part is followed by binary tensors (Open Inference Protocol)."""

    content: dict[str, Any]
    tail: bytes
