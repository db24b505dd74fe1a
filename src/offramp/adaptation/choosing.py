"""Stage 2: which exits are kept, by what they cost on this machine, and a guarantee on texts that nothing else used."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from offramp.adaptation.folder import write_model
from offramp.adaptation.plan import NoGuarantee, Plan
from offramp.adaptation.possible import possible
from offramp.calibration.choice import CalibrationOptions, choose_with_guarantee, policies_for
from offramp.calibration.risk_model import with_placeholder_risk_model
from offramp.calibration.run import bound, whole_evidence
from offramp.calibration.tuning.choosing import at_more_risk, candidates, line_of, told, with_risk_model_of
from offramp.calibration.tuning.costs import measure
from offramp.calibration.tuning.search import Candidate
from offramp.evaluation.evaluate import obtain_trace
from offramp.evaluation.traces.trace import Trace
from offramp.exports.options import ExportOptions, Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.policies.grids import grid
from offramp.runtimes import RUNTIMES
from offramp.training.imitation.original import cut_to

__all__ = ["Choice", "choose"]

logger = logging.getLogger("offramp")

LEAST = 1.02  # times fewer layers: what saves less saves nothing
SCALES, CHECKED, TIMED = 256, 512, 512


@dataclass(frozen=True)
class Choice:
    """The exits that were kept, and every exit's answers to the texts that the guarantee was tested on."""

    layers: tuple[int, ...]
    trace: Trace


def choose(plan: Plan) -> Choice:
    """Write the model with the quickest exits and its guarantee; `NoGuarantee` where nothing is saved."""
    return _exported(plan) if RUNTIMES[plan.options.tuning.backend].runs_graphs else _in_torch(plan)


def _in_torch(plan: Plan) -> Choice:
    tuning, data, points = plan.options.tuning, plan.rows(plan.parts.choice), plan.model.exits.points
    if tuning.threads is not None:
        torch.set_num_threads(tuning.threads)
    runner = plan.model.runner()
    trace = obtain_trace(runner, data, plan.trace_file("choice"))
    policy = grid(policies_for(tuning.policy, trace.model_spec)[0], with_placeholder_risk_model(trace.model_spec))[0]
    costs = measure(runner, runner.stepper, data.rows.texts[:TIMED], tuning.batch, policy)
    early = range(len(points) - 1)
    sets = candidates(trace, plan.guarantee, costs, tuning, early)
    layers = [point.layer for point in points]
    logger.info("%s", "\n".join([told(costs), *(line_of(one, layers) for one in sets[:3])]))
    if not sets:
        raise NoGuarantee(" ".join([_none(plan), *at_more_risk(trace, plan.guarantee, costs, tuning, early)]))
    kept = [points[place].layer for place in sets[0].places]
    return Choice(tuple(kept), _guaranteed(plan, cut_to(plan.model, kept), sets[0]))


def _exported(plan: Plan) -> Choice:
    """The same on an export, whose graphs are written beside the model."""
    from offramp.calibration.tuning.run import cut, found_on, guaranteed_on
    from offramp.exports.exporter import Exporter

    tuning, whole = plan.options.tuning, plan.work.folder / "all"
    options = ExportOptions(tuning.backend, plan.options.int8, force=True, threads=tuning.threads)
    texts = Texts(plan.parts.training[:SCALES], plan.parts.choice[:CHECKED])  # none that the guarantee is tested on
    plan.model.save_pretrained(whole)
    plan.model.name_or_path = str(whole)
    making = Exporter(plan.model, texts, options)
    made = making.make()
    best = found_on(making, made, plan.rows(plan.parts.choice), plan.guarantee, tuning)
    if best is None:
        raise NoGuarantee(_none(plan))
    layers = [plan.model.exits.points[place].layer for place in best.places]
    small = cut_to(plan.model, layers)
    try:
        _guaranteed(plan, small, best)  # of torch, which the folder answers with as well
    except NoGuarantee as no:
        logger.warning("In torch: %s", no)
        write_model(plan, small)
    small.name_or_path = str(plan.new)
    making = Exporter(small, texts, cut(options, made, layers))
    data, called = plan.rows(plan.parts.test), plan.options.output
    tested = guaranteed_on(making, best, data, plan.guarantee, plan.origin, tuning, plan.trace_file("export"), called)
    if tested.policy is None or tested.trace is None:
        raise NoGuarantee(tested.sentence)
    return Choice(tuple(layers), tested.trace)


def _guaranteed(plan: Plan, small: AdaptiveModel, best: Candidate) -> Trace:
    """Test on texts that nothing else used, then write the model with its policy, guarantee and card."""
    runner, data = small.runner(), plan.rows(plan.parts.test)
    trace = obtain_trace(runner, data, plan.trace_file("test"))
    judged = with_risk_model_of(trace, best.policy)
    policy, choice = choose_with_guarantee(judged, plan.guarantee, CalibrationOptions((best.policy.name,)), plan.origin)
    if policy is None or (choice["speedup"] is not None and choice["speedup"] < LEAST):
        possibly = possible(judged, plan.guarantee, best.policy.name)
        raise NoGuarantee(f"{choice['sentence']} {possibly} A second try needs other texts to test on.")
    evidence = whole_evidence(choice, policy, judged, plan.options.output)
    config, written = bound(runner, policy, evidence)
    small.config.policy, small.config.calibrated = config.policy, config.calibrated
    small.config.max_tokens = config.max_tokens
    write_model(plan, small, written)
    return trace


def _none(plan: Plan) -> str:
    return f"No exits keep {plan.wish} on the {len(plan.parts.choice):,} texts that they are chosen on."
