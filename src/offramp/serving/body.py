"""Request bodies: read within limits of size and time, checked for their structure, parsed and validated.

A body within the size limit can still be expensive: a million numbers in a list take seconds and gigabytes to validate
one by one. So the number of JSON values is limited before anything is parsed, and validation stops at the first error.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json

from offramp.answers.request import RequestBody
from offramp.serving.errors import HttpError, describe_invalid

__all__ = ["BINARY_HEADER", "BodyLimits", "BodyReader", "parse_body"]

VALUES_PER_TEXT = 16  # JSON strings, lists, objects and commas, at most, for a text with its options
OTHER_VALUES = 1000
MAX_BODIES = 64  # of the maximum size, in memory at once
RETRY = {"retry-after": "1"}
MIN_BODY_SECONDS = 30.0
MIN_BYTES_PER_SECOND = 65_000
# a string (a missing closing quote ends with the body, so that the search is linear), or the start of another value
VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{,]', re.DOTALL)
BINARY_HEADER = "inference-header-content-length"  # Open Inference Protocol: length of the JSON before binary tensors


@dataclass(frozen=True)
class BodyLimits:
    """The maximum size of a request, and the time in which its whole body must arrive."""

    texts: int = 512
    bytes: int = 2_000_000
    seconds: float = MIN_BODY_SECONDS

    @classmethod
    def of(cls, texts: int, size: int) -> BodyLimits:
        """Return the limits for a number of texts and bytes; large bodies get more time."""
        return cls(texts, size, max(MIN_BODY_SECONDS, size / MIN_BYTES_PER_SECOND))

    @property
    def values(self) -> int:
        """The maximum number of JSON values and commas."""
        return VALUES_PER_TEXT * self.texts + OTHER_VALUES


class BodyReader:
    """Reads request bodies; all of them together take a limited amount of memory."""

    def __init__(self, limits: BodyLimits):
        self.limits = limits
        self.buffered = 0  # bytes of all bodies that are being read or parsed

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytearray]:
        """Yield a body; raise an error if it is too large, too slow, or the client disconnects."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                while await self._read_part(request, body):
                    pass
            yield body
        except TimeoutError as err:
            raise HttpError(408, "slow", "Timed out while reading the request body.") from err
        finally:
            self.buffered -= len(body)

    async def _read_part(self, request: Request, body: bytearray) -> bool:
        """Append the next part of a body; return whether more parts follow."""
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HttpError(499, "gone", "The client disconnected.")
        part = message.get("body", b"")
        if len(body) + len(part) > self.limits.bytes:
            raise HttpError(413, "too_large", f"The request body exceeds the maximum of {self.limits.bytes:,} bytes.")
        if self.buffered + len(part) > MAX_BODIES * self.limits.bytes:
            raise HttpError(503, "overloaded", "Too many request bodies are being read; retry later.", RETRY)
        body += part
        self.buffered += len(part)
        return bool(message.get("more_body", False))


def parse_body(body: bytearray, binary_header: str | None, model: type[RequestBody], limits: BodyLimits) -> Any:
    """Return the validated body; `binary_header` is the length of its JSON part, if binary tensors follow."""
    tail = b""
    if binary_header is not None:
        if not re.fullmatch(r"[0-9]{1,12}", binary_header) or int(binary_header) > len(body):
            raise HttpError(400, "validation", f"Invalid header {BINARY_HEADER}: {binary_header:.60}.")
        body, tail = body[: int(binary_header)], bytes(body[int(binary_header) :])
    value = _parse_json(body, limits)
    try:
        parsed = model.model_validate(value)
    except ValidationError as err:
        message = describe_invalid(err.errors(include_url=False))
        raise HttpError(400, "validation", message) from err
    if binary_header is not None:
        parsed.attach(tail)
    return parsed


def _parse_json(content: bytearray, limits: BodyLimits) -> Any:
    if not content:
        raise HttpError(400, "validation", "The body is empty; send JSON.")
    values = sum(1 for _ in itertools.islice(VALUE.finditer(content), limits.values + 1))
    if values > limits.values:
        text = f"The body contains too many JSON values; the maximum is {limits.texts} texts per request."
        raise HttpError(413, "too_large", text)
    try:
        return from_json(content, cache_strings="keys")
    except ValueError as err:
        raise HttpError(400, "validation", f"The body is not valid JSON: {err}."[:300]) from err
