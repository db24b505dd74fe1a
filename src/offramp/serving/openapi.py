"""The OpenAPI description of the prediction routes, whose bodies FastAPI does not parse, and its page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from pydantic import TypeAdapter

from offramp.answers.answer import Endpoint
from offramp.serving.errors import ErrorBody

__all__ = ["ERROR_STATUSES", "add_docs"]

ERROR_STATUSES = (400, 401, 403, 404, 408, 413, 415, 421, 422, 424, 429, 503)
REFERENCE = "#/components/schemas/{model}"


def add_docs(app: FastAPI, endpoints: Sequence[Endpoint], model: str) -> None:
    """Add `/openapi.json` and `/docs`, a page that loads nothing from other servers."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(files("offramp.serving").joinpath("docs.html").read_text("utf-8"))

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = describe(app, endpoints, {"model": model, "version": "1"})
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def describe(app: FastAPI, endpoints: Sequence[Endpoint], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the OpenAPI description of the application; `names` are the values of path parameters."""
    description = get_openapi(title=app.title, version=app.version, routes=app.routes, summary=app.summary)
    types = [(endpoint.path, "requestBody", endpoint.request, "validation") for endpoint in endpoints]
    types += [(endpoint.path, "200", endpoint.response, "serialization") for endpoint in endpoints]
    inputs: Any = [((path, key), mode, TypeAdapter(type_)) for path, key, type_, mode in types]
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=REFERENCE)
    shared = description.setdefault("components", {}).setdefault("schemas", {})
    shared |= definitions.get("$defs", {}) | {"ErrorBody": ErrorBody.model_json_schema()}
    for (path, key), mode, _ in inputs:
        operation = description["paths"][path]["post"]
        operation["parameters"] = [_path_parameter(name, names[name]) for name in re.findall(r"{(\w+)}", path)]
        content = {"content": {"application/json": {"schema": schemas[(path, key), mode]}}}
        if key == "requestBody":
            operation["requestBody"] = {"required": True} | content
        else:
            operation["responses"][key] = {"description": "predictions"} | content
    return description


def _path_parameter(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "enum": [value]}}
