"""The loop's step: flights that are joined at an exit land where they would have landed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.core.loop import collect, every_exit, join, run, start, step
from offramp.runtimes.replay import Replay
from tests.test_equalities import CLOSE, policies_for, tiny
from tests.tiny import FAMILY_NAMES, random_batch


def joined(stepper, batches, policy, at):
    """Batches that start alone and go on together behind exit `at`, as one answer in the order of their rows."""
    flights, landed, first = [], [], 0
    for batch in batches:
        rows = np.arange(first, first + len(batch["input_ids"]))
        flights.append(start(stepper, batch, rows))
        first += len(rows)
    for point in stepper.exits:
        is_last = point == stepper.exits[-1]
        if not is_last and not policy.listens(point):
            continue
        steps = [step(stepper, flight, point, policy, is_last) for flight in flights]
        flights = [flight for flight, _ in steps if flight is not None]
        landed += [group for _, group in steps if group is not None]
        if point.number >= at and len(flights) > 1:
            flights = [join(stepper, flights)]
    return collect(landed)


@pytest.mark.parametrize("family", FAMILY_NAMES)
@given(seed=st.integers(0, 1000), share=st.floats(0.2, 0.8), at=st.integers(1, 3))
@settings(max_examples=3, deadline=None, derandomize=True)
def test_joining_changes_nothing(family, encoders, seed, share, at):
    model = tiny(encoders[family], "all")
    batches = [random_batch(3, seed, longest=12), random_batch(4, seed + 1, longest=7), random_batch(2, seed + 2, 5)]
    together = 0
    for policy in policies_for(model, batches[0], share):
        with torch.no_grad():
            alone = [run(model.stepper, batch, policy) for batch in batches]
            found = joined(model.stepper, batches, policy, at)
        assert found.exit.tolist() == [int(number) for answered in alone for number in answered.exit], policy
        torch.testing.assert_close(found.logits, torch.cat([answered.logits for answered in alone]), **CLOSE)
        together += sum(int((answered.exit > at).any()) > 0 for answered in alone) > 1
    assert together  # or nobody was left to be joined


def test_replayed_flights_can_be_joined_too(encoders):
    model = tiny(encoders["bert"], "all")
    batches = [random_batch(3, 1), random_batch(4, 2)]
    with torch.no_grad():
        alone = [every_exit(model.stepper, batch) for batch in batches]
        policy = policies_for(model, batches[0], 0.5)[3]
        expected = [run(Replay(every), batch, policy) for every, batch in zip(alone, batches, strict=True)]
    pairs = zip(*alone, strict=True)
    both = Replay([replace(a, logits=torch.cat([a.logits, b.logits])) for a, b in pairs])
    flights = [start(both, {}, np.arange(7))]
    halves = [type(flights[0])(flights[0].state[rows], np.arange(7)[rows]) for rows in (slice(0, 3), slice(3, 7))]
    first = both.exits[0]
    steps = [step(both, half, first, policy) for half in halves]
    flight, landed = join(both, [one for one, _ in steps if one is not None]), [group for _, group in steps if group]
    for point in both.exits[1:]:
        if flight is not None:
            flight, group = step(both, flight, point, policy, point == both.exits[-1])
            landed += [group] if group is not None else []
    assert collect(landed).exit.tolist() == [int(number) for one in expected for number in one.exit]
