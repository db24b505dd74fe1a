"""`calibrate(runner, …)`: choose a policy on held-out rows and write it into the model's config."""

from __future__ import annotations

import copy
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.choice import CalibrationOptions, choose, explain_too_few_rows, policies_for
from offramp.calibration.ledger import TestRecord, append_tests
from offramp.calibration.placeholders import with_placeholders
from offramp.calibration.risks import SEED, Guarantee
from offramp.calibration.rows import CalibrationRows, RowOptions, rows_to_calibrate
from offramp.calibration.search import check_per_exit
from offramp.calibration.temperature import check_temperatures
from offramp.calibration.withdrawal import WITHDRAWN, is_refuted, withdraw_guarantee
from offramp.core.runner import Runner
from offramp.data.rows import DataOptions, TaskRows
from offramp.errors import BadValue
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.traces.trace import Trace
from offramp.exports.folder import read_export, save_policy
from offramp.exports.texts import unseen_rows
from offramp.files.writing import replace_files
from offramp.model import card
from offramp.model import guarantee as guarantees
from offramp.model.config import AdaptiveConfig
from offramp.policies import Policy
from offramp.policies.grids import applicable_policies, grid
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.teacher import short_name

__all__ = [
    "CalibrationOptions",
    "CalibrationResult",
    "RowOptions",
    "bind_policy",
    "build_evidence",
    "calibrate",
    "check_folder",
    "notes_on",
    "warn_about_constant",
]

logger = logging.getLogger("offramp")

GATED = "The full model is this model at full depth, with its gates active."
DYNAMIC = "With dynamic int8, a prediction depends on the other rows of its batch: this holds for similar batches."


@dataclass(frozen=True)
class CalibrationResult:
    """The result of a calibration; if there is no policy, the model's policy is unchanged."""

    policy: Policy | None
    sentence: str
    evidence: dict[str, Any] = field(repr=False)
    withdrawn: bool = False  # the model had a guarantee that the test refutes, and has lost it

    def __bool__(self) -> bool:
        return self.policy is not None

    @property
    def guarantee(self) -> str | None:
        """The guarantee as a sentence; None without a policy, or with `speedup=`."""
        return self.sentence if self.policy is not None and self.evidence.get("guarantee") else None

    def __str__(self) -> str:
        return self.sentence


def calibrate(
    runner: Runner,
    data_options: DataOptions,
    guarantee: Guarantee,
    options: CalibrationOptions | None = None,
    *,
    rows: RowOptions | None = None,
    trace_file: Path | None = None,
    reference: str | None = None,
    announce: Callable[[str], None] | None = None,
) -> CalibrationResult:
    """Find the cheapest setting that passes the test of the guarantee and write it into the model's folder.

    Args:
        runner: the loaded model.
        data_options: the rows to calibrate on.
        guarantee: what is tested.
        options: the policies to try, and other options.
        rows: how rows are counted, and where tests are recorded.
        trace_file: a trace to read, or where to record one.
        reference: a model or a file whose predictions count instead of the full model's.
        announce: called with the sentence before anything is written; if it raises, the model stays unchanged.
    """
    folder, config = check_folder(runner.name), runner.config
    rows = rows or RowOptions()
    data = rows_to_calibrate(folder, config, runner.tokenizer, data_options, rows)
    if RUNTIMES[runner.backend].runs_graphs:
        data = data.take(unseen_rows(data.data, read_export(folder, runner.backend).seen))
    guarantee = data.apply_to(guarantee).for_model(config.answer_type, config.labels, config.answer_options)
    options = _check_options(runner, guarantee, options or CalibrationOptions(), data.data)
    if options.speedup is None:
        units = len(data.data.rows) if data.clusters is None else int(data.clusters.max(initial=-1)) + 1
        sentence = explain_too_few_rows(options.num_test_rows(units), guarantee, config.answer_type)
        if sentence is not None:
            return CalibrationResult(
                None, sentence, {"guarantee": asdict(guarantee), "policy": None, "sentence": sentence}
            )
    with tempfile.TemporaryDirectory() as temporary:
        trace = obtain_trace(runner, data.data, trace_file or Path(temporary) / "trace.safetensors", reference)
        trace = replace(trace, clusters=data.clusters)
        guarantee = replace(guarantee, reference=None if reference is None else short_name(reference))
        result = _calibrate(folder, runner, trace, guarantee, options, data, announce or (lambda sentence: None))
    if result.evidence.get("tested"):
        append_tests(rows.ledger_file(folder), [TestRecord.of(guarantee, result.policy is not None, data.keys)])
    return result


def check_folder(name: str) -> Path:
    """Return the model folder; raise for a name on the Hub, which cannot be written to."""
    folder = Path(name)
    if not folder.is_dir():
        raise BadValue(
            f"{name} is not a folder. Calibration writes into a local model folder; download Hub models first."
        )
    return folder


