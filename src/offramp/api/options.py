"""Arguments shared by several API functions; the command line reads their names from here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

if TYPE_CHECKING:
    from offramp.data.rows import DataOptions

__all__ = ["DataArguments", "InferenceArguments", "arguments_of", "check_counts", "data_options"]


class InferenceArguments(TypedDict, total=False):
    """Arguments for running a model."""

    backend: str | None
    device: str | None
    dtype: str | None
    threads: int | None
    max_length: int | None


class DataArguments(TypedDict, total=False):
    """Arguments that choose the rows; those that are not set are those of the training run."""

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


DEFAULTS: dict[str, Any] = {"header": True}


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's arguments and defaults, shared ones included (`inspect.Parameter.empty` if required)."""
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            defaults[parameter.name] = parameter.default
            continue
        for shared in (DataArguments, InferenceArguments):
            if shared.__name__ in str(parameter.annotation):
                defaults |= {name: DEFAULTS.get(name) for name in get_type_hints(shared)}
    return defaults


def data_options(texts: Any, labels: Sequence[Any] | None, arguments: DataArguments) -> DataOptions:
    """Return where the rows are, or the rows themselves if they are in memory."""
    from offramp.data.input_data import check_exists, resolve_input
    from offramp.data.rows import DataOptions
    from offramp.errors import BadValue

    if texts is None and labels is not None:
        raise BadValue("`labels=` needs `texts=` in memory.")
    columns = {name: arguments.get(name) for name in ("text_column", "pair_column", "input_format")}
    header = arguments.get("header", True)
    rows = None if texts is None else resolve_input(texts, labels, header=header, **columns)  # type: ignore[arg-type]
    if rows is not None:
        check_exists(rows)
    options: dict[str, Any] = {name: value for name, value in arguments.items() if name != "header"}
    file = None if rows is None or rows.in_memory else rows.source.file
    return DataOptions(
        file=file, memory=rows if rows is not None and rows.in_memory else None, no_header=not header, **options
    )


def check_counts(**values: float | None) -> None:
    """Raise if a number is below 1, or `threads` is too large."""
    from offramp.core.machine import check_threads
    from offramp.errors import BadValue

    check_threads(values.pop("threads", None))  # type: ignore[arg-type]
    for name, value in values.items():
        if value is not None and value < 1:
            raise BadValue(f"`{name}` must be at least 1, got {value:g}.")
