"""`adapt(model, texts, …)`: exits that imitate the model, the fastest of them, and a guarantee about predictions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging as hf_logging

from offramp.adaptation.exit_selection import select_exits
from offramp.adaptation.exit_training import train_exits
from offramp.adaptation.plan import AdaptOptions, AdaptPlan, NoGuarantee
from offramp.adaptation.reporting import write_report
from offramp.adaptation.texts import TextSplits, UserTexts, split_texts
from offramp.adaptation.work_folder import open_work_folder
from offramp.answers import answer_type_of_inputs
from offramp.calibration.choice import AUTO, policies_for
from offramp.calibration.ledger import Ledger, TestRecord
from offramp.calibration.placeholders import with_placeholders
from offramp.calibration.risks import Guarantee
from offramp.calibration.tuning.threshold_grids import GROUPED, TUNABLE
from offramp.data.hashes import normalizer
from offramp.data.input_data import InputData, check_exists
from offramp.errors import BadInput, BadValue, OfframpError
from offramp.evaluation.traces.about import data_fingerprint
from offramp.files.lock import locked
from offramp.files.writing import check_output_path, staged_folder
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES
from offramp.runtimes.loading import load, resolve_device
from offramp.training.holdout import TRAIN_NORMALIZED, read_hashes
from offramp.training.imitation.new_exits import load_with_new_exits
from offramp.training.imitation.teacher import short_name

__all__ = ["AdaptOptions", "AdaptOutcome", "adapt"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class AdaptOutcome:
    """The exit layers, the guarantee and the speed; without layers nothing was written, and `sentence` says why."""

    layers: tuple[int, ...]
    sentence: str
    measured: str = ""
    speedup: float | None = None
    speedup_over_int8: float | None = None
    evidence: dict[str, Any] | None = None


def adapt(name: str, data: InputData, guarantee: Guarantee, options: AdaptOptions) -> AdaptOutcome:
    """Make a faster model from a fine-tuned model and texts without labels."""
    output = Path(options.output)
    _check_output(output, name, data, options.overwrite)
    with locked(output.resolve()), _without_progress_bars():
        return _adapt(name, data, guarantee, options, output)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Turn off the progress bars of transformers, which would mix with the steps."""
    enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            hf_logging.enable_progress_bar()


def _adapt(name: str, data: InputData, guarantee: Guarantee, options: AdaptOptions, output: Path) -> AdaptOutcome:
    torch.manual_seed(options.imitation.seed)  # before the heads are initialized
    device = resolve_device(options.device, options.tuning.backend)
    model = load_with_new_exits(name, _exit_options(data, options)).to(device)
    config = model.config
    guarantee = guarantee.for_model(config.answer_type, config.labels, config.answer_options)
    _check_options(model, guarantee, options)
    truncated_to = _set_max_length(model, options.max_length)
    guarantee = replace(guarantee, reference=short_name(name), frozen=True)
    texts = _read_texts(data, model, options.group_column)
    if texts.groups is not None:
        guarantee = replace(guarantee, group=options.group_column or "group", test="auto")
    hashes = read_hashes(Path(name))
    known = [hashes[role] for role in ("train", "dev", TRAIN_NORMALIZED) if role in hashes]
    ledger = Ledger.find(output, options.ledger)
    splits = split_texts(texts, guarantee, np.concatenate([*known, np.empty(0, np.uint64)]), ledger.records)
    model.config.inputs = _input_columns(model, splits, data)
    logger.info("%s.\n%s", splits.describe(), _describe_length(model, splits))
    work = open_work_folder(output, _describe_run(model, splits, options), options.resume, options.overwrite)
    try:
        with staged_folder(output, options.overwrite) as new:
            plan = AdaptPlan(
                name, model, splits, guarantee, options, work, new, hashes, truncated_to, tuple(ledger.records)
            )
            outcome = _run(plan)
            ledger.record(TestRecord.of(guarantee, True, splits.keys), new)
        ledger.clean_up()
    except NoGuarantee as err:
        outcome = AdaptOutcome((), str(err))
        if err.tested:
            file = ledger.record(TestRecord.of(guarantee, False, splits.keys))
            recorded = (
                f"The {len(splits.test):,} tested {splits.noun} are recorded in {file}: a new run with the same "
                "`output=` takes others."
            )
            outcome = AdaptOutcome((), f"{err} {recorded}")
    except OfframpError:
        if not options.resume:
            work.remove()
        raise
    work.remove()
    return outcome


def _exit_options(data: InputData, options: AdaptOptions) -> ExitOptions:
    """Return the options of the exits, with the answer type that the examples imply."""
    check_exists(data)
    answer_type = answer_type_of_inputs(data.inputs)
    if answer_type is None:
        return options.exits
    return replace(options.exits, problem_type=answer_type.name, answer_options=options.answer_options)


