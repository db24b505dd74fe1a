"""What an evaluation found, typed; `results.json` holds just this."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from offramp.errors import BadInput
from offramp.files.typed import Mistyped, typed
from offramp.model.renamed import current_calibration

__all__ = [
    "RESULTS",
    "Chosen",
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
    texts: int | None = None  # examples, where these may be several rows


@dataclass(frozen=True)
class MachineFacts:
    """What it ran on."""

    backend: str = ""
    dtype: str = ""
    device: str = ""
    threads: int = 0
    cpu: str = ""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting of one policy: what it is worth and what it costs, as a mean over rows."""

    policy: str = ""
    parameter: float | None = None
    score: float | None  # the main metric; None without labels
    scores: dict[str, float] = field(default_factory=dict)
    agreement: float  # share of answers like the full model's (the reference's); with a tolerance: within it
    mean_layers: float
    cost: float = 1.0  # share of layers run
    saving: float = 0.0  # share of layers not run
    speedup: float | None = None  # depth over mean layers: computed, not measured; None: no layer ran
    flops: float
    elue_flops: float | None  # as ELUE counts, padded
    seconds: float | None = None  # only where it was run live


@dataclass(frozen=True, kw_only=True)
class LivePoint(Point):
    """A point that was run live; layers are of the rows that ran."""

    measured_speedup: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Chosen(Point):
    """The operating point with its uncertainty."""

    exits: tuple[int, ...] = ()  # how many rows exit at each exit
    interval: Interval | None = None  # of its main metric
    agreement_interval: Interval = (0.0, 1.0)
    difference: float | None = None  # its main metric less the full model's
    difference_interval: Interval | None = None  # paired: the same rows for both


@dataclass(frozen=True)
class Exit:
    """One exit alone."""

    exit: int
    layer: int
    scores: dict[str, float]
    interval: Interval | None  # of the main metric
    agreement: float
    flops: float


@dataclass(frozen=True)
class Example:
    """A row to look at."""

    text: str | list[str]
    label: str | None
    answer: str
    score: float
    exit_layer: int
    expected: str | None = None  # the full model's answer, where that is another one


@dataclass(frozen=True)
class Elue:
    """How ELUE counts."""

    length: int = 128
    track: str = ""


@dataclass(frozen=True)
class WidthReport:
    """What gates kept of the full width: per layer, per exit, and as EBERT counts it."""

    target: float | None
    ratio: float  # of the layers' operations, gates counted
    heads: list[float]
    channels: list[float]
    exits: list[dict[str, Any]]
    of: dict[str, int]
    original: dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """What every exit is worth and what every policy costs, on one data set."""

    model: ModelFacts
    data: DataFacts
    exits: list[Exit]
    policies: dict[str, list[Point]]
    static: list[Point]
    offramp: str = ""
    machine: MachineFacts = field(default_factory=MachineFacts)
    oracle: list[Point] | None = None
    chosen: Chosen | None = None
    picked_here: bool = False  # the operating point was chosen on these very rows
    reference: str | None = None  # whose answers these are compared with, where not the full model's
    tolerance: float | None = None
    elue: Elue = field(default_factory=Elue)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None  # the guarantee of the chosen point, where it has one
    width: WidthReport | None = None
    questions: dict[str, dict[str, float]] | None = None  # a benchmark's own scores
    live: list[LivePoint] | None = None
    plain_seconds: float | None = None
    plain_name: str | None = None
    live_rows: int | None = None
    date: str = ""
    command: str = ""

    @property
    def lines(self) -> dict[str, list[Point]]:
        """Every curve by name: the policies', the exits alone as `layer`, the oracle's."""
        return {**self.policies, "layer": self.static, "oracle": self.oracle or []}

    def to_dict(self) -> dict[str, Any]:
        """As `results.json` holds it; what was not measured is not in it."""
        made: dict[str, Any] = finite(asdict(self))
        live = ("live", "plain_seconds", "live_rows", "plain_name")
        return {name: value for name, value in made.items() if name not in live or value is not None}


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON has not, and lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def read_results(folder: Path) -> Evaluation:
    """A run's results, every number as it has to be."""
    file = folder / RESULTS
    if not file.is_file():
        raise BadInput(f"{folder} is not a run of `offramp evaluate`: it has no {RESULTS}.")
    try:
        found = typed(Evaluation, json.loads(file.read_text("utf-8")))
        found = replace(found, calibration=current_calibration(found.calibration))
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (ValueError, RecursionError, Mistyped) as err:
        raise BadInput(f"{file} cannot be read as results ({err}); evaluate again.") from err
    fault = _fault(found)
    if fault is not None:
        raise BadInput(f"{file} cannot be read as results ({fault}); evaluate again.")
    return found


def _fault(found: Evaluation) -> str | None:
    """What no curve can be made of."""
    for name, number in (("model.depth", found.model.depth), ("model.parameters", found.model.parameters)):
        if number < 1:
            return f"{name} is {number}"
    if found.data.rows < 1:
        return f"data.rows is {found.data.rows}"
    for name, points in {**found.policies, "static": found.static}.items():
        place = name if name == "static" else f"policies.{name}"
        if not points:
            return f"{place} is []"
        for number, point in enumerate(points):
            if found.data.metrics and point.score is None:
                return f"{place}[{number}].score is None"
    return None
