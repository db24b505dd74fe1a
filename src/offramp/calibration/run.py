"""`calibrate(model, promise)`: rows that training never saw, a test, and the policy in the model's config."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp import card
from offramp.calibration.choice import SEED, Wishes, fastest, promised, shuffled, too_few
from offramp.calibration.risks import Promise
from offramp.calibration.rows import rows_to_calibrate
from offramp.calibration.search import check_per_exit
from offramp.calibration.temperature import check_temperatures, fit_temperatures
from offramp.errors import BadValue
from offramp.evaluate import obtain_trace
from offramp.grids import Shape, fitting, grid
from offramp.judge import shape_of_model
from offramp.model import AdaptiveModel
from offramp.policies import Policy
from offramp.questions import Given
from offramp.trace import Trace
from offramp.writing import staged_file

__all__ = ["FILE", "Outcome", "Wishes", "calibrate"]

FILE = "calibration.json"


@dataclass(frozen=True)
class Outcome:
    """What was found; without a policy nothing was written."""

    policy: Policy | None
    sentence: str
    evidence: dict[str, Any]


def calibrate(
    name: str, given: Given, promise: Promise, wishes: Wishes | None = None, *, trace_file: Path | None = None
) -> Outcome:
    """Find the cheapest setting that keeps the promise and write it into the model's folder."""
    wishes = wishes or Wishes()
    folder = Path(name)
    if not folder.is_dir():
        raise BadValue(f"{name} is no folder: calibrate writes into one. Download or copy the model first.")
    model: AdaptiveModel = AdaptiveModel.from_pretrained(name)
    questions, origin = rows_to_calibrate(folder, model, given)
    shape = shape_of_model(model)
    names = wishes.policies or (_usual(model, shape),)
    for one in names:
        grid(one, shape)  # says what is wrong with it
        if wishes.per_exit:
            check_per_exit(one, shape)
    if wishes.speedup is not None and wishes.per_exit:
        raise BadValue("A speed is sought among one threshold for all exits; leave --per-exit out.")
    promise.check(shape.problem, questions.labels is not None)
    wishes = replace(wishes, policies=tuple(names))
    if wishes.temperature:
        check_temperatures(shape.problem, questions.labels is not None, model.config.faithful)
    if wishes.speedup is None:
        sentence = too_few(wishes.left_to_test(len(questions.rows)), promise, shape.problem)
        if sentence is not None:
            return Outcome(None, sentence, {"promise": asdict(promise), "policy": None, "sentence": sentence})
    with tempfile.TemporaryDirectory() as place:
        trace = obtain_trace(model, questions, trace_file or Path(place) / "trace.safetensors")
        return _calibrate(folder, model, trace, promise, wishes, origin)


def _calibrate(
    folder: Path, model: AdaptiveModel, trace: Trace, promise: Promise, wishes: Wishes, origin: str
) -> Outcome:
    temperatures = None
    if wishes.temperature:
        order = shuffled(trace)
        cut = len(order) // 4
        temperatures = fit_temperatures(trace.take(np.sort(order[:cut])))
        trace = trace.take(np.sort(order[cut:])).scaled(temperatures)
    if wishes.speedup is not None:
        policy, told = fastest(trace, wishes.policies, wishes.speedup, promise.tolerance)
    else:
        policy, told = promised(trace, promise, wishes, origin)
    evidence = told | {
        "policy": None if policy is None else str(policy),
        "rows": len(trace),
        "seed": SEED,
        "temperatures": None if temperatures is None else temperatures.tolist(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{key: trace.about[key] for key in ("offramp", "model", "data", "machine")},
    }
    if policy is not None:
        write(folder, model, policy, evidence, temperatures)
    return Outcome(policy, evidence["sentence"], evidence)


def _usual(model: AdaptiveModel, shape: Shape) -> str:
    own = model.config.exit_policy
    fits = fitting(shape)
    if own.name in fits:
        return own.name
    return "learned" if "learned" in fits and "entropy" not in fits else fits[0]


def write(
    folder: Path,
    model: AdaptiveModel,
    policy: Policy,
    evidence: dict[str, Any],
    temperatures: NDArray[np.float64] | None,
) -> None:
    """The evidence, the card, and last the config, each replaced as a whole."""
    config = model.config
    config.policy = policy.to_dict()
    machine = evidence["machine"]
    config.calibrated = {
        "promise": evidence["promise"],
        "sentence": evidence["sentence"],
        "backend": machine["backend"],
        "dtype": machine["dtype"],
    }
    if temperatures is not None:
        specs = [
            replace(spec, temperature=float(f"{spec.temperature * warmer:.6g}"))
            for spec, warmer in zip(config.exit_specs, temperatures, strict=True)
        ]
        config.exits = [asdict(spec) for spec in specs]
    with staged_file(folder / FILE, overwrite=True) as file:
        file.write(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n")
    card.write(config, folder)
    with staged_file(folder / "config.json", overwrite=True) as file:
        file.write(config.to_json_string())
