"""`calibrate(runner, guarantee)`: rows that training never saw, a test, and the policy in the model's config."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.choice import (
    SEED,
    CalibrationOptions,
    choose_with_guarantee,
    fastest,
    policies_for,
    shuffled,
    too_few,
)
from offramp.calibration.risk_model import fit_risk_model, with_placeholder_risk_model
from offramp.calibration.risks import Guarantee, Risk
from offramp.calibration.rows import rows_to_calibrate
from offramp.calibration.search import check_per_exit
from offramp.calibration.temperature import check_temperatures, fit_temperatures
from offramp.core.runner import Runner
from offramp.data.rows import DataOptions, TaskRows
from offramp.errors import BadInput, BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.traces.trace import Trace
from offramp.exports.folder import keep_policy, read_export
from offramp.exports.texts import unseen
from offramp.files.writing import write_together
from offramp.model import card
from offramp.model import guarantee as guarantees
from offramp.model.config import AdaptiveConfig
from offramp.policies import Policy
from offramp.policies.grids import fitting, grid
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import called

__all__ = ["CalibrationOptions", "CalibrationResult", "bound", "calibrate", "check_folder", "whole_evidence"]


FEWEST = 20  # rows that a risk_model can be fitted on
GATED = "The full model is this one at its full depth, its gates at work."


DYNAMIC = "With a scale per batch, as here, a row's answer depends on its batch: this is about batches like these."


@dataclass(frozen=True)
class CalibrationResult:
    """What was found; without a policy nothing was written."""

    policy: Policy | None
    sentence: str
    evidence: dict[str, Any] = field(repr=False)

    def __bool__(self) -> bool:
        return self.policy is not None

    @property
    def guarantee(self) -> str | None:
        """What holds; None without a policy, and where speed was asked for instead."""
        return self.sentence if self.policy is not None and self.evidence.get("guarantee") else None

    def __str__(self) -> str:
        return self.sentence


def calibrate(
    runner: Runner,
    given: DataOptions,
    guarantee: Guarantee,
    options: CalibrationOptions | None = None,
    *,
    trace_file: Path | None = None,
    reference: str | None = None,
    announce: Callable[[str], None] | None = None,
) -> CalibrationResult:
    """Find the cheapest setting that keeps the guarantee and write it into the model's folder.

    `reference` is a model or a file whose answers are to be kept, in place of the full model's. `announce` is told the
    sentence before anything is written; if it raises, the model stays as it was.
    """
    folder = check_folder(runner.name)
    data, origin = rows_to_calibrate(folder, runner.config, given)
    if RUNTIMES[runner.backend].runs_graphs:
        data = unseen(data, read_export(folder, runner.backend).seen)
    options = _checked(runner, guarantee, options or CalibrationOptions(), data)
    if options.speedup is None:
        sentence = too_few(options.left_to_test(len(data.rows)), guarantee, runner.config.answer_type)
        if sentence is not None:
            return CalibrationResult(
                None, sentence, {"guarantee": asdict(guarantee), "policy": None, "sentence": sentence}
            )
    with tempfile.TemporaryDirectory() as place:
        trace = obtain_trace(runner, data, trace_file or Path(place) / "trace.safetensors", reference)
        guarantee = replace(guarantee, reference=None if reference is None else called(reference))
        return _calibrate(folder, runner, trace, guarantee, options, origin, announce or (lambda sentence: None))


def check_folder(name: str) -> Path:
    """The folder that a model lies in; a name on the Hub has none to write into."""
    folder = Path(name)
    if not folder.is_dir():
        raise BadValue(f"{name} is no folder: calibrate writes into one. Download or copy the model first.")
    return folder


def _checked(runner: Runner, guarantee: Guarantee, options: CalibrationOptions, data: TaskRows) -> CalibrationOptions:
    """The options with their policies named; whatever is wrong with them is said before the model runs."""
    config = runner.config
    model_spec, labelled = config.model_spec, data.labels is not None
    asked = options.policies or (_usual(config),)
    names = tuple(dict.fromkeys(name for one in asked for name in policies_for(one, model_spec)))
    for name in names:
        grid(name, with_placeholder_risk_model(model_spec))  # says what is wrong with it
        if options.per_exit:
            check_per_exit(name, model_spec)
    if options.speedup is not None and options.per_exit:
        raise BadValue("A speed is sought among one threshold for all exits; leave `per_exit=` out.")
    guarantee.check(model_spec.answer_type, labelled)
    if options.temperature and RUNTIMES[runner.backend].runs_graphs:
        raise BadValue("Temperatures are part of an export; fit them with torch, then export again.")
    if options.temperature:
        check_temperatures(model_spec.answer_type, labelled, config.faithful)
    return replace(options, policies=names)


def _calibrate(
    folder: Path,
    runner: Runner,
    trace: Trace,
    guarantee: Guarantee,
    options: CalibrationOptions,
    origin: str,
    announce: Callable[[str], None],
) -> CalibrationResult:
    temperatures = None
    if options.temperature:
        order = shuffled(trace)
        cut = len(order) // 4
        temperatures = fit_temperatures(trace.take(np.sort(order[:cut])))
        trace = trace.take(np.sort(order[cut:])).scaled(temperatures)
    if options.needs_risk_model:
        order = shuffled(trace)
        cut = len(order) // 4
        if cut < FEWEST:
            raise BadInput(
                f"A risk_model is fitted on a quarter of the rows, and {len(order)} are too few; give {4 * FEWEST}."
            )
        risk_model = fit_risk_model(Risk(guarantee, trace.take(np.sort(order[:cut]))))
        trace = replace(trace.take(np.sort(order[cut:])), risk_model=risk_model)
    if options.speedup is not None:
        policy, choice = fastest(trace, options.policies, options.speedup, guarantee.tolerance, guarantee.reference)
    else:
        policy, choice = choose_with_guarantee(trace, guarantee, options, origin)
    if runner.dtype == "int8-dynamic":
        choice = choice | {"sentence": f"{choice['sentence']} {DYNAMIC}"}
    if trace.kept is not None:
        choice = choice | {"sentence": f"{choice['sentence']} {GATED}"}
    evidence = whole_evidence(choice, policy, trace)
    evidence["temperatures"] = None if temperatures is None else temperatures.tolist()
    if policy is not None:
        announce(evidence["sentence"])
        write(folder, runner, policy, evidence, temperatures)
    return CalibrationResult(policy, evidence["sentence"], evidence)


def whole_evidence(
    choice: dict[str, Any], policy: Policy | None, trace: Trace, called: str | None = None
) -> dict[str, Any]:
    """What a choice rests on, and what it is about; `called` is the model's folder, where that is still being made."""
    model = trace.about["model"] | ({} if called is None else {"name": called})
    return choice | {
        "policy": None if policy is None else str(policy),
        "rows": len(trace),
        "seed": SEED,
        "temperatures": None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{key: trace.about[key] for key in ("offramp", "data", "machine")},
        "model": model,
    }