def _run(plan: AdaptPlan) -> AdaptOutcome:
    train_exits(plan)
    selection = select_exits(plan)
    tuning, options = plan.options.tuning, plan.options
    device = options.device if tuning.backend == "torch" else None
    runner = load(plan.new_folder, tuning.backend, device=device, threads=tuning.threads)
    assert runner.config.calibrated is not None
    measured = write_report(plan, selection, runner)
    sentence = runner.config.calibrated["sentence"]
    speed = (measured.text, measured.speedup, measured.over_int8)
    return AdaptOutcome(selection.layers, sentence, *speed, selection.evidence)


def _check_output(output: Path, name: str, data: InputData, overwrite: bool) -> None:
    """Raise if the output contains an input of the run, or must not be overwritten."""
    inputs = [("the model", Path(name)), *([] if data.in_memory else [("the texts", Path(data.source.file))])]
    for what, path in inputs:
        if path.exists() and path.resolve().is_relative_to(output.resolve()):
            raise BadValue(f"{output} contains {what} to adapt; choose another folder with `output=`.")
        if path.is_dir() and output.resolve().is_relative_to(path.resolve()):
            raise BadValue(f"{output} lies in the folder of {what}; choose another folder with `output=`.")
    check_output_path(output, overwrite)


def _check_options(model: AdaptiveModel, guarantee: Guarantee, options: AdaptOptions) -> None:
    """Raise if the options do not fit the model, before anything is computed."""
    if model.config.answer_type.needs_tolerance and guarantee.tolerance is None:
        raise BadValue(
            f"{model.name_or_path} has one output. If it is a reranker, give queries with lists of documents "
            "(`query` and `documents`). If it is a regression, set `tolerance=`: the largest difference that still "
            "counts as equal."
        )
    guarantee.check(model.config.answer_type, False, model.config.labels)
    policy, backend = options.tuning.policy, options.tuning.backend
    if policy not in (AUTO, *TUNABLE, *GROUPED):
        raise BadValue(f"`policy` must be one of {', '.join((AUTO, *TUNABLE))}, got {policy!r}.")
    for policy_name in policies_for(policy, model.config.model_spec):
        grid(policy_name, with_placeholders(model.config.model_spec))  # raises if it does not fit
    RUNTIMES[backend].check_scales(options.int8)


def _set_max_length(model: AdaptiveModel, max_length: int | None) -> int | None:
    """Set the model's maximum length; return it if it is shorter than the model's own."""
    own_limit = model.runner().limit
    if max_length is None:
        return None
    model.config.max_tokens = max_length
    return max_length if model.runner().limit < own_limit else None  # the runner raises if it is invalid


def _describe_length(model: AdaptiveModel, splits: TextSplits) -> str:
    """Return a sentence with the maximum length and the number of texts that are truncated."""
    runner, texts = model.runner(), [*splits.training, *splits.selection, *splits.test]
    truncated = sum(chunk.rows.truncated for chunk in runner.chunks(texts, quiet=True, title="Counting tokens"))
    limit = f"The maximum length is {runner.limit:,} tokens"
    answer_type = model.config.answer_type
    if not truncated:
        return f"{limit}; no {answer_type.input_name} is longer."
    count = answer_type.describe_truncated(truncated, len(texts), runner.limit)
    return f"{limit} (set it with `max_length=` if the model was trained with another). {count}"


def _read_texts(data: InputData, model: AdaptiveModel, group_column: str | None) -> UserTexts:
    """Return the texts; labels are ignored."""
    if data.source.file == "-" and not data.in_memory:
        raise BadInput("`adapt` cannot read standard input; write the input to a file.")
    if data.labels is not None or "label" in (data.columns() or []):
        logger.warning("%s has labels, which are ignored: adapt preserves the model's own predictions.", data.name)
    texts, groups = data.read_with_groups(model.config.inputs, group_column)
    if not texts:
        raise BadInput(f"{data.name} contains no {model.config.answer_type.input_names}.")
    answer_type = model.config.answer_type
    return UserTexts(texts, groups, normalizer(model.tokenizer), answer_type.identify, answer_type.input_names)


def _input_columns(model: AdaptiveModel, splits: TextSplits, data: InputData) -> list[str]:
    """Return the names of the text columns; raise if the model expects pairs and gets single texts, or vice versa."""
    pairs = not isinstance(splits.training[0], str) and not model.config.answer_type.has_windows
    if model.config.reads_pairs not in (None, pairs):
        actual, expected = ("pairs", "single texts") if pairs else ("single texts", "pairs")
        raise BadInput(f"{data.name} contains {actual}, but the model was trained on {expected}.")
    if model.config.inputs is not None:
        return list(model.config.inputs)
    return [data.source.text_column or "text", *([data.source.pair_column or "pair"] if pairs else [])]


def _describe_run(model: AdaptiveModel, splits: TextSplits, options: AdaptOptions) -> dict[str, Any]:
    """Return what must be the same when an interrupted run is resumed."""
    settings = {"exits": asdict(options.exits), "imitation": asdict(options.imitation), "length": options.max_length}
    texts = {"training": splits.training, "choice": splits.selection, "test": splits.test}
    fingerprints = {name: data_fingerprint(split, None, None) for name, split in texts.items()}
    return {"model": model.runner().fingerprint, "texts": fingerprints, **settings}
