"""Stage 1: early exits learn to answer as the last one does, from the encoder's states."""

from __future__ import annotations

import logging
import time

from tqdm import tqdm

from offramp.adaptation.plan import Plan
from offramp.errors import BadInput
from offramp.training.imitation.heads import imitate
from offramp.training.imitation.states import States, record_states

__all__ = ["learn"]

logger = logging.getLogger("offramp")


def learn(plan: Plan) -> None:
    """Train the early exits of the plan's model; what an interrupted run has done is not done again."""
    states = _states(plan)
    _check_answers(plan, states)
    _heads(plan, states)


def _states(plan: Plan) -> States:
    states = plan.work.states()
    if states is None:
        logger.info("The encoder of %s reads the texts to learn from, once.", plan.name)
        states = record_states(plan.model, plan.parts.training, plan.work.folder)
        plan.work.keep_states(states)
    return states


def _check_answers(plan: Plan, states: States) -> None:
    """Refuse a model that says the same about everything."""
    config = plan.model.config
    answers = config.answer_type.answers(states.teacher.numpy())
    if config.answer_type.is_constant(answers):
        answer = config.answer_type.format(answers[0], config.labels)
        raise BadInput(f"{plan.name} answers all texts with {answer}: there is nothing to tell apart.")


def _heads(plan: Plan, states: States) -> None:
    model = plan.model
    heads = [model.exits.at(point) for point in model.exits.points[:-1]]
    kept = plan.work.heads()
    if kept is None:
        began = time.monotonic()
        with tqdm(total=100, unit=" %", desc="exits", delay=2, leave=False, disable=None) as bar:

            def tell(share: float, loss: float) -> None:
                bar.update(int(100 * share) - bar.n)

            epochs = imitate(heads, states, model.config.answer_type, plan.options.imitation, tell)
        seconds = time.monotonic() - began
        logger.info("%d exits learnt from its answers: %.1f epochs, %.0f s.", len(heads), epochs, seconds)
        last = f"{model.config.num_layers}."
        kept = {key: value for key, value in model.exits.state_dict().items() if not key.startswith(last)}
        plan.work.keep_heads(kept)
    model.exits.load_state_dict(kept, strict=False)  # the last exit is the model's own
