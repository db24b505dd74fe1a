"""Policies that see groups: all rows of an example exit together, live as replayed, in whatever batch they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.core.batch import Batch
from offramp.core.chunks import chunks
from offramp.core.loop import every_exit, run
from offramp.policies import Entropy, Policy
from offramp.runtimes.replay import Replay
from tests.core.test_equalities import tiny
from tests.tiny import random_batch


@dataclass(frozen=True)
class WholeGroup(Policy):
    """Exit once the surest row of the example is sure enough: what only somebody who sees the group can say."""

    name: ClassVar[str] = "whole-group"
    example: ClassVar[str] = "whole-group:0.8"
    sees_groups: ClassVar[bool] = True
    threshold: float = 0.8

    def step(self, said, memory):
        sure = said.answer_type.confidence(said.logits.float())
        best = torch.zeros(int(said.group.max()) + 1).scatter_reduce(0, said.group, sure, "amax")
        return best[said.group] >= self.threshold, {}


def grouped(rows: int, seed: int, groups: int) -> Batch:
    given = Batch.of_tensors(**random_batch(rows, seed))
    group = np.sort(np.random.default_rng(seed).integers(0, groups, rows))
    return Batch(given.ids, given.mask, given.types, given.lengths, group, None)


def some_rows(batch: Batch, rows: np.ndarray) -> Batch:
    parts = {"ids": batch.ids, "mask": batch.mask, "types": batch.types}
    return Batch(**{k: v[rows] for k, v in parts.items()}, lengths=batch.lengths[rows], group=batch.group[rows])


@given(seed=st.integers(0, 500), groups=st.integers(2, 5))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_a_group_exits_together_and_replayed_is_live(encoders, seed, groups):
    model, batch = tiny(encoders["bert"], "all"), grouped(9, seed, groups)
    with torch.no_grad():
        every = every_exit(model.stepper, batch)
        sure = torch.stack([one.answer_type.confidence(one.logits) for one in every[:-1]])
        policy = WholeGroup(float(sure.median()))
        live, replayed = run(model.stepper, batch, policy), run(Replay(every), batch, policy)
    assert live.exit.tolist() == replayed.exit.tolist()
    for group in np.unique(batch.group):
        assert len(set(live.exit[torch.from_numpy(batch.group == group)].tolist())) == 1


@given(seed=st.integers(0, 500))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_a_groups_exit_does_not_depend_on_the_groups_beside_it(encoders, seed):
    model, batch = tiny(encoders["bert"], "all"), grouped(8, seed, 3)
    policy = WholeGroup(0.5)
    with torch.no_grad():
        together = run(model.stepper, batch, policy)
        for group in np.unique(batch.group):
            rows = np.flatnonzero(batch.group == group)
            alone = run(model.stepper, some_rows(batch, rows), policy)
            assert alone.exit.tolist() == together.exit[rows].tolist()


@pytest.mark.parametrize("budget", [1, 16, 40, 1000])
def test_batches_never_cut_a_group_where_a_policy_looks_at_it(budget):
    from offramp.answers import SPAN
    from tests.questions import contexts_and_questions
    from tests.tiny import tokenizer

    pairs = [(question, context) for question, context, _, _ in contexts_and_questions(12)]
    encoder = SPAN.encoder(tokenizer(), 20)
    (chunk,) = chunks(encoder, pairs, budget, torch.device("cpu"), progress=False, together=True)
    batches = list(chunk.batches())
    groups = [set(batch.group.tolist()) for batch in batches]
    assert max(len(np.flatnonzero(chunk.rows.group == 0)) for _ in (0,)) >= 1 and len(chunk.rows) > len(pairs)
    assert sum(map(len, groups)) == len(pairs)  # none is in two batches
    assert sorted(np.concatenate([batch.group for batch in batches]).tolist()) == chunk.rows.group.tolist()


def test_without_groups_a_row_is_its_own(encoders):
    model = tiny(encoders["bert"], "all")
    batch = Batch.of_tensors(**random_batch(6, 3))
    with torch.no_grad():
        every = every_exit(model.stepper, batch)
        sure = torch.stack([one.answer_type.confidence(one.logits) for one in every[:-1]])
        policy = WholeGroup(float(sure.median()))
        expected = [next(i for i in range(1, 5) if i == 4 or sure[i - 1, row] >= policy.threshold) for row in range(6)]
        assert run(model.stepper, batch, policy).exit.tolist() == expected
        assert len(set(run(model.stepper, batch, Entropy(0.0)).exit.tolist())) == 1
