"""What is known about a request besides its texts: its ids, and a line for the log."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers

__all__ = ["REQUEST_ID_HEADER", "RequestRecord"]

REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = re.compile(r"[!-~]{1,128}")  # printable ASCII without spaces
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")  # W3C trace context


@dataclass
class RequestRecord:
    """A request as it appears in the log; it never contains a text."""

    request_id: str
    trace_id: str | None
    started: float = field(default_factory=time.monotonic)
    rows: int | None = None
    layers: dict[str, int] = field(default_factory=dict)  # number of texts by exit layer
    outside: bool = False

    @classmethod
    def of(cls, headers: Headers) -> RequestRecord:
        """Return the record of a request with these headers; the client's ids are used if they are valid."""
        request_id = headers.get(REQUEST_ID_HEADER, "")
        trace = TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        return cls(
            request_id if REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex, None if trace is None else trace[1]
        )

    def add_result(self, layers: Iterable[int], outside: bool) -> None:
        """Add the predictions' exit layers, and whether they are outside the guarantee."""
        counts = Counter(layers)
        self.rows, self.outside = counts.total(), outside
        self.layers = {str(layer): counts[layer] for layer in sorted(counts)}

    def to_json(self, method: str, route: str, status: int) -> str:
        """Return the line for the log."""
        entry: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": self.request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(1000 * (time.monotonic() - self.started), 2),
        }
        if self.trace_id is not None:
            entry["trace_id"] = self.trace_id
        if self.rows is not None:
            entry |= {"rows": self.rows, "exit_layers": self.layers, "outside_guarantee": self.outside}
        return json.dumps(entry)
