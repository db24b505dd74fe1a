"""Arguments that several functions share, and their names: what the command line offers is read from here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

if TYPE_CHECKING:
    from offramp.data.rows import DataOptions

__all__ = ["DataArguments", "MachineArguments", "arguments_of", "check_counts", "data_options"]


class MachineArguments(TypedDict, total=False):
    """What a model runs on, and how much of a text it reads."""

    backend: str
    device: str | None
    dtype: str | None
    threads: int | None
    max_length: int | None


class DataArguments(TypedDict, total=False):
    """Which rows a function is about; what is not given is as the model was trained."""

    task: str | None
    data_dir: str | None
    dataset: str | None
    dataset_config: str | None
    split: str | None
    text_column: str | None
    pair_column: str | None
    label_column: str | None
    metric: str | None
    input_format: str | None
    header: bool


DEFAULTS: dict[str, Any] = {"backend": "torch", "header": True}


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's arguments and their defaults, shared ones included (`inspect.Parameter.empty`: required)."""
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found[parameter.name] = parameter.default
            continue
        for kind in (DataArguments, MachineArguments):
            if kind.__name__ in str(parameter.annotation):
                found |= {name: DEFAULTS.get(name) for name in get_type_hints(kind)}
    return found


def data_options(texts: Any, labels: Sequence[Any] | None, arguments: DataArguments) -> DataOptions:
    """The rows as a whole: where they are, or the rows themselves."""
    from offramp.data.given import check, given
    from offramp.data.rows import DataOptions
    from offramp.errors import BadValue

    if texts is None and labels is not None:
        raise BadValue("`labels=` go with `texts=` in memory.")
    columns = {name: arguments.get(name) for name in ("text_column", "pair_column", "input_format")}
    header = arguments.get("header", True)
    rows = None if texts is None else given(texts, labels, header=header, **columns)  # type: ignore[arg-type]
    if rows is not None:
        check(rows)
    known: dict[str, Any] = {name: value for name, value in arguments.items() if name != "header"}
    file = None if rows is None or rows.in_memory else rows.source.file
    return DataOptions(
        file=file, memory=rows if rows is not None and rows.in_memory else None, no_header=not header, **known
    )


def check_counts(**values: float | None) -> None:
    """Refuse numbers below 1."""
    from offramp.errors import BadValue

    for name, value in values.items():
        if value is not None and value < 1:
            raise BadValue(f"`{name}` is {value:g}; it is at least 1.")
