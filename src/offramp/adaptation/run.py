"""`adapt(model, texts, …)`: exits that imitate the model, the quickest of them, and a guarantee about its answers."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offramp.adaptation.choosing import choose
from offramp.adaptation.learning import learn
from offramp.adaptation.plan import AdaptOptions, NoGuarantee, Plan
from offramp.adaptation.reporting import report
from offramp.adaptation.texts import Parts, split_texts
from offramp.adaptation.work import work_beside
from offramp.calibration.choice import AUTO, policies_for
from offramp.calibration.risk_model import with_placeholder_risk_model
from offramp.calibration.risks import Guarantee
from offramp.calibration.tuning.threshold_grids import TUNABLE
from offramp.data.given import Given
from offramp.errors import BadInput, BadValue, OfframpError
from offramp.evaluation.traces.about import of_data
from offramp.files.writing import check_free, staged_folder
from offramp.model.adaptive import AdaptiveModel
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES
from offramp.runtimes.loading import load
from offramp.training.holdout import read_hashes
from offramp.training.imitation.original import with_new_exits
from offramp.training.imitation.teacher import called

__all__ = ["AdaptOptions", "Adapted", "adapt"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class Adapted:
    """What came of it; without layers nothing was written."""

    layers: tuple[int, ...]
    sentence: str
    measured: str = ""
    speedup: float | None = None


def adapt(name: str, given: Given, guarantee: Guarantee, options: AdaptOptions) -> Adapted:
    """Make a faster model of a fine-tuned one and texts; no labels are needed."""
    output = Path(options.output)
    _check_place(output, name, given, options.overwrite)
    torch.manual_seed(options.imitation.seed)  # the heads begin as they are drawn
    model = with_new_exits(name, options.exits)
    _check(model, guarantee, options)
    cut = _cut_shorter(model, options.max_length)
    guarantee = replace(guarantee, reference=called(name), frozen=True)
    roles = read_hashes(Path(name))
    seen = np.concatenate([roles[role] for role in ("train", "dev") if role in roles] or [np.empty(0, np.uint64)])
    parts = split_texts(_read(given, model), guarantee, seen)
    model.config.inputs = _columns(model, parts, given)
    logger.info("%s.", parts.told()[0].upper() + parts.told()[1:])
    work = work_beside(output, _about(model, parts, options), options.resume, options.overwrite)
    try:
        with staged_folder(output, options.overwrite) as new:
            made = _run(Plan(name, model, parts, guarantee, options, work, new, roles, cut))
    except NoGuarantee as no:
        made = Adapted((), str(no))
    except OfframpError:
        if not options.resume:
            work.remove()
        raise
    work.remove()
    return made


def _run(plan: Plan) -> Adapted:
    """Learn, choose, report."""
    learn(plan)
    choice = choose(plan)
    runner = load(plan.new, plan.options.tuning.backend, threads=plan.options.tuning.threads)
    assert runner.config.calibrated is not None
    measured = report(plan, choice, runner)
    return Adapted(choice.layers, runner.config.calibrated["sentence"], measured.sentence, measured.speedup)


def _check_place(output: Path, name: str, given: Given, overwrite: bool) -> None:
    """Nothing that the run reads may lie where it writes."""
    read = [("the model", Path(name)), *([] if given.in_memory else [("the texts", Path(given.source.file))])]
    for what, file in read:
        if file.exists() and file.resolve().is_relative_to(output.resolve()):
            raise BadValue(
                f"{output} holds {what} that the run reads, which stays; name another folder with `output=`."
            )
    check_free(output, overwrite)


def _check(model: AdaptiveModel, guarantee: Guarantee, options: AdaptOptions) -> None:
    """Whatever is wrong with the options is said before anything is computed."""
    guarantee.check(model.config.answer_type, labelled=False)
    policy, backend = options.tuning.policy, options.tuning.backend
    if policy not in (AUTO, *TUNABLE):
        raise BadValue(f"Exits are chosen for a policy by threshold ({', '.join(TUNABLE)}), not for {policy!r}.")
    for one in policies_for(policy, model.config.model_spec):
        grid(one, with_placeholder_risk_model(model.config.model_spec))  # says what is wrong with it
    RUNTIMES[backend].check_scales(options.int8)


def _cut_shorter(model: AdaptiveModel, asked: int | None) -> int | None:
    """Let texts be cut as asked for; the tokens, where that is shorter than the model itself cuts them."""
    own = model.runner().limit
    if asked is None:
        return None
    model.config.max_tokens = asked
    return asked if model.runner().limit < own else None  # a runner says what is wrong with it


def _read(given: Given, model: AdaptiveModel) -> list[Any]:
    """The texts; labels that stand beside them are not used."""
    if given.source.file == "-" and not given.in_memory:
        raise BadInput("The texts are read into three parts; write them into a file instead of standard input.")
    if given.labels is not None or "label" in (given.columns() or []):
        logger.warning("%s has labels, which are not used: the model's own answers are what is kept.", given.name)
    texts = list(given.read(model.config.inputs))
    if not texts:
        raise BadInput(f"{given.name} holds no text.")
    return texts


def _columns(model: AdaptiveModel, parts: Parts, given: Given) -> list[str]:
    """What the text, or the two texts of a pair, are called; what the model was not trained on is refused."""
    pairs = not isinstance(parts.training[0], str)
    if model.config.reads_pairs not in (None, pairs):
        ours, theirs = ("pairs", "single texts") if pairs else ("single texts", "pairs")
        raise BadInput(f"{given.name} holds {ours}, and the model was trained on {theirs}.")
    if model.config.inputs is not None:
        return list(model.config.inputs)
    return [given.source.text_column or "text", *([given.source.pair_column or "pair"] if pairs else [])]


def _about(model: AdaptiveModel, parts: Parts, options: AdaptOptions) -> dict[str, Any]:
    """What a run that is resumed has to have in common with the one that was interrupted."""
    settings = {"exits": asdict(options.exits), "imitation": asdict(options.imitation), "length": options.max_length}
    each = {"training": parts.training, "choice": parts.choice, "test": parts.test}
    texts = {name: of_data(some, None, None) for name, some in each.items()}
    return {"model": model.runner().fingerprint, "texts": texts, **settings}