def _usual(config: AdaptiveConfig) -> str:
    """The model's own policy where it has a number to choose, else the first that fits."""
    fits = fitting(config.model_spec)
    return config.exit_policy.name if config.exit_policy.name in fits else fits[0]


def write(
    folder: Path,
    runner: Runner,
    policy: Policy,
    evidence: dict[str, Any],
    temperatures: NDArray[np.float64] | None,
) -> None:
    """The evidence, the config, and last the card, all or none; the runner in hand stays as it was."""
    config, written = bound(runner, policy, evidence, temperatures)
    if RUNTIMES[runner.backend].runs_graphs:
        keep_policy(folder, runner.backend, config, written, card.EVIDENCE)
        return
    write_together(
        card.new_card(config, folder)
        | {folder / "config.json": config.to_json_string(), folder / card.EVIDENCE: written}
    )


def bound(
    runner: Runner, policy: Policy, evidence: dict[str, Any], temperatures: NDArray[np.float64] | None = None
) -> tuple[AdaptiveConfig, str]:
    """A config with the policy and what was choose_with_guarantee of it, and the evidence as it is written."""
    config = copy.deepcopy(runner.config)
    if temperatures is not None:
        specs = [
            replace(spec, temperature=float(f"{spec.temperature * warmer:.6g}"))
            for spec, warmer in zip(config.exit_specs, temperatures, strict=True)
        ]
        config.exits = [spec.to_dict() for spec in specs]
    config.max_tokens = runner.limit
    tested = replace(runner, config=config, max_length=None)  # with temperatures and length as they are now
    evidence["model"] = evidence["model"] | {"fingerprint": tested.fingerprint}
    guarantees.bind(config, policy, evidence, tested.fingerprint)
    return config, json.dumps(evidence, indent=1, ensure_ascii=False) + "\n"
