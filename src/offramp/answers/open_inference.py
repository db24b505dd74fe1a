"""Server routes of the Open Inference Protocol (KServe, Triton), with tensors in JSON or binary.

A binary tensor of texts is a sequence of elements, each with its length in bytes (4 bytes, little-endian) before it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PrivateAttr, StrictBool, StrictInt, StrictStr

from offramp.answers.answer import Endpoint
from offramp.answers.request import BinaryReply, NonEmpty, Parameters, RequestBody
from offramp.data.reading import Text
from offramp.errors import BadInput

__all__ = ["OPEN_INFERENCE_ROUTES"]

Size = Annotated[StrictInt, Field(ge=0, le=10_000_000)]
NUMPY_TYPES = {"FP32": "<f4", "INT64": "<i8"}


class TensorParameters(RequestBody):
    """Parameters of a tensor (binary tensor data extension)."""

    binary_data_size: Size | None = None  # of an input
    binary_data: StrictBool | None = None  # of a requested output


class InferInput(RequestBody):
    """An input tensor; its elements are in `data`, or follow the JSON part of the body."""

    name: StrictStr
    shape: Annotated[list[Size], Field(max_length=8, fail_fast=True)]
    datatype: Literal["BYTES"]
    data: list[Any] | None = None
    parameters: TensorParameters | None = None


class InferOutput(RequestBody):
    """An output tensor that the client requests."""

    name: StrictStr
    parameters: TensorParameters | None = None


class InferParameters(Parameters):
    """Options of a request."""

    binary_data_output: StrictBool = False


class InferRequest(RequestBody):
    """`POST /v2/models/{model}/infer`: one input of texts as BYTES, or two for pairs."""

    id: StrictStr | None = None
    inputs: Annotated[NonEmpty[InferInput], Field(max_length=2)]
    outputs: Annotated[list[InferOutput], Field(max_length=64, fail_fast=True)] | None = None
    parameters: InferParameters | None = None
    _tail: bytes = PrivateAttr(b"")

    def attach(self, tail: bytes) -> None:
        """Take the binary tensors that follow the JSON part of the body."""
        self._tail = tail

    @property
    def tail(self) -> bytes:
        """The binary tensors."""
        return self._tail


# -- requests ------------------------------------------------------------------------------------------


def _texts(body: InferRequest) -> list[Text]:
    """Return one text per element, or pairs from two inputs."""
    columns, position = [], 0
    for tensor in body.inputs:
        size = None if tensor.parameters is None else tensor.parameters.binary_data_size
        if size is None:
            texts = _json_texts(tensor)
        else:
            texts = _binary_texts(tensor.name, body.tail[position : position + size], size)
            position += size
        if math.prod(tensor.shape) != len(texts):
            raise BadInput(f"The input {tensor.name!r:.60} has {len(texts)} texts, but its shape is {tensor.shape}.")
        columns.append(texts)
    if position != len(body.tail):
        raise BadInput(f"The body has {len(body.tail)} bytes of binary tensors, but the inputs name {position}.")
    if len(columns) == 1:
        return list(columns[0])
    if len(columns[0]) != len(columns[1]):
        raise BadInput(f"Pairs need as many first texts as second texts, got {len(columns[0])} and {len(columns[1])}.")
    return list(zip(*columns, strict=True))


def _json_texts(tensor: InferInput) -> list[str]:
    if tensor.data is None:
        raise BadInput(f"The input {tensor.name!r:.60} has neither `data` nor `parameters.binary_data_size`.")
    flat = [item for row in tensor.data for item in (row if isinstance(row, list) else [row])]
    if not all(isinstance(item, str) for item in flat):
        raise BadInput(f"The input {tensor.name!r:.60} contains elements that are not strings.")
    return flat


def _binary_texts(name: str, content: bytes, size: int) -> list[str]:
    if len(content) != size:
        raise BadInput(f"The input {name!r:.60} should have {size} bytes, but only {len(content)} arrived.")
    texts: list[str] = []
    position = 0
    while position < size:
        start = position + 4
        position = start + int.from_bytes(content[position:start], "little")
        if position > size:
            raise BadInput(f"The input {name!r:.60} ends in the middle of element {len(texts)}.")
        try:
            texts.append(content[start:position].decode("utf-8"))
        except UnicodeDecodeError as err:
            raise BadInput(f"Element {len(texts)} of the input {name!r:.60} is not UTF-8 text.") from err
    return texts


def _parameters(body: InferRequest) -> dict[str, Any]:
    """Return the parameters of a request; by default, long texts are truncated."""
    return {"truncate": True} | (body.parameters or InferParameters()).options()


# -- responses -----------------------------------------------------------------------------------------


def _reply(answers: Any, body: InferRequest, request_info: Mapping[str, Any]) -> Any:
    rows = [max(answer.scores.items(), key=lambda entry: entry[1]) for answer in answers]
    tensors = {
        "label": ("BYTES", [label for label, _ in rows]),
        "score": ("FP32", [score for _, score in rows]),
        "exit_layer": ("INT64", answers.layer.tolist()),
    }
    all_binary = body.parameters is not None and body.parameters.binary_data_output
    outputs, tail = [], b""
    for requested in body.outputs or [InferOutput(name=name) for name in tensors]:
        if requested.name not in tensors:
            raise BadInput(f"Unknown output {requested.name!r:.60}. Available: {', '.join(tensors)}.")
        datatype, values = tensors[requested.name]
        output: dict[str, Any] = {"name": requested.name, "datatype": datatype, "shape": [len(values)]}
        binary = None if requested.parameters is None else requested.parameters.binary_data
        if all_binary if binary is None else binary:
            content = _to_binary(datatype, values)
            outputs.append(output | {"parameters": {"binary_data_size": len(content)}})
            tail += content
        else:
            outputs.append(output | {"data": values})
    reply = {"model_name": request_info["model"], "model_version": "1", "outputs": outputs}
    reply |= {"id": body.id} if body.id else {}
    return BinaryReply(reply, tail) if tail else reply


def _to_binary(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype != "BYTES":
        return np.asarray(values, dtype=NUMPY_TYPES[datatype]).tobytes()
    elements = [value.encode("utf-8") for value in values]
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


INFER = Endpoint(
    "/v2/models/{model}/infer",
    "Predict (Open Inference Protocol)",
    InferRequest,
    dict[str, Any],
    _texts,
    _parameters,
    _reply,
)
OPEN_INFERENCE_ROUTES = (INFER, replace(INFER, path="/v2/models/{model}/versions/{version}/infer"))