def _check_options(
    runner: Runner, guarantee: Guarantee, options: CalibrationOptions, data: TaskRows
) -> CalibrationOptions:
    """Return the options with their policies named; raise for invalid ones before the model runs."""
    config = runner.config
    model_spec, labelled = config.model_spec, data.labels is not None
    requested = options.policies or (_default_policy(config),)
    names = tuple(dict.fromkeys(name for policy in requested for name in policies_for(policy, model_spec)))
    for name in names:
        grid(name, with_placeholders(model_spec))  # raises if the policy does not fit the model
        if options.per_exit:
            check_per_exit(name, model_spec)
    if options.speedup is not None and options.per_exit:
        raise BadValue("`speedup=` cannot be combined with `per_exit=`; remove one of them.")
    guarantee.check(model_spec.answer_type, labelled, config.labels)
    if options.temperature and RUNTIMES[runner.backend].runs_graphs:
        raise BadValue(
            "Temperatures cannot be changed in an export. Fit them with the torch backend, then export again."
        )
    if options.temperature:
        check_temperatures(model_spec.answer_type, labelled, config.faithful)
    return replace(options, policies=names)


def _calibrate(
    folder: Path,
    runner: Runner,
    trace: Trace,
    guarantee: Guarantee,
    options: CalibrationOptions,
    data: CalibrationRows,
    announce: Callable[[str], None],
) -> CalibrationResult:
    choice = choose(trace, guarantee, options, data.described_origin)
    policy, sentence = choice.policy, choice.evidence["sentence"]
    failed = policy is None and bool(choice.evidence.get("tested")) and choice.temperatures is None
    withdrawn = failed and data.are_fresh and is_refuted(runner, guarantee, choice.trace)
    sentence = " ".join([sentence, *([WITHDRAWN] if withdrawn else notes_on(runner, trace.kept is not None))])
    evidence = build_evidence(choice.evidence | {"sentence": sentence}, policy, choice.trace)
    evidence["temperatures"] = None if choice.temperatures is None else choice.temperatures.tolist()
    if policy is not None:
        warn_about_constant(evidence)
        announce(evidence["sentence"])
        write_calibration(folder, runner, policy, evidence, choice.temperatures)
    elif withdrawn:
        announce(evidence["sentence"])
        withdraw_guarantee(folder, runner, json.dumps(evidence, indent=1, ensure_ascii=False) + "\n")
    return CalibrationResult(policy, evidence["sentence"], evidence, withdrawn)


def notes_on(runner: Runner, has_gates: bool) -> list[str]:
    """Return sentences that follow a guarantee, depending on the precision and the gates of a model."""
    return [*([DYNAMIC] if runner.dtype == "int8-dynamic" else []), *([GATED] if has_gates else [])]


def warn_about_constant(evidence: dict[str, Any]) -> None:
    """Warn if a constant prediction would satisfy the overall guarantee."""
    if constant := evidence.get("constant"):
        logger.warning(
            "Predicting %s for every text would also keep within the overall risk, which therefore says little about "
            "the other classes. See the table per class.",
            constant,
        )


def build_evidence(
    choice: dict[str, Any], policy: Policy | None, trace: Trace, model_name: str | None = None
) -> dict[str, Any]:
    """Return the content of calibration.json; `model_name` replaces the name of a model that is still being written."""
    model = trace.about["model"] | ({} if model_name is None else {"name": model_name})
    return choice | {
        "policy": None if policy is None else str(policy),
        "rows": len(trace),
        "seed": SEED,
        "temperatures": None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{key: trace.about[key] for key in ("offramp", "data", "machine")},
        "model": model,
    }


def _default_policy(config: AdaptiveConfig) -> str:
    """Return the model's own policy if it has a grid of settings, else the first that fits."""
    fits = applicable_policies(config.model_spec)
    return config.exit_policy.name if config.exit_policy.name in fits else fits[0]


def write_calibration(
    folder: Path,
    runner: Runner,
    policy: Policy,
    evidence: dict[str, Any],
    temperatures: NDArray[np.float64] | None,
) -> None:
    """Write the evidence, config and model card, all or none; the loaded `runner` stays unchanged."""
    config, evidence_json = bind_policy(runner, policy, evidence, temperatures)
    if RUNTIMES[runner.backend].runs_graphs:
        save_policy(folder, runner.backend, config, evidence_json)
        return
    replace_files(
        card.new_card(config, folder)
        | {folder / "config.json": config.to_json_string(), folder / card.EVIDENCE: evidence_json}
    )


def bind_policy(
    runner: Runner, policy: Policy, evidence: dict[str, Any], temperatures: NDArray[np.float64] | None = None
) -> tuple[AdaptiveConfig, str]:
    """Return a config with the policy and its guarantee, and the evidence as JSON."""
    config = copy.deepcopy(runner.config)
    if temperatures is not None:
        specs = [
            replace(spec, temperature=float(f"{spec.temperature * temperature:.6g}"))
            for spec, temperature in zip(config.exit_specs, temperatures, strict=True)
        ]
        config.exits = [spec.to_dict() for spec in specs]
    config.max_tokens = runner.limit
    tested = replace(runner, config=config, max_length=None)  # with the new temperatures and length
    evidence["model"] = evidence["model"] | {"fingerprint": tested.fingerprint}
    guarantees.bind(config, policy, evidence, tested.fingerprint)
    return config, json.dumps(evidence, indent=1, ensure_ascii=False) + "\n"
