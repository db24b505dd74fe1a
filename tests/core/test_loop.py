"""Policies with `sees_groups`: all rows of an example exit together, live and replayed, in any batch."""

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
from offramp.core.loop import run, run_all_exits
from offramp.policies import Entropy, Policy
from offramp.runtimes.replay import Replay
from tests.core.test_equalities import tiny
from tests.tiny import random_batch


@dataclass(frozen=True)
class WholeGroup(Policy):
    """Exit when the most confident row of an example reaches the threshold."""

    name: ClassVar[str] = "whole-group"
    example: ClassVar[str] = "whole-group:0.8"
    sees_groups: ClassVar[bool] = True
    threshold: float = 0.8

    def step(self, output, memory):
        confidence = output.answer_type.confidence(output.logits.float())
        best = torch.zeros(int(output.group.max()) + 1).scatter_reduce(0, output.group, confidence, "amax")
        return best[output.group] >= self.threshold, {}


def grouped(rows: int, seed: int, groups: int) -> Batch:
    batch = Batch.from_tensors(**random_batch(rows, seed))
    group = np.sort(np.random.default_rng(seed).integers(0, groups, rows))
    return Batch(batch.ids, batch.mask, batch.types, batch.lengths, group, None)


def select_rows(batch: Batch, rows: np.ndarray) -> Batch:
    parts = {"ids": batch.ids, "mask": batch.mask, "types": batch.types}
    return Batch(**{k: v[rows] for k, v in parts.items()}, lengths=batch.lengths[rows], group=batch.group[rows])


@given(seed=st.integers(0, 500), groups=st.integers(2, 5))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_a_group_exits_together_live_and_replayed(encoders, seed, groups):
    model, batch = tiny(encoders["bert"], "all"), grouped(9, seed, groups)
    with torch.no_grad():
        outputs = run_all_exits(model.stepper, batch)
        confidence = torch.stack([output.answer_type.confidence(output.logits) for output in outputs[:-1]])
        middle = confidence.flatten().sort().values[8:10]  # compacted rows differ in the last bits: no score is close
        policy = WholeGroup(float(middle.mean()))
        live, replayed = run(model.stepper, batch, policy), run(Replay(outputs), batch, policy)
    assert live.exit.tolist() == replayed.exit.tolist()
    for group in np.unique(batch.group):
        assert len(set(live.exit[torch.from_numpy(batch.group == group)].tolist())) == 1


@given(seed=st.integers(0, 500))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_a_groups_exit_does_not_depend_on_other_groups(encoders, seed):
    model, batch = tiny(encoders["bert"], "all"), grouped(8, seed, 3)
    policy = WholeGroup(0.5)
    with torch.no_grad():
        together = run(model.stepper, batch, policy)
        for group in np.unique(batch.group):
            rows = np.flatnonzero(batch.group == group)
            alone = run(model.stepper, select_rows(batch, rows), policy)
            assert alone.exit.tolist() == together.exit[rows].tolist()


@pytest.mark.parametrize("budget", [1, 16, 40, 1000])
def test_batches_never_split_a_group_with_together(budget):
    from offramp.answers import SPAN
    from tests.questions import contexts_and_questions
    from tests.tiny import tokenizer

    pairs = [(question, context) for question, context, _, _ in contexts_and_questions(12)]
    encoder = SPAN.encoder(tokenizer(), 20)
    (chunk,) = chunks(encoder, pairs, budget, torch.device("cpu"), progress=False, together=True)
    batches = list(chunk.batches())
    groups = [set(batch.group.tolist()) for batch in batches]
    assert max(len(np.flatnonzero(chunk.rows.group == 0)) for _ in (0,)) >= 1 and len(chunk.rows) > len(pairs)
    assert sum(map(len, groups)) == len(pairs)  # no group is in two batches
    assert sorted(np.concatenate([batch.group for batch in batches]).tolist()) == chunk.rows.group.tolist()


def test_without_groups_each_row_is_its_own_group(encoders):
    model = tiny(encoders["bert"], "all")
    batch = Batch.from_tensors(**random_batch(6, 3))
    with torch.no_grad():
        outputs = run_all_exits(model.stepper, batch)
        confidence = torch.stack([output.answer_type.confidence(output.logits) for output in outputs[:-1]])
        middle = confidence.flatten().sort().values[8:10]  # compacted rows differ in the last bits: no score is close
        policy = WholeGroup(float(middle.mean()))
        expected = [
            next(i for i in range(1, 5) if i == 4 or confidence[i - 1, row] >= policy.threshold) for row in range(6)
        ]
        assert run(model.stepper, batch, policy).exit.tolist() == expected
        assert len(set(run(model.stepper, batch, Entropy(0.0)).exit.tolist())) == 1
