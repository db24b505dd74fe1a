"""Steps 1 and 2: train early exits to imitate the last exit, on stored encoder states."""

from __future__ import annotations

import shutil

import numpy as np
from numpy.typing import NDArray

from offramp.adaptation.encoder_export import exported_encoder
from offramp.adaptation.plan import AdaptPlan, NoGuarantee
from offramp.adaptation.texts import TEST_FRACTION
from offramp.errors import BadInput
from offramp.training.imitation.heads import imitate
from offramp.training.imitation.states import States, bytes_per_token, record_states
from offramp.training.imitation.variations import vary

__all__ = ["train_exits"]

MAX_VARIATIONS = 3  # per text
MAX_STATES = 8_000_000_000  # bytes of the states of texts and variations, if a quarter of the free disk is more
TRAINING_ROWS = 24_000  # if an example is many rows
MIN_FLAGGED_SHARE = 0.7  # of the flagged test texts that a guarantee needs; with fewer, training is not started


def train_exits(plan: AdaptPlan) -> None:
    """Train the early exits of the plan's model; steps that an interrupted run has finished are loaded."""
    states = _load_or_record_states(plan)
    _check_predictions(plan, states)
    _check_flagged(plan, states)
    _load_or_train_heads(plan, states)


def _load_or_record_states(plan: AdaptPlan) -> States:
    states = plan.work.load_states()
    if states is None:
        answer_type, seed = plan.model.config.answer_type, plan.options.imitation.seed
        texts = answer_type.training_examples(plan.splits.training, TRAINING_ROWS, seed)
        count = _num_variations(plan)
        more = f" and on {count} variation{'s' if count > 1 else ''} of each" if count else ""
        noun = plan.splits.noun
        plan.log_step(1, f"run {plan.model_name} on the {len(plan.splits.training):,} training {noun}{more}.")
        varied = vary([answer_type.identify(text) for text in texts], count, seed) if count else []
        texts, exported = [*texts, *varied], exported_encoder(plan)
        states = record_states(plan.model, texts, plan.work.folder, quiet=True, exported=exported)
        plan.work.save_states(states)
    return states


def _num_variations(plan: AdaptPlan) -> int:
    """Return the number of variations per text: the option, or as many as the limit of the states' size allows."""
    if plan.model.config.answer_type.multiple_rows:  # an example is not a text
        return 0
    if plan.options.imitation.variations is not None:
        return plan.options.imitation.variations
    chunks = plan.model.runner().chunks(plan.splits.training, progress=False, quiet=True)
    size = bytes_per_token(plan.model) * sum(int(chunk.rows.lengths.sum()) for chunk in chunks)
    limit = min(MAX_STATES, shutil.disk_usage(plan.work.folder).free // 4)
    return min(MAX_VARIATIONS, max(0, limit // max(1, size) - 1))


def _predictions_on_texts(plan: AdaptPlan, states: States) -> NDArray[np.float32]:
    """Return the model's logits for the training texts, without their variations."""
    is_text = slice(None) if plan.model.config.answer_type.multiple_rows else states.rows < len(plan.splits.training)
    logits: NDArray[np.float32] = states.outputs.numpy()[is_text]
    return logits


def _check_predictions(plan: AdaptPlan, states: States) -> None:
    """Raise if the model predicts the same for all texts."""
    config = plan.model.config
    predictions = config.answer_type.answers(_predictions_on_texts(plan, states))
    if config.answer_type.is_constant(predictions):
        prediction = config.answer_type.format(predictions[0], config.labels)
        names = f"{config.answer_type.row_name}s"
        raise BadInput(f"{plan.model_name} predicts {prediction} for all {names}, so there is nothing to learn.")


def _check_flagged(plan: AdaptPlan, states: States) -> None:
    """Raise if a recall or precision is guaranteed, and the test will clearly have too few flagged texts."""
    config, guarantee = plan.model.config, plan.guarantee
    decision = guarantee.decision(config.answer_type, config.labels)
    if decision is None or plan.splits.has_copies:  # the shares of texts and rows differ then
        return
    logits = _predictions_on_texts(plan, states)
    share = float(decision.flagged(config.answer_type.answers(logits), logits).mean())
    for name, value in (("recall", guarantee.recall), ("precision", guarantee.precision)):
        if value is None:
            continue
        needed, expected = guarantee.limit_rows_needed(1 - value), share * len(plan.splits.test)
        if not share:
            raise NoGuarantee(f"{plan.model_name} flags none of the training texts ({decision.name}).")
        if expected < MIN_FLAGGED_SHARE * needed:
            raise NoGuarantee(
                f"{plan.model_name} flags {100 * share:.2g} % of the texts ({decision.name}), which is about "
                f"{expected:.0f} of the {len(plan.splits.test):,} test texts. A {name} of {100 * value:g} % needs at "
                f"least {needed:,} flagged test texts, even without a single error; about "
                f"{needed / share / TEST_FRACTION:,.0f} texts in all."
            )


def _load_or_train_heads(plan: AdaptPlan, states: States) -> None:
    model = plan.model
    heads = [model.exits.at(point) for point in model.exits.points[:-1]]
    weights = plan.work.load_heads()
    if weights is None:
        plan.log_step(2, f"train {len(heads)} early exits to predict what {plan.model_name} predicts.")
        imitate(heads, states, model.config.answer_type, plan.options.imitation)
        last = f"{model.config.num_layers}."
        weights = {key: value for key, value in model.exits.state_dict().items() if not key.startswith(last)}
        plan.work.save_heads(weights)
    model.exits.load_state_dict(weights, strict=False)  # the last exit is already the model's
