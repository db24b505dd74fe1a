"""The results of an evaluation, as stored in `results.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from offramp.errors import BadInput
from offramp.files.typed_json import TypeMismatch, parse_json_as
from offramp.model.renamed import current_calibration

__all__ = [
    "RESULTS",
    "Chosen",
    "ClassResult",
    "DataFacts",
    "Elue",
    "Evaluation",
    "Example",
    "Exit",
    "Interval",
    "LivePoint",
    "MachineFacts",
    "ModelFacts",
    "Point",
    "WidthReport",
    "finite",
    "read_results",
]

RESULTS = "results.json"
Interval = tuple[float, float]


@dataclass(frozen=True)
class ModelFacts:
    """The model that was evaluated."""

    depth: int
    parameters: int
    name: str = ""
    fingerprint: str = ""
    family: str = ""
    hidden_size: int = 0
    layers: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    problem: str = ""
    faithful: bool = False
    max_length: int = 0
    no_answer: float | None = None
    policy: str = ""


@dataclass(frozen=True)
class DataFacts:
    """The rows that it was evaluated on."""

    name: str
    rows: int
    fingerprint: str
    metrics: list[str]
    texts: int | None = None  # number of examples, if an example may be several rows


@dataclass(frozen=True)
class MachineFacts:
    """The machine that it ran on."""

    backend: str = ""
    dtype: str = ""
    device: str = ""
    threads: int = 0
    cpu: str = ""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Score and cost of one policy setting, as means over rows."""

    policy: str = ""
    parameter: float | None = None
    score: float | None  # the main metric; None without labels
    scores: dict[str, float] = field(default_factory=dict)
    agreement: float  # fraction of predictions equal to the full model's (or the reference's), within the tolerance
    mean_layers: float
    cost: float = 1.0  # fraction of layers run
    saving: float = 0.0  # fraction of layers not run
    speedup: float | None = None  # depth over mean layers, computed; None if no layer ran
    flops: float
    elue_flops: float | None  # as ELUE counts, with padding
    seconds: float | None = None  # if it was timed


@dataclass(frozen=True, kw_only=True)
class LivePoint(Point):
    """A point that was timed; its layer counts cover the timed rows only."""

    measured_speedup: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Chosen(Point):
    """The operating point with confidence intervals."""

    exits: tuple[int, ...] = ()  # number of rows per exit
    interval: Interval | None = None  # of the main metric
    agreement_interval: Interval = (0.0, 1.0)
    difference: float | None = None  # main metric minus the full model's
    difference_interval: Interval | None = None  # paired bootstrap


@dataclass(frozen=True)
class Exit:
    """Scores and costs of one exit if all rows exit there."""

    exit: int
    layer: int
    scores: dict[str, float]
    interval: Interval | None  # of the main metric
    agreement: float
    flops: float


@dataclass(frozen=True)
class ClassResult:
    """The rows that the full model assigns to a class, and how many keep it after early exits."""

    name: str
    rows: int
    kept: int
    interval: Interval  # 95 % interval of the fraction that is kept


@dataclass(frozen=True)
class Example:
    """An example row for the report."""

    text: str | list[str]
    label: str | None
    answer: str
    score: float
    exit_layer: int
    expected: str | None = None  # the full model's prediction, if it differs


@dataclass(frozen=True)
class Elue:
    """How ELUE counts operations."""

    length: int = 128
    track: str = ""


@dataclass(frozen=True)
class WidthReport:
    """The heads and channels that gates kept: per layer, per exit, and as EBERT counts them."""

    target: float | None
    ratio: float  # fraction of the layers' operations, gates included
    heads: list[float]
    channels: list[float]
    exits: list[dict[str, Any]]
    of: dict[str, int]
    original: dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Scores and costs of every exit and policy on one data set."""

    model: ModelFacts
    data: DataFacts
    exits: list[Exit]
    policies: dict[str, list[Point]]
    static: list[Point]
    offramp: str = ""
    machine: MachineFacts = field(default_factory=MachineFacts)
    oracle: list[Point] | None = None
    chosen: Chosen | None = None
    picked_here: bool = False  # the operating point was chosen on the same rows
    reference: str | None = None  # name of the model compared with, if not the full model
    tolerance: float | None = None
    elue: Elue = field(default_factory=Elue)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    classes: list[ClassResult] = field(default_factory=list)  # at the operating point
    calibration: dict[str, Any] | None = None  # the guarantee of the chosen policy, if any
    width: WidthReport | None = None
    questions: dict[str, dict[str, float]] | None = None  # official scores of the task
    live: list[LivePoint] | None = None
    plain_seconds: float | None = None
    plain_name: str | None = None
    live_rows: int | None = None
    date: str = ""
    command: str = ""

    @property
    def lines(self) -> dict[str, list[Point]]:
        """All curves by name: the policies, the fixed exits as `layer`, and the oracle."""
        return {**self.policies, "layer": self.static, "oracle": self.oracle or []}

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`, without timings that were not measured."""
        values: dict[str, Any] = finite(asdict(self))
        timings = ("live", "plain_seconds", "live_rows", "plain_name")
        return {name: value for name, value in values.items() if name not in timings or value is not None}


def finite(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON does not support, and lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def read_results(folder: Path) -> Evaluation:
    """Read and validate the results of a run."""
    file = folder / RESULTS
    if not file.is_file():
        raise BadInput(f"{folder} is not a run of `offramp evaluate`: it has no {RESULTS}.")
    try:
        results = parse_json_as(Evaluation, json.loads(file.read_text("utf-8")))
        results = replace(results, calibration=current_calibration(results.calibration))
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (ValueError, RecursionError, TypeMismatch) as err:
        raise BadInput(f"{file} is not a valid results file ({err}); evaluate again.") from err
    problem = _find_problem(results)
    if problem is not None:
        raise BadInput(f"{file} is not a valid results file ({problem}); evaluate again.")
    return results


def _find_problem(results: Evaluation) -> str | None:
    """Return what is wrong with the results, if anything."""
    for name, number in (("model.depth", results.model.depth), ("model.parameters", results.model.parameters)):
        if number < 1:
            return f"{name} is {number}"
    if results.data.rows < 1:
        return f"data.rows is {results.data.rows}"
    for name, points in {**results.policies, "static": results.static}.items():
        key = name if name == "static" else f"policies.{name}"
        if not points:
            return f"{key} is empty"
        for number, point in enumerate(points):
            if results.data.metrics and point.score is None:
                return f"{key}[{number}].score is missing"
    return None
