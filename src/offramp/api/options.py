"""Arguments shared by several API functions; the command line reads their names from here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

if TYPE_CHECKING:
    from offramp.calibration.risks import Guarantee
    from offramp.data.rows import DataOptions

__all__ = [
    "DEFAULTS",
    "CalibrationArguments",
    "DataArguments",
    "GuaranteeArguments",
    "InferenceArguments",
    "arguments_of",
    "check_counts",
    "data_options",
    "make_guarantee",
    "split_arguments",
]


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


class GuaranteeArguments(TypedDict, total=False):
    """Arguments of a guarantee besides its risk and confidence; see `offramp.adapt`."""

    class_risk: float | str
    bands: float | Sequence[float]
    keep: str | Sequence[str]
    flag: str | None
    recall: float | None
    precision: float | None
    on_average: bool
    count: str | None
    group_column: str | None
    groups: Sequence[Any] | None
    ledger: str | None


class CalibrationArguments(DataArguments, GuaranteeArguments, total=False):
    """Arguments that choose the rows, and those of a guarantee."""


DEFAULTS: dict[str, Any] = {"header": True, "class_risk": "auto", "bands": (), "keep": (), "on_average": False}


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's arguments and defaults, shared ones included (`inspect.Parameter.empty` if required)."""
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            defaults[parameter.name] = parameter.default
            continue
        for shared in (DataArguments, InferenceArguments, GuaranteeArguments, CalibrationArguments):
            if f"[{shared.__name__}]" in str(parameter.annotation):
                defaults |= {name: DEFAULTS.get(name) for name in get_type_hints(shared)}
    return defaults


def data_options(
    texts: Any,
    labels: Sequence[Any] | None,
    arguments: DataArguments,
    group_column: str | None = None,
    groups: Sequence[Any] | None = None,
) -> DataOptions:
    """Return where the rows are, or the rows themselves if they are in memory."""
    from offramp.data.input_data import check_exists, is_table, resolve_input
    from offramp.data.rows import DataOptions
    from offramp.errors import BadValue

    if texts is None and labels is not None:
        raise BadValue("`labels=` needs `texts=` in memory.")
    columns = {name: arguments.get(name) for name in ("text_column", "pair_column", "input_format")}
    header = arguments.get("header", True)
    rows = None if texts is None else resolve_input(texts, labels, header=header, **columns)  # type: ignore[arg-type]
    if groups is not None and (rows is None or not rows.in_memory or is_table(texts)):
        raise BadValue("`groups=` needs a list of texts; use `group_column=` for files and tables.")
    if rows is not None:
        check_exists(rows)
        rows = replace(rows, groups=groups)
    options: dict[str, Any] = {name: value for name, value in arguments.items() if name != "header"}
    file = None if rows is None or rows.in_memory else rows.source.file
    return DataOptions(
        file=file,
        memory=rows if rows is not None and rows.in_memory else None,
        no_header=not header,
        group_column=group_column,
        **options,
    )


def split_arguments(arguments: CalibrationArguments) -> tuple[DataArguments, GuaranteeArguments]:
    """Return the arguments that choose the rows, and those of a guarantee."""
    names = GuaranteeArguments.__annotations__.keys()
    data = {name: value for name, value in arguments.items() if name not in names}
    guarantee = {name: value for name, value in arguments.items() if name in names}
    return data, guarantee  # type: ignore[return-value]


def make_guarantee(
    risk: float,
    confidence: float,
    tolerance: float | None,
    arguments: GuaranteeArguments,
    risk_type: str = "disagreement",
    test: str = "auto",
) -> Guarantee:
    """Return the guarantee that the arguments describe."""
    from offramp.calibration.risks import DEFAULT_CLASS_RISK, Guarantee
    from offramp.errors import BadValue

    values: list[Any] = [arguments.get(name, DEFAULTS[name]) for name in ("keep", "bands", "class_risk")]
    keep, bands, class_risk = values
    if isinstance(class_risk, str) and class_risk not in ("auto", "none"):
        raise BadValue(f"`class_risk` must be a number, 'auto' or 'none', got {class_risk!r:.60}.")
    if isinstance(class_risk, str):
        class_risk = None if class_risk == "none" else max(DEFAULT_CLASS_RISK, risk)
    return Guarantee(
        risk_type,
        risk,
        confidence,
        test,
        tolerance,
        class_risk=class_risk,
        bands=tuple(float(value) for value in bands) if isinstance(bands, Sequence) else (float(bands),),
        keep=(keep,) if isinstance(keep, str) else tuple(keep),
        flag=arguments.get("flag"),
        recall=arguments.get("recall"),
        precision=arguments.get("precision"),
        average=bool(arguments.get("on_average", False)),
        count=arguments.get("count") or "rows",
    )


def check_counts(**values: float | None) -> None:
    """Raise if a number is below 1, or `threads` is too large."""
    from offramp.core.machine import check_threads
    from offramp.errors import BadValue

    check_threads(values.pop("threads", None))  # type: ignore[arg-type]
    for name, value in values.items():
        if value is not None and value < 1:
            raise BadValue(f"`{name}` must be at least 1, got {value:g}.")
