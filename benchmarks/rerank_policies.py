"""A fixed schedule of survivors: at every exit the same number of documents stays, for a predictable cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import ClassVar

from torch import Tensor

from offramp.core.stepper import ExitOutput
from offramp.evaluation.traces.trace import Trace
from offramp.policies.policy import Memory, Policy
from offramp.policies.top_k import kth_best

__all__ = ["Schedule", "schedules"]

SHARES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)  # survivors, relative to the top k


@dataclass(frozen=True)
class Schedule(Policy):
    """The documents whose estimates are not among the `survivors` best of their query exit, one number per exit."""

    name: ClassVar[str] = "schedule"
    example: ClassVar[str] = "schedule"
    sees_groups: ClassVar[bool] = True
    survivors: tuple[int, ...] = ()

    def step(self, output: ExitOutput, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Compare the documents of each query."""
        assert output.group is not None
        scores = output.answer_type.choice(output.logits.float())[:, 0]
        return scores < kth_best(scores, output.group, self.survivors[output.exit - 1]), {}


def schedules(trace: Trace, candidates: int, top_k: int) -> Iterator[tuple[tuple[int, ...], Schedule]]:
    """Yield sets of at most two early exits with decreasing numbers of survivors."""
    last = len(trace.points) - 1
    counts = sorted({round(share * top_k) for share in SHARES if share * top_k < candidates}, reverse=True)
    for number in (1, 2):
        for early in combinations(range(last), number):
            for survivors in combinations_with_replacement(counts, number):
                yield (*early, last), Schedule(tuple(survivors))
